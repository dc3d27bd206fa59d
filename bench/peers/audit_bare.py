"""The least that an audit can be: one process that hashes and decodes the files, and follows the digests of logs."""

from __future__ import annotations

import time
import zlib
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
from blake3 import blake3

from bench.peers.sides import run_sides
from bench.workloads import AuditWorkload


def run(workload: AuditWorkload) -> float:
    """Rows of state and logs a second."""
    (seconds,) = run_sides(_side, [(workload.job,)], 1)
    return workload.rows / seconds


def _side(tell: Connection, job: str) -> None:
    started_s = time.perf_counter()
    for file in sorted(Path(job).glob("epoch=*/**/*.parquet")):
        data = file.read_bytes()
        blake3(data).hexdigest()
        table = parquet.ParquetFile(pa.BufferReader(data)).read()
        if "payload" in table.column_names:
            _follow(table.column("payload").to_pylist(), table.column("digest_after").to_pylist())
    tell.send(time.perf_counter() - started_s)


def _follow(payloads: list[bytes], digests: list[int]) -> None:
    before = 0
    for payload, after in zip(payloads, digests, strict=True):
        before = zlib.crc32(payload, before)
        if before != after:
            raise ValueError(f"the digest is {before:08x}, and the log says {after:08x}")

"""The least that a restore can be: a process for each task decodes its files and puts the entries into a dict."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from bench.peers.sides import run_sides
from bench.workloads import RestoreWorkload


def run(workload: RestoreWorkload) -> float:
    """MB a second, until the slower of the processes is through."""
    sides = [(files,) for files in workload.files]
    return workload.mb / max(run_sides(_side, sides, len(sides)))


def _side(tell: Connection, files: tuple[str, ...]) -> None:
    started_s = time.perf_counter()
    state: dict[Any, Any] = {}
    for file in files:
        table = parquet.ParquetFile(pa.BufferReader(Path(file).read_bytes())).read(use_threads=False)
        keys, values = (table.column(name).to_pylist() for name in ("key_int", "value_bytes"))
        state.update(zip(keys, values, strict=True))
    took_s = time.perf_counter() - started_s
    if not state:
        raise ValueError(f"{', '.join(files)} hold no entries")
    tell.send(took_s)

"""Documents of 8 GB, and manifests that claim a billion tasks, are refused quickly, in one line and little memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from backedge.command import main
from backedge.recovery.spark.spark_errors import UnreadableError
from backedge.recovery.stores.documents import sealed
from tests.stores.fuzzing import Fuzzed, judge, plain, read_everything

SPARSE_BYTES = 8 << 30
MEMORY_BYTES_MAX = 64 << 20
A_BILLION = 1_000_000_000


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Fuzzed]:
    """A job; what a test does with it allocates little."""
    job = Fuzzed(tmp_path)
    read_everything(job)  # imports what it needs
    tracemalloc.start()
    try:
        yield job
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BYTES_MAX


def grow(job: Fuzzed, kind: str) -> None:
    for path in job.kinds()[kind]:
        with path.open("r+b") as file:
            file.truncate(SPARSE_BYTES)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["job.json", "chain"])
@pytest.mark.parametrize("command", ["list", "show"])
def test_a_sparse_document_is_refused_without_being_read(
    kind: str, command: str, job: Fuzzed, capsys: pytest.CaptureFixture[str]
):
    grow(job, kind)
    which = [str(job.epochs[-1])] if command == "show" else []
    assert main(["snapshots", command, *which, "--snapshots", str(job.root)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"/{kind}" in line
    assert "has more than" in line


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["job.json", "chain", "manifest", "graph"])
def test_an_audit_refuses_a_sparse_document_without_reading_it(kind: str, job: Fuzzed):
    grow(job, kind)
    with pytest.raises(
        UnreadableError, match=r"has more than (65,536|268,435,456) bytes|is not the manifest of \d+ bytes"
    ):
        judge(job)


@pytest.mark.slow
def test_a_parallelism_of_a_billion_builds_nothing_of_that_size(job: Fuzzed):
    for path in job.kinds()["manifest"]:
        manifest = plain(path.read_bytes())
        manifest["parallelism"] = dict.fromkeys(manifest["parallelism"], A_BILLION)
        path.write_bytes(sealed(manifest, None))
        assert json.loads(path.read_bytes())["parallelism"]
    job.seal_chain()
    outcomes = read_everything(job)
    assert not outcomes["audit consistent"], outcomes

"""`simulate` writes to file sinks: parts are staged, published and removed as in a run, in a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from backedge import CSV, Flow, JsonLines, Parquet, Range, ScheduleError, simulate
from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.file_errors import UnknownTransactionError
from backedge.engine.io.files.file_formats import RehearsedFiles, RehearsedObjects
from backedge.engine.io.files.rolls import Rolls
from backedge.engine.operators.sink import SinkOperator


def halving(sink: Any) -> Flow:
    """Even numbers go round and are halved; odd ones are written."""
    flow = Flow("halving")
    again = flow.loop("again", of=int)
    numbers = flow.read(Range(31, start=1), name="numbers")
    odd, even = numbers.merge(again).split(lambda n: n % 2 == 1, name="parity")
    again.feed(even.rebalance().map(lambda n: n // 2, name="half"))
    odd.write(sink, name="odd")
    return flow


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CSV, JsonLines, Parquet])
def test_records_are_published_once_and_nowhere_else(tmp_path: Path, kind: Any):
    result = simulate(halving(kind(str(tmp_path / "odd"))), seeds=range(8), crashes=3)
    assert len(result.outputs["odd"]) == 30 and result.crashes > 8
    assert not (tmp_path / "odd").exists()


@pytest.mark.slow
def test_files_of_several_cuts_are_rehearsed_and_a_part_that_is_joined_twice_is_found(monkeypatch: pytest.MonkeyPatch):
    joined: list[int] = []
    join = RehearsedFiles.join

    def counted(sink: RehearsedFiles, disk: Disk, parts: Sequence[Path], path: Path) -> None:
        joined.append(len(parts))
        join(sink, disk, parts, path)

    monkeypatch.setattr(RehearsedFiles, "join", counted)
    simulate(halving(JsonLines("odd")), seeds=range(8), crashes=3)
    assert len(joined) > 5 and min(joined) > 1
    monkeypatch.setattr(
        RehearsedFiles, "join", lambda sink, disk, parts, path: join(sink, disk, [*parts, parts[0]], path)
    )
    with pytest.raises(ScheduleError, match="'odd'"):
        simulate(halving(JsonLines("odd")), seeds=range(8), crashes=3)


# -- objects ---------------------------------------------------------------------------------------------------------

OBJECTS = JsonLines("s3://bucket/odd")


@pytest.mark.slow
def test_objects_of_several_cuts_are_published_once_also_by_attempts_after_the_one_that_prepared_them(
    monkeypatch: pytest.MonkeyPatch,
):
    rolls: list[tuple[int, bool]] = []
    publish = Rolls.publish

    def counted(opened: Rolls, line: Sequence[str]) -> None:
        attempt = opened._place.attempt  # pyright: ignore[reportPrivateUsage]
        rolls.append((len(line), f".attempt-{attempt}." not in line[0]))
        publish(opened, line)

    monkeypatch.setattr(Rolls, "publish", counted)
    result = simulate(halving(OBJECTS), seeds=range(16), crashes=3)
    assert len(result.outputs["odd"]) == 30 and result.crashes > 16
    assert sum(count > 1 for count, _ in rolls) > 16 and sum(is_earlier for _, is_earlier in rolls) > 8


@pytest.mark.slow
def test_a_sink_in_an_object_store_that_does_not_roll_is_rehearsed_too():
    described = JsonLines("s3://bucket/odd", roll_bytes=None, roll_s=None)
    assert isinstance(described.rehearse("folder"), RehearsedObjects)
    assert simulate(halving(described), seeds=range(5), crashes=3).crashes


FOUND = (ScheduleError, UnknownTransactionError)


def test_a_commit_that_forgets_the_pieces_that_wait_is_found(monkeypatch: pytest.MonkeyPatch):
    commit = SinkOperator.commit

    def forgets(sink: SinkOperator, names: set[str]) -> None:
        commit(sink, names)
        sink.transactions = {name: kept for name, kept in sink.transactions.items() if name not in names}

    monkeypatch.setattr(SinkOperator, "commit", forgets)
    with pytest.raises(FOUND, match=r"'odd'"):
        simulate(halving(OBJECTS), seeds=range(40), crashes=3)

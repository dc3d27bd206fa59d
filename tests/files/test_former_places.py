"""A run that is resumed with another path of a sink finishes the former place, and loses and doubles nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backedge.engine.io.files.checks import claim_output
from backedge.engine.io.files.file_errors import OutputError, UnknownTransactionError
from backedge.engine.io.files.file_formats import CSV, FileSink, JsonLines
from backedge.engine.io.later_output import LaterOutput
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.orders import Sweep
from backedge.recovery.stores.names import TEMPORARY
from tests.files.opened import (
    SINK,
    batch,
    numbers,
    publish,
    services,
    sink,
    stage,
    swept_by,
    transaction,
    visible,
    writer,
)

CUTS = "cuts"


def opened(folder: Path, path: str, attempt: int, kind: Any = JsonLines, run: str = "5f3a") -> Any:
    """A writer of an attempt of the run, which has claimed the path before."""
    its = services(folder / CUTS, attempt=Attempt(attempt), run=run)
    description: FileSink = kind(str(folder / path))
    operator = sink(description)
    claim_output([(operator, its.place(operator))])
    return writer(description, opened=its)


def swept(folder: Path, path: str, attempt: int, listed: list[str], run: str = "5f3a") -> None:
    services(folder / CUTS, attempt=Attempt(attempt), run=run).sweep(
        sink(JsonLines(str(folder / path))), swept_by(attempt, listed)
    )


@pytest.mark.parametrize("has_stopped", [True, False])
def test_what_the_cut_lists_of_another_path_is_published_there_once(tmp_path: Path, has_stopped: bool):
    before = opened(tmp_path, "a", 1)
    stage(before, batch(1), transaction(1))
    if has_stopped:
        before.commit(transaction(1))
        before.close()
        (file,) = visible(tmp_path / "a")
        (tmp_path / "a" / file).rename(tmp_path / "taken by a consumer")
    for attempt in (2, 3):
        swept(tmp_path, "b", attempt, [transaction(1)])
        later = opened(tmp_path, "b", attempt)
        later.commit(transaction(1))
        later.close()
        assert (visible(tmp_path / "a") == []) == has_stopped
        assert visible(tmp_path / "b") == []
    assert has_stopped or numbers(tmp_path / "a") == [1]


def test_a_cut_may_list_what_waits_in_several_places_and_formats(tmp_path: Path):
    for attempt, path in enumerate(("a", "b", "c"), start=1):
        task = opened(tmp_path, path, attempt, CSV if path == "b" else JsonLines)
        stage(task, batch(attempt), transaction(attempt, attempt))
    last = opened(tmp_path, "c", 4)
    stage(last, batch(4), transaction(4, 4))
    for attempt in (3, 1, 4, 2):
        last.commit(transaction(attempt, attempt))
    last.close()
    assert (numbers(tmp_path / "a"), numbers(tmp_path / "b", CSV), numbers(tmp_path / "c")) == ([1], [2], [3, 4])


def test_leftovers_are_removed_from_the_former_place_too(tmp_path: Path):
    before = opened(tmp_path, "a", 1)
    for epoch in (1, 2):
        stage(before, batch(epoch), transaction(epoch))
    opened(tmp_path, "b", 2)
    swept(tmp_path, "b", 2, [transaction(1)])
    assert [path.name for path in tmp_path.glob("a/_staging/*/*/prepared/*")] == [f"{transaction(1)}.jsonl"]


def test_the_end_of_a_run_publishes_what_dead_tasks_have_left_in_each_place(tmp_path: Path):
    for attempt, path in ((1, "a"), (2, "b")):
        stage(opened(tmp_path, path, attempt), batch(attempt), transaction(attempt, attempt))
    listed = frozenset(transaction(attempt, attempt) for attempt in (1, 2))
    over = Sweep(Attempt(2), True, frozenset(), None, listed, listed, committed=listed)
    services(tmp_path / CUTS, attempt=Attempt(2)).sweep(sink(JsonLines(str(tmp_path / "b"))), over)
    assert (numbers(tmp_path / "a"), numbers(tmp_path / "b")) == ([1], [2])


def test_output_is_replaced_in_the_former_place_too(tmp_path: Path):
    before = opened(tmp_path, "a", 1)
    for epoch in (1, 2):
        publish(before, batch(epoch), transaction(epoch))
    before.close()
    opened(tmp_path, "b", 2)
    its = services(tmp_path / CUTS, attempt=Attempt(2))
    its.withdraw(sink(JsonLines(str(tmp_path / "b"))), LaterOutput(Attempt(2), Epoch(1), Attempt(1), frozenset()))
    assert numbers(tmp_path / "a") == [1]


def test_what_a_process_has_left_that_died_while_it_noted_a_place_names_none(tmp_path: Path):
    before = opened(tmp_path, "a", 1)
    stage(before, batch(1), transaction(1))
    (tmp_path / CUTS / SINK / "places" / f"{TEMPORARY}0123").touch()
    opened(tmp_path, "b", 2).commit(transaction(1))
    assert numbers(tmp_path / "a") == [1]


def test_a_run_that_is_refused_another_place_keeps_its_claim_to_the_former_one(tmp_path: Path):
    before = opened(tmp_path, "a", 1)
    stage(before, batch(1), transaction(1))
    opened(tmp_path / "other", "../taken", 1, run="77aa")
    its = services(tmp_path / CUTS, attempt=Attempt(2))
    sinks = [sink(JsonLines(str(tmp_path / path)), name) for path, name in (("b", SINK), ("taken", "second"))]
    with pytest.raises(OutputError, match="77aa"):
        claim_output([(operator, its.place(operator)) for operator in sinks])
    opened(tmp_path, "b", 2).commit(transaction(1))
    assert numbers(tmp_path / "a") == [1]


def test_a_former_place_that_another_run_has_claimed_since_is_left_alone(tmp_path: Path):
    before = opened(tmp_path, "a", 1)
    stage(before, batch(1), transaction(1))
    (tmp_path / "a" / "_staging" / "owner.json").unlink()
    opened(tmp_path / "other", "../a", 1, run="77aa")
    later = opened(tmp_path, "b", 2)
    with pytest.raises(UnknownTransactionError):
        later.commit(transaction(1))
    swept(tmp_path, "b", 2, [])
    assert list(tmp_path.glob("a/_staging/*/*/prepared/*"))

"""Tables of both formats under simulated schedules: crashes, zombies, aborted epochs, late removals, older cuts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from backedge import DeltaTable, Flow, IcebergTable, Items, Range, ScheduleError, simulate
from backedge.engine.io.lakes.lake_table import LakeStore
from tests.lakes.lakes_by_hand import unmarked

RECORDS = 24


def halving(sink: Any) -> Flow:
    """Even numbers go round and are halved; odd ones are written."""
    flow = Flow("halving")
    again = flow.loop("again", of=int)
    numbers = flow.read(Range(RECORDS + 1, start=1), name="numbers")
    odd, even = numbers.merge(again).split(lambda n: n % 2 == 1, name="parity")
    again.feed(even.rebalance().map(lambda n: n // 2, name="half"))
    odd.map(lambda n: {"n": n}, name="row").write(sink, name="odd")
    return flow


def halved(n: int) -> int:
    return n if n % 2 else halved(n // 2)


def repeating(store: LakeStore) -> LakeStore:
    """Commits twice, as a process does that dies before it has noted the first commit."""
    commit = store.commit

    def committed(*given: Any) -> None:
        for _ in range(2):
            commit(*given)

    store.commit = committed  # type: ignore[method-assign]
    return store


@dataclass(frozen=True)
class RepeatingDelta(DeltaTable):
    def store(self) -> Any:
        return repeating(super().store())


@dataclass(frozen=True)
class RepeatingIceberg(IcebergTable):
    def store(self) -> Any:
        return repeating(super().store())


@dataclass(frozen=True)
class UnmarkedDelta(RepeatingDelta):
    def store(self) -> Any:
        return unmarked(super().store())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "schedules"),
    [
        (RepeatingDelta("rows"), 8),
        (RepeatingIceberg("lake", "shop.rows"), 4),
        pytest.param(RepeatingDelta("rows"), 100, marks=pytest.mark.long),
        pytest.param(RepeatingIceberg("lake", "shop.rows"), 30, marks=pytest.mark.long),
    ],
)
def test_each_row_is_in_the_table_once_under_every_schedule(table: Any, schedules: int):
    result = simulate(halving(table), seeds=range(schedules), crashes=3)
    rows = sorted(row["n"] for row in result.outputs["odd"])
    assert rows == sorted(halved(n) for n in range(1, RECORDS + 1))
    assert result.crashes > schedules and result.restores_with_log > 0 and result.rescaled > 0


def test_records_without_the_same_columns_are_rehearsed_as_they_are():
    flow = Flow("ragged")
    rows = flow.read(Items([{"id": 1}, {"id": 2, "name": None}, {"id": 3, "share": 0.5}]), name="rows")
    rows.write(DeltaTable("rows"), name="out")
    assert len(simulate(flow, seeds=range(1)).outputs["out"]) == 3


@pytest.mark.slow
def test_a_table_without_markers_is_found_out():
    with pytest.raises(ScheduleError, match="has, and should not"):
        simulate(halving(UnmarkedDelta("rows")), seeds=range(8), crashes=3)

"""What hands splits out: all readers are busy until the end, whatever the sizes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from backedge import Collect, Flow, FoundSplits, Items, Source, simulate
from backedge.engine.batches.batch import Batch
from backedge.engine.io.memory import MemoryServices
from backedge.engine.operators.runtime import TaskRuntime
from backedge.engine.state.keyed_state import keyed_entries
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.routing import key_group, task_of_group
from tests.runtime.tasks import encoded

READERS, FILES = 4, 50


class Sized(Items[int]):
    """Splits whose name is their size, all found at once."""

    @property
    def look_s(self) -> float:
        return 1.0

    def find_splits(self, known: Any) -> FoundSplits:
        return FoundSplits(list(map(str, self.records)), is_last=True)

    def size_of(self, split: str) -> int:
        return int(split)


def idle_shares(sizes: list[int]) -> list[float]:
    """How long each reader has nothing to read, as a share of the whole, if a split takes as long as it is large."""
    flow = Flow("sized")
    flow.read(Sized(sizes), name="in", parallelism=READERS).write(Collect(), name="out")
    deployment = expand(flow.plan())
    task = deployment.tasks[TaskId("in.splits", 0)]
    runtime = TaskRuntime(task, deployment, MemoryServices({}))
    runtime.open(None)
    [back] = {channel.edge.name: channel for channel in task.inputs}.values()
    queues: list[list[str]] = [[] for _ in range(READERS)]
    busy, ends = [0] * READERS, [0] * READERS
    emitted = runtime.fire_timers(0)
    while True:
        for record in (record for _, batch in emitted for record in batch.records):
            queues[task_of_group(key_group(record["key"]), READERS)].append(record["split"])
        waiting = [reader for reader in range(READERS) if queues[reader]]
        if not waiting:
            break
        # The reader whose split is the first to be read.
        reader = min(waiting, key=lambda reader: ends[reader] + int(queues[reader][0]))
        split = queues[reader].pop(0)
        busy[reader] += int(split)
        ends[reader] += int(split)
        emitted = runtime.process(back, Batch([{"split": split}]), 0)
    assert runtime.exhausted
    assert sum(busy) == sum(sizes)
    return [1 - share / max(ends) for share in busy]


def drawn(seed: int) -> list[int]:
    """The largest is a hundred times as large as the smallest."""
    rng = random.Random(seed)
    return [int(100 * 100 ** rng.random()) * FILES + number for number in range(FILES)]


@pytest.mark.parametrize("seed", range(5))
def test_all_readers_are_busy_until_the_end_with_files_of_very_different_sizes(seed: int):
    assert max(idle_shares(drawn(seed))) < 0.1


def test_they_are_not_if_large_files_come_last(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Sized, "size_of", lambda self, split: 0)
    assert max(max(idle_shares(drawn(seed))) for seed in range(5)) > 0.1


class Leaving(Items[int]):
    """Two splits, which are gone in each later look."""

    @property
    def look_s(self) -> float:
        return 1.0

    def find_splits(self, known: Any) -> FoundSplits:
        return FoundSplits([] if known else ["a", "b"], is_last=False, gone=["a", "b"] if known else [])


def test_a_split_that_is_gone_is_forgotten_when_it_is_read_however_often_it_is_reported():
    flow = Flow("leaving")
    flow.read(Leaving([]), name="in", parallelism=2).write(Collect(), name="out")
    deployment = expand(flow.plan())
    task = deployment.tasks[TaskId("in.splits", 0)]
    runtime = TaskRuntime(task, deployment, MemoryServices({}))
    runtime.open(None)
    [back] = {channel.edge.name: channel for channel in task.inputs}.values()
    known: list[list[Any]] = []
    for second, read in enumerate(([], ["a"], [], ["b"], [])):
        for split in read:
            runtime.process(back, Batch([{"split": split}]), second * 1000)
        runtime.fire_timers(second * 1000)
        capture = runtime.capture(Epoch(second + 1), Attempt(1))
        known.append(sorted(keyed_entries(encoded(capture)["in.splits"]).values))
    assert known == [["a", "b"], ["b"], ["b"], [], ["a", "b"]]


class Counting:
    """Reads ten numbers, and counts them in its position in place."""

    def __init__(self, position: dict[str, int]) -> None:
        self.position = position

    @property
    def is_done(self) -> bool:
        return self.position["read"] == 10

    def read(self, records_max: int) -> list[int]:
        first = self.position["read"]
        self.position["read"] = min(10, first + records_max)
        return list(range(first, self.position["read"]))


class Tens(Source[int]):
    look_s = 1.0

    def splits(self) -> list[str]:
        return ["a", "b", "c"]

    def first_position(self, split: str) -> dict[str, int]:
        return {"read": 0}

    def open_split(self, split: str, position: Any) -> Counting:
        return Counting(position)


def test_a_reader_may_change_its_position_in_place():
    flow = Flow("tens")
    flow.read(Tens(), name="in").rebalance().map(lambda number: number, name="same").write(Collect(), name="out")
    result = simulate(flow, seeds=[13, 14])
    assert sorted(result.outputs["out"]) == sorted([*range(10)] * 3)
    assert result.restores

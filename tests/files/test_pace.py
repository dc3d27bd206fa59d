"""A source with a rate gives that many records a second over all of its tasks, and says when to ask again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backedge import Generate, Items, Poll
from backedge.engine.io.files.file_formats import JsonLines
from tests.files.opened import Clock, services, source, write_json


def opened(description: Any, clock: Clock, index: int = 0, parallelism: int = 1) -> Any:
    return services(clock=clock).reader(source(description), index, parallelism, None)


@pytest.mark.parametrize("rate", [0.5, 1.0, 7.0, 100.0, 12_345.6, 1e6])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_all_tasks_together_keep_the_rate(rate: float, parallelism: int):
    clock = Clock()
    readers = [opened(Generate(int, rate=rate), clock, index, parallelism) for index in range(parallelism)]
    count, length_s = 0, 20 if rate < 1e5 else 1
    while clock.now_s < length_s:
        count += sum(len(reader.read(100_000)) for reader in readers)
        clock.now_s += min(reader.wait_s() for reader in readers) or 1e-4
    burst = parallelism * max(1.0, 0.1 * rate / parallelism)
    assert length_s * rate - parallelism * max(1.0, 0.01 * rate) - 1 <= count <= length_s * rate + burst + 1


def test_the_rate_is_that_of_the_tasks_that_have_a_split():
    """A source with one split, and one whose single task was rescaled to three."""
    polled, numbers = Poll(lambda n: ([n], n + 1), start=0, every=0.0001, rate=1000.0), Generate(int, rate=1000.0)
    restored: list[dict[str, Any]] = [{"0-of-1": 7}, {}, {}]
    for description, positions in ((polled, [None] * 3), (numbers, restored)):
        clock = Clock()
        readers = [services(clock=clock).reader(source(description), i, 3, at) for i, at in enumerate(positions)]
        count = 0
        while clock.now_s < 2:
            clock.now_s += 0.01
            count += sum(len(reader.read(1)) for reader in readers for _ in range(20))
        assert count == pytest.approx(2_000, rel=0.1)


def test_a_burst_is_a_tenth_of_a_second_and_at_least_one_record():
    clock = Clock()
    fast, slow = opened(Generate(int, rate=1000), clock), opened(Generate(int, rate=0.1), clock)
    clock.now_s = 1000.0
    assert len(fast.read(10_000)) == 100
    assert len(slow.read(10_000)) == 1


def test_nothing_is_read_before_it_is_time_and_something_is_then():
    clock = Clock()
    reader = opened(Items(range(10), rate=2.0), clock)
    assert (reader.read(5), reader.wait_s()) == ([0], 0.5)
    clock.now_s = 0.499
    assert reader.read(5) == []
    clock.now_s += reader.wait_s()
    assert (reader.wait_s(), reader.read(5)) == (0.0, [1])


def test_a_fast_source_is_read_in_bunches():
    clock = Clock()
    reader = opened(Generate(int, rate=10_000), clock)
    assert len(reader.read(100_000)) == 1000
    assert reader.wait_s() == pytest.approx(0.01)
    clock.now_s += 0.005
    assert reader.read(100_000) == []
    clock.now_s += reader.wait_s()
    assert len(reader.read(100_000)) == 100


def test_what_was_allowed_and_not_asked_for_may_be_read_at_once():
    clock = Clock()
    reader = opened(Generate(int, rate=1000), clock)
    assert [len(reader.read(30)) for _ in range(4)] == [30, 30, 30, 10]
    assert reader.wait_s() > 0


def test_a_source_without_a_rate_never_waits(tmp_path: Path):
    reader = opened(JsonLines(str(write_json(tmp_path / "a.jsonl", [1, 2]))), Clock())
    assert (reader.wait_s(), reader.read(10), reader.wait_s()) == (0.0, [1, 2], 0.0)


def test_files_may_have_a_rate_and_one_that_is_read_does_not_wait(tmp_path: Path):
    clock = Clock()
    reader = opened(JsonLines(str(write_json(tmp_path / "a.jsonl", [1, 2])), rate=1), clock)
    assert reader.read(10) == [1]
    clock.now_s += reader.wait_s()
    assert reader.read(10) == [2]
    assert (reader.exhausted, reader.wait_s()) == (True, 0.0)

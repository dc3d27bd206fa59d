"""A source with a rate gives that many records a second over all of its tasks, and says when to ask again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from backedge import BadOptionError, Generate, Items, Poll
from backedge.engine.io.files.file_formats import JsonLines
from backedge.graphs.rate import rate_in
from tests.every import every
from tests.files.opened import Clock, services, source, write_json


def opened(
    description: Any, clock: Clock, index: int = 0, parallelism: int = 1, *, rate: float | str | None = None
) -> Any:
    return services(clock=clock).reader(source(description, rate=rate), index, parallelism, None)


@every("rate", [0.5, 1.0, 7.0, 100.0, 12_345.6, 1e6])
@every("parallelism", [1, 3])
def test_all_tasks_together_keep_the_rate(rate: float, parallelism: int):
    clock = Clock()
    readers = [opened(Generate(int), clock, index, parallelism, rate=rate) for index in range(parallelism)]
    count, length_s = 0, 20 if rate < 1e5 else 1
    while clock.now_s < length_s:
        count += sum(len(reader.read(100_000)) for reader in readers)
        clock.now_s += min(reader.wait_s() for reader in readers) or 1e-4
    burst = parallelism * max(1.0, 0.1 * rate / parallelism)
    assert length_s * rate - parallelism * max(1.0, 0.01 * rate) - 1 <= count <= length_s * rate + burst + 1


def test_the_rate_is_that_of_the_tasks_that_have_a_split():
    """A source with one split, and one whose single task was rescaled to three."""
    polled, numbers = Poll(lambda n: ([n], n + 1), start=0, every=0.0001), Generate(int)
    restored: list[dict[str, Any]] = [{"0-of-1": 7}, {}, {}]
    for description, positions in ((polled, [None] * 3), (numbers, restored)):
        clock = Clock()
        readers = [
            services(clock=clock).reader(source(description, rate=1000), i, 3, at) for i, at in enumerate(positions)
        ]
        count = 0
        while clock.now_s < 2:
            clock.now_s += 0.01
            count += sum(len(reader.read(1)) for reader in readers for _ in range(20))
        assert count == pytest.approx(2_000, rel=0.1)


def test_a_burst_is_a_tenth_of_a_second_and_at_least_one_record():
    clock = Clock()
    fast, slow = opened(Generate(int), clock, rate=1000), opened(Generate(int), clock, rate=0.1)
    clock.now_s = 1000.0
    assert len(fast.read(10_000)) == 100
    assert len(slow.read(10_000)) == 1


def test_nothing_is_read_before_it_is_time_and_something_is_then():
    clock = Clock()
    reader = opened(Items(range(10)), clock, rate=2.0)
    assert (reader.read(5), reader.wait_s()) == ([0], 0.5)
    clock.now_s = 0.499
    assert reader.read(5) == []
    clock.now_s += reader.wait_s()
    assert (reader.wait_s(), reader.read(5)) == (0.0, [1])


def test_a_fast_source_is_read_in_bunches():
    clock = Clock()
    reader = opened(Generate(int), clock, rate="10000/s")
    assert len(reader.read(100_000)) == 1000
    assert reader.wait_s() == pytest.approx(0.01)
    clock.now_s += 0.005
    assert reader.read(100_000) == []
    clock.now_s += reader.wait_s()
    assert len(reader.read(100_000)) == 100


def test_what_was_allowed_and_not_asked_for_may_be_read_at_once():
    clock = Clock()
    reader = opened(Generate(int), clock, rate=1000)
    assert [len(reader.read(30)) for _ in range(4)] == [30, 30, 30, 10]
    assert reader.wait_s() > 0


def test_a_source_without_a_rate_never_waits(tmp_path: Path):
    reader = opened(JsonLines(str(write_json(tmp_path / "a.jsonl", [1, 2]))), Clock())
    assert (reader.wait_s(), reader.read(10), reader.wait_s()) == (0.0, [1, 2], 0.0)


def test_files_may_have_a_rate_and_one_that_is_read_does_not_wait(tmp_path: Path):
    clock = Clock()
    reader = opened(JsonLines(str(write_json(tmp_path / "a.jsonl", [1, 2]))), clock, rate=1)
    assert reader.read(10) == [1]
    clock.now_s += reader.wait_s()
    assert reader.read(10) == [2]
    assert (reader.exhausted, reader.wait_s()) == (True, 0.0)


@pytest.mark.parametrize("bytes", [10, 1_000, 400_000])
def test_bytes_are_limited_whatever_the_size_of_a_record(bytes: int):
    """The largest record has more bytes than may be read in two tenths of a second."""
    clock = Clock()
    reader = opened(Generate(lambda _: b"x" * bytes), clock, rate="2MB/s")
    count = 0
    while clock.now_s < 10:
        count += len(reader.read(100_000))
        clock.now_s += 0.001
    assert count * bytes == pytest.approx(20e6, rel=0.7 if bytes == 10 else 0.1), (
        "a small record has a frame of its size"
    )


def test_bytes_of_columns_are_those_of_their_values():
    clock, table = Clock(), pa.table({"number": pa.array(range(100_000), pa.int64())})
    reader = opened(Items(table), clock, rate="80kB/s")
    count = 0
    while clock.now_s < 5:
        count += len(reader.read(100_000))
        clock.now_s += 0.001
    assert count == pytest.approx(50_000, rel=0.1)


def test_a_rate_that_is_changed_holds_from_then_on():
    clock = Clock()
    job = services(clock=clock)
    reader = job.reader(source(Generate(int), rate=1000), 0, 2, None)

    def read_in_a_second() -> int:
        until_s, count = clock.now_s + 1, 0
        while clock.now_s < until_s:
            count += len(reader.read(10))
            clock.now_s += 0.001
        return count

    assert read_in_a_second() == pytest.approx(500, rel=0.2)
    job.limit("in", rate_in("100/s"))
    assert read_in_a_second() == pytest.approx(50, rel=0.2)
    job.limit("in", None)
    assert read_in_a_second() > 5_000
    job.limit("another", rate_in(1))
    assert read_in_a_second() > 5_000
    later = job.reader(source(Generate(int), name="another"), 0, 1, None)
    assert len(later.read(100)) == 1, "what was changed before a task begins holds for it"


@every(
    ("given", "told"),
    [
        (500, "500/s"),
        ("500", "500/s"),
        ("1.5 kB/s", "1.5kB/s"),
        ("2MB/s", "2MB/s"),
        ("3GB", "3GB/s"),
        ("7B/s", "7B/s"),
        (1e-6, "1e-06/s"),
    ],
)
def test_a_rate_is_told_as_it_can_be_given(given: object, told: str):
    assert str(rate_in(given)) == told
    assert rate_in(told) == rate_in(given)


@every("given", [0, -1, "0/s", "0MB/s", "fast", "5 MB an hour", "2mb/s", True, float("nan"), [], "1.2.3/s"])
def test_what_is_no_rate_is_refused(given: object):
    with pytest.raises(BadOptionError, match="is no rate"):
        rate_in(given)

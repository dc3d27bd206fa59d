"""An object that is sent as several records: a function may change one of them in place, and no other one changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest

from backedge import Collect, Flow, Generate, Items, Poll, Stream
from backedge.engine.io.reader import SourceReader
from backedge.graphs.task_errors import RecordSerializationError
from tests.every import every
from tests.runtime.tasks import Tasks

TAGS = ["new"]


def number(record: dict[str, Any]) -> dict[str, Any]:
    record["tags"].append(record["n"])
    record["n"] += 1
    return record


def yields(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for _ in range(3):
        yield record


WAYS: dict[str, Any] = {
    "a list": lambda s: s.flat_map(lambda r: [r] * 3, name="op"),
    "a list of two that alternate": lambda s: s.flat_map(lambda r: [r, {"n": 5, "tags": []}, r], name="op"),
    "an iterator": lambda s: s.flat_map(lambda r: repeat(r, 3), name="op"),
    "a generator": lambda s: s.flat_map(yields, name="op"),
    "a generator expression": lambda s: s.flat_map(lambda r: (r for _ in range(3)), name="op"),
    "a batch": lambda s: s.map_batches(lambda batch: batch * 3, name="op"),
}


def run(step: Any, records: list[Any], hops: Any = 0, then: Any = number) -> list[Any]:
    flow = Flow("repeated")
    made: Stream[Any] = step(flow.read(Items[Any]([]), name="source").rebalance())
    made.map(then, name="then").write(Collect(), name="out")
    tasks = Tasks(flow)
    tasks.feed("op", records, hops)
    return tasks.output("out")


@every("hops", [0, [1]])
@every("step", WAYS.values())
def test_an_object_that_is_sent_several_times_is_several_records(step: Any, hops: Any):
    found = run(step, [{"n": 5, "tags": []}], hops)
    assert [(record["n"], record["tags"]) for record in found] == [(6, [5])] * 3


@pytest.mark.parametrize("hops", [0, [1]], ids=["of all", "of each"])
@pytest.mark.parametrize("careful", [{}, {"on_error": "dead_letter"}], ids=["fail", "set aside"])
def test_a_record_is_what_a_generator_yielded_whatever_it_does_with_it_then(hops: Any, careful: dict[str, Any]):
    def units(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for _ in range(3):
            record["n"] += 1
            yield record
        record.clear()

    found = run(lambda s: s.flat_map(units, name="op", **careful), [{"n": 5, "tags": []}], hops)
    assert [(record["n"], record["tags"]) for record in found] == [(7, [6]), (8, [7]), (9, [8])]


class Counted:
    """Counts how often it was pickled, as copying it does."""

    copies = 0

    def __reduce__(self) -> Any:
        Counted.copies += 1
        return Counted, ()


def test_what_a_generator_keeps_no_reference_to_is_not_copied():
    def fresh(n: int) -> Iterator[Counted]:
        for _ in range(n):
            yield Counted()

    def kept(n: int) -> Iterator[Counted]:
        for _ in range(n):
            made = Counted()
            yield made

    for function, copies in ((fresh, 0), (kept, 4)):
        Counted.copies = 0
        ones = run(lambda s, of=function: s.flat_map(of, name="op"), [3, 1], then=lambda record: 1)
        assert (ones, Counted.copies) == ([1] * 4, copies)


def shared(position: Any) -> Any:
    return POINT


POINT = {"n": 0, "tags": TAGS}
SOURCES = {
    "Items": (Items([POINT, dict(POINT), POINT]), {"0-of-1": 0}),
    "Generate": (Generate(shared), {"0-of-1": 0}),
    "Poll": (Poll(lambda at: ([POINT, dict(POINT), POINT], 1)), {"polled": None}),
}


@pytest.mark.parametrize(("source", "positions"), SOURCES.values(), ids=SOURCES)
def test_records_of_a_source_share_nothing_not_even_their_parts(source: Any, positions: dict[str, Any]):
    found = [number(record) for record in SourceReader("shared", source, positions).read(3)]
    assert found == [{"n": 1, "tags": ["new", 0]}] * 3
    assert POINT == {"n": 0, "tags": ["new"]}


def test_a_repeated_object_that_cannot_be_copied_is_named():
    with pytest.raises(RecordSerializationError, match="lock"):
        run(lambda s: s.flat_map(lambda lock: [lock, lock], name="op"), [threading.Lock()])

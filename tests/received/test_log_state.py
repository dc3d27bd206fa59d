"""The rules of a log of what was received, in any order of events, and what happens without each of them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from backedge.engine.received.log_state import SEGMENT_BYTES, Durable, Group, Header, LogState
from tests.every import every, every_seed

STEPS = 120
SIZE = 500
BYTES_MAX = 12 * SEGMENT_BYTES


class Reader:
    """A flow that reads a log by the number of its segments, takes cuts, and is restored from them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.begin: int | None = None
        self.at = 0
        self.seen: list[int] = []
        self.cuts: list[tuple[int, tuple[int, ...]]] = []

    def joined(self, begin: int) -> None:
        self.begin = self.at = begin

    def cut(self) -> int:
        """Take a cut; return the first segment that any of the two that are kept needs.

        That need not be the older one: the run may have gone back to a cut before it.
        """
        self.cuts = [*self.cuts, (self.at, tuple(self.seen))][-2:]
        return min(at for at, _ in self.cuts)

    def restore(self, rng: random.Random) -> None:
        at, seen = rng.choice(self.cuts) if self.cuts else (self.begin or 0, ())
        self.at, self.seen = at, list(seen)


class World:
    """A log, its senders and its readers, whose processes may die between any two steps.

    - segments: what the store has. sent: how many requests there are. acknowledged: those that may not be lost.
    - in_reach: for each reader, the requests that were acknowledged after it had joined.
    """

    def __init__(self, kind: type[LogState[Any]], seed: int) -> None:
        self.rng = random.Random(seed)
        self.kind = kind
        self.state = kind(BYTES_MAX)
        self.segments: dict[int, tuple[Header, list[int]]] = {}
        self.readers = {name: Reader(name) for name in ("early", "late")}
        self.sent = 0
        self.in_reach: dict[str, set[int]] = {name: set() for name in self.readers}
        self.happened = Counter[str]()

    def run(self) -> None:
        self.join("early")
        self.write()
        steps = [self.send, self.send, self.send, self.write, self.write, self.read, self.read, self.cut, self.restore]
        for _ in range(STEPS):
            self.rng.choice([*steps, self.crash, self.join_late])()
        self.crash()
        for name, reader in self.readers.items():
            while reader.begin is not None and self.read_one(reader):
                pass
            twice = [request for request, count in Counter(reader.seen).items() if count > 1]
            assert not twice, f"{name} has read {twice} twice"
            lost = self.in_reach[name] - set(reader.seen)
            assert not lost, f"{name} has not read {sorted(lost)}, which were acknowledged"

    # -- senders -------------------------------------------------------------------------------------------------

    def send(self) -> None:
        self.sent += 1
        self.offer(self.sent)

    def offer(self, request: int) -> None:
        self.happened["taken" if self.state.offer(request, SIZE) else "full"] += 1

    def acknowledge(self, requests: list[Any]) -> None:
        for request in requests:
            if isinstance(request, str):
                if self.readers[request].begin is None:
                    self.readers[request].joined(self.state.header.readers.get(request, self.state.header.first))
                continue
            for name, reader in self.readers.items():
                if reader.begin is not None:
                    self.in_reach[name].add(request)

    # -- the writer ----------------------------------------------------------------------------------------------

    def write(self) -> None:
        group = self.state.next_group()
        if group is None:
            return
        outcome = self.rng.choice(["durable"] * 4 + ["refused", "died before", "died after"])
        self.happened[outcome] += 1
        if self.rng.random() < 0.5:
            self.send()  # it goes into the next segment
        if outcome == "refused":
            for request in self.state.on_refused():
                # Who is refused sends the same again: it was not kept.
                self.join(request) if isinstance(request, str) else self.offer(request)
            return
        if outcome != "died before":
            assert group.header.segment not in self.segments
            self.segments[group.header.segment] = group.header, [r for r in group.requests if isinstance(r, int)]
        if outcome != "durable":
            self.crash()
            return
        durable = self.state.on_durable()
        self.acknowledge(durable.acknowledged)
        for segment in durable.removed:
            self.segments.pop(segment, None)
        self.happened["removed"] += len(durable.removed)
        assert self.state.header.bytes == sum(self.state.sizes.values())

    def crash(self) -> None:
        """Nobody gets an answer any more; readers that have not joined ask again."""
        last = max(self.segments, default=None)
        self.state = self.kind(BYTES_MAX, None if last is None else self.segments[last][0])
        if self.readers["early"].begin is None:
            self.join("early")

    # -- readers -------------------------------------------------------------------------------------------------

    def join(self, name: str) -> None:
        if self.state.join(name, name) and self.readers[name].begin is None:
            self.acknowledge([name])

    def join_late(self) -> None:
        if self.readers["late"].begin is None:
            self.join("late")

    def reader(self) -> Reader:
        return self.rng.choice(list(self.readers.values()))

    def read(self) -> None:
        reader = self.reader()
        if reader.begin is not None:
            self.read_one(reader)

    def read_one(self, reader: Reader) -> bool:
        found = self.segments.get(reader.at)
        if found is None:
            return False
        reader.seen += found[1]
        reader.at += 1
        return True

    def cut(self) -> None:
        reader = self.reader()
        if reader.begin is not None:
            self.state.settle(reader.name, reader.cut())

    def restore(self) -> None:
        self.reader().restore(self.rng)


@every_seed(300)
def test_each_reader_reads_what_was_acknowledged_once(seed: int):
    World(LogState, seed).run()


def test_everything_that_can_happen_to_a_log_does():
    happened = Counter[str]()
    for seed in range(100):
        world = World(LogState, seed)
        world.run()
        happened += world.happened
    assert happened.keys() == {"taken", "full", "durable", "refused", "died before", "died after", "removed"}


class AcknowledgesTooMuch(LogState[Any]):
    """Acknowledges requests that wait for the next segment."""

    def on_durable(self) -> Durable[Any]:
        durable = super().on_durable()
        return durable._replace(acknowledged=durable.acknowledged + self.waiting)


class FollowsTheFastest(LogState[Any]):
    """Removes what one reader has read."""

    def _first(self) -> int:
        return max(self.header.first, *self.needs.values())


class ForgetsReaders(LogState[Any]):
    """Keeps readers in mind only."""

    def next_group(self) -> Group[Any] | None:
        group = super().next_group()
        if group is None:
            return None
        header = group.header
        self.writing = group._replace(header=Header(header.segment, header.first, header.bytes, {}))
        return self.writing


class KeepsTheRefused(LogState[Any]):
    """Writes what was refused with the next segment all the same."""

    def on_refused(self) -> list[Any]:
        refused = super().on_refused()
        self.waiting += [request for request in refused if isinstance(request, int)]
        return refused


class LeavesGaps(LogState[Any]):
    """Gives the number of a segment that was refused to none."""

    def on_refused(self) -> list[Any]:
        refused = super().on_refused()
        header = self.header
        self.header = Header(header.segment + 1, header.first, header.bytes, header.readers)
        return refused


class MakesRoom(LogState[Any]):
    """Removes the oldest segment where there is no room."""

    def offer(self, request: Any, size: int) -> bool:
        if not super().offer(request, size):
            self.needs = {name: segment + 1 for name, segment in self.needs.items()}
            self.is_due = True
        return super().offer(request, size)


BROKEN = [AcknowledgesTooMuch, FollowsTheFastest, ForgetsReaders, KeepsTheRefused, LeavesGaps, MakesRoom]


@every("kind", BROKEN)
def test_a_log_that_breaks_a_rule_is_found(kind: type[LogState[Any]]):
    with pytest.raises(AssertionError):
        for seed in range(200):
            World(kind, seed).run()


def test_a_log_is_full_until_its_readers_have_settled():
    state = LogState[str](4 * SEGMENT_BYTES)
    state.join("flow", "join")
    state.next_group()
    state.on_durable()
    while state.offer("request", SEGMENT_BYTES // 2):
        state.next_group()
        state.on_durable()
    full = state.header.segment
    assert not state.offer("request", SEGMENT_BYTES // 2)
    assert state.next_group() is None
    state.settle("flow", full + 1)
    assert state.next_group(), "a full log frees itself: no request will come that says what may go"
    assert state.on_durable().removed == range(1, full + 1)
    assert state.offer("request", SEGMENT_BYTES // 2)


def test_a_log_with_room_writes_nothing_because_of_a_cut():
    state = LogState[str](100 * SEGMENT_BYTES)
    state.join("flow", "join")
    state.offer("request", 1)
    state.next_group()
    state.on_durable()
    state.settle("flow", 2)
    assert state.next_group() is None
    state.offer("request", 1)
    state.next_group()
    assert state.on_durable().removed == range(1, 2)


def test_a_request_without_room_frees_what_was_read():
    """The log is less than half full, so no cut has freed it; and a large request finds no room."""
    state = LogState[str](10 * SEGMENT_BYTES, Header(9, 5, 4 * SEGMENT_BYTES, {"flow": 5}))
    state.settle("flow", 10)
    assert state.next_group() is None
    assert not state.offer("large", 6 * SEGMENT_BYTES)
    assert state.next_group(), "or a sender that sends nothing else would wait for ever"
    assert not state.offer("large", 6 * SEGMENT_BYTES)
    assert state.on_durable().removed == range(5, 10)
    assert state.next_group() is None, "one segment frees all"
    assert state.offer("large", 6 * SEGMENT_BYTES)


def test_a_new_run_of_a_flow_keeps_what_it_begins_with():
    state = LogState[str](BYTES_MAX, Header(9, 4, SEGMENT_BYTES, {"flow": 4}))
    state.settle("flow", 8)
    assert state.join("flow", "join")
    assert state.needs == {"flow": 4}, "the new run is about to read it, and has no cut yet"
    state.offer("request", 1)
    state.next_group()
    assert state.on_durable().removed == range(4, 4)


@pytest.mark.parametrize("reader", ["flow", "another"])
def test_who_joins_while_segments_are_freed_begins_behind_them(reader: str):
    state = LogState[str](BYTES_MAX, Header(9, 4, SEGMENT_BYTES, {"flow": 4}))
    state.settle("flow", 8)
    state.offer("request", 1)
    state.next_group()
    state.join(reader, "join")
    assert state.on_durable().removed == range(4, 8)
    assert state.needs[reader] == 8


def test_a_late_note_and_one_of_a_stranger_change_nothing():
    state = LogState[str](BYTES_MAX, Header(9, 4, SEGMENT_BYTES, {"flow": 7}))
    state.settle("flow", 5)
    state.settle("stranger", 9)
    assert state.needs == {"flow": 7}


def test_a_reader_that_is_let_go_frees_what_it_alone_needs():
    state = LogState[str](BYTES_MAX, Header(9, 4, SEGMENT_BYTES, {"flow": 8, "gone": 4}))
    state.forget("gone")
    state.next_group()
    assert state.on_durable().removed == range(4, 8)
    assert state.header.readers == {"flow": 8}


def test_a_writer_whose_number_is_taken_acknowledges_nothing_any_more():
    state = LogState[str](BYTES_MAX)
    state.offer("first", 1)
    state.next_group()
    state.offer("second", 1)
    assert state.on_taken() == ["first", "second"]
    assert not state.offer("third", 1)
    assert state.next_group() is None


def test_an_outcome_without_a_segment_is_refused_and_changes_nothing():
    state = LogState[str](BYTES_MAX)
    for outcome in (state.on_durable, state.on_refused, state.on_taken):
        with pytest.raises(RuntimeError, match="no segment is being written"):
            outcome()
    assert (state.header.segment, state.is_lost) == (0, False)

"""How much may be on the way in a channel, and where the rest waits (rule 9)."""

from __future__ import annotations

import gc
import os
import tempfile
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine.batch import Batch, decode, encode
from engine.errors import LoopOverflowError
from engine.on_ray.flow import (
    LOCAL_RECORD_BYTES,
    REPEAT_MS_MAX,
    Arrivals,
    LocalChannel,
    RemoteBackEdge,
    RemoteChannel,
)
from engine.on_ray.frames import Kind, Message, unpack_header, unpack_item
from engine.on_ray.spill import SEGMENTS, SpillSpace
from graphs import Collect, Flow, Items, expand
from graphs.deployment import Channel
from graphs.ids import Attempt, Epoch
from recovery.channels import Inbox, Stored
from recovery.messages import Barrier, Data, End, Item, Mode

ATTEMPT = Attempt(1)
KB = 1_000


class Wire:
    """Stands in for a link: keeps what is sent."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def post(self, message: Message) -> None:
        self.messages.append(message)

    def items(self) -> list[Item]:
        """What has been put on the wire of a channel."""
        found: list[Item] = []
        for header, payload in self.messages:
            kind, _, _, number = unpack_header(header)
            found.append(unpack_item(kind, number, payload))
        return found

    def credits(self) -> list[int]:
        """The credit that has been given back."""
        headers = [unpack_header(header) for header, _ in self.messages]
        return [number for kind, _, _, number in headers if kind == Kind.CREDIT]


def channels() -> tuple[Channel, Channel]:
    """A regular channel and a back edge."""
    flow = Flow("loop")
    again = flow.loop("again")
    tried = flow.read(Items([1])).rebalance().merge(again).map(abs, name="grow")
    done, rest = tried.split(bool, name="enough")
    again.feed(rest.rebalance())
    done.write(Collect())
    found = expand(flow.plan(), parallelism=2).channels.values()
    return next(c for c in found if not c.is_back), next(c for c in found if c.is_back)


REGULAR, BACK = channels()


def data(number: int, size: int = KB) -> Data:
    return Data(number, bytes([number % 256]) * size)


@pytest.fixture
def space() -> Iterator[SpillSpace]:
    """Room on disk, of which nothing is in use in the end."""
    space = SpillSpace(10_000 * KB)
    yield space
    gc.collect()
    assert space.bytes_used == 0


# -- regular channels ----------------------------------------------------------------------------------------------


def test_a_regular_channel_is_full_when_its_credit_is_used_up():
    wire = Wire()
    out = RemoteChannel(REGULAR, 0, ATTEMPT, wire, credit_bytes=2 * KB)  # type: ignore[arg-type]
    out.send(data(1))
    assert not out.is_full()
    out.send(data(2))
    assert out.is_full()
    out.give_credit(1)
    assert not out.is_full()


def test_barriers_and_ends_pass_a_full_channel():
    wire = Wire()
    out = RemoteChannel(REGULAR, 0, ATTEMPT, wire, credit_bytes=1)  # type: ignore[arg-type]
    items = [data(1), Barrier(Epoch(1), Mode.ALIGNED, 1, 7), End(1, 7)]
    for item in items:
        out.send(item)
    assert out.is_full() and wire.items() == items


def arrivals_of(channel: Channel, wire: Wire | None, space: SpillSpace, credit: int, memory: int = 10**9) -> Arrivals:
    inbox = Inbox(channel.id, is_back=channel.is_back, depth=0, within_actor=wire is None, encode=encode)
    return Arrivals(inbox, ATTEMPT, 3, wire, credit, memory, space)  # type: ignore[arg-type]


def arrive(arrivals: Arrivals, item: Data) -> None:
    arrivals.inbox.receive(item)
    arrivals.on_received(item.payload)


def test_the_receiver_gives_credit_for_what_it_has_consumed(space: SpillSpace):
    wire = Wire()
    arrivals = arrivals_of(REGULAR, wire, space, credit=4 * KB)
    for number in (1, 2, 3):
        arrive(arrivals, data(number))
    assert wire.credits() == [] and arrivals.bytes_waiting == 3 * KB
    arrivals.inbox.consume()
    arrivals.on_consumed()
    assert wire.credits() == [], "a quarter of the credit is gathered first"
    arrivals.inbox.consume()
    arrivals.on_consumed()
    assert wire.credits() == [2 * KB] and arrivals.bytes_waiting == KB


def test_credit_says_how_much_was_consumed_in_all_so_one_message_makes_up_for_those_lost():
    out = RemoteChannel(REGULAR, 0, ATTEMPT, Wire(), credit_bytes=2 * KB)  # type: ignore[arg-type]
    for number in range(1, 11):
        out.send(data(number))
    out.give_credit(8 * KB)
    assert out.is_full()
    out.give_credit(9 * KB)
    assert not out.is_full()
    out.give_credit(3 * KB)
    assert not out.is_full(), "one that is late says nothing new"


def test_credit_is_repeated_at_once_while_there_is_news_and_then_more_and_more_rarely(space: SpillSpace):
    wire = Wire()
    arrivals = arrivals_of(REGULAR, wire, space, credit=40 * KB)
    arrive(arrivals, data(1))
    arrivals.repeat_credit(0)
    assert wire.credits() == [], "nothing was consumed yet"
    arrivals.inbox.consume()
    arrivals.on_consumed()
    told_at_ms: list[int] = []
    for now_ms in range(0, 60_000, 250):
        before = len(wire.credits())
        arrivals.repeat_credit(now_ms)
        told_at_ms += [now_ms] * (len(wire.credits()) - before)
    assert told_at_ms[:5] == [0, 250, 750, 1_750, 3_750]
    assert max(b - a for a, b in pairwise(told_at_ms)) == REPEAT_MS_MAX, "and for ever: any of them may be lost"
    assert set(wire.credits()) == {KB}
    arrive(arrivals, data(2))
    arrivals.inbox.consume()
    arrivals.on_consumed()
    arrivals.repeat_credit(60_000)
    assert wire.credits()[-1] == 2 * KB


@pytest.mark.parametrize("credit", [1, 3, 1_000, 4_000_000])
def test_two_ends_never_wait_for_each_other(space: SpillSpace, credit: int):
    """Whatever the credit, a sender that sends when it may and a receiver that consumes all get everything across."""
    forth, back = Wire(), Wire()
    out = RemoteChannel(REGULAR, 3, ATTEMPT, forth, credit)  # type: ignore[arg-type]
    arrivals = arrivals_of(REGULAR, back, space, credit)
    for number in range(1, 200):
        if out.is_full():
            while arrivals.inbox.queue:
                arrivals.inbox.consume()
            arrivals.on_consumed()
            out.give_credit(max(back.credits()))
            back.messages.clear()
        assert not out.is_full()
        item = data(number, size=1 + number * 37 % 500)
        out.send(item)
        arrive(arrivals, item)
    assert len(forth.messages) == 199


def test_a_channel_within_an_actor_is_bounded_as_others_are(space: SpillSpace):
    deliveries: deque[Any] = deque()
    inbox = Inbox(REGULAR.id, is_back=False, depth=0, within_actor=True, encode=encode)
    arrivals = Arrivals(inbox, ATTEMPT, 3, None, KB, KB, space)
    out = LocalChannel(REGULAR, deliveries, arrivals, KB)
    batches = -(-KB // LOCAL_RECORD_BYTES)
    for number in range(1, batches + 1):
        assert not out.is_full()
        out.send(Data(number, Batch([number])))
        arrive(arrivals, deliveries.popleft()[1])
    assert out.is_full()
    inbox.consume()
    arrivals.on_consumed()
    assert not out.is_full()


# -- back edges ----------------------------------------------------------------------------------------------------


def back_edge(wire: Wire, space: SpillSpace, credit: int = KB, memory: int = 2 * KB) -> RemoteBackEdge:
    return RemoteBackEdge(BACK, 3, ATTEMPT, wire, credit, memory, space)  # type: ignore[arg-type]


def test_a_back_edge_is_never_full_and_keeps_the_order(space: SpillSpace):
    wire = Wire()
    out = back_edge(wire, space)
    items: list[Item] = [data(1), data(2), Barrier(Epoch(1), Mode.ALIGNED, 2, 7), *map(data, range(3, 9)), End(8, 9)]
    for item in items:
        out.send(item)
        assert not out.is_full()
    assert wire.items() == items[:1], "without credit all the rest waits, barriers behind the data before them"
    for received in range(1, 9):
        out.give_credit(received * KB)
    assert wire.items() == items


def test_what_memory_does_not_hold_waits_on_disk(space: SpillSpace):
    wire = Wire()
    out = back_edge(wire, space)
    items = [data(number) for number in range(1, 10)]
    for item in items:
        out.send(item)
    assert space.bytes_used == 6 * KB, "one is on its way, two are in memory"
    out.give_credit(100 * KB)
    assert wire.items() == items
    assert space.bytes_ever == 6 * KB


def test_what_is_sent_behind_what_waits_waits_too_though_there_is_credit_again(space: SpillSpace):
    wire = Wire()
    out = back_edge(wire, space)
    for number in (1, 2, 3):
        out.send(data(number))
    out.give_credit(1)
    out.send(data(4))
    out.give_credit(100 * KB)
    out.send(data(5))
    assert wire.items() == [data(number) for number in range(1, 6)]


def test_the_receiver_of_a_back_edge_gives_credit_for_what_it_has_received(space: SpillSpace):
    wire = Wire()
    arrivals = arrivals_of(BACK, wire, space, credit=4 * KB)
    for number in (1, 2):
        arrive(arrivals, data(number))
    assert wire.credits() == [2 * KB], "though nothing has been consumed"
    arrivals.inbox.consume()
    arrivals.on_consumed()
    assert wire.credits() == [2 * KB], "and not once more for that"


def test_what_the_receiver_of_a_back_edge_has_no_time_for_waits_on_disk_in_order(space: SpillSpace):
    arrivals = arrivals_of(BACK, Wire(), space, credit=KB, memory=2 * KB)
    sent = [encode(Batch([number] * 300)) for number in range(20)]
    for number, payload in enumerate(sent, 1):
        arrive(arrivals, Data(number, payload))
    assert 0 < space.bytes_used < sum(map(len, sent))
    consumed = [arrivals.inbox.consume().payload for _ in sent]
    arrivals.on_consumed()
    assert arrivals.bytes_waiting == 0
    loaded = [payload.load() if isinstance(payload, Stored) else payload for payload in consumed]
    assert loaded == sent


def test_a_back_edge_within_an_actor_spills_what_it_encodes_for_that(space: SpillSpace):
    arrivals = arrivals_of(BACK, None, space, credit=KB, memory=0)
    for number in (1, 2):
        arrive(arrivals, Data(number, Batch(["record"] * 10)))
    first, second = arrivals.inbox.consume().payload, arrivals.inbox.consume().payload
    assert isinstance(first, Batch), "what waits first is within the limit"
    assert isinstance(second, Stored) and decode(second.load()) == first


def test_a_loop_that_outgrows_its_disk_is_told_how_to_get_more():
    space = SpillSpace(3 * KB)
    out = back_edge(Wire(), space, memory=0)
    for number in range(1, 5):
        out.send(data(number))
    with pytest.raises(LoopOverflowError, match=r"outgrown its 3,000 bytes of disk: .* loop_disk_bytes="):
        out.send(data(5))


# -- disk ----------------------------------------------------------------------------------------------------------


def test_a_payload_on_disk_has_no_name_there():
    before = set(os.listdir(tempfile.gettempdir()))
    stored = SpillSpace(KB).store(b"payload")
    assert set(os.listdir(tempfile.gettempdir())) == before
    assert stored.load() == b"payload" and len(stored) == 7


def test_room_on_disk_is_free_again_when_nothing_waits_there():
    space = SpillSpace(3 * KB)
    for _ in range(10):
        waiting = [space.store(bytes(KB)) for _ in range(3)]
        assert space.bytes_used == 3 * KB
        del waiting
        assert space.bytes_used == 0
    assert space.bytes_ever == 30 * KB


def test_a_payload_stays_as_long_as_a_log_refers_to_it():
    space = SpillSpace(10 * KB)
    queued = space.store(b"in the queue, and in the log")
    logged = queued
    del queued
    for _ in range(3):
        space.store(bytes(KB))
    assert logged.load() == b"in the queue, and in the log"


def test_room_on_disk_is_free_again_while_something_waits_there_all_the_time():
    space = SpillSpace(100 * KB)
    waiting = deque(space.store(bytes(KB)) for _ in range(50))
    for _ in range(500):
        waiting.append(space.store(bytes(KB)))
        waiting.popleft()
    assert 50 * KB <= space.bytes_used <= 60 * KB


def test_a_full_segment_is_followed_by_another_and_closed_on_its_own():
    space = SpillSpace(SEGMENTS * KB)
    files = _open_files()
    old = [space.store(bytes(KB // 2)) for _ in range(2)]
    new = space.store(b"new")
    assert _open_files() == files + 2
    del old
    assert _open_files() == files + 1 and space.bytes_used == 3
    assert new.load() == b"new"


def test_a_disk_that_takes_a_part_only_is_asked_again(monkeypatch: pytest.MonkeyPatch):
    """A nearly full disk takes what fits, and says how much that was."""
    space = SpillSpace(KB)
    space_file = tempfile.TemporaryFile

    class Reluctant:
        def __init__(self, **options: Any) -> None:
            self._file = space_file(**options)

        def write(self, payload: bytes) -> int:
            return self._file.write(payload[:3])

        def fileno(self) -> int:
            return self._file.fileno()

        def close(self) -> None:
            self._file.close()

    monkeypatch.setattr(tempfile, "TemporaryFile", Reluctant)
    one, other = space.store(b"first payload"), space.store(b"second")
    assert (one.load(), other.load()) == (b"first payload", b"second")


def _open_files() -> int:
    links = Path("/proc/self/fd")
    return sum("deleted" in os.readlink(link) for link in links.iterdir() if link.is_symlink())

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

import numpy as np
import pytest

from backedge import Collect, Flow, Items
from backedge.engine.batches.batch import Batch, decode, encode
from backedge.engine.on_ray.transport.spill_space import SEGMENTS, SpillSpace
from backedge.engine.task.channel_ends import (
    LOCAL_RECORD_BYTES,
    SENT_RECORDS_MAX,
    SENT_ROWS_MAX,
    Arrivals,
    LocalChannel,
    RemoteBackEdge,
    RemoteChannel,
)
from backedge.engine.task.driver import PARTS
from backedge.graphs.deployment import Channel
from backedge.graphs.expansion import Actors, expand
from backedge.graphs.ids import Epoch
from backedge.graphs.task_errors import LoopOverflowError
from backedge.recovery.protocol.channels import Inbox, Stored
from backedge.recovery.protocol.credit import REPEAT_MS_MAX, Credit
from backedge.recovery.protocol.messages import Barrier, Data, End, Item, Mode
from tests.columns.given import columns
from tests.on_ray.in_process import Attending

KB = 1_000


class Wire:
    """Keeps what an end sends, and the credit that the other one tells."""

    def __init__(self) -> None:
        self.sent: list[Item] = []
        self.said: list[Credit] = []

    def credits(self) -> list[int]:
        """The credit that has been given back."""
        return [credit.consumed for credit in self.said]


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
    if space.bytes_used:
        gc.collect()
    assert space.bytes_used == 0


# -- regular channels ----------------------------------------------------------------------------------------------


def test_a_regular_channel_is_full_for_batches_when_its_credit_is_used_up():
    wire = Wire()
    out = RemoteChannel(REGULAR, wire.sent.append, window=2 * KB)
    out.send(data(1))
    assert not out.is_full()
    out.send(data(2))
    assert out.is_full()
    markers = [Barrier(Epoch(1), Mode.ALIGNED, 2, 7), End(2, 7)]
    for marker in markers:
        out.send(marker)
    assert wire.sent[2:] == markers, "they pass a full channel"
    out.on_credit(Credit(1, 1, 2 * KB))
    assert not out.is_full()


class Receiver:
    """A receiving end with its inbox, as a driver uses them."""

    def __init__(self, channel: Channel, wire: Wire | None, space: SpillSpace, credit: int, memory: int = 10**9):
        self.inbox = Inbox(channel.id, is_back=channel.is_back, depth=0, within_actor=wire is None, encode=encode)
        tell = None if wire is None else wire.said.append
        self.end = Arrivals(tell, is_back=channel.is_back, window_max=credit, inputs=1, memory_bytes_max=memory)
        self.space = space

    def receive(self, item: Data, now_ns: int = 0) -> None:
        payload = item.payload
        kept = None
        if self.end.is_to_spill():
            kept = self.space.store(payload if isinstance(payload, bytes) else encode(payload))
        self.inbox.receive(item, kept)
        self.end.on_received(payload, now_ns)

    def receive_all(self, last: int) -> None:
        """Batches up to this number."""
        for number in range(1, last + 1):
            self.receive(data(number))

    def consume(self, now_ns: int = 0, free_ns: int = 0) -> Any:
        payload = self.inbox.consume().payload
        self.end.on_consumed(self.inbox.consumed, now_ns, free_ns)
        return payload


def test_the_receiver_gives_credit_for_what_it_has_consumed(space: SpillSpace):
    wire = Wire()
    arrivals = Receiver(REGULAR, wire, space, credit=4 * KB)
    arrivals.receive_all(7)
    assert wire.credits() == [] and arrivals.end.bytes_waiting == 7 * KB
    for _ in range(7):
        arrivals.consume()
    assert wire.said[0] == Credit(1, KB, 2 * KB), "it begins with one batch, and doubles"
    assert arrivals.end.window == 4 * KB, "as far as it may"
    assert wire.credits() == [KB, 2 * KB, 4 * KB, 6 * KB], "a quarter of the window is gathered first"


def test_the_window_is_what_a_slow_receiver_consumes_in_half_a_second(space: SpillSpace):
    wire = Wire()
    arrivals = Receiver(REGULAR, wire, space, credit=4_000 * KB)
    arrivals.receive_all(100)
    for number in range(100):
        arrivals.consume(now_ns=number * 50_000_000)
    assert wire.said[-1].window == pytest.approx(10 * KB, rel=0.1)


def test_time_in_which_nothing_may_be_taken_says_nothing_of_the_pace(space: SpillSpace):
    arrivals = Receiver(REGULAR, Wire(), space, credit=4_000 * KB)
    arrivals.receive_all(100)
    for number in range(100):
        arrivals.consume(number * 50_000_000, free_ns=number * 50_000_000 - 1_000)
    assert arrivals.end.window > 100 * KB


def test_a_receiver_that_becomes_slow_says_so_at_once(space: SpillSpace):
    wire = Wire()
    arrivals = Receiver(REGULAR, wire, space, credit=40 * KB)
    arrivals.receive_all(101)
    for number in range(100):
        arrivals.consume(now_ns=number * 1_000)
    assert arrivals.end.window == 40 * KB
    arrivals.receive(data(102))
    arrivals.consume(now_ns=1_000_000_000)
    arrivals.consume(now_ns=2_000_000_000)
    assert wire.said[-1].window <= KB


def test_credit_says_how_much_was_consumed_in_all_so_one_message_makes_up_for_those_lost():
    out = RemoteChannel(REGULAR, Wire().sent.append, window=2 * KB)
    for number in range(1, 11):
        out.send(data(number))
    out.on_credit(Credit(7, 8 * KB, 2 * KB))
    assert out.is_full()
    out.on_credit(Credit(9, 9 * KB, 2 * KB))
    assert not out.is_full()
    assert not out.on_credit(Credit(8, 3 * KB, KB)), "one that is late says nothing new"
    assert not out.is_full() and out.window == 2 * KB


def test_credit_is_repeated_at_once_while_there_is_news_and_then_more_and_more_rarely(space: SpillSpace):
    wire = Wire()
    arrivals = Receiver(REGULAR, wire, space, credit=40 * KB)
    arrivals.receive(data(1))
    arrivals.end.repeat_credit(0)
    assert wire.credits() == [], "nothing was consumed yet"
    arrivals.consume()
    told_at_ms: list[int] = []
    for now_ms in range(0, 60_000, 250):
        before = len(wire.credits())
        arrivals.end.repeat_credit(now_ms)
        told_at_ms += [now_ms] * (len(wire.credits()) - before)
    assert told_at_ms[:5] == [0, 250, 750, 1_750, 3_750]
    assert max(b - a for a, b in pairwise(told_at_ms)) == REPEAT_MS_MAX, "and for ever: any of them may be lost"
    assert set(wire.credits()) == {KB}
    arrivals.receive(data(2))
    arrivals.consume()
    arrivals.end.repeat_credit(60_000)
    assert wire.credits()[-1] == 2 * KB


def test_a_sender_knows_how_many_records_fit_into_a_window():
    out = RemoteChannel(REGULAR, Wire().sent.append, window=1)
    assert out.room_records() == 1
    out.records += 10
    out.send(data(1))
    out.on_credit(Credit(1, KB, 6 * KB))
    assert (out.room_records(), out.half_window) == (60, 30), "100 bytes a record; a batch is half a window"


@pytest.mark.slow
@pytest.mark.parametrize("actors", ["task", "slice"])
def test_many_records_that_a_function_emits_at_once_travel_in_few_batches(actors: Actors):
    flow = Flow("burst")
    many = flow.read(Items([50_000]), name="one").flat_map(range, name="many")
    many.rebalance().filter(lambda number: number < 0, name="none").rebalance().write(Collect(), name="kept")
    with Attending(flow, actors=actors) as run:
        run.begin()
        run.until(lambda: sum(loop.counts.records for loop in run.loops.values()) >= 50_001, "all are processed")
        drivers = {id.name: driver for loop in run.loops.values() for id, driver in loop.tasks.drivers.items()}
        (inbox,) = drivers["none"].core.inboxes.values()
        assert inbox.received <= PARTS + 1


def test_a_channel_within_an_actor_is_bounded_as_others_are(space: SpillSpace):
    deliveries: deque[Any] = deque()
    arrivals = Receiver(REGULAR, None, space, KB, KB)
    out = LocalChannel(REGULAR, deliveries.append, arrivals.end)
    number, held = 0, list[int]()
    for _ in range(5):
        while not out.is_full():
            number += 1
            out.send(Data(number, Batch([number])))
            arrivals.receive(deliveries.popleft())
        held.append(len(arrivals.inbox.queue))
        while arrivals.inbox.queue:
            arrivals.consume()
    assert held[0] == 1 and held[-1] == -(-KB // LOCAL_RECORD_BYTES) and held == sorted(held)
    assert out.batch_max(Batch([1])) == KB // (2 * LOCAL_RECORD_BYTES)


def test_columns_within_an_actor_take_the_room_of_their_values_and_travel_in_larger_batches(space: SpillSpace):
    deliveries: deque[Any] = deque()
    arrivals = Receiver(REGULAR, None, space, KB, KB)
    out = LocalChannel(REGULAR, deliveries.append, arrivals.end)
    wide, narrow = (Batch(columns(n=np.zeros(100, kind))) for kind in (np.int64, np.int8))
    arrivals.end.window = 10_000_000
    assert (out.batch_max(wide), out.batch_max(narrow)) == (SENT_ROWS_MAX, SENT_ROWS_MAX)
    assert out.batch_max(Batch([1])) == SENT_RECORDS_MAX < SENT_ROWS_MAX
    arrivals.end.window = 8 * KB
    assert (out.batch_max(wide), out.batch_max(narrow)) == (500, 4_000), "half a window"
    out.records += 200
    for number, batch in enumerate((wide, narrow), start=1):
        arrivals.receive(Data(number, batch))
    assert arrivals.end.bytes_waiting == 900
    assert out.room_records() == (8 * KB - 900) * 200 // 900, "4.5 bytes a row"


def test_columns_without_values_fill_a_channel_too(space: SpillSpace):
    arrivals = Receiver(REGULAR, None, space, KB, KB)
    out = LocalChannel(REGULAR, lambda _: None, arrivals.end)
    arrivals.receive(Data(1, Batch(columns(n=[None] * 100))))
    assert out.is_full() and arrivals.end.bytes_waiting == 100


# -- back edges ----------------------------------------------------------------------------------------------------


def back_edge(wire: Wire, space: SpillSpace, credit: int = KB, memory: int = 2 * KB) -> RemoteBackEdge:
    return RemoteBackEdge(BACK, wire.sent.append, credit, memory, space)


def test_a_back_edge_is_never_full_and_keeps_the_order(space: SpillSpace):
    wire = Wire()
    out = back_edge(wire, space)
    items: list[Item] = [data(1), data(2), Barrier(Epoch(1), Mode.ALIGNED, 2, 7), *map(data, range(3, 9)), End(8, 9)]
    for item in items:
        out.send(item)
        assert not out.is_full()
    assert wire.sent == items[:1], "without credit all the rest waits, barriers behind the data before them"
    for received in range(1, 9):
        out.on_credit(Credit(received, received * KB, KB))
    assert wire.sent == items


def test_what_is_sent_behind_what_waits_waits_too_though_there_is_credit_again(space: SpillSpace):
    wire = Wire()
    out = back_edge(wire, space)
    for number in (1, 2, 3):
        out.send(data(number))
    out.on_credit(Credit(2, 1, KB))
    out.send(data(4))
    out.on_credit(Credit(3, 100 * KB, KB))
    out.send(data(5))
    assert wire.sent == [data(number) for number in range(1, 6)]


def test_the_receiver_of_a_back_edge_gives_credit_for_what_it_has_received(space: SpillSpace):
    wire = Wire()
    arrivals = Receiver(BACK, wire, space, credit=4 * KB)
    for number in (1, 2):
        arrivals.receive(data(number))
    assert wire.credits() == [2 * KB], "though nothing has been consumed"
    arrivals.consume()
    assert wire.credits() == [2 * KB], "and not once more for that"


def test_what_the_receiver_of_a_back_edge_has_no_time_for_waits_on_disk_in_order(space: SpillSpace):
    arrivals = Receiver(BACK, Wire(), space, credit=KB, memory=2 * KB)
    sent = [encode(Batch([number] * 300)) for number in range(20)]
    for number, payload in enumerate(sent, 1):
        arrivals.receive(Data(number, payload))
    assert 0 < space.bytes_used < sum(map(len, sent))
    consumed = [arrivals.consume() for _ in sent]
    assert arrivals.end.bytes_waiting == 0
    loaded = [payload.load() if isinstance(payload, Stored) else payload for payload in consumed]
    assert loaded == sent


def test_a_back_edge_within_an_actor_spills_what_it_encodes_for_that(space: SpillSpace):
    arrivals = Receiver(BACK, None, space, credit=KB, memory=0)
    for number in (1, 2):
        arrivals.receive(Data(number, Batch(["record"] * 10)))
    first, second = arrivals.consume(), arrivals.consume()
    assert isinstance(first, Batch), "what waits first is within the limit"
    assert isinstance(second, Stored) and decode(second.load()) == first


def test_a_loop_that_outgrows_its_disk_is_told_how_to_get_more():
    space = SpillSpace(3 * KB)
    out = back_edge(Wire(), space, memory=0)
    for number in range(1, 5):
        out.send(data(number))
    with pytest.raises(LoopOverflowError, match=r"need more than their 3,000 bytes of disk: .* loop_disk_bytes="):
        out.send(data(5))


# -- disk ----------------------------------------------------------------------------------------------------------


def test_a_payload_on_disk_has_no_name_there():
    before = set(os.listdir(tempfile.gettempdir()))
    stored = SpillSpace(KB).store(b"payload")
    assert set(os.listdir(tempfile.gettempdir())) == before
    assert stored.load() == b"payload" and len(stored) == 7


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
    space, write = SpillSpace(KB), os.write
    monkeypatch.setattr(os, "write", lambda file, payload: write(file, payload[:3]))
    one, other = space.store(b"first payload"), space.store(b"second")
    assert (one.load(), other.load()) == (b"first payload", b"second")


# -- what waits ----------------------------------------------------------------------------------------------------


def test_records_that_wait_are_estimated_from_the_size_of_those_before(space: SpillSpace):
    arrivals = Receiver(REGULAR, Wire(), space, credit=100 * KB)
    arrivals.receive_all(6)
    assert arrivals.end.records_waiting() == 6, "at least one in each batch"
    arrivals.consume()
    arrivals.end.records += 20
    assert arrivals.end.records_waiting() == 5 * 20
    for _ in range(5):
        arrivals.consume()
    assert arrivals.end.records_waiting() == 0


def test_the_first_batch_says_how_long_something_has_been_waiting(space: SpillSpace):
    arrivals = Receiver(REGULAR, Wire(), space, credit=100 * KB)
    assert arrivals.end.waiting_since_ns() is None
    arrivals.receive(data(1), now_ns=5)
    arrivals.receive(data(2), now_ns=70)
    assert arrivals.end.waiting_since_ns() == 5
    arrivals.consume(now_ns=100)
    assert arrivals.end.waiting_since_ns() == 70


def test_what_memory_does_not_hold_waits_on_disk_and_a_back_edge_says_what_waits_where(space: SpillSpace):
    wire = Wire()
    out = RemoteBackEdge(BACK, wire.sent.append, window=2 * KB, memory_bytes_max=3 * KB, space=space)
    for number in range(1, 11):
        out.records += 5
        out.send(data(number))
    assert (len(wire.sent), len(out.waiting), out.bytes_waiting) == (2, 8, 8 * KB)
    assert space.bytes_used == 5 * KB
    assert out.records_waiting() == 40
    for number in range(1, 11):
        out.on_credit(Credit(number, number * KB, 2 * KB))
    assert (out.bytes_waiting, out.records_waiting(), space.bytes_ever) == (0, 0, 5 * KB)
    assert wire.sent == [data(number) for number in range(1, 11)]


def _open_files() -> int:
    links = Path("/proc/self/fd")
    return sum("deleted" in os.readlink(link) for link in links.iterdir() if link.is_symlink())

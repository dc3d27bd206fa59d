"""A turn ends after some milliseconds, however long a record takes: at a record boundary, in the middle of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from backedge import Collect, Flow, Items
from backedge.engine.batches.batch import Batch, decode, encode
from backedge.engine.task.pacing import CHEAP_RECORDS, CHUNK_NS, SLICE_NS, Pace, unit_of
from backedge.graphs.kinds import Map, MapBatches
from backedge.recovery.protocol.messages import Barrier, Data, Mode
from tests.every import every
from tests.on_ray.test_turns import ATTEMPT, Around, first_task_of

MS = 1_000_000


class Slow:
    """A function that takes a while for each record, by the clock of the actor that it stands in."""

    def __init__(self, around: Around, record_ns: int) -> None:
        self.around = around
        self.record_ns = record_ns
        self.seen: list[Any] = []

    def __call__(self, record: Any) -> Any:
        self.around.time_ns += self.record_ns
        self.seen.append(record)
        return record


class Task:
    """The task of a slow function, with a batch of records before it."""

    def __init__(self, record_ns: int, records: int, is_local: bool = False) -> None:
        self.around = Around()
        self.slow = Slow(self.around, record_ns)
        flow = Flow("slow")
        flow.read(Items(range(4)), name="numbers").rebalance().map(self.slow, name="slow").rebalance().write(
            Collect(), name="out"
        )
        self.driver = first_task_of("slow", flow, self.around)
        self.outputs = self.around.outs
        channels = self.driver.core.task.inputs
        self.channel = next(c.id for c in channels if c.within_actor is is_local)
        self.other = next(c.id for c in channels if c.id != self.channel)
        self.inbox = self.driver.core.inboxes[self.channel]
        self.records: list[Any] = list(range(records))
        batch = Batch(self.records, 0)
        self.receive(Data(1, batch if is_local else encode(batch)))

    def receive(self, item: Any) -> None:
        self.driver.receive(self.channel, ATTEMPT, item)

    def turn(self) -> int:
        """One turn; returns how long it took."""
        began_ns = self.around.time_ns
        self.driver.turn(8_192, 4_096, began_ns + SLICE_NS)
        return self.around.time_ns - began_ns

    @property
    def sent(self) -> list[Any]:
        """What left, by the channels' order."""
        items = [item for out in self.outputs for item in out]
        return [r for item in items for r in _batch(item.payload).records]


def _batch(payload: Any) -> Batch:
    return decode(payload) if isinstance(payload, bytes) else payload


@every("is_local", [False, True])
@every("record_ns", [10_000, 300_000, 5 * MS, 50 * MS, 1_000 * MS])
def test_a_turn_takes_no_longer_than_a_slice_and_a_record(record_ns: int, is_local: bool):
    task = Task(record_ns, records=100, is_local=is_local)
    turns = 0
    while task.inbox.queue:
        assert task.turn() <= SLICE_NS + max(CHUNK_NS, record_ns)
        turns += 1
    assert turns >= 100 * record_ns // (SLICE_NS + max(CHUNK_NS, record_ns))
    assert sorted(task.sent) == list(range(100)), "each once"


def test_what_a_slice_emitted_has_left_when_the_mailbox_is_read_again():
    task = Task(5 * MS, records=100)
    task.turn()
    assert 0 < len(task.slow.seen) < 100
    assert sorted(task.sent) == task.slow.seen
    assert task.inbox.skip == len(task.slow.seen) and task.inbox.consumed == 0


def test_a_barrier_that_comes_in_the_middle_of_a_batch_is_seen_before_the_next_slice():
    task = Task(50 * MS, records=100)
    task.turn()
    task.receive(Barrier(1, Mode.UNALIGNED, 1, task.inbox.received_digest))
    assert task.around.captured == [1]
    assert len(task.slow.seen) == 1


def test_cheap_records_travel_in_batches_as_large_as_they_came():
    task = Task(0, records=5_000)
    for seq in range(2, 20):
        task.receive(Data(seq, encode(Batch(task.records, 0))))
        task.turn()
    assert task.driver.intakes[task.channel].pace.is_cheap
    before = len(task.slow.seen)
    for out in task.outputs:
        out.clear()
    task.receive(Data(20, encode(Batch(task.records, 0))))
    task.turn()
    assert len(task.slow.seen) == before + 5_000
    assert [len(_batch(item.payload)) for out in task.outputs for item in out] == [2_500, 2_500]


def test_a_batch_is_not_cut_to_make_up_a_turn():
    task = Task(1_000, records=700)
    for seq in range(2, 40):
        task.receive(Data(seq, encode(Batch(task.records, 0))))
    seen: list[int] = []
    while task.inbox.queue:
        task.driver.turn(1_024, 1_024, task.around.time_ns + SLICE_NS)
        seen.append(len(task.slow.seen))
    assert not task.driver.intakes[task.channel].pace.is_cheap
    assert len(seen) > 10
    assert {records % 700 for records in seen[-10:]} == {0}, "two whole batches a turn, not 1,024 records"


def test_records_of_a_slice_leave_in_one_batch_for_each_channel():
    task = Task(1 * MS, records=100)
    task.turn()
    assert len(task.slow.seen) > 10
    assert [len(out) for out in task.outputs] == [1, 1]


def test_time_that_runs_out_on_one_channel_is_given_to_the_next_one_first():
    task = Task(50 * MS, records=10)
    batch = Batch(["other"] * 10, 0)
    is_local = task.driver.intakes[task.other].channel.within_actor
    task.driver.receive(task.other, ATTEMPT, Data(1, batch if is_local else encode(batch)))
    for _ in range(4):
        task.turn()
    assert task.slow.seen.count("other") == 2


def test_a_source_with_a_slow_function_behind_it_reads_no_more_than_fits_a_slice():
    around = Around()
    slow = Slow(around, 5 * MS)
    flow = Flow("slow")
    flow.read(Items(range(10_000)), name="numbers").map(slow, name="slow").rebalance().write(Collect(), name="out")
    driver = first_task_of("numbers", flow, around)
    for _ in range(4):  # until it knows where its records go
        driver.turn(8_192, 4_096, around.time_ns + SLICE_NS)
    before = len(slow.seen)
    for _ in range(3):
        began_ns = around.time_ns
        driver.turn(8_192, 4_096, began_ns + SLICE_NS)
        assert around.time_ns - began_ns <= SLICE_NS + 5 * MS
    assert len(slow.seen) - before == 3 * SLICE_NS // (5 * MS)


# -- calls outside -------------------------------------------------------------------------------------------------


def asking(limit: int) -> Flow:
    flow = Flow("asking")
    numbers = flow.read(Items(range(10_000)), name="numbers")
    numbers.map_async(_answer, concurrency=limit, answers="again", name="ask").rebalance().write(Collect(), name="out")
    return flow


async def _answer(record: Any) -> Any:
    return record


class Calling(Around):
    """Keeps the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def call(self, task: Any, call_id: int, call: Any) -> bool:
        self.calls.append(call_id)
        return True

    def keep(self, task: Any, answers: Any) -> None:
        """They never become durable."""


def test_a_source_chained_to_calls_reads_no_more_than_may_be_unanswered():
    around = Calling()
    driver = first_task_of("numbers", asking(limit=8), around)
    for _ in range(20):
        driver.turn(8_192, 4_096, around.time_ns + SLICE_NS)
    assert len(around.calls) == 8
    assert driver.runtime.records_read == 8
    for call_id in around.calls[:3]:
        driver.calls.on_answer(call_id, "answered", None)
    driver.turn(8_192, 4_096, around.time_ns + SLICE_NS)
    assert driver.runtime.records_read == 11


def test_a_batch_that_feeds_calls_is_taken_as_far_as_there_is_room():
    around = Calling()
    flow = Flow("asking")
    numbers = flow.read(Items(range(4)), name="numbers").rebalance()
    numbers.map_async(_answer, concurrency=5, name="ask").rebalance().write(Collect(), name="out")
    driver = first_task_of("ask", flow, around)
    channel = next(c.id for c in driver.core.task.inputs if not c.within_actor)
    driver.receive(channel, ATTEMPT, Data(1, encode(Batch(list(range(100)), 0))))
    for _ in range(10):
        driver.turn(8_192, 4_096, around.time_ns + SLICE_NS)
    assert len(driver.runtime.unanswered) == len(around.calls) == 5
    assert driver.core.inboxes[channel].skip == 5

    for answered in (3, 5, 10):
        for call_id in around.calls[:answered]:
            driver.calls.on_answer(call_id, "answered", None)
        driver.turn(8_192, 4_096, around.time_ns + SLICE_NS)
        assert len(around.calls) == 5 + min(answered, 5), "an answer that the journal lacks gives up its place once"


class CountsLooks(dict[int, bytes]):
    """The open calls, and how many of them somebody has looked at."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        self.looks += len(self)
        return super().__iter__()


def test_an_answer_costs_the_same_however_many_calls_wait():
    around = Calling()
    flow = Flow("asking")
    numbers = flow.read(Items(range(4)), name="numbers").rebalance()
    calls = numbers.flat_map(range, name="links").map_async(_answer, concurrency=5, answers="again", name="ask")
    calls.rebalance().write(Collect(), name="out")
    driver = first_task_of("links", flow, around)
    (asking,) = driver.runtime._callers
    asking.waiting = waiting = CountsLooks()
    channel = next(c.id for c in driver.core.task.inputs if not c.within_actor)
    driver.receive(channel, ATTEMPT, Data(1, encode(Batch([1_000], 0))))
    answered = 0
    while answered < 1_000:
        driver.turn(8_192, 4_096, around.time_ns + SLICE_NS)
        assert len(around.calls) == min(answered + 5, 1_000)
        driver.calls.on_answer(around.calls[answered], "answered", None)
        answered += 1
    assert (len(waiting), waiting.looks) == (0, 0)


# -- the pace --------------------------------------------------------------------------------------------------------


def test_the_pace_begins_with_one_record_and_at_most_doubles():
    pace = Pace(1)
    sizes: list[int] = []
    while not pace.is_cheap:
        sizes.append(pace.chunk(8_192))
        pace.note(sizes[-1], sizes[-1])  # a nanosecond each
    assert sizes == [2**n for n in range(len(sizes))]
    assert pace.chunk(8_192) == CHEAP_RECORDS


def test_a_jump_in_cost_is_noticed_with_the_first_chunk_behind_it():
    pace = Pace(1)
    for _ in range(20):
        pace.note(pace.chunk(8_192), 1_000)
    assert pace.is_cheap
    pace.note(8_192, 8_192 * 50 * MS)
    assert not pace.is_cheap
    assert pace.chunk(8_192) == 1


def test_a_chunk_that_lost_its_core_for_a_moment_only_halves_the_next_one():
    pace = Pace(1)
    for _ in range(20):
        pace.note(pace.chunk(8_192), 1_000)
    pace.note(1_024, SLICE_NS)
    assert pace.chunk(8_192) == 512
    pace.note(512, 4 * CHUNK_NS)
    assert pace.chunk(8_192) == 256


def test_a_few_records_that_take_their_time_to_begin_with_do_not_slow_the_pace():
    pace = Pace(1)
    for _ in range(20):
        pace.note(pace.chunk(8_192), 1_000)
    pace.note(1, CHUNK_NS // 2)
    assert pace.is_cheap


def test_functions_that_take_several_records_get_as_many_as_they_ask_for():
    assert unit_of([Map(abs), MapBatches(sorted, batch_size=64)]) == 64
    assert unit_of([MapBatches(sorted)]) is None
    pace = Pace(64)
    pace.note(64, 1_000 * MS)
    assert pace.chunk(8_192) == 64
    assert Pace(None).chunk(8_192) == 8_192


def test_a_batch_is_given_whole_to_a_function_that_takes_whatever_there_is():
    around = Around()
    slow = Slow(around, 5 * MS)
    flow = Flow("slow")
    flow.read(Items(range(4)), name="numbers").rebalance().map_batches(
        lambda records: [slow(record) for record in records], name="slow"
    ).rebalance().write(Collect(), name="out")
    driver = first_task_of("slow", flow, around)
    channel = next(c.id for c in driver.core.task.inputs if not c.within_actor)
    driver.receive(channel, ATTEMPT, Data(1, encode(Batch(list(range(50)), 0))))
    driver.turn(8_192, 4_096, around.time_ns + SLICE_NS)
    assert len(slow.seen) == 50


def test_nothing_that_user_code_was_given_is_looked_at_again():
    """A record that was processed may have been changed into what cannot be encoded, and its batch is logged yet."""
    task = Task(50 * MS, records=3, is_local=True)
    task.records[0] = {"lock": None}
    task.turn()
    task.slow.seen[0]["lock"] = lambda: None
    (queued,) = task.inbox.queue
    entry = task.inbox.log_entry(queued)  # type: ignore[arg-type]
    assert decode(entry.payload).rest(task.inbox.skip).records == [1, 2]

"""A run written by hand: one source, one loop of one task, one record that goes round twice, three cuts.

    in/0 --> down/0 --+--> out (in the same task)
               ^      |
               +------+  again

The record 3 goes round as 2 and 1, and leaves as 0. Epoch 1 finds 2 in the loop, epoch 2 finds 1, the last one nothing.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from backedge import Collect, Flow, Items
from backedge.engine.simulation.checker.record import (
    Barriered,
    Captured,
    Committed,
    Completed,
    EndSent,
    Event,
    Finished,
    Ran,
    Record,
    Restored,
    Sent,
    Started,
    Took,
)
from backedge.engine.state.keyed_state import encode_entries
from backedge.graphs.deployment import Deployment
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.recovery.cut.cut import Cut, InputRecord, LogEntry, OperatorState, OutputRecord, TaskSnapshot, Transaction
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.restored import RestoredLog, TaskRestore


class Down:
    outputs = ("again", "done")

    def on_record(self, ctx: Any, number: int) -> None:
        ctx.state.set(ctx.state.get(0) + number)
        ctx.emit(number - 1, "done" if number <= 1 else "again")


def counting_down() -> Flow:
    flow = Flow("down")
    again = flow.loop("again", of=int)
    counted = flow.read(Items[int]([]), name="in").merge(again).key_by(key_of).process(Down, name="down")
    again.feed(counted)
    counted.side("done").write(Collect(), name="out")
    return flow


def key_of(number: int) -> str:
    return "all"


def digested(deployment: Deployment) -> Deployment:
    """With digests on all channels, as between actors: that of a task to itself would have none."""
    channels = {id: replace(channel, within_actor=False) for id, channel in deployment.channels.items()}
    return replace(deployment, channels=channels)


PLAN = counting_down().plan()
DEPLOYMENT = digested(expand(PLAN, 1))
FIRST, SECOND = Attempt(1), Attempt(2)
IN, DOWN = TaskId("in", 0), TaskId("down", 0)
ENTRY = ChannelId("in.out->down.in", IN, DOWN)
BACK = ChannelId("down.again->down.in", DOWN, DOWN)
RESTORED = BACK._replace(restored=True)
TRANSACTION = "out.0.attempt-1.epoch-0"


def batch(*records: Any, hops: int = 0) -> bytes:
    return pickle.dumps((list(records), hops), 5)


THREE, TWO, ONE = batch(3), batch(2), batch(1)


def digest(*payloads: bytes) -> int:
    rolled = 0
    for payload in payloads:
        rolled = zlib.crc32(payload, rolled)
    return rolled


def log(all_sent: list[bytes], first: int) -> tuple[LogEntry, ...]:
    """The entries from batch `first` on."""
    return tuple(
        LogEntry(seq, all_sent[seq - 1], digest(*all_sent[: seq - 1]), digest(*all_sent[:seq]))
        for seq in range(first, len(all_sent) + 1)
    )


def state_of(total: int) -> OperatorState:
    return OperatorState(encode_entries("sum", {"all": total}))


def source_snapshot(epoch: int, *, ended: bool = False, attempt: Attempt = FIRST, sent: bool = True) -> TaskSnapshot:
    """The source behind its only record."""
    state = OperatorState(splits={"0-of-1": pickle.dumps(1)}, records=1)
    entry = OutputRecord(ENTRY, 1, digest(THREE)) if sent else OutputRecord(ENTRY, 0, 0)
    return TaskSnapshot(IN, Epoch(epoch), attempt, {"in": state}, (), (entry,), ended)


def loop_snapshot(epoch: int, total: int, consumed: int, sent: list[bytes], *, ended: bool = False) -> TaskSnapshot:
    """The loop, with so much of its own output consumed: the rest is in the log."""
    transactions = (Transaction(TRANSACTION, Epoch(0), FIRST, 1),) if ended else ()
    return TaskSnapshot(
        DOWN,
        Epoch(epoch),
        FIRST,
        {"down": state_of(total), "out": OperatorState(transactions=transactions, records=len(transactions))},
        (
            InputRecord(ENTRY, False, 1, digest(THREE), (), ended),
            InputRecord(BACK, True, consumed, digest(*sent[:consumed]), log(sent, consumed + 1), ended),
        ),
        (OutputRecord(BACK, len(sent), digest(*sent)),),
        ended,
    )


def cut_of(epoch: int, *snapshots: TaskSnapshot, attempt: Attempt = FIRST, policy: str = "aligned") -> Cut:
    by_task = {snapshot.task: snapshot for snapshot in snapshots}
    return Cut(Epoch(epoch), attempt, PLAN.hash, policy, False, by_task, DEPLOYMENT.parallelism)


def good_cuts() -> dict[Epoch, Cut]:
    return {
        Epoch(1): cut_of(1, source_snapshot(1), loop_snapshot(1, 3, 0, [TWO])),
        Epoch(2): cut_of(2, source_snapshot(2), loop_snapshot(2, 5, 1, [TWO, ONE])),
        Epoch(3): cut_of(3, source_snapshot(2, ended=True), loop_snapshot(2, 6, 2, [TWO, ONE], ended=True)),
    }


def snapshots(epoch: int, mode: Mode = Mode.ALIGNED) -> list[Event]:
    """Both tasks capture, one after the other."""
    return [
        Captured(FIRST, IN, Epoch(epoch)),
        Barriered(FIRST, IN, ENTRY, Epoch(epoch), mode),
        Captured(FIRST, DOWN, Epoch(epoch)),
        Barriered(FIRST, DOWN, BACK, Epoch(epoch), mode),
        Completed(FIRST, Epoch(epoch)),
    ]


def turn(attempt: Attempt, channel: ChannelId, seq: int, payload: bytes) -> list[Event]:
    """A batch is taken and processed."""
    return [Took(attempt, DOWN, channel, seq), Ran(attempt, DOWN, "batch", channel, payload)]


def good_trace() -> list[Event]:
    return [
        Started(FIRST, None),
        Restored(FIRST, IN, None),
        Restored(FIRST, DOWN, None),
        Ran(FIRST, IN, "produce", detail=5),
        Sent(FIRST, IN, ENTRY, 1, THREE),
        *turn(FIRST, ENTRY, 1, THREE),
        Sent(FIRST, DOWN, BACK, 1, TWO),
        *snapshots(1),
        *turn(FIRST, BACK, 1, TWO),
        Sent(FIRST, DOWN, BACK, 2, ONE),
        *snapshots(2),
        *turn(FIRST, BACK, 2, ONE),
        Ran(FIRST, IN, "end"),
        EndSent(FIRST, IN, ENTRY),
        Captured(FIRST, IN, None),
        Ran(FIRST, DOWN, "end"),
        EndSent(FIRST, DOWN, BACK),
        Captured(FIRST, DOWN, None),
        Completed(FIRST, Epoch(3)),
        Committed(FIRST, DOWN, (TRANSACTION,)),
        Finished(FIRST),
    ]


def good_record() -> Record:
    return Record(
        PLAN,
        {"in": [3]},
        "aligned",
        {FIRST: DEPLOYMENT},
        good_trace(),
        good_cuts(),
        committed={TRANSACTION: ("out", [0])},
        finished=True,
    )


def restored_record(consumed: int = 0) -> Record:
    """Crashed after epoch 1, restored from it, and captured again when so much of the restored log was consumed."""
    record = good_record()
    crash = place_of(record, Completed(FIRST, Epoch(1))) + 1
    states = {name: state for s in record.cuts[Epoch(1)].snapshots.values() for name, state in s.operators.items()}
    logs = (RestoredLog(RESTORED, (TWO,)),)
    restore = TaskRestore({"down": states["down"], "out": states["out"]}, logs)
    sent = [ONE] if consumed else []
    barriers: list[Event] = [
        Captured(SECOND, IN, Epoch(2)),
        Barriered(SECOND, IN, ENTRY, Epoch(2), Mode.ALIGNED),
        Captured(SECOND, DOWN, Epoch(2)),
        Barriered(SECOND, DOWN, BACK, Epoch(2), Mode.ALIGNED),
    ]
    taken: list[Event] = [*turn(SECOND, RESTORED, 1, TWO), Sent(SECOND, DOWN, BACK, 1, ONE)]
    record.trace[crash:] = [
        Started(SECOND, Epoch(1)),
        Restored(SECOND, IN, TaskRestore({"in": states["in"]})),
        Restored(SECOND, DOWN, restore),
        *(taken if consumed else []),
        *barriers,
        Completed(SECOND, Epoch(2)),
        *([] if consumed else taken),
    ]
    record.deployments[SECOND] = DEPLOYMENT
    loop = TaskSnapshot(
        DOWN,
        Epoch(2),
        SECOND,
        {"down": state_of(5 if consumed else 3), "out": OperatorState()},
        (
            InputRecord(ENTRY, False, 0, 0),
            InputRecord(BACK, True, 0, 0, log(sent, 1)),
            InputRecord(RESTORED, True, consumed, digest(TWO) if consumed else 0, log([TWO], consumed + 1)),
        ),
        (OutputRecord(BACK, len(sent), digest(*sent)),),
    )
    source = source_snapshot(2, attempt=SECOND, sent=False)
    record.cuts = {Epoch(1): record.cuts[Epoch(1)], Epoch(2): cut_of(2, source, loop, attempt=SECOND)}
    record.committed, record.finished = {}, False
    return record


def place_of(record: Record, event: Event) -> int:
    """Where an event stands. Events of two kinds with the same fields are equal, as all tuples are."""
    return next(place for place, e in enumerate(record.trace) if type(e) is type(event) and e == event)


def moved(record: Record, event: Event, before: Event) -> Record:
    taken = record.trace.pop(place_of(record, event))
    record.trace.insert(place_of(record, before), taken)
    return record


def without(record: Record, *events: Event) -> Record:
    for event in events:
        del record.trace[place_of(record, event)]
    return record


def with_snapshot(cut: Cut, snapshot: TaskSnapshot) -> Cut:
    return replace(cut, snapshots={**cut.snapshots, snapshot.task: snapshot})


def with_input(cut: Cut, changed: InputRecord) -> Cut:
    snapshot = cut.snapshots[changed.channel.receiver]
    inputs = tuple(changed if record.channel == changed.channel else record for record in snapshot.inputs)
    return with_snapshot(cut, replace(snapshot, inputs=inputs))


def with_states(cut: Cut, task: TaskId, states: Mapping[str, OperatorState]) -> Cut:
    snapshot = cut.snapshots[task]
    return with_snapshot(cut, replace(snapshot, operators={**snapshot.operators, **states}))


def input_of(cut: Cut, channel: ChannelId) -> InputRecord:
    return next(r for r in cut.snapshots[channel.receiver].inputs if r.channel == channel)

"""Checks each complete cut by itself: the statements that a validator proves, recomputed from the bytes.

For a channel from p to q: n batches were sent before p captured, m consumed before q captured, and L is the log.

1. m <= n: nothing is received that was not sent.
2. L is exactly m+1 .. n, contiguous, in order, its chain of digests unbroken from the receiver's to the sender's.
   Only the first entry of L may have been processed in part.
3. A regular channel is empty, m = n and no L, unless the policy logs all channels, or an aligned task has captured past
   its queues and says so.
4. The named back edges cover every cycle.
5. Every task, operator and channel is there once, of one epoch, one attempt and one graph.
8. From one cut to the next, positions never go back.

The other statements need more than the cut: see `trail.py`, `output_checks.py` and `proof/plain/`. This file shares
nothing with the code that takes cuts, except the data classes.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backedge.engine.simulation.checker.counts import is_in_order
from backedge.engine.simulation.checker.payloads import hops_in
from backedge.engine.simulation.checker.record import Violation
from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import ChannelId, TaskId
from backedge.graphs.plan import Plan
from backedge.recovery.cut.cut import Cut, InputRecord, LogEntry, OutputRecord, TaskSnapshot
from backedge.recovery.protocol.messages import marker_in

RECEIVED = "1: nothing is received that was not sent"
LOGGED = "2: a log is exactly what was in its channel"
EMPTY = "3: a channel that is not logged is empty at the cut"
COVERED = "4: the back edges cover every cycle"
ONCE = "5: every task and channel is there once"
ONWARD = "8: positions never go back"

RestoredLogs = Mapping[ChannelId, tuple[bytes, ...]]
"""The content of each restored channel when its attempt began."""

Positions = dict[tuple[str, str], Any]


def check_cut(
    cut: Cut, deployment: Deployment, previous: Sequence[Cut] = (), restored: RestoredLogs | None = None
) -> list[Violation]:
    """The faults of a cut. `previous` is its lineage, oldest first; `restored` is what its attempt began with."""
    found = list(_check_presence(cut, deployment))
    if not found:
        found += _check_channels(cut, deployment, restored or {})
    if previous:
        found += _check_onward(previous[-1], cut)
    return found


def check_cover(plan: Plan) -> list[Violation]:
    """Check that the back edges cover every cycle: repeatedly remove operators that no other edge enters."""
    left, forward = set(plan.operators), [edge for edge in plan.edges if edge.loop is None]
    while free := left - {edge.receiver for edge in forward if edge.sender in left}:
        left -= free
    if not left:
        return []
    return [Violation(COVERED, f"a cycle without a named back edge goes through {', '.join(sorted(left))}")]


# -- presence ----------------------------------------------------------------------------------------------------


def _check_presence(cut: Cut, deployment: Deployment) -> Iterator[Violation]:
    def wrong(story: str, task: TaskId | None = None, channel: ChannelId | None = None) -> Violation:
        return Violation(ONCE, story, cut.epoch, channel, task)

    if cut.graph_hash != deployment.plan.hash:
        yield wrong(f"the cut is of graph {cut.graph_hash}, the run of graph {deployment.plan.hash}")
    if dict(cut.parallelism) != dict(deployment.parallelism):
        yield wrong(f"the cut has parallelism {cut.parallelism}, the run {deployment.parallelism}")
    for task in deployment.tasks.keys() - cut.snapshots.keys():
        yield wrong("the task is missing", task)
    for task in cut.snapshots.keys() - deployment.tasks.keys():
        yield wrong("there is no such task", task)
    for id, snapshot in cut.snapshots.items():
        task = deployment.tasks.get(id)
        if task is None:
            continue
        if snapshot.task != id:
            yield wrong(f"the snapshot filed here is of task {snapshot.task}", id)
        if snapshot.attempt != cut.attempt:
            yield wrong(f"the snapshot is of attempt {snapshot.attempt}, the cut of {cut.attempt}", id)
        # A task that has ended is in every later cut with its last state, which belongs to no epoch.
        if snapshot.epoch != cut.epoch and not snapshot.ended:
            yield wrong(f"the snapshot is of epoch {snapshot.epoch}", id)
        if set(snapshot.operators) != set(task.operators):
            yield wrong(f"the state is of {sorted(snapshot.operators)}, the task runs {sorted(task.operators)}", id)
        inputs = [record.channel for record in snapshot.inputs if not record.channel.restored]
        for channel in _differ(inputs, [channel.id for channel in task.inputs]):
            yield wrong("the input channel is not there once", id, channel)
        for channel in _differ([r.channel for r in snapshot.outputs], [channel.id for channel in task.outputs]):
            yield wrong("the output channel is not there once", id, channel)


def _differ(found: Sequence[ChannelId], expected: Sequence[ChannelId]) -> list[ChannelId]:
    if len(found) == len(expected) and set(found) == set(expected):
        return []
    return sorted(channel for channel in {*found, *expected} if found.count(channel) != expected.count(channel))


# -- channels ----------------------------------------------------------------------------------------------------


def _check_channels(cut: Cut, deployment: Deployment, restored: RestoredLogs) -> Iterator[Violation]:
    sent = {record.channel: record for snapshot in cut.snapshots.values() for record in snapshot.outputs}
    for snapshot in cut.snapshots.values():
        for received in snapshot.inputs:
            id = received.channel
            if id.restored:
                payloads = restored.get(id)
                yield from _check_skips(cut, received)
                yield from _check_restored(cut, snapshot, received, payloads)
                continue
            channel = deployment.channels[id]
            if received.is_back != channel.is_back:
                yield Violation(ONCE, f"is_back is {received.is_back} in the cut but not in the graph", cut.epoch, id)
            yield from _check_skips(cut, received)
            yield from _check_channel(cut, snapshot, received, sent[id], has_digest=not channel.within_actor)


def _check_skips(cut: Cut, received: InputRecord) -> Iterator[Violation]:
    """Records are processed in order: only the first batch may have been processed in part, and never completely."""
    for place, entry in enumerate(received.log):
        if entry.skip and (place or marker_in(entry.payload) is not None or entry.skip >= len(hops_in(entry.payload))):
            story = f"batch {entry.seq} is entry {place + 1} of the log, and {entry.skip} records of it are left out"
            yield Violation(LOGGED, story, cut.epoch, received.channel)


def _check_channel(
    cut: Cut, snapshot: TaskSnapshot, received: InputRecord, sent: OutputRecord, *, has_digest: bool
) -> Iterator[Violation]:
    id, m, n, log = received.channel, received.consumed, sent.sent, received.log
    if m > n:
        yield Violation(RECEIVED, f"{m} batches were consumed, {n} were sent", cut.epoch, id)
        return
    yield from _check_empty(cut, snapshot, received, n - m)
    seqs = [entry.seq for entry in log]
    if seqs != list(range(m + 1, n + 1)):
        story = (
            f"the receiver consumed {m}, the sender sent {n}, so {_span(m + 1, n)} belong in the log; it holds {seqs}"
        )
        yield Violation(LOGGED, story, cut.epoch, id)
    elif has_digest:
        yield from _check_chain(cut, id, received.digest, log, sent.digest)


def _check_restored(
    cut: Cut, snapshot: TaskSnapshot, received: InputRecord, payloads: tuple[bytes, ...] | None
) -> Iterator[Violation]:
    """Check a restored channel. It has no sender: its log is the rest of what the attempt began with."""
    id, m, log = received.channel, received.consumed, received.log
    yield from _check_empty(cut, snapshot, received, len(log))
    seqs = [entry.seq for entry in log]
    if seqs != list(range(m + 1, m + len(log) + 1)):
        yield Violation(LOGGED, f"{m} batches were consumed, and the log holds {seqs}", cut.epoch, id)
    elif payloads is not None and tuple(entry.payload for entry in log) != payloads[m:]:
        story = f"{len(payloads)} batches were restored, {m} consumed; the log holds {len(log)}, and not just the rest"
        yield Violation(LOGGED, story, cut.epoch, id)
    else:
        digests = _digests(payloads) if payloads is not None else None
        after = digests[-1] if digests is not None else log[-1].digest_after if log else received.digest
        if digests is not None and received.digest != digests[m]:
            yield Violation(LOGGED, f"the digest of the {m} consumed is not that of what was restored", cut.epoch, id)
        yield from _check_chain(cut, id, received.digest, log, after)


def _check_empty(cut: Cut, snapshot: TaskSnapshot, received: InputRecord, in_channel: int) -> Iterator[Violation]:
    has_overtaken = snapshot.overtook and cut.policy == "aligned"
    if cut.policy == "unaligned" or has_overtaken or received.is_back:
        return
    if in_channel or received.log:
        story = f"policy {cut.policy!r} leaves nothing in it; {in_channel} batches were, {len(received.log)} are logged"
        yield Violation(EMPTY, story, cut.epoch, received.channel)


def _check_chain(
    cut: Cut, id: ChannelId, digest: int, log: tuple[LogEntry, ...], sent_digest: int
) -> Iterator[Violation]:
    for entry in log:
        if entry.digest_before != digest:
            story = (
                f"batch {entry.seq} follows digest {entry.digest_before:#010x}; what comes before has {digest:#010x}"
            )
            yield Violation(LOGGED, story, cut.epoch, id)
        digest = zlib.crc32(entry.payload, digest)
        if entry.digest_after != digest:
            story = f"batch {entry.seq} gives digest {digest:#010x}; the log says {entry.digest_after:#010x}"
            yield Violation(LOGGED, story, cut.epoch, id)
    if digest != sent_digest:
        story = f"received and logged have digest {digest:#010x}, what was sent has {sent_digest:#010x}"
        yield Violation(LOGGED, story, cut.epoch, id)


def _digests(payloads: tuple[bytes, ...]) -> list[int]:
    digests = [0]
    for payload in payloads:
        digests.append(zlib.crc32(payload, digests[-1]))
    return digests


def _span(first: int, last: int) -> str:
    return f"{first} to {last}" if last >= first else "none"


# -- from cut to cut ---------------------------------------------------------------------------------------------


def _check_onward(before: Cut, cut: Cut) -> Iterator[Violation]:
    if cut.epoch <= before.epoch:
        yield Violation(ONWARD, f"the cut follows that of epoch {before.epoch}", cut.epoch)
    earlier, later = _positions(before), _positions(cut)
    for (operator, split), position in earlier.items():
        if (operator, split) not in later:
            yield Violation(ONWARD, f"source {operator} stood at {position} in split {split}, now nowhere", cut.epoch)
        elif is_in_order(split) and later[operator, split] < position:
            story = f"source {operator} goes back in split {split} from {position} to {later[operator, split]}"
            yield Violation(ONWARD, story, cut.epoch)
    if before.attempt != cut.attempt:
        return
    for task, snapshot in before.snapshots.items():
        following = cut.snapshots.get(task)
        if following is None:
            continue
        now = {r.channel: r.consumed for r in following.inputs}
        now_sent = {r.channel: r.sent for r in following.outputs}
        pairs = [(r.channel, r.consumed, now.get(r.channel, r.consumed)) for r in snapshot.inputs]
        pairs += [(r.channel, r.sent, now_sent.get(r.channel, r.sent)) for r in snapshot.outputs]
        for channel, earlier_count, later_count in pairs:
            if later_count < earlier_count:
                story = f"the count at {task} goes back from {earlier_count} to {later_count}"
                yield Violation(ONWARD, story, cut.epoch, channel, task)
        if snapshot.ended and not following.ended:
            yield Violation(ONWARD, "the task had ended, and runs again", cut.epoch, task=task)


def _positions(cut: Cut) -> Positions:
    return {
        (operator, split): pickle.loads(position)
        for snapshot in cut.snapshots.values()
        for operator, state in snapshot.operators.items()
        for split, position in state.splits.items()
    }

"""Walks the trace of each attempt once: what was sent and taken, and where each task was when it captured.

This evidence does not pass through the code that takes snapshots, so cuts are compared with it:

- A channel is numbered without a gap; its items are taken in order, each after it was sent; nothing follows END.
- A channel carries one barrier per epoch, with increasing numbers.
- An attempt captures only epochs that it began, which have higher numbers than the restored cut.
- A complete epoch was not given up, and every snapshot of its cut was captured by its task.
- The counts of a cut are those of the trace, and its logs contain exactly the bytes that were sent.
- What a task sends at its end it sends once: of an operator that had ended in the restored cut, nobody does it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from backedge.engine.simulation.checker.cut_checks import LOGGED, ONCE
from backedge.engine.simulation.checker.payloads import COLUMNS, frozen, hops_in, rest_of
from backedge.engine.simulation.checker.record import (
    Aborted,
    Barriered,
    Captured,
    Completed,
    EndSent,
    Event,
    Ran,
    Record,
    Restored,
    Sent,
    Started,
    Took,
    Violation,
)
from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.recovery.cut.cut import Cut, LogEntry
from backedge.recovery.protocol.messages import marker_in
from backedge.recovery.protocol.restored import TaskRestore

NUMBERED = "a channel delivers what was sent, in order"
ENDED = "nothing follows END"
BARRIERS = "a channel carries one barrier an epoch"
OUTLIVED = "no epoch outlives its attempt"
GIVEN_UP = "an epoch that was given up is never complete"
REPLAYED = "a log is replayed whole and in order"
COUNTS = "the counts of a cut are those of the trace"
ENDS_ONCE = "5: what a task sends at its end it sends once"

Counts = dict[ChannelId, int]


@dataclass
class Trail:
    """One attempt.

    - captured: what a task had taken and sent when it captured an epoch (None: its last state).
    - ending, sent_at_end: the tasks that have run their end hooks, and those of them that have sent something since.
    """

    attempt: Attempt
    deployment: Deployment
    restored_from: Epoch | None = None
    events: list[Event] = field(default_factory=list[Event])
    restores: dict[TaskId, TaskRestore | None] = field(default_factory=dict[TaskId, TaskRestore | None])
    logs: dict[ChannelId, tuple[bytes, ...]] = field(default_factory=dict[ChannelId, tuple[bytes, ...]])
    skips: dict[ChannelId, int] = field(default_factory=dict[ChannelId, int])
    sent: dict[ChannelId, list[bytes]] = field(default_factory=dict[ChannelId, list[bytes]])
    taken: Counts = field(default_factory=Counts)
    ended: set[ChannelId] = field(default_factory=set[ChannelId])
    barriers: dict[tuple[ChannelId, bool], Epoch] = field(default_factory=dict[tuple[ChannelId, bool], Epoch])
    aborted: set[Epoch] = field(default_factory=set[Epoch])
    captured: dict[tuple[TaskId, Epoch | None], tuple[Counts, Counts]] = field(
        default_factory=dict[tuple[TaskId, Epoch | None], tuple[Counts, Counts]]
    )
    ending: set[TaskId] = field(default_factory=set[TaskId])
    sent_at_end: set[TaskId] = field(default_factory=set[TaskId])
    violations: list[Violation] = field(default_factory=list[Violation])

    def wrong(self, statement: str, story: str, channel: ChannelId | None = None, epoch: Epoch | None = None) -> None:
        self.violations.append(Violation(statement, f"attempt {self.attempt}: {story}", epoch, channel))

    def follow(self, event: Event) -> None:
        self.events.append(event)
        match event:
            case Sent():
                self._on_sent(event)
            case Took():
                self._on_took(event)
            case Barriered():
                self._on_barriered(event)
            case EndSent():
                self._on_end_sent(event)
            case Ran(what="end"):
                self.ending.add(event.task)
            case Captured():
                self._on_captured(event)
            case Started():
                self.restored_from = event.restored
            case Restored():
                self._on_restored(event)
            case Aborted():
                self.aborted.add(event.epoch)
            case Completed():
                self._on_completed(event)
            case _:
                return

    def _on_sent(self, event: Sent) -> None:
        sent = self.sent.setdefault(event.channel, [])
        if event.channel in self.ended:
            self.wrong(ENDED, f"batch {event.seq} was sent after END", event.channel)
        if event.seq != len(sent) + 1:
            self.wrong(NUMBERED, f"batch {event.seq} was sent where {len(sent) + 1} was due", event.channel)
        sent.append(event.payload)
        if event.task in self.ending:
            self.sent_at_end.add(event.task)

    def _on_took(self, event: Took) -> None:
        channel = event.channel
        taken = self.taken.get(channel, 0)
        there = len(self.logs.get(channel, ())) if channel.restored else len(self.sent.get(channel, ()))
        if event.seq != taken + 1 or event.seq > there:
            story = f"batch {event.seq} was taken, after {taken} others, when {there} were there to take"
            self.wrong(NUMBERED, story, channel)
        self.taken[channel] = event.seq

    def _on_barriered(self, event: Barriered) -> None:
        kind = event.channel, event.mode.is_probe
        if event.channel in self.ended:
            self.wrong(ENDED, "a barrier was sent after END", event.channel, event.epoch)
        last = self.barriers.get(kind, 0)
        if event.epoch <= last:
            self.wrong(BARRIERS, f"the barrier was sent after that of epoch {last}", event.channel, event.epoch)
        self.barriers[kind] = event.epoch

    def _on_end_sent(self, event: EndSent) -> None:
        if event.channel in self.ended:
            self.wrong(ENDED, "END was sent twice", event.channel)
        self.ended.add(event.channel)

    def _on_captured(self, event: Captured) -> None:
        if (event.task, event.epoch) in self.captured:
            self.wrong(ONCE, f"task {event.task} captured twice", epoch=event.epoch)
        if event.epoch is not None and self.restored_from is not None and event.epoch <= self.restored_from:
            story = f"task {event.task} captured it, although the attempt restored epoch {self.restored_from}"
            self.wrong(OUTLIVED, story, epoch=event.epoch)
        task = self.deployment.tasks[event.task]
        counts = {channel.id: self.taken.get(channel.id, 0) for channel in task.inputs}
        restore = self.restores.get(event.task)
        if restore is not None:
            counts |= {log.channel: self.taken.get(log.channel, 0) for log in restore.logs}
        sent = {channel.id: len(self.sent.get(channel.id, ())) for channel in task.outputs}
        self.captured[event.task, event.epoch] = counts, sent

    def _on_restored(self, event: Restored) -> None:
        self.restores[event.task] = event.restore
        if event.restore is not None:
            self.logs.update((log.channel, log.payloads) for log in event.restore.logs)
            self.skips.update((log.channel, log.skip) for log in event.restore.logs)

    def _on_completed(self, event: Completed) -> None:
        if event.epoch in self.aborted:
            self.wrong(GIVEN_UP, "it was given up, and completed after that", epoch=event.epoch)


def walk(record: Record) -> dict[Attempt, Trail]:
    trails: dict[Attempt, Trail] = {}
    trail: Trail | None = None
    for event in record.trace:
        if trail is None or event.attempt != trail.attempt:
            if event.attempt not in trails:
                trails[event.attempt] = Trail(event.attempt, record.deployments[event.attempt])
            trail = trails[event.attempt]
        trail.follow(event)
    return trails


def check_against(trail: Trail, cut: Cut) -> Iterator[Violation]:
    """Compare a cut with the trace of its attempt."""
    for id, snapshot in cut.snapshots.items():
        counts = trail.captured.get((id, None if snapshot.ended else cut.epoch))
        if counts is None:
            yield Violation(ONCE, "the task never captured what the cut holds of it", cut.epoch, task=id)
            continue
        if snapshot.ended and (id, cut.epoch) in trail.captured:
            # A last state stands for epochs that its task had not captured, and belongs to a later moment.
            yield Violation(ONCE, "the task captured this epoch, but the cut has its last state", cut.epoch, task=id)
        taken, sent = counts
        pairs = [(r.channel, "consumed", r.consumed, taken.get(r.channel)) for r in snapshot.inputs]
        pairs += [(r.channel, "sent", r.sent, sent.get(r.channel)) for r in snapshot.outputs]
        for channel, what, in_cut, in_trace in pairs:
            if in_cut != in_trace:
                story = f"{in_cut} were {what} by the cut, {in_trace} by the trace"
                yield Violation(COUNTS, story, cut.epoch, channel, id)
        for received in snapshot.inputs:
            was_sent = _payloads(trail, received.channel)
            for entry in received.log:
                if entry.seq > len(was_sent) or not _same_entry(entry, was_sent[entry.seq - 1]):
                    story = f"the log holds something else as batch {entry.seq} than was sent"
                    yield Violation(LOGGED, story, cut.epoch, received.channel)


def _payloads(trail: Trail, channel: ChannelId) -> list[bytes] | tuple[bytes, ...]:
    return trail.logs.get(channel, ()) if channel.restored else trail.sent.get(channel, ())


def _same_entry(entry: LogEntry, payload: bytes) -> bool:
    """Whether an entry contains what was sent. For items passed by reference, processed records are gone."""
    return same_payload(rest_of(entry.payload, entry.skip), rest_of(payload, entry.skip))


def same_payload(one: bytes, other: bytes) -> bool:
    """Whether two payloads are equivalent: a batch passed by reference was encoded twice, at two moments."""
    if one == other:
        return True
    if marker_in(one) is not None or marker_in(other) is not None:
        return False
    if COLUMNS in (one[:1], other[:1]):
        return frozen_hops(one) == frozen_hops(other)
    return hops_in(one) == hops_in(other)


def frozen_hops(payload: bytes) -> list[Any]:
    """The records of a batch with their hops, for comparison in whatever form they travel."""
    return list(map(frozen, hops_in(payload)))


def lineage(cut: Cut, cuts: Mapping[Epoch, Cut], trails: Mapping[Attempt, Trail]) -> list[Cut]:
    """The cuts that this one builds on, oldest first: those of its attempt, and those of what it restored."""
    found: list[Cut] = []
    attempt, before = cut.attempt, cut.epoch
    while attempt in trails:
        found += sorted((c for e, c in cuts.items() if e < before and c.attempt == attempt), key=lambda c: -c.epoch)
        restored_from = trails[attempt].restored_from
        if restored_from is None or restored_from not in cuts:
            break
        found.append(cuts[restored_from])
        attempt, before = cuts[restored_from].attempt, restored_from
    return found[::-1]


def check_replay(trail: Trail, cut: Cut) -> Iterator[Violation]:
    """An attempt replays what the logs of its cut contain: the restored rest of a channel, then its live part.

    Under another parallelism, in another graph, or where records were redistributed, each receiver has its own order.
    """
    if cut.snapshots.keys() != trail.deployment.tasks.keys() or cut.graph_hash != trail.deployment.plan.hash:
        return
    expected: dict[ChannelId, list[bytes]] = {}
    skips: dict[ChannelId, int] = {}
    for snapshot in cut.snapshots.values():
        for record in sorted(snapshot.inputs, key=lambda record: not record.channel.restored):
            if record.log:
                channel = record.channel._replace(restored=True)
                skips.setdefault(channel, record.log[0].skip)
                payloads = expected.setdefault(channel, [])
                payloads += [entry.payload for entry in record.log]
    for channel in expected.keys() | trail.logs.keys():
        if channel.receiver not in trail.restores:
            continue
        due, replayed = expected.get(channel, []), list(trail.logs.get(channel, ()))
        if due != replayed:
            story = f"attempt {trail.attempt}: {len(replayed)} batches are replayed, the cut holds {len(due)}"
            order = ", in another order" if sorted(due) == sorted(replayed) else ""
            yield Violation(REPLAYED, story + order, cut.epoch, channel)
        if skips.get(channel, 0) != trail.skips.get(channel, 0):
            story = (
                f"attempt {trail.attempt}: it begins behind {trail.skips.get(channel, 0)} records of the first batch; "
                f"{skips.get(channel, 0)} of them were processed before the cut"
            )
            yield Violation(REPLAYED, story, cut.epoch, channel)


def check_ends(trail: Trail, cut: Cut) -> Iterator[Violation]:
    """In the cut that the attempt restored, nothing had ended that sends at its end: others know that it has ended."""
    for id in sorted(trail.sent_at_end):
        for operator in trail.deployment.tasks[id].operators:
            former = {task: snapshot for task, snapshot in cut.snapshots.items() if operator in snapshot.operators}
            if len(former) == trail.deployment.parallelism[operator]:
                former = {task: snapshot for task, snapshot in former.items() if task.index == id.index}
            ended = [str(task) for task, snapshot in sorted(former.items()) if snapshot.ended]
            if ended:
                story = f"{', '.join(ended)} had ended in the cut, and {operator!r} goes on"
                yield Violation(ENDS_ONCE, f"attempt {trail.attempt}: {story} and sends at its end", cut.epoch, task=id)
                break

"""Applies the theorem of Chandy and Lamport to a cut: rearranges the run, and replays it with a plain interpreter.

The events of each task before its capture are moved ahead of all events after captures; the order within a task stays.
Then:

- every event is still legal: each item taken from a channel is at its front;
- user code behaves as before: each entry sends what the plain interpreter sends;
- between the two parts, the state of every task is exactly the cut, and every channel holds exactly its log;
- the end is unchanged: every channel holds the same items as in the original run.

Each task sees its own events in the original order, so its own end cannot differ.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

from backedge.engine.simulation.checker.payloads import frozen, hops_in, rest_of
from backedge.engine.simulation.checker.record import (
    Captured,
    Event,
    Ran,
    Record,
    Restored,
    Sent,
    Took,
    Violation,
)
from backedge.engine.simulation.checker.trail import Trail, same_payload
from backedge.graphs.ids import ChannelId, Epoch, TaskId
from backedge.graphs.routing import key_group, task_of_group
from backedge.graphs.versions import use_versions
from backedge.recovery.cut.cut import Cut, OperatorState, TaskSnapshot, layers
from backedge.recovery.protocol.messages import Marker, marker_in
from proof.plain.plain_operator import Wires
from proof.plain.plain_rounds import PlainRounds
from proof.plain.plain_task import Outputs, PlainTask, decoded, outputs_in
from proof.plain.plain_versions import PlainVersions

LEGAL = "theorem: moved ahead of the captures, every event is legal"
PLAIN = "theorem: user code sends what a plain interpreter sends"
STATE = "theorem: the state in between is exactly the cut"
CHANNELS = "theorem: in between, every channel holds exactly its log"
END = "theorem: the end is unchanged"
PREPARED = "6: a transaction holds exactly the output up to its capture"


class Broken(Exception):
    """The first fault; later ones would be meaningless."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation)
        self.violation = violation


class Damaged(Exception):
    """A batch was damaged in transit. The attempt may go on until digests are compared, and must then fail."""


def check_theorem(record: Record, trail: Trail, cut: Cut) -> list[Violation]:
    """Rearrange, replay and compare; return the first fault, if any."""
    try:
        Replay(record, trail, cut).run()
    except Broken as broken:
        return [broken.violation]
    except Damaged:
        # A fault of the transport after a correct cut proves nothing against the cut.
        return []
    return []


class Replay:
    """All tasks of an attempt as plain ones, and its channels as plain queues."""

    def __init__(self, record: Record, trail: Trail, cut: Cut) -> None:
        self.record = record
        self.trail = trail
        self.cut = cut
        self.wires = Wires(trail.deployment.plan)
        self.tasks: dict[TaskId, PlainTask] = {}
        self.rounds: dict[TaskId, PlainRounds] = {}
        self.queues: dict[ChannelId, deque[tuple[int, bytes]]] = {}
        self.skips: Counter[ChannelId] = Counter()
        self.owed: dict[TaskId, Outputs] = {}
        # Tasks that have run user code and sent nothing since: what several batches emit may leave together.
        self.silent: set[TaskId] = set()
        self.contributions: dict[TaskId, Any] = {}
        self.is_past_cut = False
        self.was_given_up = any(attempt > trail.attempt for attempt in record.deployments)
        self.written: dict[TaskId, dict[Epoch, dict[str, list[Any]]]] = {}

    def run(self) -> None:
        """Replay both parts of the rearranged run, with the comparisons between and after them."""
        published = self.record.versions.get(self.trail.attempt, {})
        use_versions(self.trail.deployment.plan.name, PlainVersions(published))
        before, after = self._parts()
        self._replay(before)
        self._compare_with_cut()
        self.is_past_cut = True
        self._replay(after)
        self._compare_ends()

    def _parts(self) -> tuple[list[Event], list[Event]]:
        captures = {id: None if s.ended else self.cut.epoch for id, s in self.cut.snapshots.items()}
        past: set[TaskId] = set()
        before: list[Event] = []
        after: list[Event] = []
        for event in self.trail.events:
            if isinstance(event, Sent | Took | Ran | Restored | Captured):
                (after if event.task in past else before).append(event)
                if isinstance(event, Captured) and event.epoch == captures.get(event.task, -1):
                    past.add(event.task)
        missing = captures.keys() - past
        if missing:
            raise self._broken(STATE, "the task never captured this epoch", task=min(missing))
        return before, after

    # -- events --------------------------------------------------------------------------------------------------

    def _replay(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Sent():
                    self._on_sent(event)
                case Took():
                    if event.task not in self.silent:
                        self._settle(event.task)
                    self._on_took(event)
                case Ran():
                    if event.task not in self.silent:
                        self._settle(event.task)
                    self._on_ran(event)
                    self.silent.add(event.task)
                case Captured():
                    self._settle(event.task)
                    of_task = self.written.setdefault(event.task, {})
                    of_task[event.epoch or Epoch(0)] = self.tasks[event.task].take_written()
                case Restored():
                    self._on_restored(event)
                case _:
                    continue
        for task in list(self.owed):
            self._settle(task)

    def _on_restored(self, event: Restored) -> None:
        task = self.trail.deployment.tasks[event.task]
        plain = self.tasks[event.task] = PlainTask(task, self.trail.deployment, self.record.inputs, self.wires)
        self.rounds[event.task] = PlainRounds(task, None if event.restore is None else event.restore.rounds)
        if event.restore is None:
            return
        plain.restore(event.restore.operators)
        for log in event.restore.logs:
            self.queues[log.channel] = deque(enumerate(log.payloads, start=1))
            self.skips[log.channel] = log.skip

    def _on_sent(self, event: Sent) -> None:
        self.queues.setdefault(event.channel, deque()).append((event.seq, event.payload))
        self.silent.discard(event.task)
        marker = marker_in(event.payload)
        if marker is not None:
            self._on_marker_sent(event, marker)
            return
        edge = self.trail.deployment.channels[event.channel].edge
        owed = self.owed.setdefault(event.task, Counter())
        owed.subtract(outputs_in(event.channel, edge, event.payload))

    def _on_marker_sent(self, event: Sent, marker: Marker) -> None:
        """A task contributes to the markers that it passes on, an inner head to those it sends outside."""
        task, depth = self.tasks[event.task].task, self.trail.deployment.channels[event.channel].depth
        self.rounds[event.task].sent(depth, marker)
        own = self.contributions.get(event.task)
        said = dict(marker.contributions).get(event.task)
        if (task.iteration is None or depth < task.depth) and said != own:
            story = f"marker {marker.path} says that the task contributed {said!r}; what it sent back comes to {own!r}"
            raise self._broken(PLAIN, story, event.channel, event.task)

    def _on_took(self, event: Took) -> None:
        queue = self.queues.get(event.channel)
        if not queue or queue[0][0] != event.seq:
            there = f"batch {queue[0][0]} is at the front" if queue else "nothing is in the channel"
            raise self._broken(LEGAL, f"batch {event.seq} is taken when {there}", event.channel, event.task)
        payload = queue.popleft()[1]
        self.rounds[event.task].took(event.channel, rest_of(payload, self.skips.pop(event.channel, 0)))

    def _on_ran(self, event: Ran) -> None:
        plain, rounds = self.tasks[event.task], self.rounds[event.task]
        if event.channel is not None and event.payload is not None:
            fault = self._fault_of_batch(event, event.channel, event.payload)
            if fault is not None:
                if self.is_past_cut and self.was_given_up:
                    raise Damaged
                raise self._broken(LEGAL, fault, event.channel, event.task)
        try:
            self.owed.setdefault(event.task, Counter()).update(plain.run(event))
        except LookupError as error:
            raise self._broken(PLAIN, f"{event.what} is not possible: {error}", event.channel, event.task) from error
        self.contributions.pop(event.task, None)
        if event.what == "round_end":
            rounds.round_ended(event.detail)
            self._contribute(plain, len(event.detail))
        elif event.what == "release_result" and plain.task.depth > 1:
            self._contribute(plain, len(rounds.leaving))
            rounds.result_released()

    def _fault_of_batch(self, event: Ran, channel: ChannelId, payload: bytes) -> str | None:
        """The fault, if any, in running these records now."""
        rounds = self.rounds[event.task]
        if event.what == "batch":
            return rounds.ran(channel, payload)
        if rounds.holds(channel):
            return rounds.ran_in_part(channel, payload)
        queue, skip, ran = self.queues.get(channel), self.skips[channel], hops_in(payload)
        if not queue or hops_in(queue[0][1])[skip : skip + len(ran)] != ran:
            return f"a part ran that is not what follows {skip} records of the batch at the front"
        self.skips[channel] += len(ran)
        return None

    def _contribute(self, plain: PlainTask, depth: int) -> None:
        """What the task sent back in the ending round is its contribution to the decision about the next."""
        for channel in plain.task.outputs:
            if channel.is_back and channel.depth == depth:
                self.contributions[plain.task.id] = plain.take_measured(channel.edge.receiver)
                return

    def _settle(self, task: TaskId) -> None:
        """Check that the run has sent exactly what user code sends at its last entry points."""
        self.silent.discard(task)
        owed = self.owed.pop(task, None)
        if owed is None:
            return
        for (edge, _, record, hops), count in owed.items():
            if count:
                what = "sent by the plain interpreter alone" if count > 0 else "sent by the run alone"
                story = f"on edge {edge}, with {hops} hops, {abs(count)} times {what}: {record}"
                raise self._broken(PLAIN, story, task=task)

    # -- comparisons ---------------------------------------------------------------------------------------------

    def _compare_with_cut(self) -> None:
        for id, snapshot in self.cut.snapshots.items():
            for name, state in snapshot.operators.items():
                for difference in self._differences(self.tasks[id], name, state):
                    raise self._broken(STATE, f"operator {name!r}: {difference}", task=id)
            for difference in self.rounds[id].differences(snapshot.rounds):
                raise self._broken(STATE, f"the cut holds {difference}", task=id)
            self._compare_transactions(snapshot)
            for received in snapshot.inputs:
                held = self.queues.get(received.channel, ())
                if [seq for seq, _ in held] != [entry.seq for entry in received.log] or not all(
                    same_payload(rest_of(payload, entry.skip), rest_of(entry.payload, entry.skip))
                    for (_, payload), entry in zip(held, received.log, strict=True)
                ):
                    story = f"the log holds {[e.seq for e in received.log]}, the channel {[seq for seq, _ in held]}"
                    raise self._broken(CHANNELS, story, received.channel, id)
                skip = received.log[0].skip if received.log else 0
                if skip != self.skips[received.channel]:
                    story = f"the log leaves out {skip} records, and {self.skips[received.channel]} were processed"
                    raise self._broken(CHANNELS, story, received.channel, id)

    def _differences(self, plain: PlainTask, name: str, state: OperatorState) -> Iterator[str]:
        keeps_answers = plain.operators[name].operator.kind.keeps_answers
        in_cut, in_run = decoded(state, keeps_answers), plain.state(name)
        for part, of_cut, of_run in zip(in_cut._fields, in_cut, in_run, strict=True):
            if of_cut != of_run:
                yield f"{part} are {of_cut} in the cut, {of_run} in the run"
        parallelism = self.trail.deployment.parallelism[name]
        filed: set[int] = {group for parts in layers(state) for part in parts for group in part.groups.tolist()}
        for group in sorted(filed):
            if task_of_group(group, parallelism) != plain.task.id.index:
                yield f"key group {group} belongs to task {task_of_group(group, parallelism)}"
        misplaced = {key_group(key) for key in in_cut.all_keys()} - filed
        if misplaced:
            yield f"keys of groups {sorted(misplaced)} are filed under other groups"

    def _compare_transactions(self, snapshot: TaskSnapshot) -> None:
        """Check that each transaction of this attempt contains what its sink got between two captures."""
        written = self.written.get(snapshot.task, {})
        found: dict[tuple[Epoch, str], str] = {}
        for sink, state in snapshot.operators.items():
            for transaction in state.transactions:
                if transaction.attempt != self.cut.attempt:
                    continue
                found[transaction.epoch, sink] = transaction.name
                stored = self.record.written(transaction.name)
                expected = written.get(transaction.epoch, {}).get(sink, [])
                if stored is None or Counter(map(frozen, stored[1])) != Counter(map(frozen, expected)):
                    story = f"transaction {transaction.name!r} is {stored}, the sink got {expected}"
                    raise self._broken(PREPARED, story, task=snapshot.task)
        last = Epoch(0) if snapshot.ended else self.cut.epoch
        for sink in written.get(last, {}):
            if (last, sink) not in found:
                raise self._broken(PREPARED, f"what sink {sink!r} got is in no transaction", task=snapshot.task)

    def _compare_ends(self) -> None:
        for channel, queue in self.queues.items():
            there = len(self.trail.logs.get(channel, ())) if channel.restored else len(self.trail.sent.get(channel, ()))
            expected = list(range(self.trail.taken.get(channel, 0) + 1, there + 1))
            if [seq for seq, _ in queue] != expected:
                story = f"batches {[seq for seq, _ in queue]} are left, and were {expected}"
                raise self._broken(END, story, channel)

    def _broken(
        self, statement: str, story: str, channel: ChannelId | None = None, task: TaskId | None = None
    ) -> Broken:
        return Broken(Violation(statement, story, self.cut.epoch, channel, task))

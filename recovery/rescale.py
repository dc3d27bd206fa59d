"""Which part of a cut each task takes back, under the same parallelism or another one (rule 8).

State is filed under operators, so it is found again however operators are chained. Where the tasks at both ends of a
channel are the same as before, its log goes in front of that very channel, which keeps its order. Otherwise there is
one restored channel a target and edge, its records routed anew. Where an edge whose channels hold records would be a
call within a task, its ends get tasks of their own (`fitting`).

What cannot be split is refused by name: a broadcast log that is not empty, the state of a class without split and
merge, an operator that has ended in part, an iteration in the middle of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from graphs.deployment import Deployment, Task
from graphs.expansion import with_channels
from graphs.ids import RESTORED_SENDER, ChannelId, TaskId
from graphs.plan import Edge, Operator, Routing
from graphs.routing import task_of_group
from recovery.cut import Cut, LogEntry, OperatorState, TaskSnapshot
from recovery.messages import marker_in
from recovery.protocol_errors import RescaleError
from recovery.restored import RestoredLog, TaskRestore
from recovery.rounds import Phase, RoundsSnapshot

Reroute = Callable[[Edge, tuple[LogEntry, ...], int], Mapping[int, tuple[bytes, ...]]]
"""Routes logged batches anew: (edge, batches, parallelism of the receiver) -> batches by the receiver's index."""

MoveWhole = Callable[[Operator, Sequence[bytes | None], int], Sequence[bytes | None]]
"""Splits anew what belonged to the tasks of an operator: (operator, `whole` of each, parallelism) -> of each."""


def plan_restore(
    cut: Cut, deployment: Deployment, reroute: Reroute, move_whole: MoveWhole
) -> dict[TaskId, TaskRestore]:
    """The part of each task, or `RescaleError`."""
    return _Restore(cut, deployment, reroute, move_whole).plan()


def fitting(cut: Cut, deployment: Deployment) -> Deployment:
    """The deployment in which the cut can be restored: edges whose channels hold records are channels in it.

    Where parallelism has changed, operators may be chained that were apart when the cut was taken. What was on its way
    between them has a place only in a channel, in front of what comes after it.
    """
    logged = {r.channel.edge for snapshot in cut.snapshots.values() for r in snapshot.inputs if r.log}
    calls = logged - {channel.edge for channel in deployment.channels}
    return with_channels(deployment, calls) if calls else deployment


class _Restore:
    def __init__(self, cut: Cut, deployment: Deployment, reroute: Reroute, move_whole: MoveWhole) -> None:
        self.cut = cut
        self.deployment = deployment
        self.reroute = reroute
        self.move_whole = move_whole
        self.old: dict[str, dict[int, TaskSnapshot]] = {}
        for snapshot in cut.snapshots.values():
            for operator in snapshot.operators:
                self.old.setdefault(operator, {})[snapshot.task.index] = snapshot
        self.parallelism = {name: deployment.parallelism[name] for name in self.old}
        self.is_same = cut.snapshots.keys() == deployment.tasks.keys()

    def plan(self) -> dict[TaskId, TaskRestore]:
        states = {name: self._states(name) for name in self.old}
        logs = self._logs()
        restored: dict[TaskId, TaskRestore] = {}
        for task in self.deployment.tasks.values():
            operators = {name: states[name][task.id.index] for name in task.operators}
            restored[task.id] = TaskRestore(
                operators=operators,
                logs=tuple(logs.get(task.id, ())),
                rounds=self._rounds(task),
                ended=self._has_ended(task),
                transactions=tuple(t.name for state in operators.values() for t in state.transactions),
            )
        return restored

    # -- state ---------------------------------------------------------------------------------------------------

    def _keeps_parallelism(self, operator: str) -> bool:
        return len(self.old[operator]) == self.parallelism[operator]

    def _states(self, operator: str) -> Mapping[int, OperatorState]:
        old = {index: snapshot.operators[operator] for index, snapshot in self.old[operator].items()}
        if self._keeps_parallelism(operator):
            return old
        return redistribute(self.deployment.plan.operators[operator], old, self.parallelism[operator], self.move_whole)

    def _has_ended(self, task: Task) -> bool:
        flags: set[bool] = set()
        for operator in task.operators:
            old = self.old[operator]
            kept = self._keeps_parallelism(operator)
            flags |= {old[task.id.index].ended} if kept else {snapshot.ended for snapshot in old.values()}
        if len(flags) > 1:
            raise RescaleError(
                f"operator '{task.id.name}' has ended in some of its tasks and not in others: it cannot be restored "
                "with another parallelism; use the former one, or an earlier cut"
            )
        return flags == {True}

    # -- rounds --------------------------------------------------------------------------------------------------

    def _rounds(self, task: Task) -> RoundsSnapshot | None:
        if not task.depth:
            return None
        old = self.old[task.operators[0]]
        if self.is_same:
            return old[task.id.index].rounds
        for snapshot in self.cut.snapshots.values():
            if snapshot.rounds is not None and not snapshot.ended and _is_in_a_round(snapshot.rounds):
                raise RescaleError(
                    f"iteration task {snapshot.task} is in the middle of round {snapshot.rounds.current}: another "
                    "parallelism needs a cut between two rounds; take a savepoint, which waits for one"
                )
        rounds = next((s.rounds for s in old.values() if s.rounds is not None), None)
        if rounds is None:
            return None
        # A head that has cut between two rounds has the marker of every back edge, and decides next.
        back = {c.id: rounds.current for c in task.inputs if c.depth == task.depth}
        return replace(rounds, given=back if rounds.phase is Phase.CUT else {}, aside={})

    # -- logs ----------------------------------------------------------------------------------------------------

    def _logs(self) -> dict[TaskId, list[RestoredLog]]:
        by_channel: dict[ChannelId, list[LogEntry]] = {}
        for snapshot in self.cut.snapshots.values():
            records = sorted(snapshot.inputs, key=lambda r: not r.channel.restored)
            for record in records:
                if record.log:
                    by_channel.setdefault(record.channel._replace(restored=False), []).extend(record.log)
        found: dict[TaskId, list[RestoredLog]] = {}
        moved: dict[str, dict[int, list[LogEntry]]] = {}
        for channel, entries in by_channel.items():
            if self.is_same and (channel in self.deployment.channels or channel.sender == RESTORED_SENDER):
                # Only what is at the very front can have been processed in part: a live log follows a restored rest.
                payloads = tuple(entry.payload for entry in entries)
                restored = RestoredLog(channel._replace(restored=True), payloads, entries[0].skip)
                found.setdefault(channel.receiver, []).append(restored)
            else:
                moved.setdefault(channel.edge, {}).setdefault(channel.receiver.index, []).extend(entries)
        for edge, by_receiver in moved.items():
            for log in self._moved(edge, by_receiver):
                found.setdefault(log.channel.receiver, []).append(log)
        for channel in self._set_aside_anew() - by_channel.keys():
            found.setdefault(channel.receiver, []).append(RestoredLog(channel._replace(restored=True), ()))
        return found

    def _set_aside_anew(self) -> set[ChannelId]:
        """Channels of logs that were routed anew and are set aside in a round: their batches need the channel still."""
        rounds = [snapshot.rounds for snapshot in self.cut.snapshots.values() if snapshot.rounds is not None]
        return {channel for state in rounds for channel in state.aside if channel.sender == RESTORED_SENDER}

    def _whole(self, edge: Edge, entries: Sequence[LogEntry]) -> Sequence[bytes]:
        """The batches of several logs in a row, less the records that were processed: each log may begin with some."""
        if any(entry.skip for entry in entries):
            return self.reroute(edge, tuple(entries), 1).get(0, ())
        return [entry.payload for entry in entries]

    def _moved(self, name: str, by_receiver: Mapping[int, list[LogEntry]]) -> list[RestoredLog]:
        edge = next(edge for edge in self.deployment.plan.edges if edge.name == name)
        receivers = {c.receiver.index: c.receiver for c in self.deployment.channels if c.edge == name}
        entries = tuple(entry for of_receiver in by_receiver.values() for entry in of_receiver)
        if self._keeps_parallelism(edge.receiver) and not any(marker_in(entry.payload) for entry in entries):
            # What was sent to a task stays with it. Dealt out in turn, it could come to one that has ended.
            return [_anew(name, receivers[i], self._whole(edge, of_task)) for i, of_task in by_receiver.items()]
        if edge.routing is Routing.BROADCAST:
            raise RescaleError(
                f"edge '{name}' broadcasts, and its log holds {len(entries)} batches: they cannot be shared out "
                "anew; restore with the former parallelism, or take a cut with policy 'drain'"
            )
        return [
            _anew(name, receivers[index], batches)
            for index, batches in self.reroute(edge, entries, len(receivers)).items()
            if batches
        ]


def _anew(edge: str, receiver: TaskId, payloads: Sequence[bytes]) -> RestoredLog:
    return RestoredLog(ChannelId(edge, RESTORED_SENDER, receiver, restored=True), tuple(payloads))


def redistribute(
    operator: Operator, old: Mapping[int, OperatorState], parallelism: int, move_whole: MoveWhole
) -> dict[int, OperatorState]:
    """The state of an operator for another number of tasks: key groups by range, splits and pending inputs in turn."""
    for state in old.values():
        if state.whole is not None and not state.whole_can_move:
            raise RescaleError(
                f"operator '{operator.name}' has state of its own that cannot be split over {parallelism} tasks; give "
                f"its class split and merge, or restore with its former parallelism of {len(old)}"
            )
    splits = sorted((name, data) for state in old.values() for name, data in state.splits.items())
    pending = [item for index in sorted(old) for item in old[index].pending]
    new = [
        OperatorState(splits=dict(splits[index::parallelism]), pending=tuple(pending[index::parallelism]))
        for index in range(parallelism)
    ]
    groups: list[dict[int, bytes]] = [{} for _ in new]
    for state in old.values():
        for group, data in state.groups.items():
            groups[task_of_group(group, parallelism)][group] = data
    wholes = move_whole(operator, [old[index].whole for index in sorted(old)], parallelism)
    moved = {index: replace(state, groups=groups[index], whole=wholes[index]) for index, state in enumerate(new)}
    transactions = tuple(t for index in sorted(old) for t in old[index].transactions)
    moved[0] = replace(moved[0], transactions=transactions, records=sum(state.records for state in old.values()))
    return moved


def _is_in_a_round(rounds: RoundsSnapshot) -> bool:
    if rounds.phase is Phase.CUT:
        return False
    is_outermost_head = len(rounds.current) == 1 and rounds.phase is Phase.ROUND and rounds.is_head
    return bool(rounds.given or rounds.aside) or is_outermost_head

"""Restores a task according to its plan (rule 8), from the files of the tasks that the cut was taken with.

Of the cut, a task reads only what its plan names, in its own process. This file refuses what the outline of a cut
cannot show: a log that holds the marker of a round, or state that its class fails to merge and split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import RESTORED_SENDER, Attempt, ChannelId, Epoch, TaskId, prepared_by
from backedge.graphs.plan import Edge, Operator
from backedge.recovery.cut.cut import LogEntry, OperatorState, TaskSnapshot, Transaction, layers
from backedge.recovery.cut.keyed_parts import KeyedPart, in_groups
from backedge.recovery.protocol.messages import marker_in
from backedge.recovery.protocol.protocol_errors import RescaleError
from backedge.recovery.protocol.restored import RestoredLog, TaskRestore
from backedge.recovery.protocol.rounds import Phase, RoundsSnapshot
from backedge.recovery.restore.plan import KeptState, MovedLog, MovedState, RestorePlan

Reroute = Callable[[Edge, Iterable[LogEntry], int, int], Sequence[bytes]]
"""Routes logged batches again: (edge, batches, parallelism and index of the receiver) -> its batches."""

MoveWhole = Callable[[Operator, Sequence[bytes | None], int], Sequence[bytes | None]]
"""Splits the tasks' own states again: (operator, `whole` of each former task, parallelism) -> one for each task."""

Logs = Mapping[ChannelId, tuple[LogEntry, ...]]

NO_GROUPS = range(0)


class CutFiles(Protocol):
    """The files of a cut's tasks, read part by part."""

    def state(self, task: TaskId, operator: str, groups: range | None = None) -> OperatorState:
        """The state of an operator in a task; with `groups`, only these key groups of it."""
        ...

    def logs(self, task: TaskId) -> Logs:
        """The log of each input channel of a task, empty ones left out."""
        ...

    def rounds(self, task: TaskId) -> RoundsSnapshot | None:
        """The state of rounds in a task."""
        ...


class SnapshotsInMemory:
    """`CutFiles` over snapshots in memory."""

    def __init__(self, snapshots: Mapping[TaskId, TaskSnapshot]) -> None:
        self._snapshots = snapshots

    def state(self, task: TaskId, operator: str, groups: range | None = None) -> OperatorState:
        state = self._snapshots[task].operators[operator]
        if groups is None:
            return state
        first, *deltas = (tuple(in_groups(layer, groups.start, groups.stop - 1)) for layer in layers(state))
        return replace(state, keyed=first, deltas=tuple(deltas))

    def logs(self, task: TaskId) -> Logs:
        return {received.channel: received.log for received in self._snapshots[task].inputs if received.log}

    def rounds(self, task: TaskId) -> RoundsSnapshot | None:
        return self._snapshots[task].rounds


def take_back(
    plan: RestorePlan, files: CutFiles, deployment: Deployment, reroute: Reroute, move_whole: MoveWhole
) -> TaskRestore:
    """Read what a plan names: states of operators, logs of channels, and rounds."""
    names = plan.operator_names
    states = {
        name: files.state(state.task, names.get(name, name))
        if isinstance(state, KeptState)
        else _moved_state(deployment.plan.operators[name], names.get(name, name), state, files, move_whole)
        for name, state in plan.states.items()
    }
    rounds = _rounds(plan, files, deployment)
    transactions = [t.name for state in states.values() for t in state.transactions]
    for name in plan.unpublished:
        if name not in transactions:
            sink = prepared_by(name)[0]
            state = states.get(sink, OperatorState())
            # Published before the task captures anything, so this epoch and attempt never become part of a cut.
            states[sink] = replace(state, transactions=(*state.transactions, Transaction(name, Epoch(0), Attempt(0))))
            transactions.append(name)
    return TaskRestore(
        operators=states,
        logs=(*_kept_logs(plan, files, rounds), *_moved_logs(plan, files, deployment, reroute)),
        rounds=rounds,
        ended=plan.ended,
        transactions=tuple(transactions),
        base=plan.base,
    )


# -- state -------------------------------------------------------------------------------------------------------


def _moved_state(
    operator: Operator, former_name: str, plan: MovedState, files: CutFiles, move_whole: MoveWhole
) -> OperatorState:
    """Select key groups by range, splits and waiting inputs in turn; the operator splits the tasks' own states."""
    keyed: list[Iterable[KeyedPart]] = []
    deltas: list[Iterable[KeyedPart]] = []
    pending: list[bytes] = []
    wholes: dict[TaskId, bytes | None] = {}
    transactions: list[Transaction] = []
    for task in plan.tasks:
        state = files.state(task, former_name, plan.groups if task in plan.keyed else NO_GROUPS)
        if task in plan.keyed:
            keyed.append(state.keyed)
            deltas += state.deltas  # no key is in those of two tasks
            first, step = plan.waiting[task]
            pending += state.pending[first::step]
        if task in plan.whole:
            wholes[task] = state.whole
        if task in plan.transactions:
            transactions += state.transactions
    whole = None
    if plan.whole:
        whole = move_whole(operator, [wholes[task] for task in plan.whole], plan.parallelism)[plan.index]
    return OperatorState(
        keyed=_OfAll(tuple(keyed)),
        splits=plan.splits,
        pending=tuple(pending),
        whole=whole,
        transactions=tuple(transactions),
        records=plan.records,
        deltas=tuple(deltas),
    )


class _OfAll(Struct, frozen=True):
    """What several tasks kept by key, each of it read when it is iterated over."""

    keyed: tuple[Iterable[KeyedPart], ...]

    def __iter__(self) -> Iterator[KeyedPart]:
        return chain.from_iterable(self.keyed)


# -- rounds ------------------------------------------------------------------------------------------------------


def _rounds(plan: RestorePlan, files: CutFiles, deployment: Deployment) -> RoundsSnapshot | None:
    rounds = None if plan.rounds is None else files.rounds(plan.rounds)
    if rounds is None or not plan.rounds_moved:
        return rounds
    # A head that captured between two rounds has the marker of every back edge, and decides next.
    task = deployment.tasks[plan.task]
    back = {c.id: rounds.current for c in task.inputs if c.depth == task.depth}
    return replace(rounds, given=back if rounds.phase is Phase.CUT else {}, aside={})


# -- logs --------------------------------------------------------------------------------------------------------


def _kept_logs(plan: RestorePlan, files: CutFiles, rounds: RoundsSnapshot | None) -> Iterable[RestoredLog]:
    logs: Logs = files.logs(plan.task) if plan.kept_logs else {}
    for channel in plan.kept_logs:
        entries = _of_channel(logs, channel)
        # Only the first batch can have been processed in part: the live log follows the restored rest.
        payloads = tuple(entry.payload for entry in entries)
        yield RestoredLog(channel._replace(restored=True), payloads, entries[0].skip)
    # Batches of a rerouted log that are set aside in a round still need their channel.
    aside = () if rounds is None else rounds.aside
    for channel in aside:
        if channel.sender == RESTORED_SENDER and channel not in plan.kept_logs:
            yield RestoredLog(channel._replace(restored=True), ())


def _moved_logs(plan: RestorePlan, files: CutFiles, deployment: Deployment, reroute: Reroute) -> Iterable[RestoredLog]:
    edges = {edge.name: edge for edge in deployment.plan.edges}
    for moved in plan.moved_logs:
        edge = edges[moved.edge]
        entries = _entries(moved, edge, files)
        if moved.parallelism is None:
            batches = _without_processed(edge, tuple(entries), reroute)
        else:
            batches = reroute(edge, entries, moved.parallelism, plan.task.index)
        if batches or moved.parallelism is None:
            channel = ChannelId(edge.name, RESTORED_SENDER, plan.task, restored=True)
            yield RestoredLog(channel, tuple(batches))


def _entries(moved: MovedLog, edge: Edge, files: CutFiles) -> Iterator[LogEntry]:
    """The logged batches, of one former task after the other: only its log is in memory."""
    for task, channels in groupby(moved.channels, lambda channel: channel.receiver):
        logs = files.logs(task)
        for entry in chain.from_iterable(_of_channel(logs, channel) for channel in channels):
            if marker_in(entry.payload):
                raise RescaleError(
                    f"the log of edge '{edge.name}' holds a round marker; another parallelism needs a cut between "
                    "rounds"
                )
            yield entry


def _of_channel(logs: Logs, channel: ChannelId) -> tuple[LogEntry, ...]:
    """The log of a channel: the restored rest of an earlier one, then what was logged live."""
    return (*logs.get(channel._replace(restored=True), ()), *logs.get(channel, ()))


def _without_processed(edge: Edge, entries: tuple[LogEntry, ...], reroute: Reroute) -> Sequence[bytes]:
    """The batches of several logs in sequence, without processed records; each log may begin with some."""
    if any(entry.skip for entry in entries):
        return reroute(edge, entries, 1, 0)
    return [entry.payload for entry in entries]

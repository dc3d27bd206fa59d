"""Plans which part of a cut each task restores, with the same parallelism or another one (rule 8).

A restore is planned from the outline of a cut, before any state is read: a `RestorePlan` names the former tasks whose
files a task reads, and what it takes from them. `restore_task.py` carries the plan out, in the process of the task.

State is filed under operators, so it can be found however operators are chained. If the tasks are the same as before,
the log of a channel is put in front of the same channel, which keeps its order. Otherwise there is one restored channel
per target and edge, and its records are routed again. If an edge whose channels hold records would become a call within
a task, its ends get separate tasks (`fitting`).

What cannot be split is refused by name: a broadcast log that is not empty, the state of a class without split and
merge, an iteration in the middle of a round.

A source with fewer splits than tasks has tasks that end at once, and tasks whose splits are read end before the others.
Under another parallelism such an operator goes on in all its tasks, as if none had ended: those without anything to do
end again. That would show if an end hook ran a second time, or in a loop, whose heads are told to end; so an operator
with such a hook, or in a loop, is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from backedge.graphs.deployment import Channel, Deployment, Task
from backedge.graphs.expansion import with_channels
from backedge.graphs.ids import RESTORED_SENDER, ChannelId, Epoch, TaskId, prepared_by
from backedge.graphs.plan import Edge, Routing
from backedge.graphs.routing import groups_of_task
from backedge.recovery.protocol.protocol_errors import RescaleError
from backedge.recovery.restore.outline import CutOutline, TaskOutline


class KeptState(Struct, frozen=True):
    """An operator's state, unchanged, from one former task."""

    task: TaskId


class MovedState(Struct, frozen=True):
    """An operator's state in task `index` under another parallelism.

    - groups: the key groups of this task, in the files of the tasks `keyed`.
    - waiting: former task -> which of its waiting inputs go to this task, as (first, step).
    - whole: the former tasks, in order, if they have state of their own: it is merged and split again.
    - transactions: the former tasks whose prepared output this task takes over.
    """

    index: int
    parallelism: int
    groups: range
    keyed: tuple[TaskId, ...]
    waiting: Mapping[TaskId, tuple[int, int]]
    whole: tuple[TaskId, ...] = ()
    transactions: tuple[TaskId, ...] = ()
    splits: Mapping[str, bytes] = {}
    records: int = 0

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """The former tasks whose files are read."""
        return tuple(sorted({*self.keyed, *self.whole, *self.transactions}))


class MovedLog(Struct, frozen=True):
    """The logs of an edge from several former tasks, put in front of this task as one log.

    `parallelism` is that of the receiver if the records are routed again; None if all of them stay with this task.
    """

    edge: str
    channels: tuple[ChannelId, ...]
    parallelism: int | None


class RestorePlan(Struct, frozen=True):
    """What one task restores, and which files contain it.

    - kept_logs: channels whose logs are put in front of the same channels, each with its restored rest.
    - operator_names: new name -> name in the files, of operators that were renamed.
    - former_versions: new name -> version of the state in the files, of operators that have another version now.
    - rounds: the former task whose state of rounds this task restores, unchanged or moved (`rounds_moved`).
    - unpublished: transactions of later cuts that this task publishes first.
    - base: the cut, if its state of this very task is taken back as it is.
    """

    task: TaskId
    ended: bool = False
    states: Mapping[str, KeptState | MovedState] = {}
    kept_logs: tuple[ChannelId, ...] = ()
    moved_logs: tuple[MovedLog, ...] = ()
    rounds: TaskId | None = None
    rounds_moved: bool = False
    unpublished: tuple[str, ...] = ()
    base: Epoch | None = None
    operator_names: Mapping[str, str] = {}
    former_versions: Mapping[str, int] = {}

    @property
    def tasks(self) -> frozenset[TaskId]:
        """The former tasks whose files are read."""
        found = {self.rounds} if self.rounds is not None else set[TaskId]()
        for state in self.states.values():
            found.update((state.task,) if isinstance(state, KeptState) else state.tasks)
        found.update(channel.receiver for channel in self.kept_logs)
        found.update(channel.receiver for log in self.moved_logs for channel in log.channels)
        return frozenset(found)


def kept_states(plans: Iterable[RestorePlan | None]) -> Iterator[tuple[TaskId, str]]:
    """The states that tasks restore unchanged: each former task, and the operator's name in its files."""
    for plan in (plan for plan in plans if plan is not None):
        for name, state in plan.states.items():
            if isinstance(state, KeptState):
                yield state.task, plan.operator_names.get(name, name)


def plan_restore(cut: CutOutline, deployment: Deployment) -> dict[TaskId, RestorePlan]:
    """The plan of each task; raises `RescaleError` if the cut cannot be restored."""
    return RestorePlanning(cut, deployment).plans()


def fitting(cut: CutOutline, deployment: Deployment) -> Deployment:
    """Change the deployment so that the cut can be restored: edges whose channels hold records become channels.

    Under another parallelism, operators may be chained that were separate when the cut was taken. The records that were
    in transit between them need a channel in which to precede later records.
    """
    names = cut.edge_names or {}
    logged = {names.get(channel.edge, channel.edge) for task in cut.tasks.values() for channel in task.logs}
    calls = logged - {channel.edge for channel in deployment.channels}
    return with_channels(deployment, calls) if calls else deployment


def with_unpublished(
    plans: Mapping[TaskId, RestorePlan | None], unpublished: Iterable[str], deployment: Deployment
) -> dict[TaskId, RestorePlan | None]:
    """The plans of a restore, with these transactions of a complete cut that it goes back behind.

    Tasks publish them before any of them runs, each for its own sinks. Any task can publish what another has prepared.
    """
    found = dict(plans)
    holding: dict[str, list[TaskId]] = {}
    for task in deployment.tasks.values():
        for operator in task.operators:
            holding.setdefault(operator, []).append(task.id)
    for name in unpublished:
        sink, index = prepared_by(name)
        if (holders := holding.get(sink)) is None:
            raise LookupError(f"transaction {name!r} belongs to sink {sink!r}, which this deployment does not have")
        holder = holders[index % len(holders)]
        plan = found[holder] or RestorePlan(holder)
        found[holder] = replace(plan, unpublished=(*plan.unpublished, name))
    return found


class RestorePlanning:
    def __init__(self, cut: CutOutline, deployment: Deployment) -> None:
        self.cut = cut
        self.deployment = deployment
        self.old: dict[str, dict[int, TaskId]] = {}
        for id, task in cut.tasks.items():
            for operator in task.operators:
                self.old.setdefault(operator, {})[id.index] = id
        self.loops = {id: component.name for component in deployment.components for id in component.tasks}
        self._moving: dict[str, _Moving] = {}
        self._ends: dict[str, set[bool]] = {}
        self.is_same = cut.edge_names is None and cut.tasks.keys() == deployment.tasks.keys()

    def plans(self) -> dict[TaskId, RestorePlan]:
        self._refuse()
        ended = self._ended()
        kept, moved = self._logs()
        return {
            task.id: RestorePlan(
                task=task.id,
                ended=task.id in ended,
                states=(states := {name: self._state(name, task.id.index) for name in self._former(task)}),
                operator_names=self.cut.operator_names,
                former_versions=self.cut.former_versions,
                kept_logs=tuple(kept.get(task.id, ())),
                moved_logs=tuple(moved.get(task.id, ())),
                rounds=self._rounds(task, is_ended=task.id in ended),
                rounds_moved=not self.is_same,
                base=self.cut.epoch if self._is_base(task, states) else None,
            )
            for task in self.deployment.tasks.values()
        }

    def _former(self, task: Task) -> list[str]:
        """The operators of a task that the cut has a state of. The others were added or dropped, and start empty."""
        return [name for name in task.operators if name in self.old and name not in self.cut.dropped]

    def _is_base(self, task: Task, states: Mapping[str, KeptState | MovedState]) -> bool:
        """Whether what changes from now on can be written as a change of what this task wrote for the cut."""
        return self.cut.edge_names is None and all(state == KeptState(task.id) for state in states.values())

    # -- refusals ------------------------------------------------------------------------------------------------

    def _refuse(self) -> None:
        """Raise for state that another parallelism cannot restore."""
        # First, because in the middle of a round an iteration has measurements: state that cannot be split.
        if not self.is_same and any(task.depth for task in self.deployment.tasks.values()):
            for id, task in self.cut.tasks.items():
                if task.rounds is not None and not task.ended and task.rounds.in_a_round:
                    raise RescaleError(
                        f"iteration task {id} is in the middle of round {task.rounds.current}: another parallelism "
                        "or graph needs a cut between two rounds; resume as before and take a savepoint, which waits "
                        "for the end of the round"
                    )
        for operator, tasks in self.old.items():
            if operator in self.cut.dropped or self._keeps_parallelism(operator):
                continue
            for id in tasks.values():
                outline = self.cut.tasks[id].operators[operator]
                if outline.has_whole and not outline.whole_can_move:
                    raise RescaleError(
                        f"operator '{operator}' has state of its own that cannot be split over "
                        f"{self.deployment.parallelism[operator]} tasks; give its class split and merge, or restore "
                        f"with its former parallelism of {len(tasks)}",
                        is_for_good=True,
                    )

    # -- state ---------------------------------------------------------------------------------------------------

    def _keeps_parallelism(self, operator: str) -> bool:
        return len(self.old[operator]) == self.deployment.parallelism[operator]

    def _state(self, operator: str, index: int) -> KeptState | MovedState:
        old = self.old[operator]
        if self._keeps_parallelism(operator):
            return KeptState(old[index])
        parallelism = self.deployment.parallelism[operator]
        if operator not in self._moving:
            self._moving[operator] = _moving(operator, old, self.cut)
        moving = self._moving[operator]
        waiting = {
            id: place
            for id in moving.tasks[_former_of_heir(index, parallelism, len(old))]
            if (place := _place_among_heirs(id.index, len(old), index, parallelism))
        }
        return MovedState(
            index=index,
            parallelism=parallelism,
            groups=groups_of_task(index, parallelism),
            keyed=tuple(waiting),
            waiting=waiting,
            whole=moving.whole,
            transactions=() if index else moving.transactions,
            splits=dict(moving.splits[index::parallelism]),
            records=0 if index else moving.records,
        )

    def _ended(self) -> set[TaskId]:
        """The tasks that have ended. One that had ended only in part, or whose senders go on, goes on."""
        tasks = self.deployment.tasks
        ended = {id for id, task in tasks.items() if self._had_ended(id, task.operators) == {True}}
        going_on = [id for id in tasks if id not in ended]
        while going_on:
            task = tasks[going_on.pop()]
            if True in self._had_ended(task.id, self._former(task)):
                self._refuse_to_go_on(task)
            # The heads of a loop end before its other tasks.
            again = {channel.id.receiver for channel in task.outputs if not self._is_in_loop(channel)} & ended
            ended -= again
            going_on += again
        return ended

    def _is_in_loop(self, channel: Channel) -> bool:
        loop = self.loops.get(channel.id.sender)
        return loop is not None and loop == self.loops.get(channel.id.receiver)

    def _had_ended(self, task: TaskId, operators: Iterable[str]) -> set[bool]:
        """Whether the tasks that this one takes these operators over from had ended."""
        found: set[bool] = set()
        for operator in self.old.keys() & operators:
            old = self.old[operator]
            kept = self._keeps_parallelism(operator)
            begins_again = operator in self.cut.dropped and self.deployment.plan.operators[operator].kind.is_source
            if kept:
                found.add(self.cut.tasks[old[task.index]].ended and not begins_again)
            else:
                if operator not in self._ends:
                    self._ends[operator] = {self.cut.tasks[id].ended and not begins_again for id in old.values()}
                found |= self._ends[operator]
        return found

    def _refuse_to_go_on(self, task: Task) -> None:
        """Raise if it would show that a task goes on that had ended, at least in part."""
        at_end = [name for name in task.operators if self.deployment.plan.operators[name].kind.acts_at_end]
        if not at_end and task.id not in self.loops:
            return
        why = f"'{at_end[0]}' acts when its input has ended" if at_end else "it is in a loop"
        raise RescaleError(
            f"operator '{task.id.name}' has ended in some of its tasks but not in others, and {why}: it cannot be "
            "restored with another parallelism; use the former one, or an earlier cut"
        )

    # -- rounds --------------------------------------------------------------------------------------------------

    def _rounds(self, task: Task, *, is_ended: bool) -> TaskId | None:
        first = task.operators[0]
        old = self.old.get(first)
        if not task.depth or old is None or (first in self.cut.dropped and not is_ended):
            return None
        former = [old[task.id.index]] if self.is_same else old.values()
        return next((id for id in former if self.cut.tasks[id].rounds is not None), None)

    # -- logs ----------------------------------------------------------------------------------------------------

    def _logs(self) -> tuple[dict[TaskId, list[ChannelId]], dict[TaskId, list[MovedLog]]]:
        kept: dict[TaskId, list[ChannelId]] = {}
        moved: dict[str, list[ChannelId]] = {}
        for channel in _logged(self.cut.tasks.values()):
            if self.is_same and (channel in self.deployment.channels or channel.sender == RESTORED_SENDER):
                kept.setdefault(channel.receiver, []).append(channel)
            else:
                names = self.cut.edge_names or {}
                moved.setdefault(names.get(channel.edge, channel.edge), []).append(channel)
        receivers: dict[str, dict[int, TaskId]] = {name: {} for name in moved}
        for channel in self.deployment.channels if moved else ():
            if channel.edge in moved:
                receivers[channel.edge][channel.receiver.index] = channel.receiver
        found: dict[TaskId, list[MovedLog]] = {}
        edges = {edge.name: edge for edge in self.deployment.plan.edges}
        for name, channels in moved.items():
            for receiver, log in self._moved(edges[name], channels, receivers[name]):
                found.setdefault(receiver, []).append(log)
        return kept, found

    def _moved(
        self, edge: Edge, channels: Sequence[ChannelId], receivers: Mapping[int, TaskId]
    ) -> Iterable[tuple[TaskId, MovedLog]]:
        name = edge.name
        if self._keeps_parallelism(edge.receiver):
            # A task keeps the records that were sent to it. If they were distributed, a task that has ended could get
            # some.
            of_tasks: dict[int, list[ChannelId]] = {}
            for channel in channels:
                of_tasks.setdefault(channel.receiver.index, []).append(channel)
            for index, of_task in sorted(of_tasks.items()):
                yield receivers[index], MovedLog(name, tuple(of_task), None)
            return
        if edge.routing is Routing.BROADCAST:
            batches = sum(count for task in self.cut.tasks.values() for c, count in task.logs.items() if c.edge == name)
            raise RescaleError(
                f"edge '{name}' broadcasts, and its log holds {batches} batches, which cannot be distributed "
                "again; restore with the former parallelism, or from a cut in which that loop is empty"
            )
        log = MovedLog(name, tuple(channels), len(receivers))
        for receiver in receivers.values():
            yield receiver, log


class _Moving(Struct, frozen=True):
    """What the former tasks of an operator have that moves, for all tasks that it moves to."""

    tasks: tuple[TaskId, ...]
    whole: tuple[TaskId, ...]
    transactions: tuple[TaskId, ...]
    splits: list[tuple[str, bytes]]
    records: int


def _moving(operator: str, old: Mapping[int, TaskId], cut: CutOutline) -> _Moving:
    tasks = tuple(old[former] for former in sorted(old))
    outlines = [cut.tasks[id].operators[operator] for id in tasks]
    return _Moving(
        tasks=tasks,
        whole=tasks if any(outline.has_whole for outline in outlines) else (),
        transactions=tuple(id for id, outline in zip(tasks, outlines, strict=True) if outline.has_transactions),
        splits=sorted((name, at) for outline in outlines for name, at in outline.splits.items()),
        records=sum(outline.records for outline in outlines),
    )


def _logged(tasks: Iterable[TaskOutline]) -> list[ChannelId]:
    """The channels that have a log. The restored rest of a channel and its live log count as one."""
    found: dict[ChannelId, None] = {}
    for task in tasks:
        for channel in sorted(task.logs, key=lambda channel: not channel.restored):
            found.setdefault(channel._replace(restored=False))
    return list(found)


def _former_of_heir(index: int, parallelism: int, formerly: int) -> slice:
    """The former tasks whose key groups a task may inherit.

    >>> [_former_of_heir(index, 3, 2) for index in range(3)]
    [slice(0, 1, None), slice(0, 2, None), slice(1, 2, None)]
    """
    return slice(index * formerly // parallelism, -(-(index + 1) * formerly // parallelism))


def _place_among_heirs(former: int, formerly: int, index: int, parallelism: int) -> tuple[int, int] | None:
    """The position of a task among those that inherit the key groups of a former task, and the number of heirs.

    >>> [_place_among_heirs(0, 2, index, 3) for index in range(3)]
    [(0, 2), (1, 2), None]
    """
    first = former * parallelism // formerly
    end = -(-(former + 1) * parallelism // formerly)
    return (index - first, end - first) if first <= index < end else None

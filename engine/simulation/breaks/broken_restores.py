"""What a restore takes back from a cut (rule 8)."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from backedge.engine.simulation.breaks.break_parts import Break
from backedge.graphs.deployment import Deployment, Task
from backedge.graphs.ids import Attempt, TaskId
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.protocol.channels import Inbox
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.restored import RestoredLog, TaskRestore
from backedge.recovery.protocol.task import TaskCore
from backedge.recovery.protocol.versions import Found, Name, Shelf, VersionDirectory
from backedge.recovery.restore.outline import CutOutline
from backedge.recovery.restore.plan import KeptState, MovedState, RestorePlan, RestorePlanning, plan_restore
from backedge.recovery.restore.restore_task import CutFiles, take_back


class LogNotReplayed(TaskCore):
    def __init__(self, task: Any, attempt: Attempt, encode: Any, restored: TaskRestore | None = None) -> None:
        super().__init__(task, attempt, encode, None if restored is None else replace(restored, logs=()))


class ReplayLostInNewSnapshot(TaskCore):
    def _is_logged(self, inbox: Inbox, mode: Mode) -> bool:
        return super()._is_logged(inbox, mode) and not inbox.id.restored


def rest_behind_live_log(plan: RestorePlan, files: CutFiles, *others: Any) -> TaskRestore:
    """In a restored run a log is the restored rest, then the live part. Here it is read in the opposite order."""
    restored = take_back(plan, files, *others)
    rests = {channel: len(log) for channel, log in files.logs(plan.task).items()} if plan.kept_logs else {}
    return replace(restored, logs=tuple(_turned(log, rests.get(log.channel, 0)) for log in restored.logs))


def _turned(log: RestoredLog, rest: int) -> RestoredLog:
    return replace(log, payloads=(*log.payloads[rest:], *log.payloads[:rest]))


def wrong_key_group(cut: CutOutline, deployment: Deployment) -> dict[TaskId, RestorePlan]:
    """Under another parallelism each task restores the key groups of its neighbour."""
    plans = plan_restore(cut, deployment)
    turned: dict[TaskId, RestorePlan] = {}
    for task, plan in plans.items():
        width = deployment.parallelism[task.name]
        neighbour = plans[TaskId(task.name, (task.index + 1) % width)]
        turned[task] = replace(
            plan, states={name: _with_groups(state, neighbour.states[name]) for name, state in plan.states.items()}
        )
    return turned


def _with_groups(state: KeptState | MovedState, other: KeptState | MovedState) -> KeptState | MovedState:
    if isinstance(state, KeptState) or isinstance(other, KeptState):
        return state
    return replace(state, groups=other.groups, keyed=other.keyed, waiting=other.waiting)


class EndsTwice(RestorePlanning):
    def _refuse_to_go_on(self, task: Task) -> None:
        """Nothing is refused."""


def ends_twice(cut: CutOutline, deployment: Deployment) -> dict[TaskId, RestorePlan]:
    """Under another parallelism, what has ended in part goes on, whatever it has sent at its end."""
    return EndsTwice(cut, deployment).plans()


class _UnfilteredFiles:
    """Returns all key groups of a file, regardless of the request."""

    def __init__(self, files: CutFiles) -> None:
        self.logs, self.rounds = files.logs, files.rounds
        self._files = files

    def state(self, task: TaskId, operator: str, groups: range | None = None) -> OperatorState:
        return self._files.state(task, operator)


def restores_another_tasks_key_groups(plan: RestorePlan, files: CutFiles, *others: Any) -> TaskRestore:
    """Under another parallelism each task restores all key groups of the files that it reads."""
    return take_back(plan, _UnfilteredFiles(files), *others)


def source_skips_a_record(*given: Any) -> TaskRestore:
    """A source resumes after the record that it should send next."""
    restored = take_back(*given)
    return replace(restored, operators=_shifted(restored.operators))


def _shifted(operators: Mapping[str, OperatorState]) -> dict[str, OperatorState]:
    return {
        name: replace(state, splits={split: pickle.dumps(pickle.loads(at) + 1) for split, at in state.splits.items()})
        for name, state in operators.items()
    }


class CopiesOutliveAttempt(VersionDirectory[Any, Any]):
    """A process that goes on reads what it has published in the first attempt."""

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[str, Any] = {}

    def publishes(self, attempt: Attempt, name: Name, publisher: Any) -> bool:
        self._first.setdefault(name[0], publisher)
        return super().publishes(attempt, name, publisher)

    def find(self, attempt: Attempt, name: Name) -> Found[Any, Any] | None:
        found, first = super().find(attempt, name), self._first.get(name[0])
        has_it = first is not None and first.find(name[1]) is not None
        return found._replace(publisher=first) if found and has_it else found


class FillsMemoryThatIsHeld(Shelf[Any]):
    """The memory of a version is filled again as soon as there is another version."""

    def may_take(self, memory: Any) -> bool:
        return True


RESTORES = {
    "log-not-replayed": Break("a restore forgets the logs", core=LogNotReplayed),
    "replay-lost-in-new-snapshot": Break("a new log misses the restored rest", core=ReplayLostInNewSnapshot),
    "restored-rest-behind-live-log": Break("the restored rest follows the live log", take_back=rest_behind_live_log),
    "wrong-key-group-on-rescale": Break("keys go to the wrong task", plan_restore=wrong_key_group),
    "restores-another-tasks-key-groups": Break(
        "a task takes all key groups of the files that it reads", take_back=restores_another_tasks_key_groups
    ),
    "ends-twice": Break(
        "a task that has ended gets more, and ends again",
        plan_restore=ends_twice,
        topology="columns_free_vertices",
        rescales=2,
    ),
    "copies-outlive-an-attempt": Break(
        "a function reads what a lost attempt has published", versions=CopiesOutliveAttempt, topology="versions"
    ),
    "fills-memory-that-is-held": Break(
        "memory gets another version while somebody holds the one that is in it",
        shelf=FillsMemoryThatIsHeld,
        topology="versions",
    ),
    "source-skips-a-record": Break("a source is restored one record too far", take_back=source_skips_a_record),
}

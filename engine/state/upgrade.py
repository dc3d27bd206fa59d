"""Upgrades state of an older version while a cut is restored, value by value, before anything else looks at it.

The files of the cut stay as they are: a restore that is repeated upgrades the same values again. The next cut is of the
new version and refers to nothing older, so no list of files holds two versions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from backedge.engine.state.capture import dump, load_whole
from backedge.engine.state.keyed_state import KeyedEntries, encode_entries, keyed_entries
from backedge.engine.state.tables.restored_tables import holds_rows
from backedge.graphs.ids import TaskId
from backedge.graphs.plan import Operator, Plan
from backedge.graphs.task_errors import NO_KEY, USER_RAISED, TaskError, user_error
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.protocol.rounds import RoundsSnapshot
from backedge.recovery.restore.plan import RestorePlan
from backedge.recovery.restore.restore_task import CutFiles, Logs


def upgraded(files: CutFiles, plan: RestorePlan, of: Plan) -> CutFiles:
    """The files of a cut, with the state of every operator in the version that the plan `of` declares."""
    return _UpgradedFiles(files, plan, of) if plan.former_versions else files


class _UpgradedFiles:
    def __init__(self, files: CutFiles, plan: RestorePlan, of: Plan) -> None:
        self._files = files
        # By the name in the files.
        self._older = {
            plan.operator_names.get(name, name): (of.operators[name], version)
            for name, version in plan.former_versions.items()
        }

    def state(self, task: TaskId, operator: str, groups: range | None = None) -> OperatorState:
        state = self._files.state(task, operator, groups)
        return _upgraded_state(*self._older[operator], state) if operator in self._older else state

    def logs(self, task: TaskId) -> Logs:
        return self._files.logs(task)

    def rounds(self, task: TaskId) -> RoundsSnapshot | None:
        return self._files.rounds(task)


def _upgraded_state(operator: Operator, version: int, state: OperatorState) -> OperatorState:
    is_table = holds_rows(state)
    values, timers, _ = KeyedEntries({}, [], {}) if is_table else keyed_entries(state, operator.name)
    for key, value in values.items():
        values[key] = _call(operator, operator.kind.upgraded, value, version, key)
    whole = load_whole(operator.name, state)
    if "value" in whole:
        whole["value"] = _call(operator, operator.kind.upgraded, whole["value"], version)
    if "own" in whole:
        whole["own"] = _call(operator, operator.kind.upgraded_own, whole["own"], version)
    return replace(
        state,
        keyed=state.keyed if is_table else encode_entries(operator.name, values, timers),
        deltas=state.deltas if is_table else (),
        whole=dump(operator.name, "state", whole) if whole else None,
    )


def _call(operator: Operator, upgrade: Callable[[Any, int], Any], state: Any, version: int, key: Any = NO_KEY) -> Any:
    try:
        return upgrade(state, version)
    except TaskError:
        raise
    except USER_RAISED as error:
        hook = f"its upgrade from version {version}"
        raise user_error(operator.name, error, key=key, hook=hook, can_set_aside=False) from error

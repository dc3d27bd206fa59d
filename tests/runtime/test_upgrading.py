"""Upgrades of state that raise, or return what no snapshot can hold, are reported as the user's mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from backedge.engine.state.keyed_state import Entries, StateEncoder
from backedge.engine.state.upgrade import upgraded
from backedge.graphs.flow import Flow
from backedge.graphs.ids import TaskId
from backedge.graphs.plan import Plan
from backedge.graphs.sources_and_sinks import Collect, Items
from backedge.graphs.task_errors import StateSerializationError, UserFunctionError
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.restore.plan import RestorePlan

TASK = TaskId("grow", 0)


class OneFile:
    """A cut in which `grow` holds a value of version 1."""

    def state(self, task: TaskId, operator: str, groups: range | None = None) -> OperatorState:
        encoder = StateEncoder(operator, Entries({"a": 1}))
        encoder.encode_some(9)
        return OperatorState(encoder.parts())

    def logs(self, task: TaskId) -> Any:
        return {}

    def rounds(self, task: TaskId) -> None:
        return None


def plan_with(upgrade: Callable[[Any, int], Any]) -> Plan:
    flow = Flow("upgraded")
    keyed = flow.read(Items([1]), name="numbers").key_by(str)
    grown = keyed.stateful_map(lambda state, n: (state, n), [], state_version=2, upgrade=upgrade, name="grow")
    grown.write(Collect(), name="done")
    return flow.plan()


def divide(value: int, version: int) -> float:
    return value / (version - 1)


def test_an_upgrade_that_raises_is_reported_with_the_key_and_the_users_frames_alone():
    files = upgraded(OneFile(), RestorePlan(TASK, former_versions={"grow": 1}), plan_with(divide))
    with pytest.raises(UserFunctionError, match=r"'grow' raised ZeroDivisionError.*upgrade from version 1") as caught:
        files.state(TASK, "grow")
    told = str(caught.value)
    assert "key: 'a'" in told and ", in divide" in told
    assert "graphs/" not in told and "engine/" not in told


def test_what_an_upgrade_returns_must_go_into_a_snapshot():
    plan = plan_with(lambda value, version: (other for other in [value]))
    files = upgraded(OneFile(), RestorePlan(TASK, former_versions={"grow": 1}), plan)
    with pytest.raises(StateSerializationError, match=r"'grow'.*key 'a'.*generator"):
        files.state(TASK, "grow")

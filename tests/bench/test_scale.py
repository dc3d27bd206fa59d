"""Planner, checks, coordinator, supervisor and restore do work in proportion to the graph: counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType, SimpleNamespace
from typing import Any, TypeVar

import pytest

from backedge.graphs.ids import TaskId
from backedge.recovery.spark.audit.manifest_checks import check_back_edges, edges_between_tasks
from bench import scale, scale_of_graphs, scale_of_keys, scale_of_logs
from bench.scale_of_graphs import SHAPES, Steps

T = TypeVar("T")

GROWTH_MAX = 1.15
"""Of as few tasks, a step that looks at all of them for each has 1.3 or more."""
SIZES = {"operators": (40, 240), "wide": (20, 80)}


class Counter:
    """Counts the instructions that each step executes, in place of its time."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[float, float]] = {}

    def __call__(self, step: str, work: Callable[[], T]) -> T:
        count = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal count
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            count += event == "opcode"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return work()
        finally:
            sys.settrace(before)
            self.found[step] = float(count), 0.0


def counted(shape: str, tasks: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(scale_of_graphs, "Meter", Counter)
    return Steps(SHAPES[shape], tasks).figures()


@pytest.mark.slow
@pytest.mark.parametrize("shape", SIZES)
def test_no_step_does_more_than_the_graph_has(shape: str, monkeypatch: pytest.MonkeyPatch):
    sizes = [counted(shape, tasks, monkeypatch) for tasks in SIZES[shape]]
    found = exponents(sizes)
    assert {
        "plan",
        "checks",
        "expand",
        "claim",
        "epoch",
        "probe",
        "ends",
        "restore",
        "rescale",
        "read",
        "audit",
    } <= found.keys()
    assert {step: slope for step, slope in found.items() if slope > GROWTH_MAX} == {}


def exponents(sizes: list[dict[str, Any]]) -> dict[str, float]:
    smaller, larger = sizes
    amounts = scale.amount(smaller), scale.amount(larger)
    return {
        step: scale.exponent(smaller["steps"][step][0], count, *amounts) for step, (count, _) in larger["steps"].items()
    }


@pytest.mark.slow
def test_a_step_that_looks_at_all_tasks_for_each_is_found(monkeypatch: pytest.MonkeyPatch):
    def slow(steps: Steps, task: Any) -> Any:
        (found,) = (
            report for other in steps.deployment.tasks if (report := other == task.id and reported(steps, task))
        )
        return found

    reported = Steps.report
    monkeypatch.setattr(Steps, "report", slow)
    found = exponents([counted("operators", tasks, monkeypatch) for tasks in SIZES["operators"]])
    assert found["epoch"] > GROWTH_MAX


def test_the_audit_looks_at_each_edge_of_a_chain_once():
    counter = Counter()
    for size in (20, 200):
        names = [str(number) for number in range(size)]
        edges = [{"sender": one, "receiver": next, "loop": None} for one, next in pairwise(names)]
        cut: Any = SimpleNamespace(graph={"operators": [{"name": name} for name in reversed(names)], "edges": edges})
        assert counter(str(size), lambda cut=cut: list(check_back_edges(cut))) == []
    assert counter.found["200"][0] < 11 * counter.found["20"][0]


def test_the_audit_collects_the_operators_once_and_not_for_each_edge():
    asked = 0

    class Widths(dict[str, int]):
        def keys(self) -> Any:
            nonlocal asked
            asked += 1
            return super().keys()

    names = [str(number) for number in range(50)]
    edges = [{"sender": one, "receiver": next, "loop": None, "routing": "forward"} for one, next in pairwise(names)]
    placed = {TaskId(name, 0): {"operators": [name]} for name in names}
    widths = Widths.fromkeys(names, 1)
    cut: Any = SimpleNamespace(graph={"edges": edges}, placed=placed, manifest={"parallelism": widths})
    assert len(list(edges_between_tasks(cut))) == 49
    assert asked == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", scale_of_keys.KINDS)
def test_a_small_state_is_measured(kind: str, tmp_path: Any):
    found = scale_of_keys.Steps(scale_of_keys.KINDS[kind](), 5_000, str(tmp_path)).figures()
    assert 0 < found["delta_bytes"] < found["bytes"] / 10
    assert {"whole capture", "delta capture", "verify", "restore", "rescale"} <= found["steps"].keys()


@pytest.mark.slow
def test_a_small_log_is_measured(tmp_path: Any):
    found = scale_of_logs.Steps(50_000, str(tmp_path)).figures()
    assert found["steps"].keys() == {"capture", "receive", "write", "verify", "restore", "replay", "rescale"}
    assert scale.amount(found) == 50_000


def test_an_exponent_above_the_limit_is_missed():
    sizes = [{"keys": keys, "steps": {"restore": (keys**1.7 / 1e3, 1.0)}} for keys in (1_000, 4_000)]
    report = scale.judged({"values": sizes})
    assert not report.ok
    assert [limit.claim for limit in report.limits] == ["values: restore grows with exponent 1.7, at most 1.4"]
    assert scale.judged({"values": [{**size, "steps": {"restore": (size["keys"], 1.0)}} for size in sizes]}).ok

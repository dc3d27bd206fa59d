"""What `process` is given: its own options, the inputs of a class, and the arguments of the class."""

from __future__ import annotations

from typing import Any

import pytest

from backedge import BadOptionError, Collect, Context, Flow, InputsError, Items, Process, ProcessInputs, simulate
from tests.graphs.refusals import refuses


class Every(Process[int, int]):
    def __init__(self, nth: int, seen: list[int] | None = None) -> None:
        self.nth = nth
        self.seen = seen

    def on_record(self, ctx: Context[int], value: int) -> None:
        if self.seen is not None:
            self.seen.append(value)
        if value % self.nth == 0:
            ctx.emit(value)


class Scaled(ProcessInputs[int, int]):
    inputs = ("left", "right")

    def __init__(self, by: int = 1) -> None:
        self.by = by

    def on_record(self, ctx: Context[int], input: str, value: int) -> None:
        ctx.emit(value * self.by if input == "left" else value)


def numbers(flow: Flow) -> Any:
    return flow.read(Items([1, 2, 3, 4]))


def flow_of(nth: int) -> Flow:
    flow = Flow("every")
    numbers(flow).process(Every, nth=nth, name="every").write(Collect(), name="kept")
    return flow


def test_each_task_makes_its_instance_with_the_arguments():
    assert sorted(simulate(flow_of(2), seeds=range(10)).outputs["kept"]) == [2, 4]


def test_no_two_instances_share_an_argument():
    flow, seen = Flow("shared"), list[int]()
    numbers(flow).process(Every, nth=2, seen=seen).write(Collect(), name="kept")
    simulate(flow, seeds=range(3))
    assert seen == []


def test_arguments_do_not_count_in_the_hash_of_the_plan():
    assert flow_of(2).plan().hash == flow_of(3).plan().hash
    assert flow_of(2).plan().operators["every"].kind != flow_of(3).plan().operators["every"].kind


def test_inputs_and_arguments_are_told_apart():
    flow = Flow("scaled")
    flow.process(Scaled, left=numbers(flow), right=numbers(flow), by=10).write(Collect(), name="all")
    assert sorted(simulate(flow, seeds=range(5)).outputs["all"]) == [1, 2, 3, 4, 10, 20, 30, 40]


def test_arguments_that_do_not_fit_are_refused_by_name():
    stream = numbers(Flow("wrong"))
    refuses(BadOptionError, lambda: stream.process(Every), "Every", "nth")
    refuses(BadOptionError, lambda: stream.process(Every, nth=2, sen=[]), "Every", "'sen'", "'seen'")
    refuses(BadOptionError, lambda: stream.process(Every, nth=2, paralelism=2), "Every", "'parallelism'")
    assert list(stream.draft.operators) == ["read-1"]


def test_a_name_with_two_meanings_is_refused():
    class Named(Process[int, int]):
        def __init__(self, name: str) -> None:
            self.name = name

    class Both(ProcessInputs[int, int]):
        def __init__(self, left: int = 0) -> None:
            self.left = left

    flow = Flow("wrong")
    stream = numbers(flow)
    refuses(BadOptionError, lambda: stream.process(Named, name="x"), "Named", "'name'", "rename")
    refuses(InputsError, lambda: flow.process(Both, left=stream), "Both", "'left'", "rename")


@pytest.mark.parametrize("value", [5, None])
def test_a_declared_input_must_be_a_stream(value: Any):
    flow = Flow("wrong")
    refuses(BadOptionError, lambda: flow.process(Scaled, left=numbers(flow), right=value), "Scaled", repr(value))

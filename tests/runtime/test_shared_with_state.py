"""A record that holds an object of the state may be changed by what gets it: the state is not, nor the other way round.

However the records are batched, and whether the receiver stands in the same task or behind a channel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import date
from typing import Any

import numpy as np
import pytest

from backedge import BadOptionError, Collect, Flow, Items, Range, Stream, simulate
from backedge.engine.batches.batch import separate
from backedge.graphs.ids import TaskId
from backedge.graphs.task_errors import RecordSerializationError
from tests.every import every
from tests.runtime.tasks import Tasks, records_of


def touch(record: Any) -> Any:
    state_in(record).append("touched")
    return record


def state_in(record: Any) -> list[Any]:
    return record["state"] if isinstance(record, dict) else record[1] if isinstance(record, tuple) else record


def returns(made: Callable[[list[Any]], Any]) -> Callable[[list[Any], int], Any]:
    def step(state: list[Any], record: int) -> tuple[list[Any], Any]:
        state.append(record)
        return state, made(state)

    return step


def keeps_what_it_returns(state: list[Any], record: int) -> tuple[list[Any], Any]:
    kept = [*state, record]
    return kept, {"state": kept}


class Emits:
    make: Callable[[list[Any]], Any]

    def on_record(self, ctx: Any, record: int) -> None:
        state = ctx.state.get([])
        ctx.state.set(state)
        state.append(record)
        ctx.emit(type(self).make(state))


class EmitsAPart(Emits):
    make = staticmethod(lambda state: {"state": state})


class EmitsItWhole(Emits):
    make = staticmethod(lambda state: state)


class EmitsAnother:
    """The value of one key, while another is the current one."""

    def on_record(self, ctx: Any, record: int) -> None:
        state = ctx.state.get([])
        ctx.state.set(state)
        state.append(record)
        keys = ctx.keys()
        states = [ctx.state.get() for _ in keys]
        ctx.emit({"state": states[0]})


class EmitsItsOwn:
    """State that the class hands over by itself."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_record(self, ctx: Any, record: int) -> None:
        self.seen.append(record)
        ctx.emit({"state": self.seen})

    def capture(self) -> Any:
        return self.seen

    def restore(self, state: Any) -> None:
        self.seen = state


STATEFUL = {
    "returns_a_part": returns(lambda state: {"state": state}),
    "returns_a_pair": returns(lambda state: ("pair", state)),
    "returns_it_whole": returns(lambda state: state),
    "keeps_what_it_returns": keeps_what_it_returns,
}
CLASSES = {c.__name__: c for c in (EmitsAPart, EmitsItWhole, EmitsAnother, EmitsItsOwn)}


def keeping(stream: Stream[int], step: str, **options: Any) -> Stream[Any]:
    keyed = stream.key_by(lambda n: 0)
    if step in STATEFUL:
        return keyed.stateful_map(STATEFUL[step], initial=[], name="op", **options)
    return keyed.process(CLASSES[step], name="op", **options)


def sent_by(step: str, batches: list[list[int]], in_task: bool) -> tuple[list[Any], Any]:
    """What arrives behind the function that changes it, and the state in the end."""
    flow = Flow("sharing")
    kept = keeping(flow.read(Items([]), name="source"), step)
    (kept if in_task else kept.rebalance()).map(touch, name="touch").rebalance().write(Collect(), name="sink")
    tasks = Tasks(flow)
    sent: list[Any] = []
    for batch in batches:
        emitted = tasks.feed("op", batch)
        sent += records_of(emitted) if in_task else [touch(record) for record in records_of(emitted)]
    operator = tasks.home("op")._wiring.operators["op"]  # pyright: ignore[reportPrivateUsage]
    if step == "EmitsItsOwn":
        return sent, operator._instance.seen  # type: ignore[attr-defined]
    values = operator._state if step in STATEFUL else operator._values  # type: ignore[attr-defined]
    return sent, values.values[0]


@every("in_task", [True, False])
@every("step", [*STATEFUL, *CLASSES])
def test_neither_sees_what_the_other_changes(step: str, in_task: bool):
    for batches in ([[1, 2, 3]], [[1], [2], [3]], [[1, 2], [3]]):
        sent, state = sent_by(step, batches, in_task)
        assert state == [1, 2, 3]
        assert [*map(state_in, sent)] == [[1, "touched"], [1, 2, "touched"], [1, 2, 3, "touched"]]


@pytest.mark.slow
@pytest.mark.parametrize("step", [*STATEFUL, *CLASSES])
def test_in_a_loop_within_an_actor_and_with_crashes_the_state_is_what_it_was(step: str):
    flow = Flow("sharing")
    again = flow.loop("again", max_rounds=2)
    kept = keeping(flow.read(Range(6), name="numbers").merge(again.map(lambda record: -1)), step)
    touched = kept.map(touch, name="touch")
    again.feed(touched.map(touch, name="touch again"))
    touched.map(lambda record: 1, name="one").write(Collect(), name="done")
    again.dead_letters.map(lambda record: 0, name="zero").write(Collect(), name="limit")

    def is_untouched(view: Any) -> bool:
        return step == "EmitsItsOwn" or not any("touched" in value for value in view.state("op").values())

    result = simulate(flow, seeds=range(8), invariant=is_untouched)
    assert result.crashes and result.outputs["done"] == [1] * 18


def test_of_records_that_nobody_can_change_none_is_copied():
    for record in (1, "a", None, ("a", 1, (2.0, b"c")), date(2026, 1, 1), (date(2026, 1, 1), np.float64(2)), ()):
        assert separate(record) is record


def test_of_those_that_can_be_changed_each_is_a_copy_all_the_way_down():
    inner = [1]
    for record in ([1], [inner], {"a": 1}, {"a": inner}, {"a": {"b": inner}}, ("a", inner), {1}, {(1, 2): 3}):
        copied = separate(record)
        assert copied == record and copied is not record
    copied = separate({"a": inner, "b": inner})
    copied["a"].append(2)
    assert inner == [1] and copied["b"] == [1, 2], "what a record shares with itself it goes on sharing"
    array = np.zeros(3)
    separate({"weights": array})["weights"][0] = 1
    assert not array.any()


def test_a_state_that_nobody_can_change_costs_no_copy_of_its_records():
    sent: list[Any] = []

    def number(count: int, record: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        sent.append(record)
        return count + 1, record

    flow = Flow("sharing")
    source = flow.read(Items([]), name="source").key_by(lambda record: 0)
    source.stateful_map(number, initial=0, name="op").map(lambda r: r, name="next").rebalance().write(Collect())
    (received,) = records_of(Tasks(flow).feed("op", [{"nested": [{}]}]))
    assert received is sent[0]


@pytest.mark.parametrize("step", ["returns_it_whole", "EmitsItWhole"])
def test_who_promises_to_change_nothing_gets_the_object_itself(step: str):
    flow = Flow("sharing")
    keeping(flow.read(Items([]), name="source"), step, copy_output=False).rebalance().write(Collect(), name="sink")
    tasks = Tasks(flow)
    (record,) = records_of(tasks.feed("op", [1]))
    operator: Any = tasks.home("op")._wiring.operators["op"]  # pyright: ignore[reportPrivateUsage]
    values = operator._state if step in STATEFUL else operator._values
    assert record is values.values[0]


def test_several_inputs_take_the_promise_too():
    class Joins:
        def on_record(self, ctx: Any, input: str, record: list[int]) -> None:
            ctx.emit(record)

    flow = Flow("sharing")
    left = flow.read(Items([]), name="source").rebalance()
    flow.process(Joins, left=left, copy_output=False, name="op").rebalance().write(Collect(), name="sink")
    mine = [1]
    assert records_of(Tasks(flow).feed("op", [mine], input="left"))[0] is mine


def test_the_promise_is_true_or_false():
    for step in ("returns_a_part", "EmitsAPart"):
        with pytest.raises(BadOptionError, match="has copy_output='no': give True or False"):
            keeping(Flow("sharing").read(Items([]), name="source"), step, copy_output="no")


def test_a_record_that_cannot_be_copied_is_told_with_the_fix():
    class Locks:
        def on_record(self, ctx: Any, record: int) -> None:
            ctx.emit({"lock": threading.Lock()})

    flow = Flow("sharing")
    flow.read(Items([]), name="source").rebalance().process(Locks, name="op").rebalance().write(Collect())
    with pytest.raises(RecordSerializationError) as caught:
        Tasks(flow).feed("op", [1])
    assert "operator 'op' sends record {'lock':" in str(caught.value)
    assert "copy_output=False" in str(caught.value)


def test_what_is_measured_is_a_copy_for_reduce_may_change_it_and_so_may_the_body():
    def gather(total: list[int], more: list[int]) -> list[int]:
        total.extend(more)
        return total

    flow = Flow("sharing")
    start = flow.read(Items([]), name="source").rebalance()
    rule: dict[str, Any] = {"until": lambda total: True, "measure": lambda r: r["seen"], "reduce": gather}
    done = flow.iterate(start, lambda s: s.rebalance().map(lambda r: r, name="body"), name="head", **rule)
    done.rebalance().write(Collect(), name="sink")
    tasks = Tasks(flow)
    records = [{"seen": [1]}, {"seen": [2]}]
    tasks.feed("body", records)
    records[0]["seen"].append(7)
    assert tasks.home("body").take_contributions("head") == [1, 2]
    assert [record["seen"] for record in records] == [[1, 7], [2]]
    assert tasks.home("head").task.id == TaskId("head", 0)

"""What simulate is asked for and cannot do, and what goes wrong in user code: each is told with the fix."""

from __future__ import annotations

import threading
import traceback
from pathlib import Path
from typing import Any

import pytest

from backedge import (
    BadOptionError,
    Collect,
    Flow,
    Generate,
    Items,
    JsonLines,
    LoopLimitError,
    RecordSerializationError,
    SimulationError,
    Stream,
    UserFunctionError,
    narrate,
    simulate,
)
from tests.every import every


def doubled(source: Any) -> Flow:
    flow = Flow("doubled")
    flow.read(source, name="numbers").rebalance().map(lambda n: n * 2, name="double").write(Collect(), name="out")
    return flow


def looping(**loop: Any) -> Flow:
    flow = Flow("looping")
    again = flow.loop("again", of=int, **loop)
    done, rest = flow.read(Items([5]), name="numbers").merge(again).split(lambda n: n <= 0, name="is_done")
    again.feed(rest.map(lambda n: n - 1, name="less"))
    (rest if loop.get("endless") else done).write(Collect(), name="out")
    return flow


ONE = doubled(Items([1]))


@every(
    ("flow", "options", "told"),
    [
        (doubled(JsonLines("numbers/")), {}, r"numbers/ does not exist: .*inputs=\{'numbers': \[...\]\}"),
        (ONE, {"inputs": {"number": [1]}}, "'number', which is not a source of the flow; its sources are 'numbers'"),
        (ONE, {"inputs": [1]}, r"inputs= is of type list: give the records of each source.*\{'numbers': \[...\]\}"),
        (ONE, {"inputs": {"numbers": iter([1])}}, "are of type list_iterator: give a list of records"),
        (ONE, {"inputs": {"numbers": "one"}}, "are of type str: give a list of records"),
        (doubled(Generate(float)), {}, "source 'numbers' never ends.*: give it a count"),
        (looping(endless=True), {}, "loop 'again' is endless.*: give the flow stop_when="),
        (ONE, {"seeds": 100}, r"seeds=100 is one number: give range\(100\) to run that many, or \[100\]"),
        (ONE, {"seeds": None}, r"seeds=None are not numbers: give range\(100\)"),
        (ONE, {"crashes": -1}, "crashes=-1 is not a number of crashes: give 0 or more"),
        (ONE, {"crashes": "x"}, "crashes='x' is not a number of crashes: give 0 or more"),
        (ONE, {"parallelism": "2"}, "parallelism='2' runs no task"),
        (ONE, {"parallelism": 0}, "parallelism=0 runs no task: give a number of at least 1"),
        (ONE, {"parallelism": ()}, r"parallelism=\(\) runs no task"),
        (ONE, {"policy": "daily"}, "is unknown: give one of 'aligned', 'unaligned'"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_fix(flow: Flow, options: Any, told: str):
    with pytest.raises(SimulationError, match=told):
        simulate(flow, **options)


def test_a_folder_in_which_nothing_arrives_is_refused_or_given_its_records(tmp_path: Path):
    """Of lists, splits are found in several looks, and their names are not those of files."""
    watching = doubled(JsonLines(str(tmp_path), watch=1, until="_DONE"))
    with pytest.raises(SimulationError, match=r"'numbers' waits for more to read.*inputs=\{'numbers': \[...\]\}"):
        simulate(watching)
    given = simulate(watching, inputs={"numbers": [1, 2, 3]}, seeds=range(3))
    assert sorted(given.outputs["out"]) == [2, 4, 6]
    (tmp_path / "_DONE").touch()
    assert simulate(watching, seeds=range(3)).outputs == {"out": []}


@pytest.mark.parametrize("invariant", [3, "true"])
def test_an_invariant_that_cannot_be_called_is_refused_before_anything_runs(invariant: Any):
    def made(position: int) -> int:
        raise AssertionError("the flow runs")

    with pytest.raises(BadOptionError, match=r"invariant= of simulate got .*: give a function"):
        simulate(doubled(Generate(made, count=1)), invariant=invariant)


def test_a_rule_that_does_not_exist_cannot_be_broken():
    with pytest.raises(SimulationError, match=r"broken_rule='gravity' is not a rule; there are 'no-loop-log', "):
        narrate(doubled(Items([1])), seed=1, broken_rule="gravity")


# -- user code ---------------------------------------------------------------------------------------------------


def halve(number: int) -> float:
    return 10 / number


def test_an_exception_of_a_function_is_the_users_and_says_where_and_with_which_record():
    flow = Flow("halves")
    flow.read(Items([5, 0]), name="numbers").map(halve, name="halve").write(Collect(), name="out")
    with pytest.raises(UserFunctionError) as raised:
        simulate(flow)
    text = str(raised.value)
    assert text.startswith("operator 'halve' raised ZeroDivisionError: division by zero\n  record: 0\n")
    assert "return 10 / number" in text
    assert "/engine/" not in text
    assert raised.value.__notes__ == ["  in the simulator, without a fault: simulate(flow, seeds=[])"]
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert [frame.name for frame in traceback.extract_tb(raised.value.__cause__.__traceback__)] == ["halve"]


def test_an_exception_of_a_later_schedule_names_its_seed():
    calls: list[int] = []

    def fifth(number: int) -> int:
        calls.append(number)
        if len(calls) == 5:
            raise OSError("no more today")
        return number

    flow = Flow("quota")
    flow.read(Items([1, 2]), name="numbers").map(fifth, name="ask").write(Collect(), name="out")
    with pytest.raises(UserFunctionError, match="OSError: no more today") as raised:
        simulate(flow, seeds=[7, 8, 9], crashes=0)
    assert raised.value.__notes__ == ["  in the simulator, under seed 8: simulate(flow, seeds=[8], crashes=0)"]


def test_a_record_that_is_set_aside_fails_nothing():
    flow = Flow("halves")
    halves: Stream[float] = flow.read(Items([5, 0]), name="numbers").map(halve, name="halve", on_error="dead_letter")
    halves.write(Collect(), name="out")
    result = simulate(flow, seeds=range(3))
    assert result.outputs == {"out": [2.0], "halve.dead_letters": [0]}


def test_a_loop_that_fails_at_its_limit_fails_the_simulation():
    with pytest.raises(LoopLimitError, match="again"):
        simulate(looping(max_rounds=3, on_limit="fail"))


def test_a_function_that_cannot_travel_is_refused_as_run_refuses_it():
    lock = threading.Lock()

    def guarded(number: int) -> int:
        with lock:
            return number

    flow = Flow("guarded")
    flow.read(Items([1]), name="numbers").map(guarded, name="guard").write(Collect(), name="out")
    for call in (simulate, lambda flow: narrate(flow, seed=1)):
        with pytest.raises(BadOptionError, match=r"operator 'guard' of flow 'guarded' cannot travel .*lock"):
            call(flow)


def test_a_record_that_cannot_travel_is_told_with_its_edge():
    flow = Flow("locks")
    made = flow.read(Items([1]), name="numbers").map(lambda _: threading.Lock(), name="lock")
    made.rebalance().map(str, name="shown").write(Collect(), name="out")
    with pytest.raises(RecordSerializationError, match=r"of edge 'lock\.out->shown\.in'"):
        simulate(flow, seeds=[])

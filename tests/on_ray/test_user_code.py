"""What goes wrong in user code is told at once, with where and with what; what is set aside is set aside exactly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow, Range, StateSerializationError, UserFunctionError, start
from tests.faults.evidence import Evidence
from tests.gates import Gate, Gated
from tests.on_ray.flows import begin, finish, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]


def weigh(number: int) -> float:
    """Fails for one record."""
    return 1 / (number - 140)


def mended(number: int) -> float:
    """The same for all others."""
    return 0.0 if number == 140 else weigh(number)


def weighing(gate: Gate, function: Callable[[int], float] = weigh, **options: Any) -> Flow:
    flow = Flow("weighing")
    numbers = flow.read(Gated(Range(300), gate, 100), name="numbers").key_by(lambda number: number % 7)
    weighed = numbers.map(function, name="weigh", **options)
    weighed.rebalance().write(Collect(), name="done")
    if options:
        weighed.dead_letters.rebalance().write(Collect(), name="aside")
    return flow


def test_a_poison_record_fails_the_run_at_once_and_the_mended_function_goes_on(tmp_path: Path, evidence: Evidence):
    gate, cuts = Gate(tmp_path / "gate"), tmp_path / "cuts"
    job = start(weighing(gate), snapshots=cuts, every=0.1, actors="slice", progress=False)
    until(job, lambda story: story.last_epoch, "a cut is complete")
    gate.open()
    with pytest.raises(UserFunctionError) as raised:
        job.wait()
    text = str(raised.value)
    assert "operator 'weigh' raised ZeroDivisionError: division by zero" in text
    assert "record: 140" in text and "return 1 / (number - 140)" in text
    assert "engine/" not in text, "no frame of ours"
    assert job.result is not None and job.result.state == "failed"
    assert job.result.restores == (), "what would fail again is not run again, though it could have been restored"
    evidence.happened("records that raised", 1)
    _, result = finish(weighing(gate, mended), snapshots=cuts, every=0.1, actors="slice", resume="latest")
    evidence.same(result.outputs["done"], map(mended, range(300)))
    evidence.cuts(cuts)


def test_records_that_fail_are_set_aside_exactly_once_though_processes_die(tmp_path: Path, evidence: Evidence):
    gate, cuts = Gate(tmp_path / "gate"), tmp_path / "cuts"
    flow = weighing(gate, on_error="dead_letter")
    job = begin(flow, snapshots=cuts, every=0.1, kills=["weigh@records=200"], spares=1)
    until(job, lambda story: story.last_epoch, "a cut is complete")
    gate.open()
    result = job.wait()
    evidence.happened("processes that died", len(result.kills))
    evidence.happened("records that raised", len(result.outputs["aside"]))
    evidence.same(result.outputs["aside"], [140])
    evidence.same(result.outputs["done"], [weigh(number) for number in range(300) if number != 140])
    evidence.cuts(cuts)


def test_state_that_does_not_pickle_fails_the_run_and_leaves_the_cuts_before_intact(tmp_path: Path, evidence: Evidence):
    gate, cuts = Gate(tmp_path / "gate"), tmp_path / "cuts"

    def lock_late(count: int, number: int) -> tuple[Any, int]:
        return (threading.Lock() if number >= 150 else (count or 0) + 1), number

    def locking(function: Callable[[Any, int], tuple[Any, int]]) -> Flow:
        flow = Flow("locking")
        numbers = flow.read(Gated(Range(300), gate, 100), name="numbers").key_by(lambda number: number)
        numbers.stateful_map(function, initial=None, name="locks").rebalance().write(Collect(), name="done")
        return flow

    job = start(locking(lock_late), snapshots=cuts, every=0.1, progress=False)
    until(job, lambda story: story.last_epoch, "a cut is complete")
    gate.let(200)
    with pytest.raises(StateSerializationError, match=r"operator 'locks' holds .* that cannot be put into a snapshot"):
        job.wait()
    gate.open()
    evidence.happened("states that could not be serialised", 1)
    _, result = finish(locking(lambda count, number: (1, number)), snapshots=cuts, every=0.1, resume="latest")
    assert [restore["epoch"] is not None for restore in result.restores] == [True]
    evidence.same(result.outputs["done"], range(300))
    evidence.cuts(cuts)


def test_an_exception_that_does_not_pickle_is_told_all_the_same():
    class Odd(Exception):
        def __init__(self, one: Any, two: Any) -> None:
            super().__init__("odd")
            self.lock = threading.Lock()

    def fail(number: int) -> int:
        raise Odd(1, 2)

    flow = Flow("odd")
    flow.read(Range(3), name="numbers").map(fail, name="fail").write(Collect(), name="done")
    with pytest.raises(UserFunctionError, match=r"operator 'fail' raised .*Odd: odd"):
        start(flow, progress=False).wait()

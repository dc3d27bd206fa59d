"""simulate: flows that are right pass under every schedule, and a flow that is not is caught with its story."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backedge import (
    Collect,
    Context,
    CutView,
    Flow,
    Generate,
    Items,
    JsonLines,
    Process,
    Range,
    ScheduleError,
    simulate,
)
from backedge.engine.simulation import simulate as simulating
from backedge.engine.simulation.simulation import Simulation, SimulationError

ROOT = Path(__file__).resolve().parents[2]

Order = dict[str, Any]


def attempt(tries: int, order: Order) -> tuple[int, Order]:
    tries += 1
    return tries, {**order, "tries": tries, "ok": tries >= order["needs"]}


def retries(source: Any = None, **loop: Any) -> Flow:
    flow = Flow("retries")
    items = Items([{"id": id, "needs": needs} for id, needs in enumerate((1, 3, 9, 2, 4))])
    again = flow.loop("again", of=dict, **(loop or {"max_rounds": 5}))
    tried = flow.read(source or items, name="orders").merge(again)
    counted = tried.key_by("id").stateful_map(attempt, initial=0, name="attempts")
    done, failed = counted.split(lambda order: order["ok"], name="ok")
    again.feed(failed)
    done.write(Collect(), name="done")
    return flow


@pytest.mark.slow
def test_a_loop_with_a_limit_passes_and_its_dead_letters_are_kept_and_counted():
    result = simulate(retries(), seeds=range(30))
    assert sorted((order["id"], order["tries"]) for order in result.outputs["done"]) == [(0, 1), (1, 3), (3, 2), (4, 4)]
    assert [(order["id"], order["tries"]) for order in result.outputs["again.dead_letters"]] == [(2, 6)]
    assert result.schedules == 30
    assert result.crashes > 15
    assert result.restores_with_log > 3
    assert result.rescaled > 1
    assert "30 schedules" in str(result)
    assert "records in each sink: 4 in 'done', 1 in 'again.dead_letters'" in str(result)


def test_inputs_stand_in_for_files_and_replace_what_a_source_brings():
    orders = [{"id": "a", "needs": 2}, {"id": "b", "needs": 1}]
    result = simulate(retries(JsonLines("orders/")), {"orders": orders}, seeds=range(3))
    assert sorted(order["id"] for order in result.outputs["done"]) == ["a", "b"]
    assert orders == [{"id": "a", "needs": 2}, {"id": "b", "needs": 1}]
    result = simulate(retries(), {"orders": []}, seeds=range(3))
    assert result.outputs == {"done": [], "again.dead_letters": []}


# -- what is caught ----------------------------------------------------------------------------------------------


def counted_outside() -> Flow:
    counter: Iterator[int] = itertools.count()

    def number(record: str) -> tuple[str, int]:
        return record, next(counter)

    flow = Flow("numbered")
    flow.read(Items(["a", "b", "c"]), name="letters").map(number, name="number").write(Collect(), name="numbered")
    return flow


def test_state_outside_of_the_engine_is_caught_with_seed_story_and_call():
    with pytest.raises(ScheduleError) as caught:
        simulate(counted_outside(), seeds=range(7, 50), parallelism=1)
    error = caught.value
    assert (error.seed, error.reproduce) == (7, "simulate(flow, seeds=[7], parallelism=1)")
    assert all(words in error.reason for words in ("sink 'numbered'", "lacks: ('a', 0)", "keep it in the state"))
    assert "attempt 1 begins from nothing" in "\n".join(error.story)
    assert "the run is finished" in error.story[-1]
    assert str(error).startswith("seed 7: sink") and str(error).endswith(f"reproduce: {error.reproduce}")


class Forgetful:
    """Counts in an attribute that no snapshot sees."""

    def on_start(self, ctx: Any) -> None:
        self.count = 0

    def on_record(self, ctx: Any, record: int) -> None:
        self.count += 1

    def on_end(self, ctx: Any) -> None:
        ctx.emit(self.count)


def forgetful() -> Flow:
    flow = Flow("count")
    counted = flow.read(Range(60), name="numbers").rebalance().process(Forgetful, name="count", parallelism=1)
    counted.write(Collect(), name="count_of_all")
    return flow


@pytest.mark.slow
def test_a_count_that_no_snapshot_holds_is_caught_by_a_crash_and_by_nothing_else():
    flow = forgetful()
    assert simulate(flow, seeds=range(40), crashes=0).outputs == {"count_of_all": [60]}
    with pytest.raises(ScheduleError, match=r"lacks: 60") as caught:
        simulate(flow, seeds=range(40), crashes=1)
    assert any("begins from cut" in line for line in caught.value.story)


@pytest.mark.parametrize("crashes", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_a_small_flow_crashes_about_as_often_as_it_is_told_to(crashes: int):
    flow = Flow("small")
    flow.read(Items([1, -2, 3]), name="numbers").map(abs).write(Collect(), name="positive")
    result = simulate(flow, seeds=range(40), crashes=crashes)
    assert 0.7 * crashes < result.crashes / 40 <= crashes + 1
    assert result.restores > 10


@pytest.mark.slow
def test_output_that_depends_on_the_order_of_a_merge_is_caught_unless_it_is_said_to():
    def last(value: int, record: int) -> tuple[int, int]:
        return record, value

    flow = Flow("order")
    left, right = flow.read(Range(4), name="left"), flow.read(Range(14, start=10), name="right")
    merged = left.merge(right).key_by(lambda n: 0).stateful_map(last, initial=-1, name="last")
    merged.write(Collect(), name="before")
    with pytest.raises(ScheduleError, match="order in which streams are merged"):
        simulate(flow, seeds=range(20))
    result = simulate(flow, seeds=range(20), check_outputs=False, check=lambda outputs: len(outputs["before"]) == 8)
    assert result.schedules == 20


def stamping() -> Flow:
    flow = Flow("stamped")
    flow.read(Range(6), name="numbers").map(lambda page: {"page": page, "at": next(TIMES)}, name="stamp").write(
        Collect(), name="pages"
    )
    return flow


TIMES = itertools.count()


def test_columns_that_may_differ_are_ignored_where_it_is_asked_for():
    with pytest.raises(ScheduleError, match="sink 'pages' does not hold"):
        simulate(stamping(), seeds=range(3))
    assert simulate(stamping(), seeds=range(3), ignore={"pages": ["at"]}).schedules == 3


def three_numbers() -> Flow:
    flow = Flow("numbers")
    flow.read(Range(3), name="numbers").write(Collect(), name="out")
    return flow


@pytest.mark.parametrize(
    ("flow", "ignore", "said"),
    [
        (stamping(), {"page": ["at"]}, "names 'page', which is not a sink of the flow; its sinks are 'pages'"),
        (stamping(), {"pages": "at"}, r"give \['at'\]"),
        (three_numbers(), {"out": ["at"]}, "columns of sink 'out', but 0 has none"),
    ],
)
def test_an_ignore_that_cannot_be_is_refused(flow: Flow, ignore: Any, said: str):
    with pytest.raises(SimulationError, match=said):
        simulate(flow, seeds=[0], ignore=ignore)


def test_a_check_judges_the_outputs_of_every_run():
    found: list[list[int]] = []

    def check(outputs: Any) -> bool:
        found.append(sorted(outputs["out"]))
        return len(found) < 4

    with pytest.raises(ScheduleError, match=r"the check does not hold .* returned False") as failed:
        simulate(three_numbers(), seeds=range(9), check_outputs=False, check=check)
    assert found == [[0, 1, 2]] * 4 and failed.value.seed == 2
    assert failed.value.reproduce == "simulate(flow, seeds=[2], check_outputs=False, check=check)"


def test_a_check_that_raises_is_told_with_its_own_frames():
    def check(outputs: Any) -> None:
        assert not outputs["out"], "there is output"

    told = r"the check raised AssertionError: there is output[^$]*test_simulate"
    with pytest.raises(ScheduleError, match=told) as failed:
        simulate(three_numbers(), seeds=[], check=check)
    assert failed.value.seed is None


def test_outputs_that_nothing_looks_at_are_warned_of():
    with pytest.warns(UserWarning, match="check_outputs=False.*give it check="):
        simulate(stamping(), seeds=[], check_outputs=False)


def test_a_loop_that_never_runs_dry_is_caught_before_any_fault(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("backedge.engine.simulation.simulation.FAITHFUL_STEPS_MAX", 2_000)
    flow = Flow("forever")
    again = flow.loop("again", of=int)
    done, rest = flow.read(Items([1]), name="one").merge(again).split(lambda n: n < 0, name="below_zero")
    again.feed(rest)
    done.write(Collect(), name="done")
    with pytest.raises(ScheduleError, match=r"after 2,000 steps.*1 in loop 'again'.*max_rounds=") as caught:
        simulate(flow)
    assert caught.value.seed is None
    assert len(str(caught.value).splitlines()) == 2, "its steps repeat themselves"


# -- invariants and stop_when --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_invariant_sees_state_loop_and_output_of_every_cut():
    seen: list[int] = []

    def each_order_is_in_one_place(cut: CutView) -> None:
        looping = [order["id"] for order in cut.in_loop("again")]
        out = [order["id"] for sink in ("done", "again.dead_letters") for order in cut.output(sink)]
        seen.append(len(looping))
        assert sorted(looping + out) == sorted(cut.state("attempts"))

    result = simulate(retries(), seeds=range(24), invariant=each_order_is_in_one_place, parallelism=2)
    assert len(seen) >= result.cuts
    assert sum(map(bool, seen)) >= result.cuts_with_log > 8


@pytest.mark.parametrize(
    ("invariant", "told"),
    [
        (lambda cut: not cut.in_loop("again"), ": it returned False"),
        (lambda cut: 1 // 0, "the invariant raised ZeroDivisionError: "),
        (lambda cut: cut.state("orders"), "no operator 'orders' that keeps values by key; there are: 'attempts'"),
        (lambda cut: cut.output("attempts"), "no sink 'attempts'; there are: 'done', 'again.dead_letters'"),
        (lambda cut: cut.in_loop("done"), "no loop 'done'; the loops are 'again'"),
    ],
)
def test_an_invariant_that_fails_is_told_with_cut_and_cause(invariant: Any, told: str):
    with pytest.raises(ScheduleError) as caught:
        simulate(retries(), seeds=range(30), invariant=invariant)
    assert told in caught.value.reason
    assert "invariant=invariant" in caught.value.reproduce
    assert "is complete" in caught.value.story[-1]


def test_an_interrupt_is_not_swallowed():
    def interrupt(cut: CutView) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(retries(), invariant=interrupt)


def ticking(stop_when: Any) -> Flow:
    flow = Flow("ticking", stop_when=stop_when)
    flow.read(Generate(lambda position: position), name="ticks").key_by(lambda n: n % 3).stateful_map(
        lambda count, n: (count + 1, n), initial=0, name="counts"
    ).write(Collect(), name="out")
    return flow


@pytest.mark.slow
def test_stop_when_ends_an_unbounded_flow_with_a_cut_that_it_holds_of():
    def enough(cut: CutView) -> bool:
        return sum(cut.state("counts").values()) >= 6

    def whole(cut: CutView) -> bool:
        return len(cut.output("out")) == sum(cut.state("counts").values())

    def stopped(outputs: Any) -> bool:
        return len(outputs["out"]) >= 6

    result = simulate(ticking(enough), seeds=range(20), check_outputs=False, invariant=whole, check=stopped)
    assert result.schedules == 20


def test_a_stop_when_that_raises_is_told_as_what_it_is():
    with pytest.raises(ScheduleError, match="the run without crashes: stop_when raised KeyError: 'none'"):
        simulate(ticking(lambda cut: cut.state("counts")["none"]))


# -- the same arguments give the same result -----------------------------------------------------------------------


@pytest.mark.slow
def test_it_says_now_and_then_how_many_schedules_have_passed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    seconds = itertools.count(step=2)
    monkeypatch.setattr(simulating, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    simulate(retries(), seeds=range(7))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "backedge: 3 of 7 schedules of flow 'retries' have passed"
    assert 1 <= len(lines) < 7


def test_it_takes_more_seeds_than_can_be_counted(monkeypatch: pytest.MonkeyPatch):
    simulated = 0

    def run_seed(self: Simulation, seed: int) -> Any:
        nonlocal simulated
        simulated += 1
        if simulated == 3:
            raise KeyboardInterrupt
        return run(self, seed)

    run = Simulation.run_seed
    monkeypatch.setattr(Simulation, "run_seed", run_seed)
    with pytest.raises(KeyboardInterrupt):
        simulate(retries(), seeds=range(10**30))


@pytest.mark.slow
def test_another_process_with_another_hash_seed_gives_the_same():
    script = (
        "from tests.simulation.test_simulate import retries, simulate\n"
        "print(simulate(retries(), seeds=range(8), parallelism=(1, 2, 3)))"
    )
    printed: set[str] = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        printed.add(done.stdout)
    assert len(printed) == 1


@pytest.mark.slow
def test_a_cut_of_an_iteration_holds_each_record_in_the_loop_or_in_the_output():
    flow = Flow("halve")
    numbers = flow.read(Range(12), name="numbers").key_by(lambda n: n % 3)
    counted = numbers.stateful_map(lambda count, n: (count + 1, n), initial=0, name="counted")
    small = flow.iterate(
        counted.rebalance(),
        lambda stream: stream.rebalance().map(lambda n: n + 1, name="half"),
        rounds=6,
        name="rounds",
    )
    small.rebalance().write(Collect(), name="small")
    looping: list[int] = []

    def each_is_in_one_place(cut: CutView) -> None:
        looping.append(len(cut.in_loop("rounds")))
        assert looping[-1] + len(cut.output("small")) == sum(cut.state("counted").values())

    simulate(flow, seeds=range(8), invariant=each_is_in_one_place, parallelism=(2, 3))
    assert sum(map(bool, looping)) > 8


class Session(Process[Any, Any]):
    """A session ends half an hour after its last click."""

    def on_record(self, ctx: Context[Any], value: Any) -> None:
        ctx.set_timer_in(30 * 60_000)

    def on_timer(self, ctx: Context[Any], at_ms: int) -> None:
        ctx.emit(ctx.key)


def test_a_timer_of_half_an_hour_is_not_waited_for_tick_by_tick():
    flow = Flow("sessions")
    flow.read(Items(["a", "b"]), name="clicks").key_by(str).process(Session, name="session").write(
        Collect(), name="out"
    )
    result = simulate(flow, seeds=range(2))
    assert sorted(result.outputs["out"]) == ["a", "b"]
    assert result.restores > 0

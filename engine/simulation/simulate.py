"""`simulate`: runs a user's flow in one process under seeded schedules with crashes, and compares the results."""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import length_hint
from pathlib import Path
from typing import Any

from backedge.engine.batches.differences import differences
from backedge.engine.simulation.simulation import Invariant, Policy, Run, Simulation, SimulationError, checked_seeds
from backedge.engine.simulation.telling import tell_steps, tell_turns
from backedge.graphs.flow import Flow
from backedge.graphs.options import check_function
from backedge.graphs.plan import Plan
from backedge.graphs.public import public
from backedge.graphs.task_errors import USER_RAISED, TaskError, describe, show, user_frames

_OWN_FOLDER = str(Path(__file__).parents[1])
STEPS_TOLD = 20
TURNS_TOLD = 15
RECORDS_TOLD = 3
TOLD_EVERY_S = 5.0

Check = Callable[[Mapping[str, list[Any]]], object]


@public
class ScheduleError(Exception):
    """A schedule under which a flow behaves differently than without crashes.

    `seed` is its seed (None: the run without crashes), `reason` says what is wrong, `story` has the turns of the run
    and its last steps, `reproduce` is the call that shows it again.

    Fix: keep all state where a cut contains it, and do not depend on the order of arrival; `seeds=[SEED]` repeats the
    run.

    >>> error = ScheduleError(17, "sink 'done' lacks a record", ["attempts/0 dies"], "simulate(flow, seeds=[17])")
    >>> print(error)
    seed 17: sink 'done' lacks a record
      attempts/0 dies
    reproduce: simulate(flow, seeds=[17])
    """

    def __init__(self, seed: int | None, reason: str, story: Sequence[str], reproduce: str) -> None:
        super().__init__(seed, reason, tuple(story), reproduce)
        self.seed = seed
        self.reason = reason
        self.story = tuple(story)
        self.reproduce = reproduce

    def __str__(self) -> str:
        title = "the run without crashes" if self.seed is None else f"seed {self.seed}"
        lines = [f"{title}: {self.reason}", *(f"  {line}" for line in self.story), f"reproduce: {self.reproduce}"]
        return "\n".join(lines)


@public
@dataclass(frozen=True)
class SimulationResult:
    """The result of a simulation in which every schedule passed.

    - outputs: sink -> records, of the run without crashes.
    - crashes: of tasks and of the coordinator. restores: attempts that began from a cut.
    - cuts_with_log, restores_with_log: those whose cut contained records in flight, usually in a loop.
    - rescaled: restores with another parallelism.
    """

    flow: str
    outputs: Mapping[str, list[Any]]
    schedules: int
    crashes: int
    cuts: int
    cuts_with_log: int
    restores: int
    restores_with_log: int
    rescaled: int

    def __str__(self) -> str:
        sinks = ", ".join(f"{len(records)} in {sink!r}" for sink, records in self.outputs.items())
        return (
            f"flow {self.flow!r}: nothing lost and nothing doubled in {self.schedules} schedules\n"
            f"  {self.crashes} crashes; {self.cuts} cuts, {self.cuts_with_log} of them with records in flight; "
            f"{self.restores} restores, {self.restores_with_log} of them with records in flight\n"
            f"  records in each sink: {sinks}"
        )


@public
def simulate(
    flow: Flow,
    inputs: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: Iterable[int] = range(100),
    crashes: int = 3,
    invariant: Invariant | None = None,
    parallelism: int | Sequence[int] = (1, 2),
    policy: Policy = "aligned",
    check_outputs: bool = True,
    check: Check | None = None,
    ignore: Mapping[str, Sequence[str]] | None = None,
    snapshots: str | None = None,
) -> SimulationResult:
    """Run a flow in this process under one seeded schedule after another; the first bad one raises `ScheduleError`.

    First the flow runs once without faults. Each seed draws a schedule in which any channel may be slow, with up to
    `crashes` crashes at any step, and their side effects (lost messages, full disks, tasks presumed dead that go on).
    Each run must end, break no rule of the protocol, and leave in each sink the same records as the run without
    faults, in any order, compared by equality. Sums of floats depend on the order of addition: round them.

    - inputs: source operator -> records to use instead of reading the source. Other sources are really read.
    - invariant: called with a `CutView` of every complete cut; the schedule fails if it returns False or raises.
    - parallelism: the values that a seed draws from; a restore may use another one. The run without faults uses the
      first.
    - check_outputs: False for a flow whose output legitimately depends on the order in which streams are merged, or on
      when `stop_when` stops it. Give a `check` then: the result has the outputs of the run without crashes alone.
    - check: called with the outputs of each run, by sink; the schedule fails if it returns False or raises.
    - ignore: sink -> columns of its records that may differ, such as times.
    - snapshots: a folder, or the URI of a store. Every run keeps its chain and its cuts there, restores from them, and
      removes them at its end. Without it they are kept in memory, which is faster.

    The same arguments give the same result. Every few seconds a line on standard error says how many schedules have
    passed. Exceptions of the flow's own functions are raised.

    >>> from backedge import Collect, Flow, Items
    >>> flow = Flow("halve")
    >>> again = flow.loop("again", of=int)
    >>> numbers = flow.read(Items([12, 7, 40]), name="numbers")
    >>> odd, even = numbers.merge(again).split(lambda n: n % 2 == 1, name="parity")
    >>> again.feed(even.rebalance().map(lambda n: n // 2, name="half"))
    >>> odd.write(Collect(), name="odd")
    >>> result = simulate(flow, seeds=range(20), invariant=lambda cut: all(n < 40 for n in cut.in_loop("again")))
    >>> sorted(result.outputs["odd"]), result.schedules
    ([3, 5, 7], 20)
    """
    simulation = Simulation(flow, inputs, crashes, parallelism, policy, invariant, snapshots)
    ignored = _checked_ignore(simulation.plan, ignore or {})
    if check is not None:
        check_function(check, "check= of simulate")
    elif not check_outputs:
        warnings.warn(
            "simulate does not compare outputs (check_outputs=False), and what it returns are those of the run without "
            "crashes: give it check=, which is called with the outputs of every run",
            stacklevel=2,
        )
    call = _Call(inputs, crashes, invariant, parallelism, policy, check_outputs, check, ignored, snapshots)
    faithful = simulation.faithful
    _drive(faithful, call)
    expected = faithful.outputs()
    _check(faithful, call)
    counts = Counter[str](schedules=0)
    told_s, given = time.monotonic(), 0
    with suppress(OverflowError):
        given = length_hint(seeds)
    for seed in checked_seeds(seeds):
        run = simulation.run_seed(seed)
        _drive(run, call)
        if check_outputs:
            _compare(run, expected, call)
        _check(run, call)
        counts += run.counts()
        if time.monotonic() - told_s >= TOLD_EVERY_S:
            told_s = time.monotonic()
            of = f" of {given}" if given else ""
            done = f"{counts['schedules']}{of} schedules of flow {flow.name!r} have passed"
            print(f"backedge: {done}", file=sys.stderr, flush=True)
    return SimulationResult(flow.name, expected, **{name: counts[name] for name in _COUNTED})


_COUNTED = ("schedules", "crashes", "cuts", "cuts_with_log", "restores", "restores_with_log", "rescaled")


@dataclass(frozen=True)
class _Call:
    """The arguments of a call of `simulate` that differ from the defaults."""

    inputs: Mapping[str, Sequence[Any]] | None
    crashes: int
    invariant: Invariant | None
    parallelism: int | Sequence[int]
    policy: Policy
    check_outputs: bool
    check: Check | None
    ignore: Mapping[str, Sequence[str]]
    snapshots: str | None

    def with_seed(self, seed: int | None) -> str:
        words = ["flow"] + ["inputs=inputs"] * (self.inputs is not None) + [f"seeds=[{'' if seed is None else seed}]"]
        words += [f"crashes={self.crashes}"] * (self.crashes != 3)
        words += ["invariant=invariant"] * (self.invariant is not None)
        words += [f"parallelism={self.parallelism!r}"] * (self.parallelism != (1, 2))
        words += [f"policy={self.policy!r}"] * (self.policy != "aligned")
        words += ["check_outputs=False"] * (not self.check_outputs)
        words += ["check=check"] * (self.check is not None)
        words += [f"ignore={self.ignore!r}"] * bool(self.ignore)
        words += [f"snapshots={self.snapshots!r}"] * (self.snapshots is not None)
        return f"simulate({', '.join(words)})"


def _drive(run: Run, call: _Call) -> None:
    try:
        reason = run.drive()
    except TaskError as error:
        where = "without a fault" if run.seed is None else f"under seed {run.seed}"
        error.add_note(f"  in the simulator, {where}: {call.with_seed(run.seed)}")
        raise error.with_traceback(None) from _from_users_code(error.__cause__)
    if reason is not None:
        raise _error(run, reason, call)


def _from_users_code(error: BaseException | None) -> BaseException | None:
    """The user's exception, without the traceback entries between the simulator and the user's function."""
    if error is None:
        return None
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
        frame = frame.tb_next
    return error.with_traceback(frame)


def _compare(run: Run, expected: Mapping[str, list[Any]], call: _Call) -> None:
    found = run.outputs()
    lines: list[str] = []
    for sink, records in expected.items():
        left_out = call.ignore.get(sink, ())
        lacking, surplus = differences(_without(left_out, records, sink), _without(left_out, found[sink], sink))
        if lacking or surplus:
            lines.append(f"sink {sink!r} does not hold what it holds without crashes")
        lines += _told("lacks", lacking) + _told("has, and should not", surplus)
    if not lines:
        return
    lines.append(
        "  a function that keeps something outside of its state (a global, a file, a clock) causes this: keep it in "
        "the state. So does one whose result depends on the order in which streams are merged, or a stop_when: pass "
        "check_outputs=False and a check=. Columns that may differ, such as times, are left out by ignore="
    )
    raise _error(run, "\n".join(lines), call)


def _checked_ignore(plan: Plan, ignore: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    sinks = [name for name, operator in plan.operators.items() if operator.kind.is_sink]
    for sink, columns in ignore.items():
        if sink not in sinks:
            known = ", ".join(map(repr, sinks))
            raise SimulationError(f"ignore= names {sink!r}, which is not a sink of the flow; its sinks are {known}")
        if isinstance(columns, str):
            raise SimulationError(f"ignore={{{sink!r}: {columns!r}}} has no list of columns: give [{columns!r}]")
    return dict(ignore)


def _without(columns: Sequence[str], records: list[Any], sink: str) -> list[Any]:
    if not columns:
        return records
    if others := [record for record in records if not isinstance(record, Mapping)]:
        raise SimulationError(
            f"ignore= names columns of sink {sink!r}, but {show(others[0])} has none: leave it out, and give check="
        )
    return [{name: value for name, value in record.items() if name not in columns} for record in records]


def _check(run: Run, call: _Call) -> None:
    """Have the user's check judge what the sinks hold."""
    if call.check is None:
        return
    try:
        holds = call.check(run.outputs())
    except USER_RAISED as error:
        lines = [f"the check raised {describe(error)}", *user_frames(error)]
        raise _error(run, "\n".join(line.rstrip() for line in lines), call) from error
    # A function that consists of asserts returns None.
    if holds is not None and not holds:
        raise _error(run, f"the check does not hold of the outputs: it returned {holds!r}", call)


def _told(what: str, records: list[Any]) -> list[str]:
    lines = [f"  {what}: {show(record)}" for record in records[:RECORDS_TOLD]]
    return lines + [f"  {what}: {len(records) - RECORDS_TOLD} more"] * (len(records) > RECORDS_TOLD)


def _error(run: Run, reason: str, call: _Call) -> ScheduleError:
    if run.never_ends():
        return ScheduleError(run.seed, reason, [], call.with_seed(run.seed))
    plan, cuts, story = run.world.plan, run.world.record.cuts, run.schedule.outcome.story
    turns, steps = tell_turns(story, plan, cuts, TURNS_TOLD), tell_steps(story[-STEPS_TOLD:], plan, cuts)
    lines = [f"what happened, in {len(story)} steps:", *(f"  {line}" for line in turns)]
    lines += [f"the last {len(steps)} steps:", *(f"  {line}" for line in steps)]
    return ScheduleError(run.seed, reason, lines, call.with_seed(run.seed))

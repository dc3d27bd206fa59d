"""Runs a user's flow in the simulated world, once without faults and once per seed, after checking the arguments."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import length_hint
from typing import Any, Literal, get_args

from msgspec import structs

from backedge.engine.cut_view import CutView
from backedge.engine.io.files.checks import check_source
from backedge.engine.io.files.file_errors import NoInputError
from backedge.engine.io.memory import ArrivingItems
from backedge.engine.io.reader import finder_of
from backedge.engine.operators.check_picklable import check_pickles
from backedge.engine.simulation.checker.checker import check_protocol
from backedge.engine.simulation.telling import ToldWorld, records_in_loops
from backedge.engine.simulation.world.cuts_in_store import CutsInStore
from backedge.engine.simulation.world.schedule import FaultPlan, Schedule
from backedge.engine.simulation.world.world import Happening
from backedge.engine.simulation.world.world_options import Parts, WorldOptions
from backedge.graphs.discovery import FindSplits, ReadSplits, sources_of
from backedge.graphs.flow import Flow, checked_flow
from backedge.graphs.options import check_function, is_whole
from backedge.graphs.plan import Operator, Plan
from backedge.graphs.public import public
from backedge.graphs.task_errors import USER_RAISED, describe, user_frames
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.restarts import RestartOptions
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from backedge.recovery.stores.store_schemes import store_at

Policy = Literal["aligned", "unaligned"]
Invariant = Callable[[CutView], object]

FAITHFUL_STEPS_MAX = 300_000
_BATCHES = 50
_UNDER_WAY_MAX = 20
_CALM = replace(FaultPlan.none(), write_failures=2, aborts=3, savepoints=2, compactions=2)


@public
class SimulationError(ValueError):
    """The arguments of the simulator are wrong; the message says what to write instead.

    Fix: change the argument that the message names.
    """


class PredicateError(Exception):
    """An invariant does not hold in a complete cut, or a user's predicate raised."""


@dataclass(frozen=True)
class Run:
    """One schedule and its world. `seed` is None for the run without faults."""

    seed: int | None
    world: ToldWorld
    schedule: Schedule

    def drive(self) -> str | None:
        """Run to the end. Returns what is wrong, if anything; errors of user code are raised."""
        try:
            outcome = self.schedule.run()
            self.world.sweep_outputs()
            wrongly_published = self.world.services.wrongly_published()
        except PredicateError as broken:
            return str(broken)
        finally:
            self.world.close()
        if self.never_ends():
            return (
                f"the flow has not ended after {FAITHFUL_STEPS_MAX:,} steps without any fault{self._held_in_loops()}: "
                "let records leave its loops, limit them with max_rounds= or rounds=, give it fewer records, or stop "
                "it with stop_when="
            )
        found = outcome.violations or check_protocol(self.world.record)
        return "\n".join(map(str, found)) or wrongly_published

    def never_ends(self) -> bool:
        """Whether this is the run without faults and it was stopped: its steps repeat themselves."""
        return self.seed is None and self.schedule.outcome.steps >= FAITHFUL_STEPS_MAX

    def _held_in_loops(self) -> str:
        cuts = self.world.record.cuts
        held = records_in_loops(cuts[max(cuts)], self.world.plan) if cuts else Counter[str]()
        found = [f"{count} in loop {loop!r}" for loop, count in held.items()]
        return f", with records still going round, {', '.join(found)}" if found else ""

    def outputs(self) -> dict[str, list[Any]]:
        store, operators = self.world.services.store, self.world.plan.operators
        return {name: store.output(name) for name, operator in operators.items() if operator.kind.is_sink}

    def counts(self) -> Counter[str]:
        faults = self.schedule.outcome.faults
        crashes = faults["crash"] + faults["kill_coordinator"]
        return Counter(schedules=1, crashes=crashes, **self.world.record.counts())


class _CreditedWorld(ToldWorld):
    """A world in which unbounded sources only read while little is in transit, as credit ensures in an engine."""

    def enabled(self) -> list[Happening]:
        found = super().enabled()
        wires = sum(len(wire) for channel, wire in self.wires.items() if channel.receiver in self.hosts)
        queues = sum(len(inbox.queue) for host in self.hosts.values() for inbox in host.core.inboxes.values())
        return found if wires + queues <= _UNDER_WAY_MAX else [event for event in found if event[0] != "produce"]


class Simulation:
    """A flow, its inputs, and the choices of a schedule.

    `faithful` is the run with which the others are compared: nothing fails, nothing is slow, the first parallelism. It
    must be driven first.
    """

    def __init__(
        self,
        flow: Flow,
        inputs: Mapping[str, Sequence[Any]] | None,
        crashes: int,
        parallelism: int | Sequence[int],
        policy: Policy,
        invariant: Invariant | None = None,
        snapshots: str | None = None,
    ) -> None:
        plan = checked_flow(flow, "simulate").plan()
        # Nothing is pickled here, but what simulate accepts must also run on Ray.
        check_pickles(plan)
        self.inputs = _checked_inputs(plan, inputs or {})
        self.crashes = _checked_crashes(crashes)
        self.parallelism = _checked_parallelism(parallelism)
        self.mode = _checked_policy(policy)
        _check_end(plan, self.inputs)
        if invariant is not None:
            check_function(invariant, "invariant= of simulate")
        watched = plan.stop_when is not None or invariant is not None
        self.plan = structs.replace(plan, stop_when=_watch(plan.stop_when, invariant)) if watched else plan
        self.plan = _with_lists(self.plan, self.inputs)
        sources = [plan.operators[name] for name in sources_of(plan)]
        self.batch_min = sum(_count(source, self.inputs) for source in sources) // _BATCHES
        endless = [s for s in sources if s.name not in self.inputs and not s.function.bounded]
        self.world = _CreditedWorld if endless else ToldWorld
        self.snapshots = None if snapshots is None else store_at(snapshots)
        # What another process has left behind, which was killed, must not be taken for a run of this one.
        self.jobs = f"simulated-{secrets.token_hex(4)}"
        self.faithful = self._run_faithfully()

    def _run_faithfully(self) -> Run:
        snapshots = SnapshotOptions(self.mode, interval_ms=100)
        options = WorldOptions(self.parallelism[0], snapshots=snapshots, records_max=max(5, self.batch_min))
        return self._run(None, options, FaultPlan.none(), 0, FAITHFUL_STEPS_MAX, Parts())

    def run_seed(self, seed: int, parts: Parts | None = None) -> Run:
        """A schedule and its faults. Its step limit follows from the faithful run, which has ended."""
        steps = self.faithful.schedule.outcome.steps
        rng = random.Random(f"options {seed}")
        parallelism = rng.choice(self.parallelism)
        others = [other for other in self.parallelism if other != parallelism]
        # A long run has no more cuts than a short one, or it would do little else.
        stretch = 1 + steps // 1000
        snapshots = SnapshotOptions(
            self.mode,
            interval_ms=rng.choice((20, 50, 100)) * stretch,
            timeout_ms=rng.choice((200, 500, 1000)) * stretch,
            open_epochs_max=rng.choice((1, 2, 3)),
            failures_tolerated=1000,
        )
        options = WorldOptions(
            parallelism,
            rng.choice(("task", "slice")),
            snapshots,
            records_max=max(rng.choice((1, 2, 5)), self.batch_min),
            restarts=RestartOptions(restarts_max=1000, pause_ms=rng.choice((0, 20, 100))),
            seed=seed,
        )
        faults = replace(FaultPlan(), crashes=self.crashes) if self.crashes else _CALM
        if others and rng.random() < 0.5:
            faults = replace(faults, rescale_to=rng.choice(others))
        return self._run(seed, options, faults, 500 + 10 * steps, 20_000 + 20 * steps, parts or Parts(), steps)

    def _run(
        self,
        seed: int | None,
        options: WorldOptions,
        faults: FaultPlan,
        steps_safe: int,
        steps_live: int,
        parts: Parts,
        steps_expected: int = FAITHFUL_STEPS_MAX,
    ) -> Run:
        if self.snapshots is not None:
            job = f"{self.jobs}-{'no-faults' if seed is None else seed}"
            parts = replace(parts, store=partial(CutsInStore, store=self.snapshots, job=job, plan=self.plan))
        world = self.world(self.plan, self.inputs, options, parts)
        schedule = Schedule(world, seed or 0, faults, steps_safe, steps_live, steps_expected)
        world.story = schedule.outcome.story
        return Run(seed, world, schedule)


def _watch(stop_when: Callable[..., bool] | None, invariant: Invariant | None) -> Callable[[CutView], bool]:
    """The predicate that the world evaluates on every complete cut: the invariant first, then `stop_when`."""

    def ask(what: str, predicate: Invariant, view: CutView) -> object:
        try:
            return predicate(view)
        except USER_RAISED as error:
            lines = [f"{what} raised {describe(error)} at cut {view.epoch}", *user_frames(error)]
            raise PredicateError("\n".join(line.rstrip() for line in lines)) from error

    def watch(view: CutView) -> bool:
        if invariant is not None:
            holds = ask("the invariant", invariant, view)
            # A function that consists of asserts returns None.
            if holds is not None and not holds:
                raise PredicateError(f"the invariant does not hold of cut {view.epoch}: it returned {holds!r}")
        return stop_when is not None and bool(ask("stop_when", stop_when, view))

    return watch


def checked_seeds(seeds: Iterable[int]) -> Iterable[int]:
    """Return the seeds; raise if they are a single number."""
    if isinstance(seeds, int):
        raise SimulationError(
            f"seeds={seeds} is one number: give range({seeds}) to run that many, or [{seeds}] for that one"
        )
    if not isinstance(seeds, Iterable) or isinstance(seeds, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # not every user checks types
        raise SimulationError(f"seeds={seeds!r} are not numbers: give range(100), or a list of integers")
    return seeds


def _checked_inputs(plan: Plan, inputs: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    sources = sources_of(plan)
    known = ", ".join(map(repr, sources))
    if not isinstance(inputs, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # not every user checks types
        raise SimulationError(
            f"inputs= is of type {type(inputs).__name__}: give the records of each source by its name, "
            f"{{{next(iter(sources), 'source')!r}: [...]}}"
        )
    for name, records in inputs.items():
        if name not in sources:
            raise SimulationError(
                f"inputs are given for {name!r}, which is not a source of the flow; its sources are {known}"
            )
        if not isinstance(records, Sequence) or isinstance(records, str | bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SimulationError(
                f"the inputs of source {name!r} are of type {type(records).__name__}: give a list of records"
            )
    for name in sources:
        if name not in inputs:
            try:
                check_source(plan.operators[name])
            except NoInputError as error:
                raise SimulationError(
                    f"{error}; or give its records, simulate(flow, inputs={{{name!r}: [...]}})"
                ) from error
    return dict(inputs)


def _checked_crashes(crashes: int) -> int:
    if not is_whole(crashes) or crashes < 0:
        raise SimulationError(f"crashes={crashes!r} is not a number of crashes: give 0 or more")
    return crashes


def _checked_parallelism(parallelism: int | Sequence[int]) -> tuple[int, ...]:
    given = tuple(parallelism) if isinstance(parallelism, Iterable) else (parallelism,)
    if not given or not all(is_whole(tasks) and tasks >= 1 for tasks in given):
        raise SimulationError(
            f"parallelism={parallelism!r} runs no task: give a number of at least 1, or several to draw from"
        )
    return given


def _checked_policy(policy: str) -> Mode:
    if policy not in get_args(Policy):
        raise SimulationError(f"policy {policy!r} is unknown: give one of {', '.join(map(repr, get_args(Policy)))}")
    return Mode(policy)


def _check_end(plan: Plan, inputs: Mapping[str, Sequence[Any]]) -> None:
    if plan.stop_when is not None:
        return
    for name in sources_of(plan):
        if name not in inputs and not plan.operators[name].function.bounded:
            raise SimulationError(
                f"source {name!r} never ends, so a simulated run would not either: give it a count, give its records, "
                f"simulate(flow, inputs={{{name!r}: [...]}}), or give the flow stop_when="
            )
        if name not in inputs and _waits_for_more(plan.operators[name]):
            raise SimulationError(
                f"source {name!r} waits for more to read, and in a simulated run nothing arrives: let it find that no "
                f"more will come, such as the file of until=, give its records, simulate(flow, inputs={{{name!r}: "
                "[...]}), or give the flow stop_when="
            )
    of_users = [edge for edge in plan.edges if not plan.operators[edge.receiver].kind.is_source]
    endless = sorted({str(edge.loop) for edge in of_users if edge.endless})
    if endless:
        raise SimulationError(
            f"loop {endless[0]!r} is endless, so a simulated run would be too: give the flow stop_when="
        )


def _waits_for_more(source: Operator) -> bool:
    """Whether a source looks for splits, and finds no more before it has said which is the last."""
    if source.function.look_s is None:
        return False
    find, known = finder_of(source), set[str]()
    while not (found := find(known)).is_last:
        if not found.new:
            return True
        known.update(found.new)
    return False


def _with_lists(plan: Plan, inputs: Mapping[str, Sequence[Any]]) -> Plan:
    """The same plan, in which a source that looks for splits finds those of the list that it is given."""

    def with_list(operator: Operator) -> Operator:
        kind = operator.kind
        name = kind.readers if isinstance(kind, FindSplits) else operator.name
        if not isinstance(kind, FindSplits | ReadSplits) or name not in inputs:
            return operator
        source = ArrivingItems(inputs[name], kind.source.look_s)
        return structs.replace(operator, kind=replace(kind, source=source))

    return structs.replace(plan, operators={name: with_list(each) for name, each in plan.operators.items()})


def _count(source: Operator, inputs: Mapping[str, Sequence[Any]]) -> int:
    """The number of records, if the source can tell."""
    return length_hint(inputs.get(source.name, source.function))

"""Records a short run of a flow, and what it comes to if a process is killed at any step, with and without loop logs.

The run is one of the simulated world, which is made of the shipping core: the same flow and the same seed always give
the same steps. For each step and each process the run is repeated from its beginning to that step, the process is
killed, and the run goes on to its end. The checker judges every one of these runs.

A step is an event after which there is something else to see. After a kill the run recovers before anything else
happens, and what is still on its way from the former attempt has no effect.

Runs are stored as a forest: a node is a step, what it changes, and the number of the node that follows. Two runs that
go on alike from some step on share all nodes from there.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from backedge.engine.batches.differences import differences
from backedge.engine.simulation.breaks import BREAKS
from backedge.engine.simulation.checker import chain_checks, counts, cut_checks, output_checks, trail
from backedge.engine.simulation.checker.checker import check_protocol
from backedge.engine.simulation.checker.record import Violation
from backedge.engine.simulation.play_frames import Frame, WatchedRuntime, WatchedState, frame_of, said_of, turns_in
from backedge.engine.simulation.simulation import Simulation, SimulationError
from backedge.engine.simulation.world.world import Happening, World
from backedge.engine.simulation.world.world_options import Parts, WorldOptions
from backedge.graphs.flow import Flow
from backedge.graphs.ids import ChannelId, Epoch, TaskId
from backedge.graphs.task_errors import show
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.snapshot_options import SnapshotOptions

STEPS_MAX = 300
"""The most steps of a run that is recorded, and of one that goes on after it was restored."""

TICK_SHARE = 1 / 8
BACK_SHARE = 0.3
"""How many of the picks that would take a record round a loop are kept: more of them are on their way at a cut."""

INTERVAL_MS = 60
UNSEEN = ("remove", "withdraw", "compact", "compacted", "encode", "outlived", "land")
"""What happens at once, between two steps: nothing of it can be seen."""

RECOVERY = ("append", "read_chain", "restore")
SUPERVISOR = "supervisor"
WITHOUT_LOG = "no-loop-log"
SAME_OUTPUT = "exactly once: the output is that of the run without kills"
ENDS = "the run ends"
UNBROKEN = "no process finds the protocol broken"
STATEMENTS = (
    cut_checks.RECEIVED,
    cut_checks.LOGGED,
    cut_checks.EMPTY,
    cut_checks.COVERED,
    cut_checks.ONCE,
    trail.ENDS_ONCE,
    output_checks.LISTED,
    counts.COUNTED,
    cut_checks.ONWARD,
    chain_checks.CHAIN,
    chain_checks.CONTINUES,
    trail.NUMBERED,
    trail.ENDED,
    trail.BARRIERS,
    trail.OUTLIVED,
    trail.GIVEN_UP,
    trail.REPLAYED,
    trail.COUNTS,
    SAME_OUTPUT,
    ENDS,
    UNBROKEN,
)
"""What the audit of each run states, green or red; a page adds any other statement that is violated."""


@dataclass(frozen=True)
class Step:
    """One step: its sentence, what is to be seen after it, and how many events have happened by then."""

    said: str
    frame: Frame
    events: int


class _Broken(Exception):
    """A process has refused what happened to it."""


class Recorder:
    """Runs a flow under one seed, again and again: to its end, or until a process is killed and then to its end."""

    def __init__(self, flow: Flow, seed: int) -> None:
        self._simulation = Simulation(flow, None, 0, 1, "aligned")
        faithful = self._simulation.faithful
        if (problem := faithful.drive()) is not None:
            raise SimulationError(f"flow {flow.name!r} fails even without a kill: {problem}")
        self._expected = faithful.outputs()
        self._seed = seed
        self.deployment = faithful.world.deployment
        self.processes = (*map(str, self.deployment.tasks), SUPERVISOR)

    def run(self, *, with_log: bool) -> list[Step]:
        """The steps of the run without a kill."""
        with closing(self._world(with_log=with_log)) as world:
            begun = Step("the run is about to begin", frame_of(world), 0)
            steps = self._to_the_end(world, [begun])
        if len(steps) > STEPS_MAX:
            raise SimulationError(
                f"flow {self.deployment.plan.name!r} takes more than {STEPS_MAX} steps, too many to look at: give its "
                "sources fewer records"
            )
        return steps

    def killed(self, process: str, events: int, *, with_log: bool) -> list[Step]:
        """The steps of the run from the moment on at which a process is killed: after so many events."""
        with closing(self._world(with_log=with_log)) as world:
            rng = random.Random(self._seed)
            for _ in range(events):
                world.apply(_pick(world, rng))
            kill: list[Happening] = [("kill_coordinator",)]
            if process != SUPERVISOR:
                name, _, index = process.rpartition("/")
                kill = [("crash", (TaskId(name, int(index)),)), ("notice",)]
            return self._to_the_end(world, [_step(world, event, events) for event in kill])

    def _world(self, *, with_log: bool) -> World:
        parts = Parts() if with_log else BREAKS[WITHOUT_LOG].parts()
        parts = replace(parts, runtime=WatchedRuntime, keyed_state=WatchedState)
        cuts = SnapshotOptions(Mode.ALIGNED, interval_ms=INTERVAL_MS, timeout_ms=10**9)
        options = WorldOptions(snapshots=cuts, records_max=1)
        return World(self._simulation.plan, self._simulation.inputs, options, parts)

    def _to_the_end(self, world: World, steps: list[Step]) -> list[Step]:
        """Run to the end, or to the limit, and have every step say what the audit finds by then."""
        rng, found, restored = random.Random(self._seed), list[Violation](), 0
        try:
            while not world.is_over and len(steps) - restored <= STEPS_MAX:
                step = _step(world, _pick(world, rng), steps[-1].events + 1)
                if step.frame == steps[-1].frame:
                    # What changes nothing that is to be seen is no step of its own.
                    steps[-1] = replace(steps[-1], events=step.events)
                    continue
                steps.append(step)
                if not restored and _is_restored(step.frame):
                    # From here on the order depends on what was restored, and not on when the process was killed.
                    rng, restored = random.Random(self._seed), len(steps)
        except _Broken as broken:
            found.append(Violation(UNBROKEN, str(broken)))
        world.sweep_outputs()
        if not world.is_finished:
            found.append(Violation(ENDS, "it goes on and on" if world.failure is None else world.failure))
        found += check_protocol(world.record)
        verdict = self._verdict(world, found)
        known = [
            replace(step, frame=step.frame | _wrong(one for one in found if f"cut {one.epoch}" in step.frame))
            for step in steps[:-1]
        ]
        return [*known, replace(steps[-1], frame=steps[-1].frame | {"verdict": verdict} | _wrong(found))]

    def _verdict(self, world: World, found: list[Violation]) -> dict[str, dict[str, list[str]]]:
        """What each sink lacks and what it has twice. A difference is a violation, too."""
        verdict: dict[str, dict[str, list[str]]] = {"lost": {}, "doubled": {}}
        for sink, records in self._expected.items():
            for what, differing in zip(verdict, differences(records, world.services.store.output(sink)), strict=True):
                if differing:
                    verdict[what][sink] = [*map(show, differing)]
                    found.append(Violation(SAME_OUTPUT, f"sink {sink!r}: {what} {', '.join(verdict[what][sink])}"))
        return verdict


def _is_restored(frame: Frame) -> bool:
    """Whether the second attempt is about to start."""
    lives = {value[0] for key, value in frame.items() if key.startswith("process ")}
    return frame["attempt"] > 1 and lives <= {"restored", "ended"}


def _wrong(found: Iterable[Violation]) -> dict[str, str]:
    """For each statement that is violated the first violation."""
    return {f"wrong {violation.statement}": violation.story for violation in reversed([*found])}


def _step(world: World, event: Happening, events: int) -> Step:
    said, known, open_epochs = said_of(world, event), len(world.record.trace), _open_epochs(world)
    try:
        world.apply(event)
    except (RuntimeError, LookupError, ValueError) as error:
        raise _Broken(f"{type(error).__name__}: {error}") from error
    begun = [
        f"{'probe' if is_probe else 'cut'} {epoch} begins"
        for epoch, is_probe in _open_epochs(world).items()
        if epoch not in open_epochs
    ]
    return Step("; ".join((said, *turns_in(world.record.trace[known:]), *begun)), frame_of(world), events)


def _open_epochs(world: World) -> dict[Epoch, bool]:
    """The epochs that are open, and whether each is a probe."""
    return {epoch: cut.mode.is_probe for epoch, cut in world.coordinator.open.items()} if world.coordinator else {}


def _pick(world: World, rng: random.Random) -> Happening:
    """What happens next. What is left of a former attempt comes first, and then a recovery."""
    attempt, events = world.supervisor.attempt, world.enabled()
    for event in events:
        if event[0] in UNSEEN or (event[0] == "report" and world.reports[event[1]][0] < attempt):
            return event
        if event[0] == "receive" and world.wires[event[1]][0][0] < attempt:
            return event
    # In an order that does not depend on which process was started last.
    events.sort(key=lambda event: (event[0], *map(str, event[1:])))
    events = [event for event in events if event[0] in RECOVERY][:1] or events
    if not events or rng.random() < TICK_SHARE:
        return ("tick",)
    event = rng.choice(events)
    if event[0] in ("receive", "take") and rng.random() > BACK_SHARE and _is_back(world, event[-1]):
        event = rng.choice(events)
    return event


def _is_back(world: World, channel: ChannelId) -> bool:
    found = world.deployment.channels.get(channel)
    return found is not None and found.is_back


# -- storing -----------------------------------------------------------------------------------------------------------


class Forest:
    """Runs that share their ends. A node: the number of the next one (-1: none), its sentence, whether it forgets all
    that was before it, and then keys and values, each a number; the value -1 removes a key.
    """

    def __init__(self) -> None:
        self.keys: dict[str, int] = {}
        self.values: dict[str, int] = {}
        self.said: dict[str, int] = {}
        self.nodes: dict[tuple[int, ...], int] = {}

    def add(self, steps: Sequence[Step], before: Frame, whole: int) -> int:
        """Store a run that goes on from a frame; the step of number `whole` says everything. Returns its first node."""
        following = -1
        for number in reversed(range(len(steps))):
            step = steps[number]
            former = {} if number == whole else steps[number - 1].frame if number else before
            changes = [
                part for key in sorted(former.keys() | step.frame.keys()) for part in self._change(key, former, step)
            ]
            node = (following, _number(self.said, step.said), int(number == whole), *changes)
            following = _number(self.nodes, node)
        return following

    def _change(self, key: str, former: Frame, step: Step) -> tuple[int, ...]:
        if key in step.frame and key in former and step.frame[key] == former[key]:
            return ()
        value = json.dumps(step.frame[key], separators=(",", ":")) if key in step.frame else None
        return _number(self.keys, key), -1 if value is None else _number(self.values, value)

    def stored(self) -> dict[str, Any]:
        """What a page reads."""
        values = [json.loads(value) for value in self.values]
        return {"keys": [*self.keys], "values": values, "said": [*self.said], "nodes": [*self.nodes]}


def _number(known: dict[Any, int], what: Any) -> int:
    return known.setdefault(what, len(known))


def recorded(recorder: Recorder) -> dict[str, Any]:
    """All runs, as plain values: `runs` has the one with loop logs, then the one without.

    `first` is the first node of the run without a kill. `kills` has for each step the first node of the run in which a
    process is killed after it, for each of `processes`.
    """
    forest, runs = Forest(), list[dict[str, Any]]()
    for with_log in (True, False):
        steps = recorder.run(with_log=with_log)
        kills = [
            [
                forest.add(recorder.killed(process, step.events, with_log=with_log), step.frame, 1)
                for process in recorder.processes
            ]
            for step in steps[:-1]
        ]
        runs.append({"first": forest.add(steps, {}, 0), "kills": kills})
    return {"processes": recorder.processes, "statements": STATEMENTS, "runs": runs, **forest.stored()}

"""Walks every schedule of two pipelines on one chain: what their supervisors and their drivers do, without tasks.

What pipelines have in common is the chain, so everything else is left out: a task is restored in one step, and a cut is
the manifest that records it. Replies are lost and entries land late, an attempt fails, the supervisor dies or is taken
for dead, and another run takes over, at every point: also from a run that gives a pipeline up. Each state is visited
once.

A supervisor that is taken for dead only sleeps, as one whose process is stopped. It goes on as soon as a schedule lets
it take a step: before its successor has claimed anything, in between, or when the successor's pipelines run. (One that
has not claimed anything itself has nothing to lose. It takes its successor for a predecessor, and leads the run.)

After each step: attempts and epochs have numbers of their own, an entry follows from the last one of its pipeline, only
the supervisor that claimed last appends, and only another run or a successor fences one. At the end of every schedule
one supervisor has all pipelines.
"""

from __future__ import annotations

import errno
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from backedge.engine.run.driver import RunDriver, StoreRetries
from backedge.engine.run.ports import Placed, RunObserver, RunPorts
from backedge.graphs.deployment import Deployment, Task
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.plan import Plan
from backedge.recovery.protocol.chain_view import claimant_of, run_of
from backedge.recovery.protocol.coordinator import Coordinator
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import AppendEntry, AttemptStart, Entry, Manifest, Numbered, Order
from backedge.recovery.protocol.pipelines import Pipeline
from backedge.recovery.protocol.restarts import RestartOptions
from backedge.recovery.protocol.supervisor import Stage, Supervisor
from backedge.recovery.stores.store_errors import OutcomeUnknownError
from proof.explorer import Exploration

GIVEN_UP = "two pipelines, one given up and back"
"""A run that has both is over, another one goes on without b, and a third one has b again."""
WALKS: Mapping[str, Mapping[str, int]] = {
    "two pipelines, a lost reply": {"cuts": 1, "failures": 1, "lost_replies": 1},
    "two pipelines, a successor": {"cuts": 1, "deaths_of_the_supervisor": 1},
    "two pipelines, a predecessor that wakes": {"cuts": 1, "sleeps_of_the_supervisor": 1},
    "two pipelines, another run": {"other_runs": 1},
    GIVEN_UP: {"cuts": 2, "other_runs": 1},
}
"""What is walked, and how often each of it may happen."""
PIPELINES = (Pipeline("a", 0, 2), Pipeline("b", 1, 2))
ONLY_A = (Pipeline("a", gives_up=frozenset("b")),)
WITHOUT_B = claimant_of("without b", "one")
TASK = TaskId("task", 0)
TASKS = {TASK: Task(TASK, ("task",), (), (), "actor", 0, True, False, None)}
DEPLOYMENT = Deployment(Plan("two", {}, (), ""), TASKS, {}, (), {"task": 1})


class Event(NamedTuple):
    """Something that can happen: to a run, one of its pipelines, or a creation that hangs (`place`)."""

    what: str
    claimant: str = ""
    place: int = 0
    fault: str = ""

    def __str__(self) -> str:
        return " ".join(map(str, self))


class Ports(RunObserver[Any]):
    """The world of a run: a chain, and nothing else. `fault`: what happens to the next reply."""

    now_ms = 0

    def __init__(self) -> None:
        self.entries: list[Numbered] = []
        self.hanging: list[Numbered] = []
        self.fault = ""

    def chain(self) -> Sequence[Numbered]:
        return list(self.entries)

    def create(self, number: int, entry: Entry, files: Mapping[TaskId, Any], deployment: Deployment) -> bool:
        """Create an entry, unless the reply is to be lost before or after that."""
        fault, self.fault = self.fault, ""
        if fault == "hangs":
            self.hanging.append(Numbered(number, entry))
        is_ours = fault != "hangs" and self.land(Numbered(number, entry))
        if fault:
            raise OutcomeUnknownError(errno.EIO, "no reply came")
        return is_ours

    def land(self, one: Numbered) -> bool:
        if one.number == len(self.entries) + 1:
            self.entries.append(one)
        return self.entries[one.number - 1] == one

    def manifest(self, epoch: Epoch) -> Any:
        """Nothing is in a cut."""

    def place(self, cut: Any, sizes: Any) -> Placed:
        """There is one task."""
        return Placed(DEPLOYMENT, {TASK: None})

    def _ignore(self, *_: Any) -> None:
        """Nothing happens here."""

    drop = sweep = roll_back = restore = start = tell = stop = _ignore

    def holds(self, manifest: Manifest) -> bool:
        """The runs never stop."""
        return False


class NoEpochs(Coordinator):
    """Opens no epoch: the walk records cuts."""

    def on_manifest_written(self, epoch: Epoch, now_ms: int) -> list[Order]:
        return []


@dataclass
class Scene:
    """One state: the chain, and the drivers of each supervisor that lives. `left`: what may still happen."""

    ports: Ports = field(default_factory=Ports)
    runs: dict[str, list[RunDriver]] = field(default_factory=dict[str, list[RunDriver]])
    left: Counter[str] = field(default_factory=Counter[str])

    def begin(self, claimant: str, supervisor: type[Supervisor], pipelines: Sequence[Pipeline] = PIPELINES) -> None:
        """A supervisor begins, with a driver for each pipeline."""
        ports: Any = self.ports
        all_ports: RunPorts[Any] = RunPorts(ports, ports, ports, ports, ports, ports)
        options = RestartOptions(pause_ms=0, is_exponential=False)
        self.runs[claimant] = [
            RunDriver(supervisor(claimant, options, pipeline), all_ports, DEPLOYMENT, StoreRetries(pause_ms=0))
            for pipeline in pipelines
        ]
        for driver in self.runs[claimant]:
            driver.supervisor.coordinator_class = NoEpochs
            driver.begin()

    def living(self) -> Iterator[tuple[str, int, RunDriver]]:
        """The drivers of the runs that go on."""
        for claimant, drivers in self.runs.items():
            if not any(driver.is_over for driver in drivers):
                yield from ((claimant, place, driver) for place, driver in enumerate(drivers))

    def events(self) -> list[Event]:
        """Everything that can happen next."""
        found = [Event("land", place=place) for place in range(len(self.ports.hanging))]
        for claimant, place, driver in self.living():
            stage = driver.supervisor.stage
            if driver.is_due:
                found.append(Event("step", claimant, place))
                if isinstance(driver.step, AppendEntry) and self.left["lost_replies"]:
                    found += [Event("step", claimant, place, fault) for fault in ("is lost", "hangs")]
            if stage is Stage.RESTORING:
                found.append(Event("restored", claimant, place))
            if stage is Stage.RUNNING and driver.step is None and self.left["cuts"]:
                found.append(Event("cut", claimant, place))
            if stage is Stage.RUNNING and self.left["failures"]:
                found.append(Event("fails", claimant, place))
        living = {claimant for claimant, _, _ in self.living()}
        for what in ("deaths", "sleeps"):
            if self.left[f"{what}_of_the_supervisor"]:
                found += [Event(what, claimant) for claimant in sorted(living) if self._may_be_replaced(claimant, what)]
        if self.left["other_runs"]:
            found.append(Event("another run"))
        return found

    def _may_be_replaced(self, claimant: str, what: str) -> bool:
        has_claimed = any(entry.claimant == claimant for _, entry in self.ports.entries)
        return claimant.startswith("first") and (has_claimed or what == "deaths")

    def apply(self, event: Event, supervisor: type[Supervisor]) -> None:
        what, claimant, place, fault = event
        driver = self.runs[claimant][place] if claimant else None
        match what:
            case "land":
                self.ports.land(self.ports.hanging.pop(place))
            case "deaths" | "sleeps":
                self.left[f"{what}_of_the_supervisor"] -= 1
                if what == "deaths":
                    del self.runs[claimant]
                self.begin(claimant_of("first", "successor"), supervisor)
            case "another run":
                self.left["other_runs"] -= 1
                self.begin(claimant_of("second", "one"), supervisor)
            case _ if driver is None:
                raise LookupError(f"{event} happens to no pipeline")
            case "step":
                self.ports.fault = fault
                self.left["lost_replies"] -= fault != ""
                driver.advance()
            case "restored":
                driver.on_restored(TASK, driver.supervisor.attempt)
            case "cut":
                self.left["cuts"] -= 1
                led = driver.supervisor
                epoch = led.chain.pipeline.first_epoch(led.chain.next_epoch)
                driver.obey(led.append(Manifest(epoch, led.attempt, Mode.ALIGNED, {TASK: epoch}, {})))
            case _:
                self.left["failures"] -= 1
                driver.on_failure(driver.supervisor.attempt, "a process died")
        for _, _, living in self.living():
            living.supervisor.check()

    def essence(self) -> Any:
        """What decides what can happen from here on."""
        return (
            tuple(map(_told, self.ports.entries)),
            tuple(map(_told, self.ports.hanging)),
            tuple(sorted(self.left.items())),
            tuple((claimant, tuple(map(_of_driver, drivers))) for claimant, drivers in self.runs.items()),
        )

    def wrong(self) -> str | None:
        """What no schedule may lead to."""
        return _wrong_in_chain(self.ports.entries) or self._wrongly_fenced()

    def _wrongly_fenced(self) -> str | None:
        last = self.ports.entries[-1].entry.claimant if self.ports.entries else ""
        earlier: list[str] = []
        for claimant, drivers in self.runs.items():
            is_predecessor = last in earlier and run_of(last) == run_of(claimant)
            if any(driver.is_over for driver in drivers) and (last == claimant or is_predecessor):
                return f"{claimant} has ended, and no other run or successor has taken over"
            earlier.append(claimant)
        return None

    def wrong_at_end(self) -> str | None:
        """What no schedule may end with: nothing can happen any more, and no run has all pipelines."""
        stages = [{driver.supervisor.stage for driver in drivers} for drivers in self.runs.values()]
        return None if {Stage.RUNNING} in stages else "nothing can happen any more, and no run has all pipelines"


def _told(one: Numbered) -> Any:
    number, entry = one
    kind = entry.restored if isinstance(entry, AttemptStart) else entry.epoch
    return number, type(entry).__name__, entry.attempt, kind, entry.claimant, entry.pipeline


def _of_driver(driver: RunDriver) -> Any:
    led, step = driver.supervisor, driver.step
    if driver.is_over:
        return driver.ending
    return (
        led.stage,
        led.attempt,
        led.chain.entries,
        led.chain.highest,
        led.restored_from,
        led.asked,
        led.chain.claim_of_pipeline,
        tuple(led.chain.given_up),
        tuple(sorted(led.waiting)),
        _told(Numbered(step.number, step.entry)) if isinstance(step, AppendEntry) else step,
        (driver.is_unknown, driver.tries, driver.coordinator is None),
    )


def _wrong_in_chain(entries: Sequence[Numbered]) -> str | None:
    """What is wrong with a chain, entry by entry."""
    attempt, epochs, claimants = Attempt(0), set[Epoch](), [""]
    last: dict[str | None, tuple[Attempt, str, Epoch | None]] = {}
    for number, entry in entries:
        if entry.claimant in claimants[:-1]:
            return f"entry {number} is by {entry.claimant}, and {claimants[-1]} has the job"
        if entry.claimant != claimants[-1]:
            claimants.append(entry.claimant)
        of, by, continues = last.get(entry.pipeline, (Attempt(0), "", None))
        if isinstance(entry, AttemptStart):
            if entry.attempt <= attempt or entry.restored != continues:
                return f"entry {number} starts attempt {entry.attempt} of {entry.pipeline} from {entry.restored}"
            attempt = entry.attempt
            last[entry.pipeline] = entry.attempt, entry.claimant, entry.restored
        else:
            if (entry.attempt, entry.claimant) != (of, by) or entry.epoch in epochs:
                return f"entry {number} is cut {entry.epoch} of attempt {entry.attempt} of {entry.pipeline}"
            epochs.add(entry.epoch)
            last[entry.pipeline] = of, by, entry.epoch
            if entry.claimant == WITHOUT_B:
                last["b"] = Attempt(0), "", None
    return None


def explore_pipelines(name: str, supervisor: type[Supervisor] = Supervisor) -> Exploration:
    """Visit every state of a walk; stop at the first violation."""
    found = Exploration(name)
    scene = Scene(left=Counter(WALKS[name]))
    if name == GIVEN_UP:
        former = (
            AttemptStart(Attempt(1), None, "former", pipeline="b"),
            Manifest(Epoch(1), Attempt(1), Mode.ALIGNED, {TASK: Epoch(1)}, {}, claimant="former", pipeline="b"),
        )
        scene.ports.entries += [Numbered(number, entry) for number, entry in enumerate(former, 1)]
        scene.begin(WITHOUT_B, supervisor, ONLY_A)
    else:
        scene.begin(claimant_of("first", "one"), supervisor)
    seen = {scene.essence()}
    stack: list[tuple[bytes, tuple[Event, ...]]] = [(pickle.dumps(scene), ())]
    while stack:
        copied, story = stack.pop()
        found.states += 1
        before: Scene = pickle.loads(copied)
        events = before.events()
        found.ends += not any(event.what in ("land", "step", "restored") for event in events)
        wrong = before.wrong() or (before.wrong_at_end() if not events else None)
        for event in events:
            found.transitions += 1
            after: Scene = pickle.loads(copied)
            try:
                after.apply(event, supervisor)
            except (RuntimeError, LookupError, ValueError) as error:
                wrong, story = f"{type(error).__name__}: {error}", (*story, event)
                break
            found.crash_points += event.what in ("fails", "deaths", "sleeps")
            found.cuts += event.what == "cut"
            essence = after.essence()
            if essence not in seen:
                seen.add(essence)
                stack.append((pickle.dumps(after), (*story, event)))
        if wrong is not None:
            found.violations.append("\n".join([wrong, *map(str, story)]))
            return found
    found.complete = True
    return found

"""A supervisor without Ray: the test is its clock, its store and all of its actors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from backedge import Flow, Print, Range
from backedge.engine.on_ray.job_store import ChainInMemory
from backedge.engine.on_ray.run_options import RunOptions
from backedge.engine.on_ray.run_spec import RunSpec
from backedge.engine.on_ray.supervisor import supervising
from backedge.engine.on_ray.supervisor.actor_starter import ActorStarter
from backedge.engine.on_ray.supervisor.job_supervising import JobSupervising
from backedge.engine.on_ray.supervisor.silence import Doing
from backedge.engine.on_ray.supervisor.supervising import Supervising
from backedge.engine.on_ray.transport.control_messages import Begin, Outcome, Restored, TaskOptions, TaskReport
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, TaskId
from backedge.graphs.pipelines import pipelines_of
from backedge.recovery.protocol.effects import Acknowledge, Report
from backedge.recovery.protocol.orders import Abort, Complete, Trigger
from backedge.recovery.protocol.pipelines import Pipeline
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from backedge.recovery.protocol.supervisor import Beginning, Supervisor

INTERVAL_MS = 1_000


class AtOnce:
    """Stands for what the loop does not wait for: the test waits for it."""

    def __init__(self, *_: Any) -> None:
        pass

    def do(self, work: Callable[[], None]) -> None:
        work()

    def finish(self) -> None:
        pass


class NoCrew:
    """Processes that are always there."""

    def __init__(self) -> None:
        self.arrivals: dict[str, Any] = {}
        self.is_superseded = False
        self.doing = Doing("nothing")

    def look(self, actor: str) -> Future[Doing]:
        answer: Future[Doing] = Future()
        answer.set_result(self.doing)
        return answer

    def dismiss(self, actor: str) -> None:
        pass

    def fill_spares(self) -> None:
        pass

    def lose(self, actor: str) -> None:
        pass


class Actors:
    """Stands for the switchboard: restores at once, and keeps what the actors are told."""

    def __init__(self, *_: Any) -> None:
        self.crew = NoCrew()
        self.overs: deque[tuple[str, Attempt, Outcome]] = deque()
        self.stale = 0
        self.told: list[Any] = []
        self.attempts: list[tuple[Attempt, Mapping[TaskId, Any]]] = []
        self.waiting: deque[tuple[str, Any]] = deque()

    def begin(self, to_all: Begin) -> None:
        self.attempts.append((to_all.attempt, to_all.restores))
        self.waiting.append(("actor", Restored(tuple(to_all.deployment.tasks))))

    def reports(self, timeout_ms: int = 0) -> Iterator[tuple[str, Any]]:
        while self.waiting:
            yield self.waiting.popleft()

    def tell(self, actor: str, order: Any) -> None:
        self.told.append(order)

    def stop_all(self, timeout_s: float = 0.0) -> Iterator[tuple[str, Any]]:
        self.waiting.clear()
        return iter(())

    def silent(self) -> list[str]:
        return []

    def actors(self) -> list[str]:
        return ["actor"]

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def all_are_connected(self) -> None:
        pass


def job_supervised(
    monkeypatch: pytest.MonkeyPatch, flow: Flow | None = None, *, is_detached: bool = False, **spec: Any
) -> JobSupervising:
    """A run of several pipelines whose supervisor leads actors that the test stands for."""
    monkeypatch.setattr(supervising, "Switchboard", Actors)
    monkeypatch.setattr(supervising, "Beside", AtOnce)
    monkeypatch.setattr(supervising, "plan_restore", lambda cut, deployment: dict.fromkeys(deployment.tasks))
    if flow is None:
        flow = Flow("supervised")
        flow.read(Range(10), name="numbers").write(Print(), name="shown")
    options = spec.pop("options", TaskOptions(job=flow.name))
    snapshots = spec.pop("snapshots", SnapshotOptions(interval_ms=INTERVAL_MS, keep=1))
    # No successor, for which Ray would be asked.
    run = RunOptions(detached=is_detached, max_restarts=0)
    plans = pipelines_of(flow.plan())
    specs = [
        RunSpec(expand(plan), options, snapshots, run, id="77aa", pipeline=Pipeline(plan.pipeline, place, len(plans)))
        for place, plan in enumerate(plans)
    ]
    held = dict.fromkeys(options.constants)
    return JobSupervising(specs, ActorStarter(flow.name), held)


class Supervised:
    """A run whose supervisor takes a turn when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Any = None, **spec: Any) -> None:
        monkeypatch.setattr(supervising, "Switchboard", Actors)
        monkeypatch.setattr(supervising, "Beside", AtOnce)
        monkeypatch.setattr(supervising, "_now_ms", lambda: self.now_ms)
        monkeypatch.setattr(supervising, "plan_restore", lambda cut, deployment: dict.fromkeys(deployment.tasks))
        self.now_ms = 0
        flow = Flow("supervised", stop_when=spec.pop("stop_when", None))
        flow.read(Range(10), name="numbers").write(Print(), name="shown")
        deployment = expand(flow.plan())
        options = spec.pop("options", TaskOptions(job="supervised"))
        snapshots = SnapshotOptions(interval_ms=INTERVAL_MS, keep=spec.pop("keep", 1))
        self.store: Any = store or ChainInMemory()
        monkeypatch.setattr(supervising, "open_chain", lambda options: self.store)
        self.run = Supervising(RunSpec(deployment, options, snapshots, **spec))
        self.run.driver.is_restorable = True
        self.actors: Any = self.run.actors
        self.tasks = list(deployment.tasks)

    @property
    def supervisor(self) -> Supervisor:
        return self.run.driver.supervisor

    def begin(self) -> None:
        """Claim an attempt, and have all tasks restored."""
        self.run.driver.begin(Beginning(self.run.spec.resume_from))
        self.turn()
        self.turn()

    def turn(self, ms: int = 0) -> None:
        """So much time passes, and the supervisor looks what there is to do."""
        self.now_ms += ms
        self.run._turn()

    def take_a_cut(self) -> int:
        """The next periodic cut is due, and all tasks have written their part of it. Gives its epoch."""
        self.turn(INTERVAL_MS)
        return self.acknowledge(self.tasks)

    def acknowledge(self, tasks: Iterable[TaskId]) -> int:
        """These tasks have written their part of the cut that was ordered last. Gives its epoch."""
        epoch = next(order.epoch for order in reversed(self.actors.told) if isinstance(order, Trigger))
        report = Report({}, frozenset(), False, ())
        for task in tasks:
            self.actors.waiting.append(("actor", TaskReport(task, Acknowledge(epoch, report))))
        self.turn()
        return epoch

    def lose_a_process(self) -> None:
        """A process dies."""
        self.actors.overs.append(("actor", self.supervisor.attempt, Outcome("died", "the process of actor actor died")))
        self.turn()

    def told(self, kind: type[Abort] | type[Complete]) -> list[int]:
        """The epochs that tasks were told to abort or that are complete."""
        return sorted({order.epoch for order in self.actors.told if isinstance(order, kind)})

    @property
    def lines(self) -> str:
        """What the user was told."""
        return "\n".join(self.run.story.lines)

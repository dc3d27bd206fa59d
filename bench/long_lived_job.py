"""A job that lives long, in this process: what it keeps is real, and what takes time beside is not.

Real: `Supervising` with its coordinator, chain, figures and status; the store, in a folder; the operators of the one
task, with their state and their restore; the sink, which writes, rolls and publishes files; the sweeps. Not real: the
clock, which stands still between two cuts; Ray, its processes and mailboxes, for which `Actors` stands; and records
enough to keep a machine busy. A process that dies is one that is forgotten.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from backedge import Flow, JsonLines, Range
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.launch_checks import beginning_of, check_output
from backedge.engine.on_ray.job_store import open_services, open_store, run_name
from backedge.engine.on_ray.run_options import RunOptions
from backedge.engine.on_ray.run_spec import RunSpec
from backedge.engine.on_ray.supervisor import supervising
from backedge.engine.on_ray.supervisor.supervising import Supervising
from backedge.engine.on_ray.transport.control_messages import (
    Begin,
    Counts,
    Outcome,
    Progress,
    Restored,
    TaskOptions,
    TaskReport,
)
from backedge.engine.operators.runtime import TaskRuntime
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt
from backedge.recovery.cut.cut import TaskSnapshot
from backedge.recovery.protocol.effects import Acknowledge, Committed, Report
from backedge.recovery.protocol.orders import Complete, Trigger
from backedge.recovery.protocol.requests import RequestKind
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from backedge.recovery.protocol.supervisor import Beginning
from bench.ours import BenchError

NAME, SINK = "longlife", "rows written"
INTERVAL_MS = 100
TURNS_A_CUT = 3
KEEP = 3
CUTS_A_FILE = 20
RECORDS_A_CUT = 2
ROLL_BYTES = 40
"""Fewer than the records of two cuts have, and more than those of one have."""


def flow(output: str) -> Flow:
    """Numbers into files."""
    made = Flow(NAME)
    rows = made.read(Range(10**9), name="numbers").map(lambda number: {"number": number}, name="rows")
    rows.write(JsonLines(output, roll_bytes=ROLL_BYTES), name=SINK)
    return made


class Crew:
    """Processes that are always there."""

    def __init__(self) -> None:
        self.arrivals: dict[str, Any] = {}
        self.is_superseded = False

    def look(self, actor: str) -> None:
        """What a silent actor is doing: none of these is ever silent."""

    def fill_spares(self) -> None:
        pass

    def lose(self, actor: str) -> None:
        pass


class Actors:
    """Stands for the processes of the tasks: there is one, and it does at once what it is told.

    `restored_ms`: the CPU time of the last restore.
    """

    def __init__(self, *_: Any) -> None:
        self.crew = Crew()
        self.overs: deque[tuple[str, Attempt, Outcome]] = deque()
        self.stale = 0
        self.waiting: deque[tuple[str, Any]] = deque()
        self.restored_ms = 0.0

    def begin(self, to_all: Begin) -> None:
        began_s = time.process_time()
        deployment, options, self._attempt = to_all.deployment, to_all.options, to_all.attempt
        ((self._task, plan),) = to_all.restores.items()
        self._store: Any = open_store(options, deployment.plan, is_beside=True)
        services = open_services(options, _deliver, self._attempt)
        self._runtime: Any = TaskRuntime(deployment.tasks[self._task], deployment, services)
        restored = None if plan is None else self._store.take_back(plan, to_all.files, deployment)
        self._runtime.open(None if restored is None else restored.operators)
        self._runtime.commit(() if restored is None else restored.transactions)
        self.restored_ms = (time.process_time() - began_s) * 1e3
        self.waiting.append(("actor", Restored((self._task,))))

    def tell(self, actor: str, order: Any) -> None:
        runtime = self._runtime
        if isinstance(order, Trigger):
            # Two cuts have the records of a file. What the others have is what is kept of a quiet job.
            if order.epoch % CUTS_A_FILE in (10, 11):
                runtime.produce(RECORDS_A_CUT, 0)
            processed = runtime.records_read
            self.waiting.append(("actor", Progress(Counts(records=processed, by_task={self._task: processed}))))
            capture = runtime.capture(order.epoch, self._attempt)
            while not capture.encode_some():
                continue
            transactions = tuple(transaction.name for transaction in runtime.transactions)
            snapshot = TaskSnapshot(self._task, order.epoch, self._attempt, capture.states, (), ())
            files = self._store.write_task(self._attempt, order.epoch, snapshot)
            acknowledged = Acknowledge(order.epoch, Report({}, frozenset(), False, transactions))
            self.waiting.append(("actor", TaskReport(self._task, acknowledged, files)))
        elif isinstance(order, Complete):
            runtime.commit(order.transactions)
            self.waiting.append(("actor", TaskReport(self._task, Committed(order.epoch))))

    def reports(self, timeout_ms: int = 0) -> Iterator[tuple[str, Any]]:
        while self.waiting:
            yield self.waiting.popleft()

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


class AtOnce:
    """Stands for what the loop does not wait for."""

    def __init__(self, *_: Any) -> None:
        pass

    def do(self, work: Callable[[], None]) -> None:
        work()

    def finish(self) -> None:
        pass


class LongLivedJob:
    """One job in a folder, led by one supervisor after another.

    - cuts: how many were taken. restarts: how often tasks were started again.
    - restored_ms: the CPU time of the last restore.
    """

    def __init__(self, folder: Path) -> None:
        self.snapshots, self.output = str(folder / "cuts"), str(folder / "output")
        self.cuts = 0
        self.restarts = -1
        self.restored_ms = 0.0
        self._now_ms = 0
        self._plan = flow(self.output).plan()
        self._deployment = expand(self._plan)
        self._run: Any = None

    def start(self) -> None:
        """What `backedge run --resume latest` does, until its tasks are told to run. The run before is forgotten."""
        options = RunOptions(snapshots=self.snapshots, keep=KEEP, resume="latest", max_restarts=10**9)
        tasks = TaskOptions(root=self.snapshots, job=NAME)
        beginning = beginning_of(self._plan, tasks, options)
        tasks = replace(tasks, run=run_name(tasks))
        check_output(self._plan, tasks, beginning.is_fresh, is_replaced=False)
        cuts = SnapshotOptions(interval_ms=INTERVAL_MS, keep=KEEP)
        self._lead(RunSpec(self._deployment, tasks, cuts, options), is_successor=False)

    def lose_supervisor(self) -> None:
        """Its process dies, and a successor takes over."""
        self._lead(self._run.spec.for_successor(), is_successor=True)

    def lose_process(self) -> None:
        """The process of the task dies."""
        with self._standing_in():
            self._run.actors.overs.append(("actor", self._run.driver.attempt, Outcome("died", "the process died")))
            self._run._turn()
            self._go_on()

    def take_cuts(self, count: int) -> None:
        """Take periodic cuts."""
        story = self._run.story
        until = story.snapshots + count
        with self._standing_in():
            while story.snapshots < until:
                self._now_ms += INTERVAL_MS
                self._turn(TURNS_A_CUT)
        self.cuts += count

    def savepoint(self, name: str) -> None:
        """Take a cut that is kept for good."""
        with self._standing_in():
            self._run.ask(name, RequestKind.SAVEPOINT, name, None)
            self._turn(2 * TURNS_A_CUT)
            if self._run.ask(name, RequestKind.SAVEPOINT, name, None) is None:
                raise BenchError(f"savepoint {name!r} was not taken: {self._run.story.lines}")
        self.cuts += 1

    def published(self) -> list[str]:
        """The files of the output."""
        return [name for name in os.listdir(self.output) if name[0] != "_"]

    def _lead(self, spec: RunSpec, *, is_successor: bool) -> None:
        with self._standing_in():
            self._run = Supervising(spec)
            if is_successor:
                self._run.on_takeover()
            self._run.driver.begin(Beginning())
            self._go_on()

    def _go_on(self) -> None:
        """Until the tasks are told to run."""
        while not self._run.driver.runs:
            if self._run.driver.is_over:
                raise BenchError(f"the run has ended: {self._run.story.error}")
            self._turn(1)
            self._now_ms += INTERVAL_MS
        self.restarts += 1
        self.restored_ms = self._run.actors.restored_ms

    def _turn(self, count: int) -> None:
        for _ in range(count):
            self._run._turn()

    @contextmanager
    def _standing_in(self) -> Generator[None]:
        """No process of Ray is asked, and nothing is done in another thread."""
        with ExitStack() as standing_in:
            standing_in.enter_context(mock.patch.object(cluster, "own_actor", lambda: None))
            for name, stand_in in (("Switchboard", Actors), ("Beside", AtOnce), ("_now_ms", lambda: self._now_ms)):
                standing_in.enter_context(mock.patch.object(supervising, name, stand_in))
            yield


def _deliver(sink: str, transaction: str, records: list[Any]) -> None:
    """Nothing is delivered to the process that has started the run: the sink writes files."""

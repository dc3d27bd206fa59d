"""The memory of a supervisor does not grow with the length of its run."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import FrameType, FunctionType, ModuleType

import pytest

from backedge import Flow, Print, Range
from backedge.engine.on_ray.supervisor import supervising
from backedge.engine.on_ray.supervisor.supervising import Supervising
from backedge.engine.on_ray.transport.control_messages import Counts, Progress, Published, TaskOptions, TaskReport
from backedge.graphs.ids import Epoch
from backedge.recovery.cut.cut import OperatorState, TaskSnapshot
from backedge.recovery.protocol import requests
from backedge.recovery.protocol.effects import Acknowledge, Committed, Decline, Report
from backedge.recovery.protocol.orders import Complete, Trigger
from backedge.recovery.protocol.requests import RequestKind
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from backedge.recovery.stores import chain
from backedge.recovery.stores.cut_store import CutStore
from tests.on_ray.supervised import job_supervised

INTERVAL_MS = 1_000
GROWTH_BYTES_MAX = 20_000
SAMPLED_ROUNDS = 7
"""Of these, one is close to the moment at which a chain is longest, whenever it is shortened."""

CODE = (ModuleType, FunctionType, FrameType, type)


class TwoPipelines:
    """A real supervisor that leads two pipelines with a constant; the test is its clock and its tasks.

    In each round, both give up an epoch and take a cut that a client asks for, and print a line that the driver gets.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.now_ms = 0
        self.rounds = 0
        monkeypatch.setattr(supervising, "_now_ms", lambda: self.now_ms)
        flow = Flow("remembered")
        for name in ("a", "b"):
            flow.read(Range(10), name=name).write(Print(), name=f"{name} shown")
        self.store = CutStore(str(folder), "remembered")
        (constant,) = self.store.constants.keep([b"value"], "77aa")
        options = TaskOptions(job="remembered", root=str(folder), constants={"prices": constant})
        self.job = job_supervised(
            monkeypatch, flow, options=options, snapshots=SnapshotOptions(interval_ms=INTERVAL_MS, keep=3)
        )
        self.told = self.printed = 0
        for pipeline in self.job.pipelines:
            pipeline.driver.begin()
            for _ in range(3):
                pipeline._turn()

    def take_cuts(self) -> None:
        """Take a cut of each pipeline."""
        self.rounds += 1
        request = f"{self.rounds:016x}"
        self.now_ms += INTERVAL_MS
        for pipeline in self.job.pipelines:
            self._decline(pipeline)
        assert self.job.ask(request, RequestKind.CUT, None, None) is None
        for pipeline in self.job.pipelines:
            pipeline._turn()
            self._complete(pipeline)
        answer = self.job.ask(request, RequestKind.CUT, None, None)
        assert answer is not None and answer.error is None
        story = self.job.look(self.told, self.printed)
        self.told = story.told.first + len(story.told.lines)
        self.printed = story.printed.first + len(story.printed.lines)

    def _decline(self, pipeline: Supervising) -> None:
        pipeline._turn()
        epoch = self._triggered(pipeline)
        (task,) = pipeline.driver.deployment.tasks
        self._report(pipeline, Progress(Counts(records=self.rounds, by_task={task: self.rounds})))
        reason = "its log would have more than 1,000,000 bytes, which is the log budget: raise it with log_bytes="
        self._report(pipeline, TaskReport(task, Decline(epoch, reason, True)))
        assert epoch not in pipeline.driver.coordinator.open  # type: ignore[union-attr]

    def _complete(self, pipeline: Supervising) -> None:
        epoch, attempt = self._triggered(pipeline), pipeline.driver.supervisor.attempt
        (task,) = pipeline.driver.deployment.tasks
        operators = pipeline.driver.deployment.tasks[task].operators
        states = {name: OperatorState() for name in operators}
        files = self.store.write_task(attempt, epoch, TaskSnapshot(task, epoch, attempt, states, (), ()))
        name = f"{operators[-1]}.0.attempt-{attempt}.epoch-{epoch}"
        report = Report({}, frozenset(), False, (name,))
        self._report(pipeline, TaskReport(task, Acknowledge(epoch, report), files))
        orders = pipeline.actors.told
        assert any(isinstance(order, Complete) and order.epoch == epoch for order in orders)
        orders.clear()
        self._report(pipeline, Published(operators[-1], name, [f"line {self.rounds}"]))
        self._report(pipeline, TaskReport(task, Committed(epoch)))

    def _triggered(self, pipeline: Supervising) -> Epoch:
        orders = pipeline.actors.told
        return next(order.epoch for order in reversed(orders) if isinstance(order, Trigger))

    def _report(self, pipeline: Supervising, report: object) -> None:
        pipeline.actors.waiting.append(("actor", report))
        pipeline._turn()

    def bytes_held_after(self, rounds: int, sampled: int) -> int:
        """The most that is held during the last of these rounds: a chain grows until it is shortened."""
        most = 0
        while self.rounds < rounds:
            self.take_cuts()
            if self.rounds > rounds - sampled and self.rounds % SAMPLED_ROUNDS == 0:
                most = max(most, bytes_of(self.job))
        return most


def bytes_of(root: object) -> int:
    """The memory of all objects that one leads to."""
    seen = {id(root)}
    found = [root]
    total = 0
    while found:
        each = found.pop()
        total += sys.getsizeof(each)
        for other in gc.get_referents(each):
            if id(other) not in seen and not isinstance(other, CODE):
                seen.add(id(other))
                found.append(other)
    return total


def check_memory(monkeypatch: pytest.MonkeyPatch, folder: Path, cuts: int, bound: int) -> None:
    """Compare what is held once everything bounded has reached its bound with what is held in the end."""
    run, rounds = TwoPipelines(monkeypatch, folder), cuts // 2
    settled = run.bytes_held_after(2 * bound, sampled=bound)
    grown = run.bytes_held_after(rounds, sampled=bound)
    assert len(run.job.story.lines) == bound
    assert grown - settled < GROWTH_BYTES_MAX, f"{settled:,} bytes after {4 * bound:,} cuts, {grown:,} after {cuts:,}"


@pytest.mark.slow
def test_the_memory_of_a_supervisor_is_flat_once_all_bounds_are_reached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for module, name in ((supervising, "LINES_MAX"), (requests, "ANSWERS_MAX"), (chain, "ENTRIES_KEPT")):
        monkeypatch.setattr(module, name, 64)
    check_memory(monkeypatch, tmp_path, 600, bound=64)


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_the_memory_of_a_supervisor_is_flat_over_fifty_thousand_cuts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    check_memory(monkeypatch, tmp_path, 50_000, bound=1_000)

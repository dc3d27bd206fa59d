"""What an actor reports to its supervisor, and how long its tasks took for an epoch."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from typing import Any

from backedge.engine.on_ray.planned_faults import EpochFaults
from backedge.engine.on_ray.transport.control_messages import Begin, EpochTimes, Progress, Report, TaskReport
from backedge.engine.on_ray.transport.frames import Kind, pack_note
from backedge.engine.on_ray.transport.mailbox import Link
from backedge.engine.task.ports import Observer
from backedge.graphs.deployment import Task
from backedge.graphs.ids import Epoch, TaskId
from backedge.recovery.protocol.effects import Acknowledge, Effect
from backedge.recovery.protocol.reliable_line import LineEnd, Said


class EpochObserver(Observer):
    """Notes when an epoch reaches a task and when the task captures, where a planned fault may be due."""

    __slots__ = ("_begun_ns", "_captured_ns", "_faults", "_task")

    def __init__(self, task: Task, faults: EpochFaults) -> None:
        self._task = task
        self._faults = faults
        self._begun_ns: dict[Epoch, int] = {}
        self._captured_ns: dict[Epoch, int] = {}

    def on_epoch(self, task: TaskId, epoch: Epoch) -> None:
        self._begun_ns.setdefault(epoch, time.monotonic_ns())

    def on_captured(self, task: TaskId, epoch: Epoch | None) -> None:
        if epoch is not None:
            self._captured_ns[epoch] = time.monotonic_ns()
            self._faults.check(self._task, epoch)

    def times(self, epoch: Epoch) -> EpochTimes | None:
        """How long the task took for an epoch that it acknowledges now. Earlier epochs are forgotten."""
        begun_ns, captured_ns = self._begun_ns.get(epoch), self._captured_ns.get(epoch)
        for noted in (self._begun_ns, self._captured_ns):
            for earlier in [each for each in noted if each <= epoch]:
                del noted[earlier]
        if begun_ns is None or captured_ns is None:
            return None
        now_ns = time.monotonic_ns()
        return EpochTimes((captured_ns - begun_ns) // 1_000_000, (now_ns - captured_ns) // 1_000_000)


class Reports:
    """The reports of an actor. Those that are numbered are repeated until they are confirmed, and orders accepted once.

    - observers: those of the tasks, which know how long an epoch took.
    """

    def __init__(self, begin: Begin, link: Link) -> None:
        self.link = link
        self.observers: dict[TaskId, EpochObserver] = {}
        self._begin = begin
        self._line = LineEnd()

    def tell(self, report: Report) -> None:
        self._send(self._line.say(report, _monotonic_ms()))

    def tell_progress(self, progress: Progress) -> None:
        """Send progress. It is not numbered, because the next one supersedes it."""
        self._send(Said(0, progress))

    def report(self, task: TaskId, effect: Effect, files: Any = None) -> None:
        times = self.observers[task].times(effect.epoch) if isinstance(effect, Acknowledge) else None
        self.tell(TaskReport(task, effect, files, times))

    def repeat(self) -> None:
        """Send again what was not confirmed in time."""
        for said in self._line.due(_monotonic_ms()):
            self._send(said)

    def orders_in(self, payload: bytes) -> Iterator[Any]:
        """The orders of a message that were not accepted before."""
        confirmed, orders = pickle.loads(payload)
        self._line.on_confirmed(confirmed, _monotonic_ms())
        return (said.what for said in orders if self._line.accepts(said))

    def _send(self, said: Said) -> None:
        note = (self._begin.actor, self._line.confirm(), said)
        # Those of a turn leave together: each message wakes the supervisor, which takes a core from a task.
        self.link.post(pack_note(Kind.REPORT, self._begin.attempt, note))


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000

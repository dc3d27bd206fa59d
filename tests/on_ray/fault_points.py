"""Fault points: a step of the protocol at which a process ends, or holds back what it has to report, once in a job.

Functions of a flow set them, in whatever process runs them: a point is a method of the engine there. A file, the note,
says that it has happened and in which epoch, so it happens once however often processes are replaced.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from backedge.engine.on_ray.actor.reports import Reports
from backedge.engine.task.driver import TaskDriver
from backedge.recovery.protocol.effects import Acknowledge

KILLED = 137


def is_first(note: str, epoch: int) -> bool:
    """Whether this is the first process that passes: then the note has the epoch."""
    try:
        descriptor = os.open(note, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    os.write(descriptor, str(epoch).encode())
    os.close(descriptor)
    return True


@dataclass(frozen=True)
class FaultPoint:
    """The process ends before or after the `number`-th call of a method for which `epoch` gives an epoch."""

    note: str
    owner: type[Any]
    method: str
    side: Literal["before", "after"]
    epoch: Callable[..., int | None]
    number: int = 2

    def set(self) -> None:
        """Set it in this process."""
        original = getattr(self.owner, self.method)
        if hasattr(original, "fault_point"):
            return
        passed = 0

        def passing(*arguments: Any) -> Any:
            nonlocal passed
            epoch = self.epoch(*arguments)
            passed += epoch is not None
            is_due = epoch is not None and passed >= self.number
            if is_due and self.side == "before":
                self._end(epoch)
            result = original(*arguments)
            if is_due and self.side == "after":
                self._end(epoch)
            return result

        passing.fault_point = self  # type: ignore[attr-defined]
        setattr(self.owner, self.method, passing)

    def _end(self, epoch: int | None) -> None:
        if is_first(self.note, epoch or 0):
            os._exit(KILLED)


@dataclass(frozen=True)
class HeldAcknowledgement:
    """One acknowledgement leaves only after the task has been given an order of this kind for another or its epoch."""

    note: str
    until: type[Any]

    def set(self) -> None:
        """Set it in this process."""
        report, obey = Reports.report, TaskDriver.obey
        if hasattr(report, "fault_point"):
            return
        held: list[tuple[Any, ...]] = []

        def holding(reports: Reports, task: Any, effect: Any, files: Any = None) -> None:
            if isinstance(effect, Acknowledge) and files is not None and is_first(self.note, effect.epoch):
                held.append((reports, task, effect, files))
            else:
                report(reports, task, effect, files)

        def releasing(driver: TaskDriver, order: Any) -> None:
            obey(driver, order)
            if held and isinstance(order, self.until) and not order.mode.is_probe:
                late = held.pop()
                report(*late)
                Path(f"{self.note}.late").write_text(f"{late[2].epoch} {order.epoch}")

        holding.fault_point = self  # type: ignore[attr-defined]
        Reports.report = holding  # type: ignore[method-assign]
        TaskDriver.obey = releasing  # type: ignore[method-assign]


@dataclass(frozen=True)
class Setting:
    """A function of a flow that first sets a fault point in its process."""

    point: FaultPoint | HeldAcknowledgement
    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        """Set the point, and do what the function does."""
        self.point.set()
        return self.function(*arguments)

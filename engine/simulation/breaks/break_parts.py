"""A break: a rule of the protocol that is switched off by replacing parts of the simulated world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backedge.engine.run_driver import RunDriver
from backedge.engine.simulation.world_options import Parts
from backedge.engine.task import TaskCore
from backedge.engine.task_driver import TaskDriver
from backedge.recovery.coordinator import Coordinator
from backedge.recovery.supervisor import Supervisor


@dataclass(frozen=True)
class Break:
    """A rule: what breaking it means, and the parts that break it.

    `topology`: where it shows; None: in many. `rescales`, `go_backs`: how often a run may be rescaled, or go back to an
    older cut, if that is what shows it. `of_pipelines`: it shows in a job with several pipelines.
    """

    meaning: str
    parts: Callable[[], Parts]
    topology: str | None = None
    rescales: int = 0
    of_pipelines: bool = False
    go_backs: int = 1


def core(core: type[TaskCore]) -> Callable[[], Parts]:
    """The parts of a world whose tasks have this core."""
    return lambda: Parts(core=core)


def driver(driver: type[TaskDriver]) -> Callable[[], Parts]:
    """The parts of a world whose tasks have this driver."""
    return lambda: Parts(driver=driver)


def coordinator(coordinator: type[Coordinator]) -> Callable[[], Parts]:
    """The parts of a world with this coordinator."""
    return lambda: Parts(coordinator=coordinator)


def supervisor(supervisor: type[Supervisor]) -> Callable[[], Parts]:
    """The parts of a world with this supervisor."""
    return lambda: Parts(supervisor=supervisor)


def run_driver(driver: type[RunDriver]) -> Callable[[], Parts]:
    """The parts of a world with this driver of the run."""
    return lambda: Parts(run_driver=driver)

"""What a run is asked for, checked and complete, as the supervisor gets it."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.on_ray.planned_faults import Kill
from engine.on_ray.transport.control_messages import TaskOptions
from graphs.deployment import Deployment
from graphs.ids import Epoch
from recovery.coordinator import SnapshotOptions
from recovery.supervisor import RestartOptions


class RunFailedError(RuntimeError):
    """The run has failed for good; says why."""


class RequestFailedError(RuntimeError):
    """A savepoint or a stop that was requested could not be taken; says why."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run. `resume_from` is the epoch to go on from; None stands for the latest cut, or the beginning.

    One that begins `anew` takes over no run of its name.
    """

    deployment: Deployment
    options: TaskOptions
    snapshots: SnapshotOptions
    restarts: RestartOptions = field(default_factory=RestartOptions)
    spares: int = 0
    strategy: str = "DEFAULT"
    resume_from: Epoch | None = None
    anew: bool = False
    kills: tuple[Kill, ...] = field(default_factory=tuple[Kill, ...])
    silence_ms: int = 30_000
    restarts_silent: bool = False

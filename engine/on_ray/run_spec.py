"""What the supervisor is given of a run, and how a run ends badly."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.on_ray.planned_faults import Kill
from engine.on_ray.run_options import RunOptions
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
    """One run: its tasks, the options that the user gave, and the same in the terms of the core."""

    deployment: Deployment
    options: TaskOptions
    snapshots: SnapshotOptions
    run: RunOptions = field(default_factory=RunOptions)
    kills: tuple[Kill, ...] = ()

    @property
    def restarts(self) -> RestartOptions:
        """How many attempts may fail, and how long a restart waits."""
        run = self.run
        return RestartOptions(
            run.max_restarts,
            None if run.restart_window is None else int(run.restart_window * 1000),
            pause_ms=int(run.restart_pause * 1000),
            pause_ms_max=int(run.restart_pause_max * 1000),
            is_exponential=run.restart_strategy == "exponential",
        )

    @property
    def resume_from(self) -> Epoch | None:
        """The cut to continue from; None stands for the latest cut, or the beginning."""
        return Epoch(self.run.resume) if isinstance(self.run.resume, int) else None

    @property
    def anew(self) -> bool:
        """Whether a run of this name that is there already is refused instead of continued."""
        return self.run.resume == "never"

    @property
    def silence_ms(self) -> int:
        """After how long an actor that reports nothing counts as silent."""
        return int(self.run.silence_timeout * 1000)

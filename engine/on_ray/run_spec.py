"""What the supervisor needs to know about a run, and the errors that a run ends with."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace

from engine.on_ray.planned_faults import Kill
from engine.on_ray.run_options import RunOptions
from engine.on_ray.transport.control_messages import TaskOptions
from graphs.deployment import Deployment
from graphs.ids import Epoch
from recovery.coordinator import SnapshotOptions
from recovery.graph_change import GraphChange
from recovery.supervisor import RestartOptions


class RunFailedError(RuntimeError):
    """The run has failed for good; the message says why."""


class RequestFailedError(RuntimeError):
    """A requested savepoint or stop failed; the message says why."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """A run: its tasks, the user's options, and these options in the core's terms.

    `change` leads from the graph of the cut that the run begins with to the graph of the run, if they differ. `id` is a
    random number that all supervisors of the run share, and no other run of the job has.
    """

    deployment: Deployment
    options: TaskOptions
    snapshots: SnapshotOptions
    run: RunOptions = field(default_factory=RunOptions)
    kills: tuple[Kill, ...] = ()
    change: GraphChange | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def takeovers_max(self) -> int:
        """How many supervisors may be replaced. Without snapshots there is nothing to continue from."""
        return 0 if self.options.root is None else self.run.max_restarts

    def for_successor(self) -> RunSpec:
        """The same run, without the planned faults that happen once, which may have happened already."""
        return replace(self, kills=tuple(kill for kill in self.kills if kill.when == "every"))

    @property
    def restarts(self) -> RestartOptions:
        """The limits on restarts, and their pauses."""
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
        """The cut to resume from; None means the latest cut, or the beginning."""
        return Epoch(self.run.resume) if isinstance(self.run.resume, int) else None

    @property
    def anew(self) -> bool:
        """Whether an existing run of this name is refused instead of resumed."""
        return self.run.resume == "never"

    @property
    def silence_ms(self) -> int:
        """Milliseconds without a report after which an actor counts as silent."""
        return int(self.run.silence_timeout * 1000)

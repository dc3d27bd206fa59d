"""What a `RunDriver` needs of the world around it: the ports.

The supervisor on Ray (`engine/on_ray/supervisor/supervising.py`) and the simulated world
(`engine/simulation/world/world_ports.py`) implement these and nothing else; the driver between them and the pure core
is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from backedge.engine.io.later_output import LaterOutput
from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.protocol.orders import (
    Abort,
    Compact,
    Complete,
    Entry,
    Manifest,
    Numbered,
    StartTasks,
    Sweep,
    TellToEnd,
    Trigger,
)
from backedge.recovery.protocol.requests import Sizes
from backedge.recovery.restore.outline import CutOutline
from backedge.recovery.restore.plan import RestorePlan


class RunEnding(Enum):
    """How a run has ended. `STOPPED`: by a request, so another run may continue it. `FENCED`: another run has it."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    FENCED = "fenced"
    CANCELLED = "cancelled"


class RestorableCut(Protocol):
    """A complete cut, as a store reads it."""

    @property
    def outline(self) -> CutOutline:
        """What a restore is planned from."""
        ...

    @property
    def attempt(self) -> Attempt:
        """The attempt that took it."""
        ...


C = TypeVar("C", bound=RestorableCut)
C_co = TypeVar("C_co", bound=RestorableCut, covariant=True)
C_contra = TypeVar("C_contra", bound=RestorableCut, contravariant=True)


class Placed(Struct, frozen=True):
    """A deployment, and the restore plan of each task; None where the run begins.

    `begun` is the highest epoch that the chain says has begun.
    """

    deployment: Deployment
    restores: Mapping[TaskId, RestorePlan | None]
    begun: Epoch = Epoch(0)


class RunStore(Protocol[C_co]):
    """The chain of the job, and its cuts. Each method may raise `OSError`, which may pass."""

    def chain(self) -> Sequence[Numbered]:
        """Read the chain: attempt starts and manifests, in order."""
        ...

    def create(self, number: int, entry: Entry, files: Mapping[TaskId, Any], deployment: Deployment) -> bool:
        """Create an entry exclusively; False if another entry has that number.

        `files` are what the tasks reported of a manifest's snapshots. After an `OSError` the entry does not exist,
        unless it is an `OutcomeUnknownError`: then it may exist, now or later.
        """
        ...

    def manifest(self, epoch: Epoch) -> C_co:
        """Read what a complete cut consists of."""
        ...

    def drop(self, epoch: Epoch) -> None:
        """Remove a cut that the chain no longer keeps."""
        ...

    def sweep(self, sweep: Sweep) -> None:
        """Remove files that no restore will need."""
        ...


class RunOutput(Protocol):
    """The output of all sinks."""

    def roll_back(self, sweep: Sweep) -> None:
        """Remove output that will not be published."""
        ...

    def replace(self, later: LaterOutput) -> None:
        """Remove output that was prepared or published after a cut. Raises an `OSError` if some could not be removed.

        Raises `OutputError` if a sink cannot do that.
        """
        ...


class ActorPool(Protocol[C_contra]):
    """The actors of a run."""

    def place(self, cut: C_contra | None, sizes: Sizes) -> Placed:
        """Decide where the tasks of the next attempt run, and what each restores from the cut.

        `sizes` are their numbers, if the run was rescaled. Raises `RescaleError` if the cut does not allow them, and
        `GraphError` if the flow does not.
        """
        ...

    def restore(self, attempt: Attempt, placed: Placed, cut: C_contra | None) -> None:
        """Have every task restored; then the driver's `on_restored` for each, or `on_failure`."""
        ...

    def start(self, order: StartTasks) -> None:
        """Start all tasks of the attempt."""
        ...

    def tell(self, order: Trigger | Abort | TellToEnd | Complete | Compact) -> None:
        """Give an order to its task. After `Compact`, call the driver's `on_compacted`."""
        ...

    def stop(self) -> None:
        """End the attempt at all actors, and wait until each of its tasks has stopped or is considered dead."""
        ...


class StopCondition(Protocol):
    """The user's `stop_when`."""

    def holds(self, manifest: Manifest) -> bool:
        """Whether the run is to end with this complete cut."""
        ...


class SteadyClock(Protocol):
    """A clock that never steps."""

    @property
    def now_ms(self) -> int:
        """The time."""
        ...


class RunObserver(Generic[C]):
    """Notified of what a run does. The base class ignores it; subclasses record stories, count, and plan faults."""

    __slots__ = ()

    def say(self, line: str) -> None:
        """Something that the user should know."""

    def say_once(self, line: str) -> None:
        """Something that the user should know, shown once."""

    def on_attempt(self, attempt: Attempt, cut: C | None) -> None:
        """An attempt begins: its tasks are about to be restored."""

    def on_running(self) -> None:
        """All tasks have been started."""

    def on_cut(self, manifest: Manifest, files: Mapping[TaskId, Any]) -> None:
        """A cut is complete, and its tasks have been told."""

    def on_restart(self, reason: str) -> None:
        """An attempt has failed."""

    def on_given_up(self, epoch: Epoch, reason: str) -> None:
        """An epoch will never be complete."""
        self.say(reason)

    def on_rescale(self, asked: Mapping[str, int]) -> None:
        """The attempt is left for one with these numbers of tasks."""

    def on_pause(self, pause_ms: int) -> None:
        """The next attempt begins after a pause."""

    def on_end(self, ending: RunEnding, reason: str) -> None:
        """The run has ended; the reason is empty if it has finished or was stopped."""


def at_once(work: Callable[[], None]) -> None:
    """Do the work now."""
    work()


def keep_input(sweep: Sweep) -> None:
    """Do nothing: no source waits to hear what is needed no more."""


class RunPorts(Struct, Generic[C], frozen=True):
    """All ports of one run. `C` is what its store reads a cut as.

    `beside` does work that nothing waits for, now or later, in the order in which it is given: removals.
    `settle_input` has sources remove what no restore will read.
    """

    store: RunStore[C]
    output: RunOutput
    actors: ActorPool[C]
    stop_condition: StopCondition
    clock: SteadyClock
    observer: RunObserver[C]
    beside: Callable[[Callable[[], None]], None] = at_once
    settle_input: Callable[[Sweep], None] = keep_input

"""Messages between supervisor and actors: the beginning of an attempt, orders one way, reports the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct, field

from backedge.engine.on_ray.planned_faults import Kill
from backedge.engine.on_ray.transport.mailbox import Address, Keys
from backedge.engine.task.load import TaskLoad
from backedge.engine.task.ports import FlowLimits
from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.rate import Rate
from backedge.recovery.protocol.effects import Effect, Remaining
from backedge.recovery.restore.plan import RestorePlan
from backedge.recovery.stores.input_pieces import NO_CUT
from backedge.recovery.stores.run_status import ResourceStatus
from backedge.recovery.stores.task_files import StoredFile, TaskFiles

SUPERVISOR = "(supervisor)"
# The time until all actors must have heard from each other, including the time to load the user's modules.
CONNECT_TIMEOUT_S = 180.0
LIMITS = FlowLimits(4_000_000, loop_bytes_max=64_000_000)


@dataclasses.dataclass(frozen=True, slots=True)
class TaskOptions:
    """How tasks run, where they write, and how much they take at a time.

    `spill_bytes_max`: what the loops of one process may have on disk. `key` signs what tasks write; None means
    unsigned. `run` is part of the names of published files: the store's name, or a random one for a run that cannot be
    resumed. `keep_inputs`: the operators whose inputs are kept for a replay. `constants`: the files of the flow's
    constants, which cuts name; none of a run without cuts. `dropped`: the names whose state the run gave up when it
    began, which its cuts note.
    """

    seed: int = 0
    read_records_max: int = 4_096
    take_records_max: int = 8_192
    limits: FlowLimits = LIMITS
    spill_bytes_max: int = 10_000_000_000
    root: str | None = None
    job: str = "flow"
    splits: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict[str, tuple[str, ...]])
    broken_rule: str | None = None
    key: bytes | None = dataclasses.field(default=None, repr=False)
    run: str = ""
    keep_inputs: frozenset[str] = frozenset()
    constants: Mapping[str, StoredFile] = dataclasses.field(default_factory=dict[str, StoredFile])
    dropped: frozenset[str] = frozenset()


class Leader(NamedTuple):
    """The supervisor as an actor of Ray, and how long its process may be silent before its actors have it replaced."""

    actor: Any
    silence_ms: int


class Begin(Struct, frozen=True):
    """What an actor needs to know to take part in an attempt.

    `restores` says what its tasks restore, and `files` describes the files that they read for it; neither contains any
    state. `processed` has the numbers of records that its tasks have processed in earlier attempts of the run, for
    planned faults. `restored` is the cut that is restored, `begun` the last epoch that has begun; 0 if there is none.
    `leader` is None if the supervisor cannot be replaced. `constants` has a reference to the bytes of each constant of
    the flow. `versions` is the supervisor as an actor of Ray, if tasks publish versions: it knows where these are.
    `rates`: those that were changed in the run, by source.
    """

    attempt: Attempt
    actor: str
    deployment: Deployment
    restores: Mapping[TaskId, RestorePlan | None]
    addresses: Mapping[str, Address]
    options: TaskOptions
    files: Mapping[TaskId, TaskFiles] = {}
    kills: tuple[Kill, ...] = ()
    processed: Mapping[TaskId, int] = {}
    restored: Epoch = NO_CUT
    begun: Epoch = NO_CUT
    leader: Leader | None = None
    constants: Mapping[str, Any] = {}
    versions: Any = None
    rates: Mapping[str, Rate | None] = {}


class Meeting(NamedTuple):
    """How the processes of an attempt meet: with which keys, and whether over the network.

    `folder` is where the mailboxes at `place`, the supervisor's host, have their sockets.
    """

    attempt: Attempt
    keys: Keys
    on_network: bool
    place: str
    folder: Path


class Arrival(Struct, frozen=True):
    """An actor has arrived: its place, its mailbox, and the file to which Ray writes its output."""

    pid: int
    place: str
    address: Address
    host: str = ""
    log: str = ""


class Counts(Struct):
    """What the tasks of an actor have done in this attempt, and how much is waiting in their loops.

    `by_task` has the number of records that each task has processed, `resources` what its process has opened.
    """

    records: int = 0
    hops: int = 0
    in_loops: int = 0
    spilled_bytes: int = 0
    stale: int = 0
    by_task: dict[TaskId, int] = {}
    resources: dict[str, ResourceStatus] = {}


class Outcome(Struct, frozen=True):
    """How an actor's part in an attempt ended.

    `stopped`: it was told to. `failed`: the attempt cannot go on. `broken`: user code raised, so the run cannot go on.
    `died`: the process is gone.
    """

    end: str
    reason: str = ""
    counts: Counts = field(default_factory=Counts)
    error: Exception | None = None


class Restored(NamedTuple):
    """All tasks of the actor are restored, and all its peers have reached it."""

    tasks: tuple[TaskId, ...]


class EpochTimes(NamedTuple):
    """How long a task took for an epoch: from its first barrier or trigger to the capture, and from there to its files.

    Times are in milliseconds.
    """

    align_ms: int
    write_ms: int


class TaskReport(NamedTuple):
    """A report of a task's core.

    `files` are those of the snapshot that it acknowledges, and `times` says how long that took.
    """

    task: TaskId
    effect: Effect
    files: Any = None
    times: EpochTimes | None = None


class Compacted(NamedTuple):
    """The result of a compaction: its file and the number of entries in it; both are None if it failed.

    `failure` says why, if that is neither the disk nor retention.
    """

    task: TaskId
    epoch: Epoch
    keys: int | None
    files: Any = None
    failure: str | None = None


class TaskRemaining(NamedTuple):
    """What a task still has to do for an open epoch."""

    task: TaskId
    epoch: Epoch
    remaining: Remaining


class Progress(NamedTuple):
    """The progress of an actor, and what its tasks still have to do for open epochs.

    `loads` are in one report a second, or less often: what each task does, and what waits in its channels.
    """

    counts: Counts
    remaining: tuple[TaskRemaining, ...] = ()
    loads: tuple[TaskLoad, ...] = ()


class Published(NamedTuple):
    """Output for the driver, from a committed transaction."""

    sink: str
    transaction: str
    records: list[Any]


class FaultReached(NamedTuple):
    """A planned fault is due here; the process waits to be killed."""

    pid: int
    kill: Kill
    task: TaskId


class Stop(NamedTuple):
    """Leave the attempt."""


class Limit(NamedTuple):
    """Read a source at this rate from now on, or without a limit."""

    source: str
    rate: Rate | None


class Die(NamedTuple):
    """End the process at once, as a fault would."""


Report = Restored | TaskReport | Compacted | Progress | Published | FaultReached

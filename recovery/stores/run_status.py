"""What is known about a run, as one document: its tasks, channels, loops, epochs and failures.

The supervisor of a run keeps it and hands it out (`engine/on_ray/supervisor/run_figures.py`). The store of the job has
the last one (`recovery/stores/stored_status.py`), so that finished and dead jobs can be looked at in the same way. It
is information and no part of the protocol: nothing is restored from it.

Figures of tasks and channels are those of the current attempt. Times of day are seconds since 1970, by the clock of the
supervisor's host. A time or size that is not known is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from backedge.recovery.stores.shapes import ShapeError, converted, shown

VERSION = 2
"""Version of the document. A reader refuses any other."""

REMEMBERED_MAX = 100
"""Epochs and failures that are remembered."""

ENDED = ("finished", "stopped", "failed", "cancelled")
"""The states of a run that is over."""


class TaskStatus(Struct, frozen=True, forbid_unknown_fields=True):
    """One task in the current attempt. A source's `records_in` is the number of records that it has read.

    `records_out` counts a record once for each channel that it was sent to. The shares are those of the last second:
    busy is the time in which the task was worked on; held is the time in which it had something to do and could not,
    because a receiver had no room or because an epoch or a round held its inputs. The rest is idle: it had nothing to
    do, or shared its process with busy tasks. busy_s and held_s are the times of the whole attempt.

    - hops: how many of the records that it took came round a loop.
    - bytes_in: the size of the batches that it has received; those from a task of the same actor are estimated.
    - calls_running, calls_waiting: the calls of `map_async` without an answer, and those that wait for their turn.
    """

    index: int
    actor: str
    records_in: int = 0
    records_out: int = 0
    in_per_s: float | None = None
    out_per_s: float | None = None
    busy: float | None = None
    held: float | None = None
    hops: int = 0
    bytes_in: int = 0
    busy_s: float = 0.0
    held_s: float = 0.0
    calls_running: int = 0
    calls_waiting: int = 0


class HistogramStatus(Struct, frozen=True, forbid_unknown_fields=True):
    """The values that a process class has observed: their number, their sum, and the number in each bucket.

    A bucket is named by its upper end, which belongs to it; it begins at the next lower one. Empty ones are left out.
    """

    count: int = 0
    sum: float = 0.0
    buckets: Mapping[str, int] = {}


class CountedStatus(Struct, frozen=True, forbid_unknown_fields=True):
    """What a process class has counted in the current attempt, by the names that it gave."""

    counters: Mapping[str, float] = {}
    histograms: Mapping[str, HistogramStatus] = {}


class OperatorStatus(Struct, frozen=True, forbid_unknown_fields=True):
    """The tasks that run a chain of operators. `name` is that of the first operator.

    - counted: what process classes of the chain have counted, in all tasks, by the name of the operator.
    - rate: of a source, the limit of what its tasks read together, such as "500/s" or "2MB/s"; empty if there is none.
    """

    name: str
    operators: tuple[str, ...]
    is_source: bool
    is_sink: bool
    tasks: tuple[TaskStatus, ...]
    counted: Mapping[str, CountedStatus] = {}
    rate: str = ""


class ChannelStatus(Struct, frozen=True, forbid_unknown_fields=True):
    """One channel. Sender and receiver are tasks, such as "count/1".

    - records: the number sent in this attempt.
    - backlog, backlog_bytes: what waits at either end, in records (estimated from the size of those before) and bytes.
    - waiting_s: how long the batch in front has been waiting for its receiver.
    - credit_bytes: how much more may be sent now, of a window of `window_bytes`; None for a back edge, which is never
      full, and where nothing is bounded.
    """

    edge: str
    sender: str
    receiver: str
    loop: str | None
    records: int = 0
    backlog: int = 0
    backlog_bytes: int = 0
    waiting_s: float = 0.0
    credit_bytes: int | None = None
    window_bytes: int | None = None


class LoopLog(Struct, frozen=True, forbid_unknown_fields=True):
    """The log of one loop in one cut; `records` is None if they cannot be counted."""

    batches: int
    bytes: int
    records: int | None


class LoopStatus(Struct, frozen=True, forbid_unknown_fields=True):
    """One loop.

    - operators: those on the way round it.
    - records, bytes: what waits in its channels, the back edge included; the records are an estimate.
    - waiting_s: how long the batch that has waited longest in one of its channels has been there.
    - rounds: how often records had gone round, of those that have reached the head in the last second: the number of
      rounds -> the number of records. From 16 on, a power of two stands for all numbers up to the next one. Only loops
      with `max_rounds` count this.
    - round: the round that an iteration is in, such as "3", or "3.0" for an inner one.
    """

    name: str
    operators: tuple[str, ...]
    records: int = 0
    bytes: int = 0
    waiting_s: float = 0.0
    rounds: Mapping[str, int] = {}
    round: str = ""


class BarrierStatus(Struct, frozen=True, forbid_unknown_fields=True):
    """How far an open epoch has come at the tasks of one operator: the number of tasks at each stage.

    A task that is `aligning` has met the first barrier or its trigger; one that has `captured` has not written yet.
    """

    not_reached: int = 0
    aligning: int = 0
    captured: int = 0
    written: int = 0


class EpochStatus(Struct, frozen=True, forbid_unknown_fields=True):
    """One epoch, which became a cut, may become one, or never will.

    `state` is "open", "complete" or "given up"; `reason` says why it was given up.

    - base: the cut since which its tasks write what changed.
    - began_s: the time of day of its first trigger.
    - align_s: the longest time that a task took from its first barrier or trigger to its capture. write_s: the longest
      from the capture until its files were durable; a head also waits for its barrier to come round. slowest: the task
      with the largest sum of both.
    - manifest_s: the time from the last acknowledgement until the manifest was durable. seconds: the whole time.
    - written_bytes: the size of the files that its tasks have written for it.
    - is_kept: whether the cut still exists.
    - waiting: for an open epoch, the tasks that have not acknowledged, and what each still has to do.
    - barriers: for an open epoch, how far it has come at each chain of operators, by the name of the first one.
    """

    epoch: int
    attempt: int
    mode: str
    state: str
    reason: str = ""
    savepoint: str | None = None
    base: int | None = None
    began_s: float | None = None
    complete_s: float | None = None
    align_s: float | None = None
    write_s: float | None = None
    manifest_s: float | None = None
    seconds: float | None = None
    slowest: str | None = None
    written_bytes: int | None = None
    loops: Mapping[str, LoopLog] = {}
    is_kept: bool = False
    waiting: Mapping[str, str] = {}
    barriers: Mapping[str, BarrierStatus] = {}


class FailureStatus(Struct, frozen=True, forbid_unknown_fields=True):
    """The end of an attempt that failed, and the restart after it.

    `restored` is the cut that was restored, None for a start from the beginning; `in_loops` the number of records that
    came from its logs. `seconds` passed from the failure until all tasks ran again; None until they do, and for good
    if the next attempt failed before.

    The work that was lost, and is done again: the records that tasks had processed since the first trigger of the
    restored cut, as far as they were reported, and the seconds since then. Without such a cut in the attempt, both
    count from the beginning of the attempt; None if unknown.
    """

    attempt: int
    at_s: float
    reason: str
    restored: int | None = None
    in_loops: int = 0
    seconds: float | None = None
    lost_records: int | None = None
    lost_s: float | None = None


class ResourceStatus(Struct, frozen=True, forbid_unknown_fields=True):
    """In how many processes a resource of the flow is open, and how often it was opened in all attempts."""

    open: int = 0
    opened: int = 0


class RunStatus(Struct, frozen=True, forbid_unknown_fields=True):
    """A run, at one moment.

    - run: a random number that all supervisors of the run share; empty if unknown.
    - state: starting, running, recovering, one of `ENDED`, or "unfinished": the job has not finished, and the store
      alone cannot tell whether a run is going on.
    - is_live: whether its supervisor has told this; otherwise it is what the store knows.
    - at_s: the time of day at which it was told. seconds: how long the run has taken so far.
    - snapshots: where its cuts are.
    - records, hops: in all attempts of the run, as far as they were reported. spilled_bytes: what its processes have
      written to disk because loops held more than memory, by this supervisor's reports.
    """

    job: str
    run: str
    state: str
    is_live: bool
    at_s: float
    seconds: float | None
    snapshots: str | None
    attempt: int
    last_epoch: int | None
    cuts: int
    records: int = 0
    hops: int = 0
    spilled_bytes: int = 0
    reason: str = ""
    operators: tuple[OperatorStatus, ...] = ()
    channels: tuple[ChannelStatus, ...] = ()
    loops: tuple[LoopStatus, ...] = ()
    epochs: tuple[EpochStatus, ...] = ()
    failures: tuple[FailureStatus, ...] = ()
    resources: Mapping[str, ResourceStatus] = {}
    version: int = VERSION

    @property
    def is_over(self) -> bool:
        return self.state in ENDED

    def to_json(self) -> dict[str, Any]:
        """The document as JSON types.

        >>> loops = (LoopStatus("again", ()),)
        >>> status = RunStatus("rank", "", "running", True, 0.0, 1.5, None, 1, None, 0, loops=loops)
        >>> status_in(status.to_json()) == status
        True
        """
        return to_builtins(self)


def united(statuses: Sequence[RunStatus], state: str) -> RunStatus:
    """The status of a run of several pipelines, from theirs."""
    first = statuses[0]
    return replace(
        first,
        state=state,
        seconds=max(each.seconds or 0.0 for each in statuses),
        attempt=max(each.attempt for each in statuses),
        last_epoch=max((each.last_epoch for each in statuses if each.last_epoch is not None), default=None),
        cuts=sum(each.cuts for each in statuses),
        records=sum(each.records for each in statuses),
        hops=sum(each.hops for each in statuses),
        spilled_bytes=sum(each.spilled_bytes for each in statuses),
        reason=next((each.reason for each in statuses if each.reason), ""),
        operators=tuple(operator for each in statuses for operator in each.operators),
        channels=tuple(channel for each in statuses for channel in each.channels),
        loops=tuple(loop for each in statuses for loop in each.loops),
        epochs=tuple(sorted((epoch for each in statuses for epoch in each.epochs), key=lambda epoch: epoch.epoch)),
        resources=added_resources(each.resources for each in statuses),
        failures=tuple(sorted((failure for each in statuses for failure in each.failures), key=lambda one: one.at_s)),
    )


def added_resources(several: Iterable[Mapping[str, ResourceStatus]]) -> dict[str, ResourceStatus]:
    """The resources of several processes or pipelines, by name.

    >>> added_resources([{"db": ResourceStatus(1, 1)}, {"db": ResourceStatus(1, 2)}])
    {'db': ResourceStatus(open=2, opened=3)}
    """
    found: dict[str, ResourceStatus] = {}
    for resources in several:
        for name, each in resources.items():
            before = found.get(name, ResourceStatus())
            found[name] = ResourceStatus(before.open + each.open, before.opened + each.opened)
    return found


def closed(resources: Mapping[str, ResourceStatus]) -> dict[str, ResourceStatus]:
    """The resources of an attempt that is over."""
    return {name: replace(each, open=0) for name, each in resources.items()}


def status_in(document: Any) -> RunStatus:
    """Convert JSON types to a document. `ShapeError` if they are not one of this version."""
    version = cast("dict[str, Any]", document).get("version") if isinstance(document, dict) else None
    if version != VERSION:
        raise ShapeError(f"has version {shown(version)}, and this program reads {VERSION}", ".version")
    return converted(document, RunStatus)

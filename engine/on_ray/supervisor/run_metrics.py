"""The metrics of a run: its status in the words of Prometheus, handed to Ray every few seconds.

Ray's agents serve them, each with `ray_` in front of its name. The tag `operator` is the first operator of a chain of
tasks; for a loop, the one that the loop leads back to. Nothing is counted here: a counter grows by as much as its
figure has grown since the last status. What a task did in the last seconds before its attempt failed is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from backedge.recovery.stores.run_status import (
    ChannelStatus,
    CountedStatus,
    EpochStatus,
    FailureStatus,
    RunStatus,
    TaskStatus,
)

JOB = ("job",)
OPERATOR = (*JOB, "operator")
TASK = (*OPERATOR, "task")

NAMED = (*OPERATOR, "name")

Tags = tuple[str, ...]
"""The values of the tags of a metric, in their order."""

Open = Callable[[str, str, tuple[str, ...], bool], Callable[[float, Mapping[str, str]], None]]
"""Opens a metric: its name and what a `Metric` says of it. What is returned adds to a counter, or sets a gauge."""


class Metric(NamedTuple):
    """What a metric means, the names of its tags, and whether it is a counter or a gauge."""

    meaning: str
    tags: tuple[str, ...]
    is_counter: bool = True


METRICS = {
    "backedge_records_total": Metric("Records that a task has taken, or, as a source, read", TASK),
    "backedge_sent_records_total": Metric("Records that a task has sent, once for each channel", TASK),
    "backedge_received_bytes_total": Metric("Size of the batches that a task has received", TASK),
    "backedge_hops_total": Metric("Records that came round a loop to a task", TASK),
    "backedge_busy_seconds_total": Metric("Time in which a task was worked on", TASK),
    "backedge_held_seconds_total": Metric("Time in which a task had something to do and could not", TASK),
    "backedge_backlog_records": Metric("Records that wait for a task, an estimate", TASK, is_counter=False),
    "backedge_backlog_bytes": Metric("Size of what waits for a task", TASK, is_counter=False),
    "backedge_running_calls": Metric("Calls of map_async without an answer", TASK, is_counter=False),
    "backedge_waiting_calls": Metric("Calls of map_async that wait for their turn", TASK, is_counter=False),
    "backedge_loop_records": Metric("Records that wait in a loop, an estimate", OPERATOR, is_counter=False),
    "backedge_loop_oldest_seconds": Metric("Longest wait of a batch in a loop", OPERATOR, is_counter=False),
    "backedge_log_bytes_total": Metric("Size of the logs of a loop, in complete cuts", OPERATOR),
    "backedge_counter_total": Metric("What a process class has counted with ctx.counter(name)", NAMED),
    "backedge_histogram_count_total": Metric("Values that a process class has observed", NAMED),
    "backedge_histogram_sum_total": Metric("Sum of the values that a process class has observed", NAMED),
    "backedge_histogram_bucket_total": Metric("Observed values that are at most `le`", (*NAMED, "le")),
    "backedge_epochs_total": Metric("Epochs that became a cut", JOB),
    "backedge_given_up_epochs_total": Metric("Epochs that never became a cut", JOB),
    "backedge_epoch_seconds_total": Metric("Time that complete epochs took", JOB),
    "backedge_epoch_bytes_total": Metric("Size of the files written for complete epochs", JOB),
    "backedge_failures_total": Metric("Attempts that failed", JOB),
    "backedge_restores_total": Metric("Failures after which all tasks ran again", JOB),
    "backedge_restore_seconds_total": Metric("Time from a failure until all tasks ran again", JOB),
    "backedge_spilled_bytes_total": Metric("Size of what loops have written to disk for lack of memory", JOB),
}
"""Every metric, by its name."""


class Figure(NamedTuple):
    """One figure of a status. For a counter, `of` says what the figure belongs to: it starts at 0 with a new one."""

    name: str
    tags: Tags
    of: object
    value: float


class RunMetrics:
    """The metrics of one pipeline of a run. What the first status says has been told before, by an earlier supervisor.

    - counted: the figures of the counters at the last status.
    - shown: the gauges that have been set, and may have to be set back.
    """

    def __init__(self, first: RunStatus, metric: Open) -> None:
        self._record = {name: metric(name, *told) for name, told in METRICS.items()}
        self._counted = _counted(first)
        self._shown: set[tuple[str, Tags]] = set()

    def on_status(self, status: RunStatus) -> None:
        """Record what has changed."""
        counted = _counted(status)
        grown: dict[tuple[str, Tags], float] = {}
        for (name, tags, of), value in counted.items():
            more = value - self._counted.get((name, tags, of), 0.0)
            grown[name, tags] = grown.get((name, tags), 0.0) + more
        self._counted = counted
        for (name, tags), more in grown.items():
            if more > 0:
                self._tell(name, tags, more)
        shown = _shown(status)
        # A task that is gone has no backlog; Ray would show its last one for as long as this process lives.
        for name, tags in self._shown - shown.keys():
            self._tell(name, tags, 0.0)
        for (name, tags), value in shown.items():
            self._tell(name, tags, value)
        self._shown = set(shown)

    def _tell(self, name: str, tags: Tags, value: float) -> None:
        # Ray takes ASCII alone.
        plain = (tag.encode("ascii", "backslashreplace").decode() for tag in tags)
        self._record[name](value, dict(zip(METRICS[name].tags, plain, strict=True)))


def _counted(status: RunStatus) -> dict[tuple[str, Tags, object], float]:
    return {(name, tags, of): value for name, tags, of, value in _figures(status) if METRICS[name].is_counter}


def _shown(status: RunStatus) -> dict[tuple[str, Tags], float]:
    """The gauges. Of several loops that lead back to one operator, the one with the most."""
    found: dict[tuple[str, Tags], float] = {}
    for name, tags, _, value in _figures(status):
        if not (METRICS[name].is_counter or status.is_over):
            found[name, tags] = max(value, found.get((name, tags), 0.0))
    return found


def _figures(status: RunStatus) -> Iterator[Figure]:
    job = status.job
    yield Figure("backedge_spilled_bytes_total", (job,), status.run, status.spilled_bytes)
    waiting: dict[str, list[ChannelStatus]] = {}
    for channel in status.channels:
        waiting.setdefault(channel.receiver, []).append(channel)
    for operator in status.operators:
        for task in operator.tasks:
            tags = (job, operator.name, str(task.index))
            inputs = waiting.get(f"{operator.name}/{task.index}", [])
            for name, value in _of_task(task, inputs):
                yield Figure(name, tags, status.attempt, value)
        for name, counted in operator.counted.items():
            for metric, tags, value in _of_class(counted):
                yield Figure(metric, (job, name, *tags), status.attempt, value)
    heads = {channel.loop: channel.receiver.rpartition("/")[0] for channel in status.channels if channel.loop}
    for loop in status.loops:
        if loop.name in heads:
            yield Figure("backedge_loop_records", (job, heads[loop.name]), None, loop.records)
            yield Figure("backedge_loop_oldest_seconds", (job, heads[loop.name]), None, loop.waiting_s)
    for epoch in status.epochs:
        yield from _of_epoch(job, epoch, heads)
    for failure in status.failures:
        yield from _of_failure(job, failure)


def _of_task(task: TaskStatus, inputs: list[ChannelStatus]) -> Iterator[tuple[str, float]]:
    yield "backedge_records_total", task.records_in
    yield "backedge_sent_records_total", task.records_out
    yield "backedge_received_bytes_total", task.bytes_in
    yield "backedge_hops_total", task.hops
    yield "backedge_busy_seconds_total", task.busy_s
    yield "backedge_held_seconds_total", task.held_s
    yield "backedge_backlog_records", sum(channel.backlog for channel in inputs)
    yield "backedge_backlog_bytes", sum(channel.backlog_bytes for channel in inputs)
    yield "backedge_running_calls", task.calls_running
    yield "backedge_waiting_calls", task.calls_waiting


def _of_class(counted: CountedStatus) -> Iterator[tuple[str, Tags, float]]:
    for name, total in counted.counters.items():
        yield "backedge_counter_total", (name,), total
    for name, histogram in counted.histograms.items():
        yield "backedge_histogram_count_total", (name,), histogram.count
        yield "backedge_histogram_sum_total", (name,), histogram.sum
        up_to = 0
        for bound in sorted(histogram.buckets, key=float):
            up_to += histogram.buckets[bound]
            yield "backedge_histogram_bucket_total", (name, "+Inf" if bound == "inf" else bound), up_to


def _of_epoch(job: str, epoch: EpochStatus, heads: Mapping[str, str]) -> Iterator[Figure]:
    # A number that a failed attempt has used comes again.
    of = (epoch.attempt, epoch.epoch)
    if epoch.state == "given up":
        yield Figure("backedge_given_up_epochs_total", (job,), of, 1)
    if epoch.state != "complete":
        return
    yield Figure("backedge_epochs_total", (job,), of, 1)
    yield Figure("backedge_epoch_seconds_total", (job,), of, epoch.seconds or 0.0)
    yield Figure("backedge_epoch_bytes_total", (job,), of, epoch.written_bytes or 0)
    for loop, log in epoch.loops.items():
        if loop in heads:
            yield Figure("backedge_log_bytes_total", (job, heads[loop]), (*of, loop), log.bytes)


def _of_failure(job: str, failure: FailureStatus) -> Iterator[Figure]:
    of = (failure.attempt, failure.at_s)
    yield Figure("backedge_failures_total", (job,), of, 1)
    if failure.seconds is not None:
        yield Figure("backedge_restores_total", (job,), of, 1)
        yield Figure("backedge_restore_seconds_total", (job,), of, failure.seconds)

"""What a run reports to its user: its progress, its events, and its result."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from backedge.engine.on_ray.planned_faults import Kill
from backedge.engine.on_ray.supervisor.kept_lines import KeptLines
from backedge.engine.on_ray.transport.control_messages import Counts
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.protocol.requests import Reply
from backedge.recovery.stores.run_status import added_resources, closed
from backedge.recovery.stores.task_files import TaskFiles

LINES_MAX = 1_000
"""How many lines for the user are kept, the last ones."""


class Story(Struct):
    """Grows during the run; the driver gets it as it is at the time."""

    job: str
    # Which of the supervisors of the run reports this: a successor begins a story of its own.
    supervisor: str = field(default_factory=lambda: secrets.token_hex(4))
    state: str = "starting"
    error: Exception | None = None
    attempt: int = 0
    last_epoch: int | None = None
    snapshots: int = 0
    snapshots_with_log: int = 0
    log_bytes: int = 0
    kills: list[dict[str, Any]] = []
    restores: list[dict[str, Any]] = []
    # A rescale has the `tasks` of each operator before and after, and the milliseconds from the moment that the old
    # tasks were stopped until all new ones ran; None until then.
    rescales: list[dict[str, Any]] = []
    restarts: int = 0
    stale: int = 0
    # What the user should know. The pipelines of a run share it; the driver gets the lines that it does not have yet.
    told: KeptLines = field(default_factory=lambda: KeptLines(LINES_MAX))
    outputs: dict[str, list[Any]] = {}
    # What `Print` sinks have printed and the driver does not have yet. Only a story for a driver has it.
    printed: KeptLines = field(default_factory=lambda: KeptLines(0))
    answers: dict[str, Reply] = {}
    counts: dict[tuple[int, str], Counts] = {}
    pids: dict[str, int] = {}
    began_s: float = field(default_factory=time.monotonic)
    ran_s: float | None = None
    down_s: float | None = None
    ended_s: float | None = None
    rescaled_s: float | None = None
    # The seconds that earlier supervisors led the run.
    seconds_before: float = 0.0
    # When the driver got it: the monotonic clock of the supervisor's machine has no meaning on another one.
    told_s: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """How long the run took, or has taken so far."""
        return self.seconds_before + (self.told_s if self.ended_s is None else self.ended_s) - self.began_s

    @property
    def lines(self) -> list[str]:
        """What the user should know: the last lines."""
        return self.told.lines

    def say(self, line: str) -> None:
        self.told.add([line])

    def on_progress(self, attempt: Attempt, actor: str, counts: Counts) -> bool:
        """Note the progress of an actor; return whether records have gone round a loop since its last report."""
        before = self.counts.get((attempt, actor), Counts())
        self.counts[attempt, actor] = counts
        return counts.hops > before.hops

    def on_kill(self, actor: str, pid: int, kill: Kill, where: str) -> None:
        self.down_s = self.down_s or time.monotonic()
        self.kills.append({"fault": str(kill), "actor": actor, "pid": pid, "signal": "SIGKILL"})
        self.say(f"kill {kill}: process {pid} of actor {actor} gets SIGKILL, at task {where}")

    def on_takeover(self) -> None:
        """This supervisor replaces one that died. The time until all tasks run again counts from here."""
        self.restarts += 1
        self.down_s = self.began_s
        self.state = "recovering"

    def on_restart(self, reason: str) -> None:
        self.restarts += 1
        self.down_s = self.down_s or time.monotonic()
        self.state = "recovering"
        self.say(f"attempt {self.attempt} failed: {reason}")

    def on_rescale(self, tasks: Mapping[str, tuple[int, int]]) -> None:
        """An attempt is left for one with other numbers of tasks: operator -> tasks before and after."""
        self.rescaled_s = time.monotonic()
        self.state = "rescaling"
        changes = {name: list(pair) for name, pair in tasks.items()}
        self.rescales.append({"tasks": changes, "attempt": None, "epoch": None, "in_loop_records": 0, "gap_ms": None})

    def on_rescale_given_up(self) -> None:
        """The attempt of a rescale could not be restored; the next one has the former tasks. That is a restart."""
        if self.rescaled_s is not None:
            self.rescaled_s = None
            del self.rescales[-1]

    def on_attempt(self, attempt: Attempt, epoch: Epoch | None, in_logs: int) -> None:
        self._add_up()
        self.attempt = attempt
        if self.rescaled_s is not None and self.rescales[-1]["attempt"] is None:
            self.rescales[-1] |= {"attempt": attempt, "epoch": epoch, "in_loop_records": in_logs}
        elif epoch is not None:
            self._restores(epoch, attempt, in_logs)
            self.say(f"attempt {attempt} restores epoch {epoch}: {in_logs} records come from its logs")
        elif self.restarts:
            self._restores(None, attempt, 0)
            self.say(f"attempt {attempt} starts from the beginning: no cut was complete")

    def _add_up(self) -> None:
        """Put the counts of all attempts so far into one, under the name of no actor."""
        if self.counts:
            total = self.total()
            counts = Counts(total.records, total.hops, 0, total.spilled_bytes, total.stale - self.stale, self.by_task())
            counts.resources = closed(total.resources)
            self.counts = {(max(attempt for attempt, _ in self.counts), ""): counts}

    def _restores(self, epoch: Epoch | None, attempt: Attempt, in_logs: int) -> None:
        # The seconds from the death until all tasks run again; None until then, and for good if the attempt dies
        # earlier: its time then belongs to the next restore.
        self.restores.append({"epoch": epoch, "attempt": attempt, "in_loop_records": in_logs, "seconds": None})

    def on_running(self, pids: Mapping[str, int]) -> None:
        """All tasks run, for the first time or again.

        Set last: the driver looks from another thread, and once it sees the run running, it asks for these processes.
        """
        now_s = time.monotonic()
        self.ran_s = self.ran_s or now_s
        if self.down_s is not None and self.restores:
            self.restores[-1]["seconds"] = round(now_s - self.down_s, 3)
        self.down_s = None
        if self.rescaled_s is not None:
            self._on_rescaled(round((now_s - self.rescaled_s) * 1000))
        self.pids = dict(pids)
        self.state = "running"

    def _on_rescaled(self, gap_ms: int) -> None:
        self.rescaled_s = None
        rescale = self.rescales[-1]
        rescale["gap_ms"] = gap_ms
        changes = ", ".join(f"{name} from {before} to {after}" for name, (before, after) in rescale["tasks"].items())
        self.say(f"rescaled at epoch {rescale['epoch']}, {changes}: no task ran for {gap_ms} ms")

    def on_cut(self, manifest: Manifest, files: Mapping[TaskId, TaskFiles | None]) -> None:
        self.last_epoch = manifest.epoch
        self.snapshots += 1
        written = [of_task for of_task in files.values() if of_task is not None]  # without snapshots there are none
        self.log_bytes = sum(of_task.log_bytes for of_task in written)
        self.snapshots_with_log += any(of_task.log_batches for of_task in written)

    def finish(self, state: str, error: Exception | None = None) -> None:
        """The run is over; only the first end counts."""
        if self.ended_s is not None:
            return
        self.state = state
        self.error = error
        self.ended_s = time.monotonic()

    def continues(self, earlier: Story) -> None:
        """Add what earlier supervisors of the run have reported. Attempts have different numbers, so counts add up."""
        self.snapshots += earlier.snapshots
        self.snapshots_with_log += earlier.snapshots_with_log
        self.kills[:0] = earlier.kills
        self.restores[:0] = earlier.restores
        self.rescales[:0] = earlier.rescales
        self.restarts += earlier.restarts
        self.stale += earlier.stale
        self.counts = earlier.counts | self.counts
        self.last_epoch = earlier.last_epoch if self.last_epoch is None else self.last_epoch
        self.seconds_before += earlier.seconds

    def by_task(self) -> dict[TaskId, int]:
        """The number of records that each task has processed in all attempts.

        Records processed after the last report of a process, in the quarter of a second before it died, are not
        included.
        """
        total: Counter[TaskId] = Counter()
        for counts in self.counts.values():
            total.update(counts.by_task)
        return dict(total)

    def total(self) -> Counts:
        """What all actors have done, in all attempts."""
        return Counts(
            records=sum(counts.records for counts in self.counts.values()),
            hops=sum(counts.hops for counts in self.counts.values()),
            spilled_bytes=sum(counts.spilled_bytes for counts in self.counts.values()),
            stale=self.stale + sum(counts.stale for counts in self.counts.values()),
            resources=added_resources(counts.resources for counts in self.counts.values()),
        )


STATES = ("starting", "recovering", "rescaling", "running", "failed", "cancelled", "stopped", "finished")
"""The states of a run. Of a run of several pipelines, the first one that a pipeline is in counts."""


def united(stories: Sequence[Story]) -> Story:
    """The story of a run of several pipelines, from theirs. All have reported to the same list of lines."""
    living = [story for story in stories if story.ended_s is None] or stories
    ran = [story.ran_s for story in stories]
    ended = [story.ended_s for story in stories]
    first = stories[0]
    return Story(
        first.job,
        first.supervisor,
        state=min((story.state for story in living), key=STATES.index),
        error=next((story.error for story in stories if story.error is not None), None),
        attempt=max(story.attempt for story in stories),
        last_epoch=max((story.last_epoch for story in stories if story.last_epoch is not None), default=None),
        snapshots=sum(story.snapshots for story in stories),
        snapshots_with_log=sum(story.snapshots_with_log for story in stories),
        log_bytes=sum(story.log_bytes for story in stories),
        kills=[kill for story in stories for kill in story.kills],
        restores=sorted((restore for story in stories for restore in story.restores), key=lambda one: one["attempt"]),
        rescales=[rescale for story in stories for rescale in story.rescales],
        restarts=sum(story.restarts for story in stories),
        stale=sum(story.stale for story in stories),
        told=first.told,
        outputs={sink: records for story in stories for sink, records in story.outputs.items()},
        counts={name: counts for story in stories for name, counts in dict(story.counts).items()},
        pids={actor: pid for story in stories for actor, pid in story.pids.items()},
        began_s=min(story.began_s for story in stories),
        ran_s=None if None in ran else max(seconds for seconds in ran if seconds is not None),
        ended_s=None if None in ended else max(seconds for seconds in ended if seconds is not None),
    )

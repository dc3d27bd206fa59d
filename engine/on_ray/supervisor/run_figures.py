"""What a supervisor knows about its run beside the protocol: the figures of tasks, and what became of each epoch.

It is told what happens and hands out a `RunStatus`. It decides nothing. `now_s` is monotonic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import Lock

from msgspec import Struct
from msgspec.structs import replace

from backedge.engine.on_ray.supervisor.run_story import Story
from backedge.engine.on_ray.transport.control_messages import EpochTimes
from backedge.engine.operators.meters import added
from backedge.engine.task.load import InputLoad, OutputLoad, TaskLoad
from backedge.graphs.deployment import Channel, Deployment, Task
from backedge.graphs.discovery import sources_of
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.kinds import rate_of
from backedge.graphs.plan import operators_round
from backedge.graphs.rate import Rate
from backedge.recovery.protocol.effects import Remaining, Stage
from backedge.recovery.protocol.orders import Manifest, Trigger
from backedge.recovery.stores.run_status import (
    REMEMBERED_MAX,
    BarrierStatus,
    ChannelStatus,
    CountedStatus,
    EpochStatus,
    FailureStatus,
    LoopLog,
    LoopStatus,
    OperatorStatus,
    RunStatus,
    TaskStatus,
    added_resources,
    closed,
)
from backedge.recovery.stores.task_files import TaskFiles

FRESH_S = 5.0
"""A task that has not been heard from for longer has no present pace."""

BARRIER_STAGES = list(BarrierStatus.__struct_fields__)

LOST = "the supervisor of the run died"

NO_INPUT = InputLoad(0, 0, 0, 0)
NO_OUTPUT = OutputLoad(0, 0, 0, 0, None, None)


class _Pace(Struct):
    """The latest figures of a task, and the rates between them and those before."""

    load: TaskLoad
    heard_s: float
    in_per_s: float | None = None
    out_per_s: float | None = None
    busy: float | None = None
    held: float | None = None
    rounds: dict[str, dict[int, int]] = {}

    def after(self, load: TaskLoad, now_s: float) -> _Pace:
        """The pace with newer figures of the same attempt."""
        passed_s, now, before = load.seconds - self.load.seconds, load.status, self.load.status
        if passed_s <= 0:
            return self
        return _Pace(
            load,
            now_s,
            (now.records_in - before.records_in) / passed_s,
            (now.records_out - before.records_out) / passed_s,
            min(1.0, (now.busy_s - before.busy_s) / passed_s),
            min(1.0, (now.held_s - before.held_s) / passed_s),
            self.rounds | load.rounds,
        )


class _Epoch(Struct):
    """One epoch. `told` is what is known of it; the rest leads there.

    - acknowledged: the tasks that have acknowledged it; waiting: what the others last reported.
    - processed: the number of records that the run had processed when it began.
    """

    told: EpochStatus
    began_s: float
    acknowledged_s: float
    processed: int
    acknowledged: set[TaskId] = set()
    waiting: dict[TaskId, Remaining] = {}
    slowest_ms: int = -1


class RunFigures:
    """The figures of one run. Methods may be called from any thread.

    - day_s: what a monotonic time must be increased by to become a time of day.
    - earlier: what a former supervisor of this run has told last.
    - processed: the number of records that the tasks have processed, in all attempts.
    - attempt_began: when the attempt began, and what was processed then; None before the first.
    """

    def __init__(self, run: str, snapshots: str | None, day_s: float, earlier: RunStatus | None = None) -> None:
        self._run = run
        self._snapshots = snapshots
        self._day_s = day_s
        self._earlier = earlier
        self._lock = Lock()
        self._attempt = Attempt(0)
        self._processed = 0
        self._attempt_began: tuple[float, int] | None = None
        self._tasks: dict[TaskId, Task] = {}
        self._channels: list[Channel] = []
        self._loops: dict[str, frozenset[str]] = {}
        self._order: list[str] = []
        self._sources: dict[str, Rate | None] = {}
        self._sinks: set[str] = set()
        self._paces: dict[TaskId, _Pace] = {}
        self._ended: set[TaskId] = set()
        self._epochs: dict[Epoch, _Epoch] = {}
        self._failures: list[FailureStatus] = [] if earlier is None else list(earlier.failures)

    # -- attempts ------------------------------------------------------------------------------------------------

    def on_attempt(
        self, attempt: Attempt, deployment: Deployment, restored: Epoch | None, in_loops: int, now_s: float
    ) -> None:
        plan = deployment.plan
        with self._lock:
            self._attempt = attempt
            self._tasks = dict(deployment.tasks)
            self._channels = list(deployment.channels.values())
            loops = dict.fromkeys(edge.loop for edge in plan.edges if edge.loop is not None)
            self._loops = {loop: operators_round(loop, plan.edges) for loop in loops}
            self._order = list(plan.operators)
            self._sources = {name: rate_of(plan.operators[name].kind) for name in sources_of(plan)}
            self._sinks = {name for name, operator in plan.operators.items() if operator.kind.is_sink}
            self._paces, self._ended = {}, set()
            if self._failures and self._failures[-1].seconds is None:
                lost_records, lost_s = self._lost(self._failures[-1], restored)
                self._failures[-1] = replace(
                    self._failures[-1],
                    restored=restored,
                    in_loops=in_loops,
                    lost_records=lost_records,
                    lost_s=lost_s,
                )
            self._attempt_began = now_s, self._processed

    def _lost(self, failure: FailureStatus, restored: Epoch | None) -> tuple[int | None, float | None]:
        """The records and seconds of the failed attempt that the restored cut does not have."""
        if self._attempt_began is None:
            return None, None
        began_s, processed = self._attempt_began
        known = None if restored is None else self._epochs.get(restored)
        if known is not None and known.told.attempt == failure.attempt:
            began_s, processed = known.began_s, known.processed
        return self._processed - processed, failure.at_s - self._day_s - began_s

    def on_running(self, seconds: float | None) -> None:
        """All tasks run, so many seconds after the failure if there was one."""
        with self._lock:
            if seconds is not None and self._failures:
                self._failures[-1] = replace(self._failures[-1], seconds=seconds)

    def on_failure(self, attempt: int, reason: str, now_s: float) -> None:
        """An attempt has failed; its open epochs will never be complete."""
        with self._lock:
            self._failures.append(FailureStatus(attempt, self._day_s + now_s, reason))
            del self._failures[:-REMEMBERED_MAX]
            for epoch in self._epochs.values():
                if epoch.told.state == "open":
                    epoch.told = replace(epoch.told, state="given up", reason=f"attempt {attempt} failed")

    def on_takeover(self, now_s: float) -> None:
        """The supervisor before this one has died, and the attempt with it."""
        earlier = self._earlier
        if earlier is not None:
            told = (replace(e, state="given up", reason=LOST) if e.state == "open" else e for e in earlier.epochs)
            self._earlier = replace(earlier, epochs=tuple(told))
        self.on_failure(0 if earlier is None else earlier.attempt, LOST, now_s)

    # -- tasks ---------------------------------------------------------------------------------------------------

    def on_loads(self, loads: Iterable[TaskLoad], now_s: float) -> None:
        with self._lock:
            for load in loads:
                before = self._paces.get(load.task)
                pace = _Pace(load, now_s, rounds=load.rounds) if before is None else before.after(load, now_s)
                self._paces[load.task] = pace

    def on_processed(self, records: int) -> None:
        with self._lock:
            self._processed += records

    def on_ended(self, task: TaskId) -> None:
        with self._lock:
            self._ended.add(task)

    # -- epochs --------------------------------------------------------------------------------------------------

    def on_trigger(self, order: Trigger, now_s: float) -> None:
        """An epoch begins at a task. Probes are no epochs to look at."""
        if order.mode.is_probe:
            return
        with self._lock:
            known = self._epochs.get(order.epoch)
            # A number that a failed attempt has used comes again.
            if known is None or known.told.attempt != self._attempt:
                told = EpochStatus(
                    order.epoch,
                    self._attempt,
                    order.mode.value,
                    "open",
                    base=order.base,
                    began_s=self._day_s + now_s,
                )
                self._epochs[order.epoch] = _Epoch(told, now_s, now_s, self._processed)
                while len(self._epochs) > REMEMBERED_MAX:
                    del self._epochs[min(self._epochs)]

    def on_remaining(self, task: TaskId, epoch: Epoch, remaining: Remaining) -> None:
        """A task still has this to do for an epoch."""
        with self._lock:
            if (known := self._epochs.get(epoch)) is not None:
                known.waiting[task] = remaining

    def on_acknowledged(self, task: TaskId, epoch: Epoch, times: EpochTimes | None, now_s: float) -> None:
        """A task has written its part of an epoch."""
        with self._lock:
            known = self._epochs.get(epoch)
            if known is None:
                return
            known.acknowledged.add(task)
            known.acknowledged_s = now_s
            if times is None:
                return
            told, total_ms = known.told, times.align_ms + times.write_ms
            known.told = replace(
                told,
                align_s=max(told.align_s or 0.0, times.align_ms / 1000),
                write_s=max(told.write_s or 0.0, times.write_ms / 1000),
                slowest=str(task) if total_ms > known.slowest_ms else told.slowest,
            )
            known.slowest_ms = max(known.slowest_ms, total_ms)

    def on_given_up(self, epoch: Epoch, reason: str) -> None:
        with self._lock:
            if (known := self._epochs.get(epoch)) is not None:
                known.told = replace(known.told, state="given up", reason=reason)

    def on_cut(self, manifest: Manifest, files: Mapping[TaskId, TaskFiles | None], now_s: float) -> None:
        written = [of_task for of_task in files.values() if of_task is not None]
        logs: dict[str, LoopLog] = {}
        for log in (log for of_task in written for log in of_task.logs):
            other = logs.get(log.loop, LoopLog(0, 0, 0))
            records = None if log.records is None or other.records is None else log.records + other.records
            logs[log.loop] = LoopLog(other.batches + log.batches, other.bytes + log.size, records)
        with self._lock:
            known = self._epochs.get(manifest.epoch)
            if known is None:
                # The final cut, of tasks that have ended: it needs no trigger.
                began = EpochStatus(manifest.epoch, manifest.attempt, manifest.mode.value, "open")
                known = self._epochs[manifest.epoch] = _Epoch(began, now_s, now_s, self._processed)
            known.told = replace(
                known.told,
                state="complete",
                savepoint=manifest.savepoint,
                complete_s=self._day_s + now_s,
                manifest_s=now_s - known.acknowledged_s,
                seconds=now_s - known.began_s,
                written_bytes=sum(file.size for of_task in written for file in of_task.files),
                loops=logs,
            )
            for epoch, other in self._epochs.items():
                is_kept = manifest.kept is None or epoch in manifest.kept
                # Few change: those of a hundred epochs are not made again at each cut.
                if other.told.state == "complete" and other.told.is_kept != is_kept:
                    other.told = replace(other.told, is_kept=is_kept)

    # -- the document --------------------------------------------------------------------------------------------

    def status(self, story: Story, now_s: float, rates: Mapping[str, Rate | None]) -> RunStatus:
        """What is known now. `rates`: those of sources that were changed in the run."""
        total, earlier = story.total(), self._earlier
        resources = total.resources if story.ended_s is None else closed(total.resources)
        with self._lock:
            return RunStatus(
                job=story.job,
                run=self._run,
                state=story.state,
                is_live=True,
                at_s=self._day_s + now_s,
                seconds=(story.ended_s or now_s) - story.began_s + ((earlier and earlier.seconds) or 0.0),
                snapshots=self._snapshots,
                attempt=story.attempt,
                last_epoch=story.last_epoch if story.last_epoch is not None or earlier is None else earlier.last_epoch,
                cuts=story.snapshots + (0 if earlier is None else earlier.cuts),
                records=total.records + (0 if earlier is None else earlier.records),
                hops=total.hops + (0 if earlier is None else earlier.hops),
                spilled_bytes=total.spilled_bytes,
                reason="" if story.error is None else str(story.error),
                operators=self._operators(now_s, {**self._sources, **rates}),
                channels=(channels := self._channel_statuses()),
                loops=tuple(self._loop(loop, channels) for loop in self._loops),
                epochs=self._epoch_statuses(),
                failures=tuple(self._failures),
                resources=added_resources([resources, {} if earlier is None else closed(earlier.resources)]),
            )

    def _operators(self, now_s: float, rates: Mapping[str, Rate | None]) -> tuple[OperatorStatus, ...]:
        chains: dict[str, list[Task]] = {}
        for task in self._tasks.values():
            chains.setdefault(task.id.name, []).append(task)
        return tuple(
            OperatorStatus(
                name,
                tasks[0].operators,
                is_source=not self._sources.keys().isdisjoint(tasks[0].operators),
                is_sink=not self._sinks.isdisjoint(tasks[0].operators),
                tasks=tuple(self._task(task, now_s) for task in tasks),
                counted=self._counted(tasks),
                rate=str(rates.get(name) or ""),
            )
            for name, tasks in sorted(chains.items(), key=lambda chain: self._order.index(chain[0]))
        )

    def _counted(self, tasks: list[Task]) -> dict[str, CountedStatus]:
        found: dict[str, list[CountedStatus]] = {}
        for task in tasks:
            if (pace := self._paces.get(task.id)) is not None:
                for operator, counted in pace.load.counted.items():
                    found.setdefault(operator, []).append(counted)
        return {operator: added(several) for operator, several in found.items()}

    def _task(self, task: Task, now_s: float) -> TaskStatus:
        pace = self._paces.get(task.id)
        if pace is None:
            return TaskStatus(task.id.index, task.actor)
        known = pace.load.status
        if now_s - pace.heard_s > FRESH_S:
            return known
        return replace(known, in_per_s=pace.in_per_s, out_per_s=pace.out_per_s, busy=pace.busy, held=pace.held)

    def _channel_statuses(self) -> tuple[ChannelStatus, ...]:
        loads = [pace.load for pace in self._paces.values()]
        inputs = {end.channel: end for load in loads for end in load.inputs}
        outputs = {end.channel: end for load in loads for end in load.outputs}
        found: list[ChannelStatus] = []
        for place, channel in enumerate(self._channels):
            here, there = inputs.get(place, NO_INPUT), outputs.get(place, NO_OUTPUT)
            found.append(
                ChannelStatus(
                    channel.id.edge,
                    str(channel.id.sender),
                    str(channel.id.receiver),
                    channel.edge.loop,
                    there.sent,
                    here.records + there.records,
                    here.bytes + there.bytes,
                    here.waiting_ms / 1000,
                    there.room,
                    there.window,
                )
            )
        return tuple(found)

    def _loop(self, loop: str, channels: tuple[ChannelStatus, ...]) -> LoopStatus:
        operators = self._loops[loop]
        inside = [
            told
            for channel, told in zip(self._channels, channels, strict=True)
            if channel.edge.sender in operators and channel.edge.receiver in operators
        ]
        rounds: dict[int, int] = {}
        for counts in (pace.rounds.get(loop, {}) for pace in self._paces.values()):
            for number, records in counts.items():
                rounds[number] = rounds.get(number, 0) + records
        heads = [task.id for task in self._tasks.values() if task.iteration == loop]
        return LoopStatus(
            loop,
            tuple(name for name in self._order if name in operators),
            sum(channel.backlog for channel in inside),
            sum(channel.backlog_bytes for channel in inside),
            max((channel.waiting_s for channel in inside), default=0.0),
            {str(number): rounds[number] for number in sorted(rounds)},
            max((self._paces[head].load.round for head in heads if head in self._paces), default=""),
        )

    def _epoch_statuses(self) -> tuple[EpochStatus, ...]:
        earlier = () if self._earlier is None else self._earlier.epochs
        before = [told for told in earlier if told.epoch not in self._epochs]
        told = [self._epoch(self._epochs[epoch]) for epoch in sorted(self._epochs)]
        return (*before, *told)[-REMEMBERED_MAX:]

    def _epoch(self, known: _Epoch) -> EpochStatus:
        if known.told.state != "open":
            return known.told
        owing = sorted(self._tasks.keys() - known.acknowledged - self._ended)
        waiting = {str(task): str(known.waiting.get(task, "not reached")) for task in owing}
        stages: dict[str, list[str]] = {}
        for task in self._tasks:
            stages.setdefault(task.name, []).append(_stage(known, task) if str(task) in waiting else "written")
        return replace(
            known.told,
            waiting=waiting,
            barriers={
                name: BarrierStatus(*(found.count(stage) for stage in BARRIER_STAGES))
                for name, found in sorted(stages.items(), key=lambda item: self._order.index(item[0]))
            },
        )


def _stage(epoch: _Epoch, task: TaskId) -> str:
    """The stage of a task that has not acknowledged."""
    remaining = epoch.waiting.get(task)
    if remaining is None:
        return "not_reached"
    return "captured" if remaining.stage is Stage.CAPTURED else "aligning"

"""The coordinator of one attempt: starts epochs, completes or aborts them, ends loops, finishes the run.

- A cut is complete when every task has acknowledged, or ended with a durable last state, and the manifest and all files
  that it names are durable. Then sinks commit the transactions that it lists: all prepared ones, including those of
  aborted epochs.
- Completing an epoch discards earlier open epochs. An epoch is aborted if it stalls, is declined, or its manifest
  cannot be written; after more consecutive failures than tolerated, the attempt fails.
- An epoch stalls when its remaining work has not shrunk for `timeout_ms`: the tasks that have not acknowledged, and
  what each of them still has to do (`Remaining`). Its age does not count. Neither does other work, or a circulating
  token could hide a lost trigger. If records moved while the epoch was open, giving it up does not count as a failure:
  a slow function delays cuts but fails nothing.
- At most `open_epochs_max` epochs are open; the next begins when one completes. A requested cut may overlap them. While
  a cut between two rounds is open, no other epoch begins, because it would outdate that one; requests wait. Neither
  does a probe: heads that wait for the end of a round would capture it first.
- Requests for cuts and stops (`requests.py`) outlive the attempt. The coordinator opens an epoch for each waiting
  request, another one if that epoch is aborted, and ends the run with the cut of a stop. The cut of a rescale is the
  last of its attempt: the next one restores it with other numbers of tasks (`Rescale`).
- A stop of a flow with iterations waits for the end of a round, too, but not longer than `timeout_ms`, and not for more
  than a few tries: a run must end when that is asked for. Then its cut is taken in the middle of the round.
- A probe is opened when a loop may have run dry, one at a time (`probes.py`); probes do not count as open epochs.
- An epoch has a base, the newest complete cut, and its tasks write what changed since (`state_files.py`). The base of
  an open epoch is kept, for its files are part of the epoch's. A cut between two rounds has no base: it is taken to be
  kept for long, or restored with another parallelism.
- When all tasks have ended, their last states form the final cut.

Time is passed in as `now_ms`. Reports of another attempt are refused by their number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.protocol.chain_view import ChainView
from backedge.recovery.protocol.effects import (
    Acknowledge,
    AcknowledgeEnd,
    Committed,
    Decline,
    Effect,
    Remaining,
    Report,
)
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import (
    Abort,
    Complete,
    DropCut,
    Entry,
    FailAttempt,
    Finished,
    GivenUp,
    Manifest,
    Order,
    Trigger,
)
from backedge.recovery.protocol.probes import Probes
from backedge.recovery.protocol.protocol_errors import BrokenInvariantError
from backedge.recovery.protocol.requests import Request, RequestKind, Requests
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from backedge.recovery.protocol.state_files import StateFiles, StateLists

TASKS_NAMED_MAX = 5
RETRY_PAUSE_MS = 200
STOP_TRIES_MAX = 5
"""How often a stop tries to end between two rounds."""


class OpenCut(Struct):
    """An open epoch, as the coordinator sees it.

    - opened_ms: when it began. progress_ms: when its remaining work last shrank.
    - owing: the tasks that have not acknowledged, and whose last state does not stand for that.
    - remaining: task -> what it still has to do, as last reported.
    - base: the cut since which its tasks write what changed.
    - dropped: the cuts that its manifest gives up; states: the files that it names. Set when that is composed.
    - has_moved: whether records were processed anywhere since it began; for a cut between two rounds, since
      that was last checked.
    """

    epoch: Epoch
    mode: Mode
    opened_ms: int
    progress_ms: int
    request: Request | None = None
    reports: dict[TaskId, Report] = {}
    owing: set[TaskId] = set()
    is_being_recorded: bool = False
    base: Epoch | None = None
    dropped: tuple[Epoch, ...] = ()
    states: StateLists = {}
    remaining: dict[TaskId, Remaining] = {}
    has_moved: bool = False

    @property
    def is_savepoint(self) -> bool:
        """Whether it was requested by name, and is kept."""
        return self.request is not None and self.request.name is not None

    @property
    def is_stop(self) -> bool:
        """Whether the run ends with it."""
        return self.request is not None and self.request.kind is RequestKind.STOP

    @property
    def is_stop_between_rounds(self) -> bool:
        """Whether the run is to end with it after the current round."""
        return self.is_stop and self.mode is Mode.BETWEEN_ROUNDS


class Lead(Protocol):
    """The supervisor that owns a coordinator: what the coordinator uses of it."""

    attempt: Attempt
    snapshots: SnapshotOptions
    chain: ChainView
    requests: Requests

    def append(self, entry: Entry) -> list[Order]:
        """Append a manifest to the chain; then `on_manifest_written` or `on_manifest_failed`."""
        ...

    def rescale(self, request: Request, epoch: Epoch, parallelism: Mapping[str, int]) -> list[Order]:
        """Leave the attempt, which has this parallelism, for the one that a request asks for, with its cut."""
        ...


class Coordinator:
    """The epochs of one attempt. To break a rule for a test, a subclass replaces `state_files_class`.

    - live_senders: the tasks that get barriers from others, with the number of these that have not ended; all others
      get a trigger.
    - ended: the tasks that have ended, with their last reports.
    - unpublished: what complete cuts list and their tasks have not published yet.
    - retry_at_ms: when a request for a cut between two rounds that has failed is tried again, by its id.
    - hurried: the stops that do not wait for the end of a round any longer, by id.
    - failures: epochs in a row that have failed.
    - final: the cut that ends the run. is_stopping: whether a stop was the reason.
    """

    state_files_class = StateFiles

    def __init__(self, supervisor: Lead, deployment: Deployment, now_ms: int = 0) -> None:
        self.supervisor = supervisor
        self.chain = supervisor.chain
        self.requests = supervisor.requests
        self.deployment = deployment
        self.attempt = supervisor.attempt
        self.options = supervisor.snapshots
        self.probes = Probes(deployment, self.options, now_ms)
        self.live_senders = {
            task.id: len({channel.id.sender for channel in task.inputs})
            for task in deployment.tasks.values()
            if not (task.is_source or task.is_head)
        }
        self.next_epoch = self.chain.pipeline.first_epoch(self.chain.next_epoch)
        self.open: dict[Epoch, OpenCut] = {}
        self.ended: dict[TaskId, AcknowledgeEnd] = {}
        latest = self.latest
        states: StateLists = {} if latest is None else self.chain.kept[latest].states
        self.state_files = self.state_files_class(
            self.attempt, self.options.files_max, latest, states, self.options.compacted_keys_max
        )
        self.unpublished: dict[Epoch, dict[TaskId, tuple[str, ...]]] = {}
        self.retry_at_ms: dict[str, int] = {}
        self.hurried: set[str] = set()
        self.last_start_ms = now_ms
        self.last_close_ms = now_ms
        self.failures = 0
        self.final: Epoch | None = None
        self.is_stopping = False
        self.is_finished = False

    @property
    def latest(self) -> Epoch | None:
        """The cut that would be restored if the attempt failed now."""
        return self.chain.continues_from

    # -- what happened -------------------------------------------------------------------------------------------

    def on_tick(self, now_ms: int) -> list[Order]:
        """Time has passed: abort stalled epochs, start due ones."""
        orders: list[Order] = []
        for cut in list(self.open.values()):
            if now_ms - cut.progress_ms < self.options.timeout_ms or cut.is_being_recorded:
                continue
            is_late = cut.is_stop and now_ms - cut.opened_ms >= self.options.timeout_ms
            if cut.mode is Mode.BETWEEN_ROUNDS and cut.has_moved and not is_late:
                # It waits for the end of a round, which goes on as long as records are processed.
                cut.progress_ms, cut.has_moved = now_ms, False
            else:
                orders += self._give_up(cut, now_ms)
        orders += self._stop_if_recorded()
        if self.final is not None:
            return orders
        if len(self.ended) == len(self.deployment.tasks) and all(e.verified is None for e in self.ended.values()):
            return orders + self._start_final(now_ms)
        orders += self.serve_requests(now_ms)
        if self.final is not None:
            return orders
        if self._periodic_is_due(now_ms):
            due_ms = self.last_start_ms + self.options.interval_ms
            orders += self.start(self.options.mode, now_ms)
            # A late start does not delay the following epochs, unless it was very late.
            self.last_start_ms = max(due_ms, now_ms - self.options.interval_ms // 2)
        if not any(self._delays_probes(cut) for cut in self.open.values()) and self.probes.is_due(now_ms, self.ended):
            self.probes.last_ms = now_ms
            unaligned = self.options.mode is Mode.UNALIGNED
            orders += self.start(Mode.UNALIGNED_PROBE if unaligned else Mode.PROBE, now_ms)
        return orders

    def serve_requests(self, now_ms: int) -> list[Order]:
        """Open an epoch for each waiting request, but none while a cut between two rounds is open.

        A cut between two rounds that was declined is retried after a moment, or all tries would be used up before all
        heads are in rounds.
        """
        orders = self._stop_if_recorded()
        for request in list(self.requests.unanswered.values()):
            if self.final is not None or self.is_exclusive_open:
                break
            if self._is_served(request) or now_ms < self.retry_at_ms.get(request.id, 0):
                continue
            if request.kind is RequestKind.RESCALE and request.is_met_by(self.deployment.parallelism):
                self.requests.on_rescaled(request, self.latest)
                continue
            orders += self.start(self.options.mode if request.id in self.hurried else request.mode, now_ms, request)
        return orders

    def _stop_if_recorded(self) -> list[Order]:
        """End the run with the latest cut if the chain has that of a stop, whether the stop was answered or not."""
        if self.latest is None or self.final is not None or not self.requests.has_stopped:
            return []
        return self._stop_with(self.latest)

    @property
    def is_exclusive_open(self) -> bool:
        """Whether a cut between two rounds is open: no other epoch may begin."""
        return any(cut.mode is Mode.BETWEEN_ROUNDS for cut in self.open.values())

    def is_open(self, epoch: Epoch) -> bool:
        return epoch in self.open

    def on_report(self, task: TaskId, attempt: Attempt, effect: Effect, now_ms: int) -> list[Order]:
        """A task reports an effect of its core."""
        if attempt != self.attempt:
            return []
        match effect:
            case Acknowledge(epoch, report):
                return self._on_acknowledge(task, epoch, report, now_ms)
            case AcknowledgeEnd():
                return self._on_task_ended(task, effect, now_ms)
            case Decline():
                return self._on_decline(task, effect, now_ms)
            case Committed(epoch):
                return self._on_committed(task, epoch)
            case _:
                raise TypeError(f"{effect} is no report")

    def _on_acknowledge(self, task: TaskId, epoch: Epoch, report: Report, now_ms: int) -> list[Order]:
        """A task has written its part, or counted it for a probe."""
        cut = self.open.get(epoch)
        if cut is None:
            return []
        cut.reports[task] = report
        cut.owing.discard(task)
        cut.progress_ms = now_ms
        return self._record_if_acknowledged(cut, now_ms)

    def _on_task_ended(self, task: TaskId, end: AcknowledgeEnd, now_ms: int) -> list[Order]:
        """A task has ended; its last state is durable and stands for every epoch that it had not captured."""
        left = self._left_alone_by(task)
        self.ended[task] = end
        orders: list[Order] = []
        for cut in list(self.open.values()):
            cut.progress_ms = now_ms
            if end.stands_for(cut.epoch, is_probe=cut.mode.is_probe):
                cut.owing.discard(task)
            closing = self._record_if_acknowledged(cut, now_ms)
            orders += closing or [self._trigger(t, cut) for t in left if t not in self.ended]
        return orders

    def _left_alone_by(self, task: TaskId) -> list[TaskId]:
        """The tasks whose last live sender was this one, which has ended."""
        receivers = dict.fromkeys(channel.id.receiver for channel in self.deployment.tasks[task].outputs)
        fed = [receiver for receiver in receivers if receiver in self.live_senders]
        if task not in self.ended:
            for receiver in fed:
                self.live_senders[receiver] -= 1
        return [receiver for receiver in fed if self.live_senders[receiver] == 0]

    def _on_decline(self, task: TaskId, decline: Decline, now_ms: int) -> list[Order]:
        """A task cannot take part in the epoch. If that was to be expected, it is no failure of the attempt."""
        cut = self.open.get(decline.epoch)
        if cut is None or cut.is_being_recorded:
            return []
        # Where some heads are in rounds and others are not yet, there is no end of a round: no fault of the attempt.
        is_tolerated = decline.is_expected or cut.mode is Mode.BETWEEN_ROUNDS
        return self._fail(cut, f"epoch {cut.epoch} was declined by {task}: {decline.reason}", now_ms, is_tolerated)

    def on_manifest_written(self, epoch: Epoch, now_ms: int) -> list[Order]:
        """The manifest is in the chain: the cut is complete."""
        cut = self.open.pop(epoch)
        self.failures = 0
        self.last_close_ms = now_ms
        orders: list[Order] = []
        for earlier in [c for c in self.open.values() if c.epoch < epoch and not c.mode.is_probe]:
            reason = f"epoch {earlier.epoch} was given up: {epoch} completed first"
            orders += [*self._abort(earlier, reason), GivenUp(earlier.epoch, reason)]
        self.unpublished[epoch] = {task: report.transactions for task, report in self._reports(cut).items()}
        orders += [Complete(task, epoch, names) for task, names in self.unpublished[epoch].items()]
        orders += [DropCut(earlier) for earlier in cut.dropped]
        orders += self._compact(cut)
        if cut.is_stop and self.final is None:
            orders += self._stop_with(epoch)
        for waiting in list(self.open.values()):
            orders += self._record_if_acknowledged(waiting, now_ms)
        if cut.request is not None and cut.request.kind is RequestKind.RESCALE and self.final is None:
            orders += self.supervisor.rescale(cut.request, epoch, self.deployment.parallelism)
        return orders

    def on_manifest_failed(self, epoch: Epoch, reason: str, now_ms: int) -> list[Order]:
        cut = self.open[epoch]
        cut.is_being_recorded = False
        if epoch == self.final:
            self.final = None
        orders = self._fail(cut, reason, now_ms)
        for waiting in list(self.open.values()):
            orders += self._record_if_acknowledged(waiting, now_ms)
        return orders + self._finish_if_published()

    def on_compacted(self, task: TaskId, attempt: Attempt, epoch: Epoch, keys: int | None, size: int = 0) -> None:
        """A task's files were compacted into one of `keys` entries and `size` bytes; None if that failed: a later cut
        tries again.
        """
        if attempt == self.attempt:
            self.state_files.on_compacted(task, epoch, keys, size)

    def _compact(self, cut: OpenCut) -> list[Order]:
        """Have long lists of a complete cut put into one file each."""
        bases = [base for other in self.open.values() if (base := other.base) is not None]
        self.state_files.on_complete(cut.epoch, cut.states, bases)
        orders: list[Order] = []
        for task in self.state_files.due(cut.epoch):
            orders.append(self.state_files.compact(task, cut.epoch, self.next_epoch))
            self.next_epoch = self.chain.pipeline.epoch_after(self.next_epoch)
        return orders

    def _on_committed(self, task: TaskId, epoch: Epoch) -> list[Order]:
        """The task has published what the cut and all earlier cuts list."""
        for published in [e for e in self.unpublished if e <= epoch]:
            self.unpublished[published].pop(task, None)
            if not self.unpublished[published]:
                del self.unpublished[published]
        return self._finish_if_published()

    def on_remaining(self, task: TaskId, attempt: Attempt, epoch: Epoch, remaining: Remaining, now_ms: int) -> None:
        """A task reports what it still has to do for the epoch."""
        cut = self.open.get(epoch)
        if attempt != self.attempt or cut is None or task in cut.reports:
            return
        before = cut.remaining.get(task)
        if before is None or remaining < before:
            cut.remaining[task] = remaining
            cut.progress_ms = now_ms

    def on_records(self) -> None:
        """Records were processed somewhere, or a task is busy with one."""
        for cut in self.open.values():
            cut.has_moved = True

    def on_hops(self, now_ms: int) -> None:
        """Records have just gone round a loop. A hint only: it saves probes that would find them."""
        self.probes.last_hop_ms = now_ms

    def on_stop(self, epoch: Epoch) -> list[Order]:
        """End the run with this complete cut; open epochs are aborted.

        A later cut that is complete, or is being recorded and completes, takes its place: the chain names it, so the
        output that it lists must be published.
        """
        self.final = epoch
        orders: list[Order] = []
        for cut in [cut for cut in self.open.values() if not cut.is_being_recorded]:
            orders += self._abort(cut, f"the run ended with epoch {epoch}")
        return orders + self._finish_if_published()

    def _stop_with(self, epoch: Epoch) -> list[Order]:
        self.is_stopping = True
        return self.on_stop(epoch)

    def check(self) -> None:
        """Raise if these attributes contradict each other."""
        recorded: Epoch | None = None
        served: set[str] = set()
        for cut in self.open.values():
            if cut.is_being_recorded and recorded is not None:
                raise BrokenInvariantError(f"the manifests of {recorded} and {cut.epoch} are on their way at once")
            if cut.mode is Mode.BETWEEN_ROUNDS and cut.epoch != (newest := max(self.open)):
                raise BrokenInvariantError(f"epoch {newest} began while a cut between two rounds was open")
            if cut.request is not None and cut.request.id in served:
                raise BrokenInvariantError(f"several epochs are open for the same {cut.request}")
            if cut.is_being_recorded:
                recorded = cut.epoch
            if cut.request is not None:
                served.add(cut.request.id)

    def bases(self) -> tuple[Epoch | None, ...]:
        """The cuts that open epochs hold what changed since."""
        return tuple(cut.base for cut in self.open.values())

    # -- decisions -----------------------------------------------------------------------------------------------

    def _periodic_is_due(self, now_ms: int) -> bool:
        open_cuts = [cut for cut in self.open.values() if not cut.mode.is_probe]
        return (
            not self.is_exclusive_open
            and now_ms - self.last_start_ms >= self.options.interval_ms
            and now_ms - self.last_close_ms >= self.options.pause_ms_min
            and len([cut for cut in open_cuts if cut.request is None]) < self.options.open_epochs_max
        )

    def _is_served(self, request: Request) -> bool:
        """Whether an epoch is open for a request."""
        return any(cut.request is not None and cut.request.id == request.id for cut in self.open.values())

    def _is_recording(self) -> bool:
        return any(cut.is_being_recorded for cut in self.open.values())

    def _delays_probes(self, cut: OpenCut) -> bool:
        # Some heads would capture the probe before the cut and others after it, so what is behind both would hold a
        # channel for each.
        return cut.mode.is_probe or cut.mode is Mode.BETWEEN_ROUNDS

    def start(self, mode: Mode, now_ms: int, request: Request | None = None) -> list[Order]:
        """Open an epoch."""
        cut = OpenCut(self.next_epoch, mode, now_ms, now_ms, request, base=self._base(mode))
        cut.owing = {task for task in self.deployment.tasks if not self._is_stood_for(task, cut)}
        if request is not None:
            self.retry_at_ms.pop(request.id, None)
        self.next_epoch = self.chain.pipeline.epoch_after(self.next_epoch)
        self.open[cut.epoch] = cut
        if not mode.is_probe:
            self.last_start_ms = now_ms
        starts = [*(task for task in self.deployment.tasks if task not in self.live_senders), *self._left_alone()]
        triggers = [self._trigger(task, cut) for task in starts if task not in self.ended]
        return [*triggers, *self._record_if_acknowledged(cut, now_ms)]

    def _trigger(self, task: TaskId, cut: OpenCut) -> Trigger:
        patience_ms = self.options.patience_ms if cut.mode is Mode.ALIGNED else None
        return Trigger(task, cut.epoch, cut.mode, patience_ms, cut.base)

    def _base(self, mode: Mode) -> Epoch | None:
        """The cut since which a new epoch writes what changed: the newest complete one that stays until it is over."""
        if mode.is_probe or mode is Mode.BETWEEN_ROUNDS or self.latest is None:
            return None
        # A manifest that is on its way may give the cut up.
        is_given_up = any(c.is_being_recorded and self.latest in c.dropped for c in self.open.values())
        return self.latest if self.state_files.may_be_base(self.latest) and not is_given_up else None

    def _left_alone(self) -> list[TaskId]:
        """Tasks that are still busy with timers or calls although all their senders have ended: they get no barrier."""
        return [task for task, live in self.live_senders.items() if live == 0 and task not in self.ended]

    def _is_stood_for(self, task: TaskId, cut: OpenCut) -> bool:
        """Whether the last state of a task stands for its acknowledgement."""
        end = self.ended.get(task)
        return end is not None and end.stands_for(cut.epoch, is_probe=cut.mode.is_probe)

    def _start_final(self, now_ms: int) -> list[Order]:
        if any(not cut.mode.is_probe for cut in self.open.values()):
            return []
        self.final = self.next_epoch
        return self.start(Mode.ALIGNED, now_ms)

    def _reports(self, cut: OpenCut) -> dict[TaskId, Report]:
        last = {task: end.report for task, end in self.ended.items() if self._is_stood_for(task, cut)}
        return {**last, **cut.reports}

    def _record_if_acknowledged(self, cut: OpenCut, now_ms: int) -> list[Order]:
        """Append the manifest once all tasks have acknowledged or ended; the cut is complete when that is durable.

        A probe has no manifest: what its tasks counted is read at once.
        """
        if cut.is_being_recorded or cut.owing or cut.epoch not in self.open:
            return []
        if cut.mode.is_probe:
            del self.open[cut.epoch]
            return self.probes.read(self._reports(cut), self.ended)
        if self._is_recording():
            return []
        reports = self._reports(cut)
        cut.is_being_recorded = True
        files = {task: cut.epoch if task in cut.reports else None for task in reports}
        kept = self._kept_with(cut)
        cut.dropped = tuple(epoch for epoch in self.chain.kept if epoch not in kept)
        cut.states = self.state_files.composed(cut.base, files, reports)
        manifest = Manifest(
            cut.epoch,
            self.attempt,
            cut.mode,
            files,
            {task: report.transactions for task, report in reports.items()},
            None if cut.request is None else cut.request.name,
            request=None if cut.request is None else cut.request.id,
            stops=cut.is_stop,
            kept=tuple(kept),
            states=cut.states,
        )
        return self.supervisor.append(manifest)

    def _give_up(self, cut: OpenCut, now_ms: int) -> list[Order]:
        """Give up a stalled epoch, and report what it was waiting for."""
        owing = sorted(cut.owing)
        named = [f"{task} ({cut.remaining.get(task, 'not reached')})" for task in owing[:TASKS_NAMED_MAX]]
        others = [f"{len(owing) - TASKS_NAMED_MAX} others"] if len(owing) > TASKS_NAMED_MAX else []
        waiting = f"it was waiting for {', '.join(named + others)}" if owing else "its manifest waited for another one"
        still_s = self.options.timeout_ms / 1000
        is_round = cut.is_stop_between_rounds and cut.has_moved
        why = "its round has not ended within" if is_round else "no progress for"
        return self._fail(
            cut,
            f"epoch {cut.epoch} was given up: {why} {still_s:g} s (cut_timeout); {waiting}",
            now_ms,
            cut.has_moved,
        )

    def _fail(self, cut: OpenCut, reason: str, now_ms: int, is_tolerated: bool = False) -> list[Order]:
        aborts = self._abort(cut, reason)
        if self._hurries(cut, now_ms):
            reason += "; the stop waits no longer for the end of a round: resume from its cut with the same parallelism"
        orders = [*aborts, GivenUp(cut.epoch, reason)]
        if cut.mode.is_probe:
            return orders
        if cut.request is not None and cut.mode is Mode.BETWEEN_ROUNDS:
            self.retry_at_ms[cut.request.id] = now_ms + RETRY_PAUSE_MS
        self.last_close_ms = now_ms
        if is_tolerated:
            return orders
        self.failures += 1
        if self.failures > self.options.failures_tolerated:
            tolerated = f"cut_failures={self.options.failures_tolerated} tolerates"
            orders.append(
                FailAttempt(f"{self.failures} cuts failed in a row, more than {tolerated}; the last one: {reason}")
            )
        return orders

    def _hurries(self, cut: OpenCut, now_ms: int) -> bool:
        """Whether the stop for which this cut has failed takes its next one in the middle of a round."""
        if cut.request is None or not cut.is_stop_between_rounds or cut.request.id not in self.requests.unanswered:
            return False
        tries = self.requests.failed_tries[cut.request.id]
        if tries < STOP_TRIES_MAX and now_ms - cut.opened_ms < self.options.timeout_ms:
            return False
        self.hurried.add(cut.request.id)
        return True

    def _abort(self, cut: OpenCut, reason: str) -> list[Order]:
        del self.open[cut.epoch]
        if cut.request is not None:
            self.requests.on_failed_try(cut.request, reason)
        return [Abort(task, cut.epoch, cut.mode) for task in self.deployment.tasks]

    def _kept_with(self, cut: OpenCut) -> dict[Epoch, bool]:
        """The cuts that remain when this one is complete. The manifest lists them; only these can be restored.

        The base of a later epoch that is open is among them: its files are part of that epoch's.
        """
        kept = {epoch: kept.is_savepoint for epoch, kept in self.chain.kept.items()} | {cut.epoch: cut.is_savepoint}
        bases = {later.base for later in self.open.values() if later.epoch > cut.epoch}
        periodic = [epoch for epoch, is_savepoint in kept.items() if not is_savepoint]
        dropped = set(periodic[: -self.options.keep]) - bases
        return {epoch: is_savepoint for epoch, is_savepoint in kept.items() if epoch not in dropped}

    def _finish_if_published(self) -> list[Order]:
        if self.final is None or self.latest is None or self.final > self.latest or self.latest in self.unpublished:
            return []
        if self.is_finished or self._is_recording():
            return []
        self.is_finished = True
        self.requests.on_finished(self.latest, is_stopped=self.is_stopping)
        return [Finished(self.latest, self.is_stopping)]

"""Breaks one rule at a time, to check that the checker finds it.

Each break is a subclass outside the core that overrides one decision. The core has no switch, and the checker is not
informed. A break that is not found is a hole in the checker, or the rule is not a rule.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from engine.channel_ends import Arrivals, RemoteBackEdge, RemoteChannel, SendCredit
from engine.iteration import Iteration
from engine.run_driver import RunDriver
from engine.simulation.world import Parts
from engine.state import LAST_STATE, KeyedState, StateCapture
from engine.task import NOTHING, TaskCore
from engine.task_driver import TaskDriver
from engine.touched_keys import TouchedKeys
from graphs.deployment import Channel, Component, Deployment
from graphs.ids import Attempt, ChannelId, Epoch, TaskId
from recovery.alignment import Alignment
from recovery.channel_log import ChannelLogs, OpenEpoch
from recovery.channels import Inbox, Queued, Stored
from recovery.coordinator import Coordinator, OpenCut
from recovery.credit import Bounded, Room
from recovery.cut import OperatorState
from recovery.effects import Acknowledge, Effect, Report, Send, Write
from recovery.lines import LineEnd, Said
from recovery.messages import Barrier, Data, Item, Mode, marker_in
from recovery.orders import (
    Abort,
    AppendEntry,
    AttemptStart,
    Entry,
    FailAttempt,
    Fenced,
    FileId,
    Manifest,
    Numbered,
    Order,
    RestoreTasks,
    StateFile,
    Sweep,
)
from recovery.outline import CutOutline
from recovery.requests import Requests, Sizes
from recovery.rescale import KeptState, MovedState, RestorePlan, plan_restore
from recovery.restored import RestoredLog, TaskRestore
from recovery.state_files import StateFiles
from recovery.stores.store_errors import OutcomeUnknownError
from recovery.supervisor import Stage, Supervisor
from recovery.taking_back import CutFiles, MoveWhole, Reroute, take_back


@dataclass(frozen=True)
class Break:
    """A rule: what breaking it means, and the parts that break it.

    `topology`: where it shows; None: in many. `rescales`: how often a run may be rescaled, if that is what shows it.
    """

    meaning: str
    parts: Callable[[], Parts]
    topology: str | None = None
    rescales: int = 0


# -- the loop log ------------------------------------------------------------------------------------------------


class NoLoopLog(TaskCore):
    def _is_logged(self, inbox: Inbox, mode: Mode) -> bool:
        # A probe that ignored circulating records would end the run early, which is a different error.
        return mode.is_probe and super()._is_logged(inbox, mode)


class _QueuelessLogs(ChannelLogs):
    def start(self, log: OpenEpoch, logged: list[Inbox]) -> None:
        super().start(log, logged)
        for entries in log.entries.values():
            entries.clear()


class LogWithoutTheQueue(TaskCore):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.logs = self.snapshots.logs = _QueuelessLogs()


class _HastyLogs(ChannelLogs):
    def seal(self, channel: ChannelId, epoch: Epoch) -> OpenEpoch | None:
        log = self.epochs.get(epoch)
        sealed = None
        for open_channel in sorted(log.open) if log is not None else ():
            sealed = super().seal(open_channel, epoch)
        return sealed


class LogStopsAtFirstBarrier(TaskCore):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.logs = self.snapshots.logs = _HastyLogs()


class _TruncatedLogs(ChannelLogs):
    def _grow(self, log: OpenEpoch, size: int) -> None:
        super()._grow(log, size)
        log.exceeds_budget = False


class TruncatedLogWritten(TaskCore):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.logs = self.snapshots.logs = _TruncatedLogs()


class LogNotReplayed(TaskCore):
    def __init__(self, task: Any, attempt: Attempt, encode: Any, restored: TaskRestore | None = None) -> None:
        super().__init__(task, attempt, encode, None if restored is None else replace(restored, logs=()))


class ReplayLostInNewSnapshot(TaskCore):
    def _is_logged(self, inbox: Inbox, mode: Mode) -> bool:
        return super()._is_logged(inbox, mode) and not inbox.id.restored


def rest_behind_live_log(
    plan: RestorePlan, files: CutFiles, deployment: Deployment, reroute: Reroute, move_whole: MoveWhole
) -> TaskRestore:
    """In a restored run a log is the restored rest, then the live part. Here it is read in the opposite order."""
    restored = take_back(plan, files, deployment, reroute, move_whole)
    rests = {channel: len(log) for channel, log in files.logs(plan.task).items()} if plan.kept_logs else {}
    return replace(restored, logs=tuple(_turned(log, rests.get(log.channel, 0)) for log in restored.logs))


def _turned(log: RestoredLog, rest: int) -> RestoredLog:
    return replace(log, payloads=(*log.payloads[rest:], *log.payloads[:rest]))


# -- batches in progress, and epochs that overtake ---------------------------------------------------------------


class _DoublingLogs(ChannelLogs):
    def start(self, log: OpenEpoch, logged: list[Inbox]) -> None:
        super().start(log, logged)
        for entries in log.entries.values():
            entries[:1] = [entry._replace(skip=0) for entry in entries[:1]]


class PartialBatchDoubled(TaskCore):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.logs = self.snapshots.logs = _DoublingLogs()


class _LosingLogs(ChannelLogs):
    def start(self, log: OpenEpoch, logged: list[Inbox]) -> None:
        super().start(log, logged)
        for entries in log.entries.values():
            entries[:1] = [entry for entry in entries[:1] if not entry.skip]


class PartialBatchLost(TaskCore):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.logs = self.snapshots.logs = _LosingLogs()


class OvertakesUnlogged(TaskCore):
    def _capture(self, epoch: Epoch, mode: Mode, effects: list[Effect], overtakes: bool = False) -> None:
        super()._capture(epoch, mode, effects)


class _RepeatingAlignment(Alignment):
    def overdue(self, now_ms: int) -> list[Epoch]:
        epochs = super().overdue(now_ms)
        self.overtaken = set(epochs)
        return epochs

    def capture(self, epoch: Epoch, mode: Mode) -> list[ChannelId]:
        before = self.captured[mode.is_probe]
        released = super().capture(epoch, mode)
        overtaken: set[Epoch] = getattr(self, "overtaken", set[Epoch]())
        if epoch in overtaken:
            overtaken.remove(epoch)
            self.captured[mode.is_probe] = before
        return released


class OvertakenBarrierCapturesAgain(TaskCore):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.alignment = self.snapshots.alignment = _RepeatingAlignment(self.alignment.needs_trigger)
        if self.iteration is not None:
            self.iteration.alignment = self.alignment


class Patient(TaskCore):
    def on_tick(self, now_ms: int) -> Sequence[Effect]:
        return NOTHING


# -- alignment ---------------------------------------------------------------------------------------------------


class NoHoldBeforeCapture(TaskCore):
    def _hold(self, inbox: Inbox, barrier: Barrier) -> None:
        super()._hold(inbox, barrier)
        inbox.queue.remove(barrier)


class _HastyAlignment(Alignment):
    def due(self, live_regular: Iterable[ChannelId]) -> Epoch | None:
        live = [channel for channel in live_regular if channel in self.held]
        return super().due(live) if live or self.needs_trigger else None


class CaptureBeforeAlignment(TaskCore):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.alignment = self.snapshots.alignment = _HastyAlignment(self.alignment.needs_trigger)
        if self.iteration is not None:
            self.iteration.alignment = self.alignment


class AbortIgnored(TaskCore):
    def on_abort(self, epoch: Epoch, mode: Mode) -> Sequence[Effect]:
        return NOTHING


class DuplicateBarrier(TaskCore):
    def _capture(self, epoch: Epoch, mode: Mode, effects: list[Effect], overtakes: bool = False) -> None:
        super()._capture(epoch, mode, effects, overtakes)
        effects += [e for e in effects if isinstance(e, Send) and isinstance(e.item, Barrier) and e.item.epoch == epoch]


class EndNotCountedAsBarrier(TaskCore):
    def _live_regular(self) -> list[ChannelId]:
        return [inbox.id for inbox in self.inboxes.values() if not inbox.is_back]


class WallClockCore(TaskCore):
    def on_trigger(
        self,
        epoch: Epoch,
        mode: Mode,
        within: Epoch | None = None,
        patience_ms: int | None = None,
        base: Epoch | None = None,
    ) -> Sequence[Effect]:
        if mode.is_probe or self.ended or self.alignment.is_over(epoch, mode):
            return super().on_trigger(epoch, mode, within, patience_ms, base)
        effects: list[Effect] = []
        self._capture(epoch, mode, effects)
        return self._proceed(effects)


class WallClockCoordinator(Coordinator):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.starts = list(self.deployment.tasks)


class _BlockingAlignment(Alignment):
    def __init__(self, core: BlockingVariant) -> None:
        super().__init__(core.task.is_source or core.task.is_head)
        self.core = core

    def due(self, live_regular: Iterable[ChannelId]) -> Epoch | None:
        epoch = super().due(live_regular)
        if epoch is None or epoch not in self.core.sent_on:
            return epoch
        back = [inbox for inbox in self.core.inboxes.values() if inbox.is_back and not inbox.ended]
        return epoch if all(self.held.get(inbox.id) == epoch for inbox in back) else None


class BlockingVariant(TaskCore):
    """The head sends its barrier on, keeps its outside inputs blocked, processes the loop, and captures when the
    barrier returns, without a log. The literature describes this. It loses records that the body sent before its own
    capture and that the head sent on before the barrier returned.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sent_on: set[Epoch] = set()
        self.alignment = self.snapshots.alignment = _BlockingAlignment(self)

    def _capture(self, epoch: Epoch, mode: Mode, effects: list[Effect], overtakes: bool = False) -> None:
        if not self.task.is_head or self.iteration is not None or mode is not Mode.ALIGNED or overtakes:
            super()._capture(epoch, mode, effects, overtakes)
            return
        if epoch not in self.sent_on:
            self.sent_on.add(epoch)
            effects += [Send(o.id, Barrier(epoch, mode, o.sent, o.digest)) for o in self.outlets.values()]
            return
        captured: list[Effect] = []
        super()._capture(epoch, mode, captured)
        effects += [e for e in captured if not (isinstance(e, Send) and isinstance(e.item, Barrier))]


# -- durability, attempts, termination ---------------------------------------------------------------------------


class HastyDriver(TaskDriver):
    """Acknowledges before the files are durable."""

    def _carry_out_one(self, effect: Effect) -> Iterable[Effect]:
        following = super()._carry_out_one(effect)
        if isinstance(effect, Write) and effect.epoch is not None:
            report = self.core.logs.epochs[effect.epoch].report()
            self.ports.reporter.report(self.id, Acknowledge(effect.epoch, report))
        return following


class ForgetfulDriver(TaskDriver):
    """Drops the transactions that its sinks prepared for an epoch when the epoch is aborted."""

    def _discard(self, epoch: Epoch) -> None:
        super()._discard(epoch)
        for sink in self.runtime._sinks:  # pyright: ignore[reportPrivateUsage]
            for name in [name for name, transaction in sink.transactions.items() if transaction.epoch == epoch]:
                del sink.transactions[name]


class StaleAttemptAccepted(TaskCore):
    def receive(self, channel: ChannelId, attempt: Attempt, item: Item, kept: Any = None) -> Sequence[Effect]:
        return super().receive(channel, self.attempt, item, kept)


class _EpochRequests(Requests):
    def on_closed(self, epoch: Epoch, reason: str) -> None:
        return


class RequestLostWithItsEpoch(Supervisor):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.requests = _EpochRequests()


class _AttemptRequests(Requests):
    def on_attempt_over(self) -> None:
        return


class RequestLostWithItsAttempt(Supervisor):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.requests = _AttemptRequests()


class OrderNotRepeated(LineEnd):
    def due(self, now_ms: int) -> list[Said]:
        return []


class RepeatedOrderObeyed(LineEnd):
    def accepts(self, message: Said) -> bool:
        return super().accepts(message) or message.number > 0


class TerminateWhileInFlight(Coordinator):
    def _is_dry(self, component: Component, reports: dict[TaskId, Report], *, for_drain: bool) -> bool:
        return True


def wrong_key_group(cut: CutOutline, deployment: Deployment) -> dict[TaskId, RestorePlan]:
    """Under another parallelism each task restores the key groups of its neighbour."""
    plans = plan_restore(cut, deployment)
    turned: dict[TaskId, RestorePlan] = {}
    for task, plan in plans.items():
        width = deployment.parallelism[task.name]
        neighbour = plans[TaskId(task.name, (task.index + 1) % width)]
        turned[task] = replace(
            plan, states={name: _with_groups(state, neighbour.states[name]) for name, state in plan.states.items()}
        )
    return turned


def _with_groups(state: KeptState | MovedState, other: KeptState | MovedState) -> KeptState | MovedState:
    if isinstance(state, KeptState) or isinstance(other, KeptState):
        return state
    return replace(state, groups=other.groups, keyed=other.keyed, waiting=other.waiting)


class _UnfilteredFiles:
    """Returns all key groups of a file, regardless of the request."""

    def __init__(self, files: CutFiles) -> None:
        self.logs, self.rounds = files.logs, files.rounds
        self._files = files

    def state(self, task: TaskId, operator: str, groups: range | None = None) -> OperatorState:
        return self._files.state(task, operator)


def restores_another_tasks_key_groups(
    plan: RestorePlan, files: CutFiles, deployment: Deployment, reroute: Reroute, move_whole: MoveWhole
) -> TaskRestore:
    """Under another parallelism each task restores all key groups of the files that it reads."""
    return take_back(plan, _UnfilteredFiles(files), deployment, reroute, move_whole)


def source_skips_a_record(
    plan: RestorePlan, files: CutFiles, deployment: Deployment, reroute: Reroute, move_whole: MoveWhole
) -> TaskRestore:
    """A source resumes after the record that it should send next."""
    restored = take_back(plan, files, deployment, reroute, move_whole)
    return replace(restored, operators=_shifted(restored.operators))


def _shifted(operators: Mapping[str, OperatorState]) -> dict[str, OperatorState]:
    return {
        name: replace(state, splits={split: pickle.dumps(pickle.loads(at) + 1) for split, at in state.splits.items()})
        for name, state in operators.items()
    }


class SharedWhileEncoding(KeyedState):
    def must_copy(self, value: Any) -> bool:
        return False


class SharedWithTheReceiver(KeyedState):
    def sent(self, record: Any) -> Any:
        return record


# -- deltas ------------------------------------------------------------------------------------------------------


def delta_applied_twice(
    plan: RestorePlan, files: CutFiles, deployment: Deployment, reroute: Reroute, move_whole: MoveWhole
) -> TaskRestore:
    """The first delta is applied again behind the last one, and brings old values back."""
    restored = take_back(plan, files, deployment, reroute, move_whole)
    twice = {name: replace(s, deltas=(*s.deltas, *s.deltas[:1])) for name, s in restored.operators.items()}
    return replace(restored, operators=twice)


class BaseRemovedTooEarly(Coordinator):
    """Keeps no cut for being the base of an open epoch."""

    def _kept_with(self, cut: OpenCut) -> tuple[Epoch, ...]:
        bases = {later.base for later in self.open.values() if later is not cut}
        return tuple(epoch for epoch in super()._kept_with(cut) if epoch == cut.epoch or epoch not in bases)


class BaseGivenUpMeanwhile(Coordinator):
    """Names a base that a manifest on its way gives up."""

    def _base(self, mode: Mode) -> Epoch | None:
        latest = self.latest
        if mode.is_probe or mode is Mode.BETWEEN_ROUNDS or latest is None:
            return None
        return latest if self.state_files.may_be_base(latest) else None


class _GreedyStateFiles(StateFiles):
    def _replaced(self, task: TaskId, files: tuple[StateFile, ...]) -> tuple[StateFile, ...]:
        replaced = super()._replaced(task, files)
        return files if replaced == files else replaced[:1]


class CompactionReplacesTooMuch(Coordinator):
    """Puts a compacted file in place of the files that came after those it was made from, too."""

    state_files_class = _GreedyStateFiles


class _UnsparedStateFiles(StateFiles):
    @property
    def outputs(self) -> frozenset[FileId]:
        return frozenset()


class CompactionSwept(Coordinator):
    """Lets a sweep remove a compacted file that no manifest names yet."""

    state_files_class = _UnsparedStateFiles


class BaseNotComplete(KeyedState):
    """Writes what changed since the last capture, whether that is part of a complete cut or not."""

    class touched_class(TouchedKeys):
        def _sets_from(self, base: Epoch) -> list[dict[Any, None]]:
            return super()._sets_from(base)[-1:]


class TouchedDroppedOnAbort(TaskDriver):
    """Drops, with an aborted epoch, the keys that were touched since its capture."""

    def _discard(self, epoch: Epoch) -> None:
        super()._discard(epoch)
        for operator in self.runtime._wiring.operators.values():  # pyright: ignore[reportPrivateUsage]
            if operator.keyed_state is not None:
                operator.keyed_state._touched._since.pop(epoch, None)  # pyright: ignore[reportPrivateUsage]


class ReadsNotNoted(KeyedState):
    """Takes no read for a change, though the value that was read may be changed in place."""

    def touch(self, key: Any, default: Any = None) -> Any:
        touched, self._touched = self._touched, TouchedKeys()
        try:
            return super().touch(key, default)
        finally:
            self._touched = touched


class DeletionsNotNoted(KeyedState):
    """A delta does not say which keys are gone."""

    def capture(self, epoch: Epoch = LAST_STATE, base: Epoch | None = None) -> StateCapture:
        capture = super().capture(epoch, base)
        capture.gone = ()
        return capture


def base_kept_under_another_parallelism(cut: CutOutline, deployment: Deployment) -> dict[TaskId, RestorePlan]:
    """Continues the files of a cut after a restore under another parallelism."""
    former = cut.tasks.keys()
    plans = plan_restore(cut, deployment)
    return {task: replace(plan, base=cut.epoch if task in former else None) for task, plan in plans.items()}


# -- the chain, and what is removed ------------------------------------------------------------------------------


class _BoldSweep(Sweep):
    def _is_earlier(self, attempt: Attempt) -> bool:
        return True


class SupersededRunRemoves(Supervisor):
    """Removes everything that it does not know, even of later attempts."""

    def sweep(self, *, spared: frozenset[FileId] = frozenset(), is_over: bool = False) -> Sweep:
        sweep = super().sweep(spared=spared, is_over=is_over)
        return _BoldSweep(**{of.name: getattr(sweep, of.name) for of in fields(sweep)})


class UnknownEntryGivenUp(Supervisor):
    """Assumes that an entry whose reply was lost was not created."""

    def on_unknown(self, append: AppendEntry) -> list[Order]:
        entry = append.entry
        if not isinstance(entry, Manifest):
            return super().on_unknown(append)
        return [*(Abort(task, entry.epoch, entry.mode) for task in entry.files), FailAttempt("the reply was lost")]


class OwnEntryTakenForAnothers(Supervisor):
    """Is fenced by any entry that has the number it wanted."""

    def on_taken(self, number: int, chain: Sequence[Numbered]) -> list[Order]:
        return super().on_taken(number, chain) if not self.restarts else [Fenced(number)]


class GoesOnFromTheLatestCut(Supervisor):
    """Forgets the request for an older cut when an attempt fails."""

    def begin(self, chain: Sequence[Numbered], epoch: Epoch | None = None, *, anew: bool = False) -> list[Order]:
        orders = super().begin(chain, epoch, anew=anew)
        if epoch is not None or not self.cuts:
            return orders
        self.restored_from = self.cuts[-1]
        return self.append(AttemptStart(self.attempt, self.restored_from))


class RetentionOutsideTheChain(Supervisor):
    """Drops cuts without recording it in the chain, so that others still restore them."""

    def append(self, entry: Entry) -> list[Order]:
        return super().append(replace(entry, kept=None) if isinstance(entry, Manifest) else entry)


class GoingBackDropsOutput(Supervisor):
    """Publishes no output of the latest cut when it goes back to an older one."""

    def on_appended(self, entry: Entry, spared: frozenset[FileId] = frozenset()) -> list[Order]:
        orders = super().on_appended(entry, spared)
        return [order._replace(unpublished=()) if isinstance(order, RestoreTasks) else order for order in orders]


class LaterErrorSettlesUnknown(RunDriver):
    """Takes the error of a repetition for the answer, though the first try may still take effect."""

    def _on_create_error(self, append: AppendEntry, error: OSError) -> None:
        if not isinstance(error, OutcomeUnknownError):
            self.is_unknown = False
        super()._on_create_error(append, error)


class ActsWithoutAClaim(RunDriver):
    """Has the actors restored without an entry that says so: two supervisors may both do that."""

    def _append(self, append: AppendEntry) -> None:
        if isinstance(append.entry, AttemptStart) and append.number > 1:
            self.obey(self.supervisor.on_appended(append.entry))
        else:
            super()._append(append)


class ClaimsFromAnOldChain(RunDriver):
    """Claims again and again from what it has read of the chain at first."""

    def _chain(self) -> Sequence[Numbered]:
        old: Sequence[Numbered] | None = getattr(self, "old_chain", None)
        self.old_chain = super()._chain() if old is None else old
        return self.old_chain


class RescaleRestoresAnOlderCut(Supervisor):
    """Begins the attempt of a rescale with the cut before the one that was taken for it."""

    def on_rescale(self, sizes: Sizes, chain: Sequence[Numbered]) -> list[Order]:
        orders = super().on_rescale(sizes, chain)
        if len(self.cuts) < 2:
            return orders
        self.restored_from = self.cuts[-2]
        return self.append(AttemptStart(self.attempt, self.restored_from, sizes=sizes))


class RescaleWithinTheAttempt(Supervisor):
    """Gives the new tasks the number of the attempt that was left, so that nothing fences the old ones."""

    def on_rescale(self, sizes: Sizes, chain: Sequence[Numbered]) -> list[Order]:
        self.requests.on_attempt_over()
        self.sizes, self.stage, self.restored_from = sizes, Stage.RESTORING, self.last_cut
        return [RestoreTasks(self.attempt, self.last_cut)]


# -- rounds ------------------------------------------------------------------------------------------------------


class HoldAtRoundMarkers(TaskCore):
    """Has no patience, which would let the epoch complete without the round that it waits for."""

    def on_tick(self, now_ms: int) -> Sequence[Effect]:
        self.alignment.deadlines.clear()
        return super().on_tick(now_ms)

    def _hold(self, inbox: Inbox, barrier: Barrier) -> None:
        if self.rounds is None or not self.rounds.must_wait(inbox.live_id):
            super()._hold(inbox, barrier)

    def _proceed(self, effects: list[Effect]) -> Sequence[Effect]:
        self._settle(self.inboxes.values(), effects)
        return super()._proceed(effects)

    def ready(self) -> list[ChannelId]:
        ready = super().ready()
        if self.rounds is None:
            return ready
        return [channel for channel in ready if not self.rounds.must_wait(self.inboxes[channel].live_id)]


class _WilfulIteration(Iteration):
    def takes_request(self, epoch: Epoch) -> bool:
        takes = super().takes_request(epoch)
        if takes:
            self.requested_cut = None
            self.rounds.cut_after = epoch
        return takes


class HeadsChooseTheCut(TaskCore):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.rounds is not None:
            self.iteration = _WilfulIteration(self.task, self.rounds, self.outlets.values(), self.alignment)


class EarlyBarrierDeclined(TaskCore):
    """Declines a cut between two rounds whose barrier comes back before this head's own capture."""

    def _decline_in_a_round(self, effects: list[Effect]) -> None:
        if self.rounds is not None and self.rounds.is_in_a_round():
            for epoch in set(self.alignment.held.values()):
                if self.alignment.modes[epoch] is Mode.BETWEEN_ROUNDS:
                    self._decline_between_rounds(epoch, effects)


class RequestOutlivesItsAttempt(TaskCore):
    def _take_back(self, restored: TaskRestore) -> None:
        super()._take_back(restored)
        for inbox in self.inboxes.values():
            if inbox.id.restored:
                inbox.queue = deque(_with_request(item) if isinstance(item, Queued) else item for item in inbox.queue)
        if self.rounds is not None:
            self.rounds.aside = {c: deque(map(_with_request, waiting)) for c, waiting in self.rounds.aside.items()}


def _with_request(queued: Queued) -> Queued:
    return queued._replace(marker=marker_in(queued.payload))


# -- credit --------------------------------------------------------------------------------------------------------


class _UnrepeatedArrivals(Arrivals):
    __slots__ = ()

    def repeat_credit(self, now_ms: int) -> None:
        pass


class CreditNotRepeated(TaskDriver):
    arrivals_class = _UnrepeatedArrivals


class _RoomForLoops(Room):
    __slots__ = ()

    def add(self, channel: Channel, out: Bounded) -> None:
        self._bounded.append(out)


class _BoundedBackEdge(RemoteBackEdge):
    __slots__ = ()

    send = RemoteChannel.send
    is_full = RemoteChannel.is_full
    on_credit = RemoteChannel.on_credit


class _GrantsWhatIsConsumed(Arrivals):
    __slots__ = ()

    def __init__(self, tell: SendCredit | None, **options: Any) -> None:
        super().__init__(tell, **{**options, "is_back": False})


class BackEdgeWaitsForCredit(TaskDriver):
    """Bounds back edges like other channels."""

    room_class = _RoomForLoops
    back_edge_class = _BoundedBackEdge
    arrivals_class = _GrantsWhatIsConsumed


class _RoomInDrains(Room):
    __slots__ = ()

    def on_sent(self, barrier: Barrier) -> None:
        pass


class NoDrainExemption(TaskDriver):
    room_class = _RoomInDrains


class _BarriersSpend(RemoteChannel):
    __slots__ = ()

    def send(self, item: Item) -> None:
        if isinstance(item, Barrier):
            self.sent += 100
        super().send(item)


class CreditCountsBarriers(TaskDriver):
    """The sender spends credit for barriers, which the receiver never grants back."""

    remote_class = _BarriersSpend


class _HastyBackEdge(RemoteBackEdge):
    __slots__ = ()

    def send(self, item: Item) -> None:
        if self.waiting and not (isinstance(item, Data) and item.marker is None):
            self._send(item)
        else:
            super().send(item)


class MarkerOvertakesABatch(TaskDriver):
    """Sends barriers and markers at once, although batches before them wait for credit."""

    back_edge_class = _HastyBackEdge


class CreditLostAfterAnAbort(TaskDriver):
    """Resets its count of consumed bytes when an epoch is aborted. Its senders do not."""

    def obey(self, order: Order) -> None:
        if isinstance(order, Abort):
            for arrivals in self.arrivals.values():
                arrivals.consumed = 0
        super().obey(order)


class _LogsOfMemory(ChannelLogs):
    def start(self, log: OpenEpoch, logged: list[Inbox]) -> None:
        super().start(log, logged)
        for entries in log.entries.values():
            entries[:] = [entry for entry in entries if not isinstance(entry.payload, Stored)]


class SpilledBatchesUnlogged(TaskCore):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.logs = self.snapshots.logs = _LogsOfMemory()


def _supervisor(supervisor: type[Supervisor]) -> Callable[[], Parts]:
    return lambda: Parts(supervisor=supervisor)


def _run_driver(driver: type[RunDriver]) -> Callable[[], Parts]:
    return lambda: Parts(run_driver=driver)


def _driver(driver: type[TaskDriver]) -> Callable[[], Parts]:
    return lambda: Parts(driver=driver)


def _core(core: type[TaskCore]) -> Callable[[], Parts]:
    return lambda: Parts(core=core)


BREAKS = {
    "no-loop-log": Break("a head logs nothing", _core(NoLoopLog)),
    "log-without-the-queue": Break("the log misses the batches queued at the capture", _core(LogWithoutTheQueue)),
    "truncated-log-written": Break("a log that exceeds its budget is written", _core(TruncatedLogWritten)),
    "log-stops-at-first-barrier": Break("one barrier seals all channels", _core(LogStopsAtFirstBarrier)),
    "partial-batch-doubled": Break(
        "a log includes the processed records of its first batch", _core(PartialBatchDoubled)
    ),
    "partial-batch-lost": Break("a log misses the rest of a batch in progress", _core(PartialBatchLost)),
    "overtakes-unlogged": Break("a task captures past a queue and does not log it", _core(OvertakesUnlogged)),
    "overtaken-barrier-captures-again": Break("a barrier takes effect twice", _core(OvertakenBarrierCapturesAgain)),
    "waits-behind-a-queue": Break("a barrier waits until its queue is done", _core(Patient)),
    "no-hold-before-capture": Break("a channel is read past its barrier", _core(NoHoldBeforeCapture)),
    "capture-before-alignment": Break("a task captures at the first barrier", _core(CaptureBeforeAlignment)),
    "log-not-replayed": Break("a restore forgets the logs", _core(LogNotReplayed)),
    "replay-lost-in-new-snapshot": Break("a new log misses the restored rest", _core(ReplayLostInNewSnapshot)),
    "restored-rest-behind-live-log": Break(
        "the restored rest follows the live log", lambda: Parts(take_back=rest_behind_live_log)
    ),
    "abort-ignored": Break("a task keeps holding channels for an aborted epoch", _core(AbortIgnored)),
    "acknowledged-before-durable": Break("a task acknowledges a snapshot that is not written", _driver(HastyDriver)),
    "prepared-dropped-on-abort": Break("an abort drops prepared output", _driver(ForgetfulDriver)),
    "stale-attempt-accepted": Break("messages of a dead attempt count", _core(StaleAttemptAccepted)),
    "duplicate-barrier": Break("a barrier is sent twice", _core(DuplicateBarrier)),
    "end-not-counted-as-barrier": Break(
        "a task waits for the barrier of an ended channel", _core(EndNotCountedAsBarrier)
    ),
    "terminate-while-in-flight": Break(
        "a loop ends with records in it", lambda: Parts(coordinator=TerminateWhileInFlight)
    ),
    "request-lost-with-its-epoch": Break(
        "an aborted savepoint is not taken again", lambda: Parts(supervisor=RequestLostWithItsEpoch)
    ),
    "request-lost-with-its-attempt": Break(
        "a savepoint is forgotten when the attempt fails", lambda: Parts(supervisor=RequestLostWithItsAttempt)
    ),
    "order-not-repeated": Break("lost orders and reports are not repeated", lambda: Parts(line_end=OrderNotRepeated)),
    "repeated-order-obeyed": Break("repeated and late orders are obeyed", lambda: Parts(line_end=RepeatedOrderObeyed)),
    "credit-not-repeated": Break("lost credit is not repeated", _driver(CreditNotRepeated)),
    "back-edge-waits-for-credit": Break("a back edge is bounded by credit", _driver(BackEdgeWaitsForCredit)),
    "no-drain-exemption": Break("a channel can be full during a drain", _driver(NoDrainExemption), "far_loop"),
    "credit-counts-barriers": Break("barriers spend credit", _driver(CreditCountsBarriers)),
    "credit-lost-after-an-abort": Break("an abort forgets what was consumed", _driver(CreditLostAfterAnAbort)),
    "marker-overtakes-a-batch": Break(
        "a barrier or marker does not wait behind earlier batches", _driver(MarkerOvertakesABatch)
    ),
    "spilled-batches-unlogged": Break("a log misses the batches on disk", _core(SpilledBatchesUnlogged)),
    "wrong-key-group-on-rescale": Break("keys go to the wrong task", lambda: Parts(plan_restore=wrong_key_group)),
    "restores-another-tasks-key-groups": Break(
        "a task takes all key groups of the files that it reads",
        lambda: Parts(take_back=restores_another_tasks_key_groups),
    ),
    "source-skips-a-record": Break(
        "a source is restored one record too far", lambda: Parts(take_back=source_skips_a_record)
    ),
    "mutated-while-encoding": Break(
        "user code changes values that are being encoded", lambda: Parts(keyed_state=SharedWhileEncoding)
    ),
    "output-shares-state": Break(
        "a receiver changes objects in the sender's state", lambda: Parts(keyed_state=SharedWithTheReceiver)
    ),
    "delta-applied-twice": Break(
        "an old delta is applied again behind a new one", lambda: Parts(take_back=delta_applied_twice)
    ),
    "base-removed-too-early": Break(
        "retention drops the base of an open epoch", lambda: Parts(coordinator=BaseRemovedTooEarly)
    ),
    "base-given-up-meanwhile": Break(
        "an epoch has a base that a manifest on its way gives up",
        lambda: Parts(coordinator=BaseGivenUpMeanwhile),
        "rounds",
    ),
    "compaction-replaces-too-much": Break(
        "a compacted file replaces deltas that it does not contain",
        lambda: Parts(coordinator=CompactionReplacesTooMuch),
    ),
    "compaction-swept": Break(
        "a sweep removes a compacted file that a later manifest names", lambda: Parts(coordinator=CompactionSwept)
    ),
    "base-not-complete": Break(
        "a delta is relative to a capture that is in no complete cut", lambda: Parts(keyed_state=BaseNotComplete)
    ),
    "touched-keys-dropped-on-abort": Break("an abort drops touched keys", _driver(TouchedDroppedOnAbort), "nested"),
    "reads-not-noted": Break(
        "what is read and changed in place is in no delta", lambda: Parts(keyed_state=ReadsNotNoted)
    ),
    "deletions-not-noted": Break("a deleted key comes back", lambda: Parts(keyed_state=DeletionsNotNoted), "chain"),
    "base-kept-under-another-parallelism": Break(
        "a delta is relative to the files of other tasks",
        lambda: Parts(plan_restore=base_kept_under_another_parallelism),
        "two_back_edges",
    ),
    "wall-clock-capture": Break(
        "tasks capture at an agreed time",
        lambda: Parts(core=WallClockCore, coordinator=WallClockCoordinator),
    ),
    "hold-at-round-markers": Break("a channel that is ahead is held", _core(HoldAtRoundMarkers)),
    "heads-choose-the-cut-between-rounds": Break("each head cuts after a round of its own", _core(HeadsChooseTheCut)),
    "early-barrier-declined": Break(
        "a head declines a cut that it only had to wait for", _core(EarlyBarrierDeclined), "rounds_in_lanes"
    ),
    "request-outlives-its-attempt": Break(
        "a restored marker requests a cut that the coordinator does not know", _core(RequestOutlivesItsAttempt)
    ),
    "superseded-run-removes": Break(
        "a run that lost the job removes files of its successor", _supervisor(SupersededRunRemoves)
    ),
    "unknown-entry-given-up": Break(
        "an epoch is aborted although its entry may exist", _supervisor(UnknownEntryGivenUp)
    ),
    "own-entry-taken-for-anothers": Break("a run is fenced by its own entry", _supervisor(OwnEntryTakenForAnothers)),
    "goes-on-from-the-latest-cut": Break("a run forgets that it went back", _supervisor(GoesOnFromTheLatestCut)),
    "retention-outside-the-chain": Break(
        "cuts are dropped that others may restore", _supervisor(RetentionOutsideTheChain)
    ),
    "going-back-drops-output": Break(
        "output of a complete cut is dropped by a run that goes back", _supervisor(GoingBackDropsOutput)
    ),
    "later-error-settles-unknown": Break(
        "an entry that may exist is given up when its repetition fails", _run_driver(LaterErrorSettlesUnknown)
    ),
    "acts-without-a-claim": Break(
        "two supervisors: a successor acts before it has claimed the job", _run_driver(ActsWithoutAClaim)
    ),
    "rescale-restores-an-older-cut": Break(
        "a rescale begins with the cut before the one taken for it", _supervisor(RescaleRestoresAnOlderCut), rescales=2
    ),
    "rescale-within-the-attempt": Break(
        "the tasks from before a rescale go on, and nothing fences them",
        _supervisor(RescaleWithinTheAttempt),
        rescales=2,
    ),
    "claims-from-an-old-chain": Break(
        "a claim that is repeated does not read the chain again", _run_driver(ClaimsFromAnOldChain)
    ),
    "blocking-variant": Break("the head captures when its barrier returns", _core(BlockingVariant)),
}

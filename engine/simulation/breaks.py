"""Rules, broken one at a time, to see whether the checker finds it.

Each break is a subclass, outside of the core, that overrides one decision. The core has no switch, and the checker is
not told. A rule whose breaking is not found is a hole in the checker, or no rule.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.iteration import Iteration
from engine.simulation.host import Host, Surroundings
from engine.simulation.world import Parts
from engine.state import KeyedState
from engine.task import NOTHING, TaskCore
from graphs.deployment import Component, Deployment
from graphs.ids import Attempt, ChannelId, Epoch, TaskId
from recovery.alignment import Alignment
from recovery.channel_log import ChannelLogs, OpenEpoch
from recovery.channels import Inbox
from recovery.coordinator import Coordinator
from recovery.cut import Cut, OperatorState
from recovery.effects import Acknowledge, Effect, Report, Send, Write
from recovery.messages import Barrier, Item, Mode
from recovery.rescale import MoveWhole, Reroute, plan_restore
from recovery.restored import RestoredLog, TaskRestore


@dataclass(frozen=True)
class Break:
    """A rule, what breaking it means, and the parts that do it."""

    meaning: str
    parts: Callable[[], Parts]


# -- the loop log ------------------------------------------------------------------------------------------------


class NoLoopLog(TaskCore):
    def _is_logged(self, inbox: Inbox, mode: Mode) -> bool:
        # A probe that did not count what goes round would end the run early, which is another mistake.
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


class LogNotReplayed(TaskCore):
    def __init__(self, task: Any, attempt: Attempt, encode: Any, restored: TaskRestore | None = None) -> None:
        super().__init__(task, attempt, encode, None if restored is None else replace(restored, logs=()))


class ReplayLostInNewSnapshot(TaskCore):
    def _is_logged(self, inbox: Inbox, mode: Mode) -> bool:
        return super()._is_logged(inbox, mode) and not inbox.id.restored


def rest_behind_live_log(
    cut: Cut, deployment: Deployment, reroute: Reroute, move_whole: MoveWhole
) -> dict[TaskId, TaskRestore]:
    """A log in a restored run is the restored rest, then the live part. Here it is read the other way round."""
    rests = {r.channel: len(r.log) for s in cut.snapshots.values() for r in s.inputs if r.channel.restored}
    return {
        task: replace(restored, logs=tuple(_turned(log, rests.get(log.channel, 0)) for log in restored.logs))
        for task, restored in plan_restore(cut, deployment, reroute, move_whole).items()
    }


def _turned(log: RestoredLog, rest: int) -> RestoredLog:
    return replace(log, payloads=(*log.payloads[rest:], *log.payloads[:rest]))


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
    def _capture(self, epoch: Epoch, mode: Mode, effects: list[Effect]) -> None:
        super()._capture(epoch, mode, effects)
        effects += [e for e in effects if isinstance(e, Send) and isinstance(e.item, Barrier) and e.item.epoch == epoch]


class EndNotCountedAsBarrier(TaskCore):
    def _live_regular(self) -> list[ChannelId]:
        return [inbox.id for inbox in self.inboxes.values() if not inbox.is_back]


class WallClockCore(TaskCore):
    def on_trigger(self, epoch: Epoch, mode: Mode, within: Epoch | None = None) -> Sequence[Effect]:
        if mode.is_probe or self.ended or self.alignment.is_over(epoch, mode):
            return super().on_trigger(epoch, mode, within)
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
    barrier is back, with no log. The literature describes it; it loses what the body sent before its own capture and
    the head sent on before the barrier came back.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sent_on: set[Epoch] = set()
        self.alignment = self.snapshots.alignment = _BlockingAlignment(self)

    def _capture(self, epoch: Epoch, mode: Mode, effects: list[Effect]) -> None:
        if not self.task.is_head or self.iteration is not None or mode is not Mode.ALIGNED:
            super()._capture(epoch, mode, effects)
            return
        if epoch not in self.sent_on:
            self.sent_on.add(epoch)
            effects += [Send(o.id, Barrier(epoch, mode, o.sent, o.digest)) for o in self.outlets.values()]
            return
        captured: list[Effect] = []
        super()._capture(epoch, mode, captured)
        effects += [e for e in captured if not (isinstance(e, Send) and isinstance(e.item, Barrier))]


# -- durability, attempts, termination ---------------------------------------------------------------------------


class HastyHost(Host):
    """Acknowledges before the files are durable."""

    def _carry_out_one(self, effect: Effect, around: Surroundings) -> Iterable[Effect]:
        following = super()._carry_out_one(effect, around)
        if isinstance(effect, Write) and effect.epoch is not None:
            report = self.core.logs.epochs[effect.epoch].report()
            around.report(self.attempt, self.id, Acknowledge(effect.epoch, report))
        return following


class ForgetfulHost(Host):
    """Drops what its sinks prepared for an epoch when that epoch is aborted."""

    def _discard(self, epoch: Epoch, around: Surroundings) -> None:
        super()._discard(epoch, around)
        for sink in self.runtime._sinks:  # pyright: ignore[reportPrivateUsage]
            for name in [name for name, transaction in sink.transactions.items() if transaction.epoch == epoch]:
                del sink.transactions[name]


class StaleAttemptAccepted(TaskCore):
    def receive(self, channel: ChannelId, attempt: Attempt, item: Item) -> Sequence[Effect]:
        return super().receive(channel, self.attempt, item)


class TerminateWhileInFlight(Coordinator):
    def _is_dry(self, component: Component, reports: dict[TaskId, Report], *, for_drain: bool) -> bool:
        return True


def wrong_key_group(
    cut: Cut, deployment: Deployment, reroute: Reroute, move_whole: MoveWhole
) -> dict[TaskId, TaskRestore]:
    """Under another parallelism each task takes the key groups of its neighbour."""
    plan = plan_restore(cut, deployment, reroute, move_whole)
    if cut.parallelism == deployment.parallelism:
        return plan
    turned: dict[TaskId, TaskRestore] = {}
    for task, restored in plan.items():
        width = deployment.parallelism[task.name]
        neighbour = plan[TaskId(task.name, (task.index + 1) % width)]
        operators = {
            name: replace(state, groups=neighbour.operators[name].groups) for name, state in restored.operators.items()
        }
        turned[task] = replace(restored, operators=operators)
    return turned


def source_skips_a_record(
    cut: Cut, deployment: Deployment, reroute: Reroute, move_whole: MoveWhole
) -> dict[TaskId, TaskRestore]:
    """A source goes on behind the record that it should send next."""
    plan = plan_restore(cut, deployment, reroute, move_whole)
    return {task: replace(part, operators=_shifted(part.operators)) for task, part in plan.items()}


def _shifted(operators: Mapping[str, OperatorState]) -> dict[str, OperatorState]:
    return {
        name: replace(state, splits={split: pickle.dumps(pickle.loads(at) + 1) for split, at in state.splits.items()})
        for name, state in operators.items()
    }


class SharedWhileEncoding(KeyedState):
    def must_copy(self, value: Any) -> bool:
        return False


# -- rounds ------------------------------------------------------------------------------------------------------


class HoldAtRoundMarkers(TaskCore):
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


def _core(core: type[TaskCore]) -> Callable[[], Parts]:
    return lambda: Parts(core=core)


BREAKS = {
    "no-loop-log": Break("a head logs nothing", _core(NoLoopLog)),
    "log-without-the-queue": Break("the log misses what was queued at the capture", _core(LogWithoutTheQueue)),
    "log-stops-at-first-barrier": Break("one barrier seals all channels", _core(LogStopsAtFirstBarrier)),
    "no-hold-before-capture": Break("a channel goes on behind its barrier", _core(NoHoldBeforeCapture)),
    "capture-before-alignment": Break("a task captures at the first barrier", _core(CaptureBeforeAlignment)),
    "log-not-replayed": Break("a restore forgets the logs", _core(LogNotReplayed)),
    "replay-lost-in-new-snapshot": Break("a new log misses the restored rest", _core(ReplayLostInNewSnapshot)),
    "restored-rest-behind-live-log": Break(
        "the restored rest comes behind the live log", lambda: Parts(plan_restore=rest_behind_live_log)
    ),
    "abort-ignored": Break("a task goes on holding for an aborted epoch", _core(AbortIgnored)),
    "acknowledged-before-durable": Break("a task acknowledges what is not written", lambda: Parts(host=HastyHost)),
    "prepared-dropped-on-abort": Break("an abort drops prepared output", lambda: Parts(host=ForgetfulHost)),
    "stale-attempt-accepted": Break("messages of a dead attempt count", _core(StaleAttemptAccepted)),
    "duplicate-barrier": Break("a barrier is sent twice", _core(DuplicateBarrier)),
    "end-not-counted-as-barrier": Break("an ended channel is waited for", _core(EndNotCountedAsBarrier)),
    "terminate-while-in-flight": Break(
        "a loop ends with records in it", lambda: Parts(coordinator=TerminateWhileInFlight)
    ),
    "wrong-key-group-on-rescale": Break("keys go to the wrong task", lambda: Parts(plan_restore=wrong_key_group)),
    "source-skips-a-record": Break(
        "a source is restored one record too far", lambda: Parts(plan_restore=source_skips_a_record)
    ),
    "mutated-while-encoding": Break(
        "user code changes what is being encoded", lambda: Parts(keyed_state=SharedWhileEncoding)
    ),
    "wall-clock-capture": Break(
        "tasks capture when they are told the time",
        lambda: Parts(core=WallClockCore, coordinator=WallClockCoordinator),
    ),
    "hold-at-round-markers": Break("a channel that is ahead is held", _core(HoldAtRoundMarkers)),
    "heads-choose-the-cut-between-rounds": Break("each head cuts after a round of its own", _core(HeadsChooseTheCut)),
    "blocking-variant": Break("the head captures when its barrier is back", _core(BlockingVariant)),
}

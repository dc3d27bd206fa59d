"""What counts as written, asked for and ended (rules 7 and 10), and how messages about it travel."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from backedge.engine.simulation.breaks.break_parts import Break
from backedge.engine.task.driver import TaskDriver
from backedge.graphs.deployment import Component
from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.recovery.protocol.coordinator import Coordinator
from backedge.recovery.protocol.effects import Acknowledge, Effect, Report, Write
from backedge.recovery.protocol.messages import Item
from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.protocol.reliable_line import LineEnd, Said
from backedge.recovery.protocol.requests import Request
from backedge.recovery.protocol.supervisor import Supervisor
from backedge.recovery.protocol.task import TaskCore
from backedge.recovery.protocol.termination import Termination


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


class RequestServedTwice(Coordinator):
    """Opens an epoch for a request although one is open."""

    def _is_served(self, request: Request) -> bool:
        return False


class AnsweredStopForgotten(Supervisor):
    def _ends_run(self, cut: Manifest) -> bool:
        return False


class OrderNotRepeated(LineEnd):
    def due(self, now_ms: int) -> list[Said]:
        return []


class RepeatedOrderObeyed(LineEnd):
    def accepts(self, message: Said) -> bool:
        return super().accepts(message) or message.number > 0


class _AlwaysDry(Termination):
    def is_dry(self, component: Component, reports: Mapping[TaskId, Report], ended: Collection[TaskId]) -> bool:
        return True


class ManifestsSideBySide(Coordinator):
    """Has a manifest written while another one is on its way."""

    def _is_recording(self) -> bool:
        return False


class TerminateWhileInFlight(Coordinator):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.probes.termination = _AlwaysDry(self.deployment)


COMPLETION = {
    "acknowledged-before-durable": Break("a task acknowledges a snapshot that is not written", driver=HastyDriver),
    "prepared-dropped-on-abort": Break("an abort drops prepared output", driver=ForgetfulDriver),
    "stale-attempt-accepted": Break("messages of a dead attempt count", core=StaleAttemptAccepted),
    "request-served-twice": Break("a request has several epochs at once", coordinator=RequestServedTwice),
    "answered-stop-forgotten": Break(
        "the chain does not say that the run ends with a cut", supervisor=AnsweredStopForgotten
    ),
    "order-not-repeated": Break("lost orders and reports are not repeated", line_end=OrderNotRepeated),
    "repeated-order-obeyed": Break("repeated and late orders are obeyed", line_end=RepeatedOrderObeyed),
    "manifests-side-by-side": Break("two manifests are on their way at once", coordinator=ManifestsSideBySide),
    "terminate-while-in-flight": Break("a loop ends with records in it", coordinator=TerminateWhileInFlight),
}

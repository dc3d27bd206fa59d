"""Credit, and what waits for it (rule 9)."""

from __future__ import annotations

from typing import Any

from backedge.engine.simulation.breaks.break_parts import Break
from backedge.engine.task.channel_ends import Arrivals, RemoteBackEdge, RemoteChannel, SendCredit
from backedge.engine.task.driver import TaskDriver
from backedge.graphs.deployment import Channel
from backedge.recovery.protocol.credit import Bounded, Room
from backedge.recovery.protocol.messages import Barrier, Data, Item
from backedge.recovery.protocol.orders import Abort, Order


class CreditNotRepeated(TaskDriver):
    class arrivals_class(Arrivals):
        __slots__ = ()

        def repeat_credit(self, now_ms: int) -> bool:
            return False


class BackEdgeWaitsForCredit(TaskDriver):
    """Bounds back edges like other channels."""

    class room_class(Room):
        __slots__ = ()

        def add(self, channel: Channel, out: Bounded) -> None:
            self._bounded.append(out)

    class back_edge_class(RemoteBackEdge):
        __slots__ = ()

        send = RemoteChannel.send
        is_full = RemoteChannel.is_full
        on_credit = RemoteChannel.on_credit

    class arrivals_class(Arrivals):
        __slots__ = ()

        def __init__(self, tell: SendCredit | None, **options: Any) -> None:
            super().__init__(tell, **{**options, "is_back": False})


class CreditCountsBarriers(TaskDriver):
    """The sender spends credit for barriers, which the receiver never grants back."""

    class remote_class(RemoteChannel):
        __slots__ = ()

        def send(self, item: Item) -> None:
            if isinstance(item, Barrier):
                self.sent += 100
            super().send(item)


class MarkerOvertakesABatch(TaskDriver):
    """Sends barriers and markers at once, although batches before them wait for credit."""

    class back_edge_class(RemoteBackEdge):
        __slots__ = ()

        def send(self, item: Item) -> None:
            if self.waiting and not (isinstance(item, Data) and item.marker is None):
                self._send(item)
            else:
                super().send(item)


class CreditLostAfterAnAbort(TaskDriver):
    """Resets its count of consumed bytes when an epoch is aborted. Its senders do not."""

    def obey(self, order: Order) -> None:
        if isinstance(order, Abort):
            for arrivals in self.arrivals.values():
                arrivals.consumed = 0
        super().obey(order)


CREDIT = {
    "credit-not-repeated": Break("lost credit is not repeated", driver=CreditNotRepeated),
    "back-edge-waits-for-credit": Break("a back edge is bounded by credit", driver=BackEdgeWaitsForCredit),
    "credit-counts-barriers": Break("barriers spend credit", driver=CreditCountsBarriers),
    "credit-lost-after-an-abort": Break("an abort forgets what was consumed", driver=CreditLostAfterAnAbort),
    "marker-overtakes-a-batch": Break(
        "a barrier or marker does not wait behind earlier batches", driver=MarkerOvertakesABatch
    ),
}

"""Routes the batches of a loop log again, for another parallelism."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from backedge.engine.batches.batch import decode, encode
from backedge.engine.operators.sending import Emitted, RebalanceTurn, partitioner
from backedge.graphs.deployment import Channel
from backedge.graphs.ids import RESTORED_SENDER, ChannelId, TaskId
from backedge.graphs.plan import Edge, Routing
from backedge.recovery.cut.cut import LogEntry


def reroute(edge: Edge, entries: Iterable[LogEntry], parallelism: int, index: int) -> list[bytes]:
    """The records for one receiver of the edge, in batches: by key if the edge is keyed, else in turn.

    Every receiver goes through the whole log, so it keeps its own records alone.
    """
    by_key = edge if edge.routing in (Routing.HASH, Routing.ROUTE) else replace(edge, routing=Routing.REBALANCE)
    ids = [ChannelId(edge.name, RESTORED_SENDER, TaskId(edge.receiver, i), restored=True) for i in range(parallelism)]
    channels = [Channel(id, edge, is_back=edge.is_back, depth=0, within_actor=False) for id in ids]
    emitted: Emitted = []
    send = partitioner(by_key, channels, 0, emitted, RebalanceTurn(edge.name))
    routed: list[bytes] = []
    for entry in entries:
        batch = decode(entry.payload).rest(entry.skip)
        send(batch.records, batch.hops)
        routed += [encode(part) for channel, part in emitted if channel.receiver.index == index]
        emitted.clear()
    return routed

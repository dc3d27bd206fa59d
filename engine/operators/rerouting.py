"""Routes the batches of a loop log again, for another parallelism."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from backedge.engine.batches.batch import decode, encode
from backedge.engine.operators.sending import Emitted, RebalanceTurn, partitioner
from backedge.graphs.deployment import Channel
from backedge.graphs.ids import RESTORED_SENDER, ChannelId, TaskId
from backedge.graphs.plan import Edge, Routing
from backedge.recovery.cut.cut import LogEntry
from backedge.recovery.protocol.messages import marker_in
from backedge.recovery.protocol.protocol_errors import RescaleError


def reroute(edge: Edge, entries: tuple[LogEntry, ...], parallelism: int) -> Mapping[int, tuple[bytes, ...]]:
    """The same records, in batches for each receiver of the edge: by key if the edge is keyed, else in turn."""
    by_key = edge if edge.routing in (Routing.HASH, Routing.ROUTE) else replace(edge, routing=Routing.REBALANCE)
    ids = [ChannelId(edge.name, RESTORED_SENDER, TaskId(edge.receiver, i), restored=True) for i in range(parallelism)]
    channels = [Channel(id, edge, is_back=edge.is_back, depth=0, within_actor=False) for id in ids]
    emitted: Emitted = []
    send = partitioner(by_key, channels, 0, emitted, RebalanceTurn(edge.name))
    for entry in entries:
        if marker_in(entry.payload) is not None:
            raise RescaleError(
                f"the log of edge '{edge.name}' holds a round marker; another parallelism needs a cut between rounds"
            )
        batch = decode(entry.payload).rest(entry.skip)
        send(batch.records, batch.hops)
    routed: dict[int, list[bytes]] = {}
    for channel, batch in emitted:
        routed.setdefault(channel.receiver.index, []).append(encode(batch))
    return {index: tuple(batches) for index, batches in routed.items()}

"""Where the output of an operator goes: partitioners put it into the channels of an edge, `fan_out` to several targets.

Everything is a `Send`: a function that takes records and their hops and gives them to the next one, down to the list of
what the task has emitted. It is never called with no records. What is sent belongs to the receiver, who may change
it in place; so each further target gets a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any, cast

from engine.batch import Batch, Hops, copy_records, uniform
from engine.errors import RoutingError, show, user_error
from engine.extraction import key_function
from graphs.deployment import Channel
from graphs.ids import ChannelId
from graphs.plan import Edge, Routing
from graphs.routing import key_group, task_of_group

Send = Callable[[list[Any], Hops], None]
Emitted = list[tuple[ChannelId, Batch]]

TARGETS_CACHED_MAX = 65_536


class RebalanceTurn:
    """Whose turn it is on an edge that deals its records out. It is state: a restored run deals on from there."""

    def __init__(self, edge: str) -> None:
        self.edge = edge
        self.position = 0


def drop(records: list[Any], hops: Hops) -> None:
    """The output that nobody reads."""


def fan_out(sends: Sequence[Send]) -> Send:
    """One `Send` for several targets. The copies are made before the first target can change anything."""
    if not sends:
        return drop
    if len(sends) == 1:
        return sends[0]
    first, others = sends[0], sends[1:]

    def send_to_all(records: list[Any], hops: Hops) -> None:
        copies = [copy_records(records) for _ in others]
        first(records, hops)
        for send, copied in zip(others, copies, strict=True):
            send(copied, hops)

    return send_to_all


def partitioner(edge: Edge, channels: Sequence[Channel], sender_index: int, out: Emitted, turn: RebalanceTurn) -> Send:
    """The `Send` that puts records into the channels of one edge, by its routing."""
    ids = [channel.id for channel in sorted(channels, key=lambda channel: channel.id.receiver.index)]
    if edge.routing is Routing.BROADCAST:
        return fan_out([_to_one(id, out) for id in ids])
    if edge.routing is Routing.FORWARD:
        # The back edge of an iteration has channels to every head, for its markers; the records go straight on.
        return _to_one(next(id for id in ids if id.receiver.index == sender_index), out)
    if edge.routing is Routing.ROUTE:
        return _by_target(ids, out, _route_function(edge, len(ids)))
    if len(ids) == 1:
        return _to_one(ids[0], out)
    if edge.routing is Routing.REBALANCE:
        return _in_turn(ids, out, turn)
    return _by_target(ids, out, _hash_function(edge, len(ids)))


def _to_one(channel: ChannelId, out: Emitted) -> Send:
    def send(records: list[Any], hops: Hops) -> None:
        out.append((channel, Batch(records, hops)))

    return send


def _in_turn(ids: list[ChannelId], out: Emitted, turn: RebalanceTurn) -> Send:
    count = len(ids)

    def send(records: list[Any], hops: Hops) -> None:
        for target in range(count):
            start = (target - turn.position) % count
            dealt = records[start::count]
            if dealt:
                out.append((ids[target], Batch(dealt, hops if isinstance(hops, int) else uniform(hops[start::count]))))
        turn.position = (turn.position + len(records)) % count

    return send


def _by_target(ids: list[ChannelId], out: Emitted, target_of: Callable[[Any], int]) -> Send:
    def send(records: list[Any], hops: Hops) -> None:
        if len(records) == 1:
            out.append((ids[target_of(records[0])], Batch(records, hops)))
            return
        parts: list[list[Any]] = [[] for _ in ids]
        if isinstance(hops, int):
            for record in records:
                parts[target_of(record)].append(record)
            out.extend((id, Batch(part, hops)) for id, part in zip(ids, parts, strict=True) if part)
            return
        hops_parts: list[list[int]] = [[] for _ in ids]
        for record, hop in zip(records, hops, strict=True):
            target = target_of(record)
            parts[target].append(record)
            hops_parts[target].append(hop)
        for id, part, hops_part in zip(ids, parts, hops_parts, strict=True):
            if part:
                out.append((id, Batch(part, uniform(hops_part))))

    return send


def _hash_function(edge: Edge, count: int) -> Callable[[Any], int]:
    by = key_function(edge.by)
    cached: dict[Any, int] = {}

    def target_of(record: Any) -> int:
        try:
            key = by(record)
        except Exception as error:
            raise user_error(edge.sender, error, record, hook=_place("key_by", edge), can_set_aside=False) from error
        try:
            return cached[key]
        except KeyError:
            pass
        except TypeError as error:
            raise RoutingError(
                f"{_place('key_by', edge)}: the key {show(key)} of record {show(record)} cannot be hashed ({error}): "
                "give a key of plain values, such as a tuple instead of a list"
            ) from error
        if len(cached) >= TARGETS_CACHED_MAX:
            cached.clear()
        target = cached[key] = task_of_group(key_group(key), count)
        return target

    return target_of


def _route_function(edge: Edge, count: int) -> Callable[[Any], int]:
    by = cast("Callable[[Any], Any]", edge.by)

    def target_of(record: Any) -> int:
        try:
            return index(by(record)) % count
        except Exception as error:
            raise user_error(edge.sender, error, record, hook=_place("route", edge), can_set_aside=False) from error

    return target_of


def _place(what: str, edge: Edge) -> str:
    return f"{what} between {edge.sender!r} and {edge.receiver!r}"

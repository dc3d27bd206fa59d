"""Sends an operator's output: partitioners put it into the channels of an edge, `fan_out` sends it to several targets.

Everything is a `Send`: a function that takes records and their hops and passes them to the next one, down to the list
of what the task has emitted. It is never called without records. The receiver owns what is sent and may change it in
place, so each additional target gets a copy.

Columns stay columns until they reach the door of an operator that only takes records (`taking_records`), or an edge
whose function must see each record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import index, itemgetter, length_hint
from typing import Any, Protocol, cast

import numpy as np

from backedge.engine.batches.batch import Batch, Hops, own_copy, uniform
from backedge.engine.batches.columns import Columns, Records
from backedge.engine.batches.division import Division, Positions
from backedge.engine.batches.repeated_keys import Content, RepeatedKeys
from backedge.graphs.deployment import Channel
from backedge.graphs.graph_errors import UnkeyableError
from backedge.graphs.ids import ChannelId
from backedge.graphs.plan import Edge, KeyColumns, Routing
from backedge.graphs.routing import canonical_key, key_group, small_tasks_of_keys, small_tasks_of_tuples, task_of_group
from backedge.graphs.task_errors import (
    NO_KEY,
    USER_RAISED,
    MisuseError,
    RoutingError,
    TaskError,
    describe,
    show,
    user_error,
)

Send = Callable[[Records, Hops], None]
TakeRecords = Callable[[list[Any], Hops], None]
Emitted = list[tuple[ChannelId, Batch]]

TARGETS_CACHED_MAX = 65_536


class RebalanceTurn:
    """The next target of an edge that distributes records in turn. It is state: a restored run continues there."""

    def __init__(self, edge: str) -> None:
        self.edge = edge
        self.position = 0


def drop(records: Records, hops: Hops) -> None:
    """The `Send` of an output that nothing reads."""


def taking_records(take: TakeRecords) -> Send:
    """The door of an operator that only takes records."""

    def send(records: Records, hops: Hops) -> None:
        take(records.to_records() if isinstance(records, Columns) else records, hops)

    return send


def fan_out(sends: Sequence[Send]) -> Send:
    """One `Send` for several targets. The copies are made before the first target can change anything."""
    if not sends:
        return drop
    if len(sends) == 1:
        return sends[0]
    first, others = sends[0], sends[1:]

    def send_to_all(records: Records, hops: Hops) -> None:
        copies = [own_copy(records) for _ in others]
        first(records, hops)
        for send, copied in zip(others, copies, strict=True):
            send(copied, hops)

    return send_to_all


def partitioner(edge: Edge, channels: Sequence[Channel], sender_index: int, out: Emitted, turn: RebalanceTurn) -> Send:
    """The `Send` that puts records into the channels of an edge, according to its routing."""
    ids = [channel.id for channel in sorted(channels, key=lambda channel: channel.id.receiver.index)]
    if edge.routing is Routing.BROADCAST:
        return fan_out([_to_one(id, out) for id in ids])
    if edge.routing is Routing.FORWARD:
        # The back edge of an iteration has channels to every head, for its markers, but records go to one head only.
        return _to_one(next(id for id in ids if id.receiver.index == sender_index), out)
    if edge.routing is Routing.ROUTE:
        return _by_target(ids, out, _divide_by_route(edge, len(ids)))
    if len(ids) == 1:
        return _to_one(ids[0], out)
    if edge.routing is Routing.REBALANCE:
        return _in_turn(ids, out, turn)
    targets = _Targets(len(ids))
    divide_columns = None
    if isinstance(edge.by, str):
        divide_columns = _dividing((edge.by,), len(ids), partial(_targets_of_columns, edge, edge.by, targets))
    elif isinstance(edge.by, KeyColumns):
        names = edge.by.names
        divide_columns = _dividing(names, len(ids), partial(_targets_of_tuples, names, len(ids)))
    return _by_target(ids, out, _divide_by_key(edge, targets), divide_columns)


def _to_one(channel: ChannelId, out: Emitted) -> Send:
    def send(records: Records, hops: Hops) -> None:
        out.append((channel, Batch(records, hops)))

    return send


def _in_turn(ids: list[ChannelId], out: Emitted, turn: RebalanceTurn) -> Send:
    count = len(ids)

    def send(records: Records, hops: Hops) -> None:
        for target in range(count):
            start = (target - turn.position) % count
            dealt = records[start::count]
            if dealt:
                out.append((ids[target], Batch(dealt, hops if isinstance(hops, int) else uniform(hops[start::count]))))
        turn.position = (turn.position + len(records)) % count

    return send


def _by_target(
    ids: list[ChannelId],
    out: Emitted,
    divide: Callable[[list[Any], Sequence[_Part]], None],
    divide_columns: Callable[[Columns], Division | None] | None = None,
) -> Send:
    def send(records: Records, hops: Hops) -> None:
        if isinstance(records, Columns):
            division = None if divide_columns is None else divide_columns(records)
            if division is not None:
                out.extend((ids[target], Batch(part, hops)) for target, part in division.parts(records))
                return
            records = records.to_records()
        if isinstance(hops, int):
            parts: list[list[Any]] = [[] for _ in ids]
            divide(records, parts)
            out.extend((id, Batch(part, hops)) for id, part in zip(ids, parts, strict=True) if part)
            return
        all_hops = iter(hops)
        with_hops = [_PartWithHops(all_hops) for _ in ids]
        divide(records, with_hops)
        out.extend((id, Batch(p.records, uniform(p.hops))) for id, p in zip(ids, with_hops, strict=True) if p.records)

    return send


class _Part(Protocol):
    """The records that go to one of the targets."""

    def append(self, record: Any, /) -> None: ...


class _PartWithHops:
    """The same for a batch whose records differ in hops: each appended record brings its own hops."""

    def __init__(self, all_hops: Iterator[int]) -> None:
        self.records: list[Any] = []
        self.hops: list[int] = []
        self._all_hops = all_hops

    def append(self, record: Any, /) -> None:
        self.records.append(record)
        self.hops.append(next(self._all_hops))


class _Targets:
    """The index of the task of each key, computed once per key.

    - count: the number of tasks. known: key -> index. A plain dict, because Python finds keys in a subclass of dict
      through several functions.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.known: dict[Any, int] = {}

    def of(self, key: Any) -> int:
        target = self.known.get(key)
        if target is None:
            if len(self.known) >= TARGETS_CACHED_MAX:
                self.known.clear()
            target = self.known[key] = task_of_group(key_group(key), self.count)
        return target


def _dividing(
    names: Sequence[str], count: int, targets: Callable[[Columns], Positions | None]
) -> Callable[[Columns], Division | None]:
    """A function that divides columns by these keys, and remembers how if the same keys come again."""
    known = RepeatedKeys[Division]()

    def divide(columns: Columns) -> Division | None:
        if not set(names) <= set(columns.names):
            return None
        content = Content.of_columns([columns.batch.column(name) for name in names])
        division = known.find(content)
        if division is None and (found := targets(columns)) is not None:
            division = Division.among(found, count)
            known.note(content, division.size + len(content), lambda: division.with_keys(columns, names))
        return division

    return divide


def _targets_of_columns(edge: Edge, by: str, targets: _Targets, columns: Columns) -> Positions | None:
    """The target of each row, the same as for a record with this key. None: decide record by record."""
    keys = columns.keys(by)
    if keys is None:
        return None
    try:
        if isinstance(keys, np.ndarray):
            return small_tasks_of_keys(keys, targets.count)
        distinct, positions = keys
        return np.array(list(map(targets.of, distinct)), np.int64)[positions]
    except UnkeyableError as error:
        raise RoutingError(f"{_place('key_by', edge)}: {error}") from error


def _targets_of_tuples(names: Sequence[str], count: int, columns: Columns) -> Positions | None:
    """The same for a key of several columns."""
    parts = [part for name in names if (part := columns.keys(name)) is not None]
    return small_tasks_of_tuples(parts, count) if len(parts) == len(names) else None


def key_function(by: Callable[[Any], Any] | str | None) -> Callable[[Any], Any]:
    """The function that returns a record's key.

    >>> key_function("id")({"id": 7})
    7
    """
    if by is None:
        raise MisuseError("records must be keyed, but the plan has no key for them: call key_by first")
    return itemgetter(by) if isinstance(by, str) else by


def _divide_by_key(edge: Edge, targets: _Targets) -> Callable[[list[Any], Sequence[_Part]], None]:
    by, known, target_of = key_function(edge.by), targets.known, targets.of

    def divide(records: list[Any], parts: Sequence[_Part]) -> None:
        iterator = iter(records)
        key: Any = NO_KEY
        try:
            try:
                # One pass without a list of keys takes a quarter less time than collecting keys, then targets.
                for record in iterator:
                    key = by(record)
                    parts[known[key]].append(record)
                return
            except KeyError:
                if key is NO_KEY or key in known:
                    raise  # from the function of the key: this is the key of the record before
            parts[target_of(key)].append(records[len(records) - length_hint(iterator) - 1])
            # A new key is rarely the only one of a batch, and a KeyError for each would take longer than `get` for all.
            for record in iterator:
                key = by(record)
                target = known.get(key)
                parts[target_of(key) if target is None else target].append(record)
        except USER_RAISED as error:
            raise _no_target(edge, by, targets, records[len(records) - length_hint(iterator) - 1], error) from error

    return divide


def _no_target(edge: Edge, by: Callable[[Any], Any], targets: _Targets, record: Any, error: BaseException) -> TaskError:
    """The error to raise for a record without a target. Only now is it noted whether it has a key: by trying again."""
    key: Any = NO_KEY
    try:
        key = by(record)
        targets.of(key)
    except USER_RAISED:
        if key is not NO_KEY:
            return wrong_key(edge, key, record, error)
    # The function of the key has raised, if only the first time.
    return key_raised(edge, record, error)


def key_raised(edge: Edge, record: Any, error: BaseException) -> TaskError:
    """The error to raise where the function of the key has raised, or the column is not there."""
    return user_error(edge.sender, error, record, can_set_aside=False, subject=_place("key_by", edge))


def key_failure(edge: Edge, key: Any, record: Any, error: BaseException) -> TaskError | None:
    """The error to raise if the key is at fault: it could not be computed, or is none. Otherwise None."""
    if key is NO_KEY:
        return key_raised(edge, record, error)
    try:
        canonical_key(key)
    except USER_RAISED as fault:
        return wrong_key(edge, key, record, fault)
    return None


def wrong_key(edge: Edge, key: Any, record: Any, error: BaseException) -> RoutingError:
    """The error to raise where there is a key, and it is none that can be used."""
    which = f"{_place('key_by', edge)}: the key {show(key)} of record {show(record)}"
    if isinstance(error, UnkeyableError):
        return RoutingError(f"{which}: {error}")
    return RoutingError(
        f"{which} cannot be hashed ({describe(error)}): give a key of plain values, such as a tuple instead of a list"
    )


def _divide_by_route(edge: Edge, count: int) -> Callable[[list[Any], Sequence[_Part]], None]:
    by = cast("Callable[[Any], Any]", edge.by)

    def divide(records: list[Any], parts: Sequence[_Part]) -> None:
        iterator = iter(records)
        try:
            for record in iterator:
                parts[index(by(record)) % count].append(record)
        except USER_RAISED as error:
            record = records[len(records) - length_hint(iterator) - 1]
            raise user_error(edge.sender, error, record, can_set_aside=False, subject=_place("route", edge)) from error

    return divide


def _place(what: str, edge: Edge) -> str:
    return f"{what} between {edge.sender!r} and {edge.receiver!r}"

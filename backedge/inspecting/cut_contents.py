"""What is in one complete cut: state by key, and the records in flight, as JSON text.

Nothing is unpickled: plain values become JSON, and objects of other classes a description of what the pickle says
(`recovery/spark/cut_tables/decoding.py`). Files are verified before they are decoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple, cast

from backedge.flows import WrongCallError
from backedge.graphs.describing import edges_in
from backedge.graphs.plan import digits_of, operators_round
from backedge.recovery.spark.cut_tables.decoding import position_in, records_of
from backedge.recovery.spark.cut_tables.file_rows import identity, with_values
from backedge.recovery.spark.cut_tables.plain_pickles import UnreadablePickleError, load
from backedge.recovery.spark.cut_tables.table_rows import as_state
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.manifests import CutDescription
from backedge.recovery.stores.parquet_tables import ROWS_NAMES
from backedge.recovery.stores.store_errors import SnapshotCorruptError
from backedge.recovery.stores.task_tables import TaskReader


class StateEntry(NamedTuple):
    """One entry of an operator's state; key and value are JSON, None where they are missing or cannot be read.

    `kind` is "value", "timer" (the value is its time), "pending" (an input that waits for the next round) or "whole"
    (state of the task itself, without a key).
    """

    task: str
    kind: str
    key: str | None
    value: str | None


class InFlight(NamedTuple):
    """One record that was between two tasks. `record` is JSON; `rounds` is None for a loop that does not count them."""

    receiver: str
    sender: str
    edge: str
    rounds: int | None
    record: str | None


class NoSuchNameError(WrongCallError):
    """The cut has no operator or loop of this name; the message says what it has."""


class CutContents:
    def __init__(self, store: CutStore, cut: CutDescription) -> None:
        self._store = store
        self.cut = cut

    @cached_property
    def _edges(self) -> Any:
        return edges_in(self._store.graph(self.cut.graph_hash))

    @property
    def operators(self) -> list[str]:
        """The operators of the cut, in the order of its tasks."""
        return list(dict.fromkeys(facts.name for task in self.cut.tasks.values() for facts in task.operators))

    @property
    def loops(self) -> list[str]:
        """The loops of its graph, and the edges outside of loops whose channels were logged as well."""
        loops = [edge.loop for edge in self._edges if edge.loop is not None]
        return list(dict.fromkeys([*loops, *self.cut.logs]))

    # -- state ---------------------------------------------------------------------------------------------------

    def state(self, operator: str) -> Iterator[StateEntry]:
        """The state of an operator, over all of its tasks. Raises `NoSuchNameError` at once."""
        if operator not in self.operators:
            raise NoSuchNameError(f"there is no operator {operator!r}; there are: {', '.join(self.operators)}")
        return self._state(operator)

    def _state(self, operator: str) -> Iterator[StateEntry]:
        for id, files in self.cut.tasks.items():
            if any(facts.name == operator for facts in files.operators):
                yield from _entries(str(id), self._store.reader_of(files), operator)

    # -- sources and sinks ---------------------------------------------------------------------------------------

    def positions(self) -> dict[str, int | None]:
        """How far each split of a source was read, such as "orders: part-0"; None where it cannot be counted."""
        return {
            f"{facts.name}: {split}": position_in(position)
            for task in self.cut.tasks.values()
            for facts in task.operators
            for split, position in facts.positions.items()
        }

    def transactions(self) -> Iterator[tuple[str, str]]:
        """The transactions of sinks that the cut lists, by task: they are published because it is complete."""
        for id, files in self.cut.tasks.items():
            for name in files.transactions:
                yield str(id), name

    # -- records in flight ---------------------------------------------------------------------------------------

    def in_flight(self, loop: str) -> Iterator[InFlight]:
        """The records that were on their way round a loop, or in the channels of an edge that was logged.

        In some cuts, the channels between the operators of the loop were logged as well. Inner loops are included.
        """
        if loop not in self.loops:
            known = ", ".join(self.loops)
            raise NoSuchNameError(f"there is no loop {loop!r}; there are: {known}" if known else "there is no loop")
        return self._in_flight(loop)

    def _in_flight(self, loop: str) -> Iterator[InFlight]:
        is_loop = any(edge.loop == loop for edge in self._edges)
        inside = operators_round(loop, self._edges) if is_loop else frozenset[str]()
        ways = {edge.name for edge in self._edges if {edge.sender, edge.receiver} <= inside} if is_loop else {loop}
        digit = digits_of(self._edges).get(loop)
        for id, files in self.cut.tasks.items():
            reader = self._store.reader_of(files)
            for edge, sender, payload, skip in _batches(reader):
                if edge not in ways:
                    continue
                for record, hops in records_of(payload)[skip:]:
                    yield InFlight(str(id), sender, edge, _rounds(digit, hops), record)
            if any(facts.name == loop for facts in files.operators):
                for entry in _entries(str(id), reader, loop):
                    if entry.kind == "pending":
                        yield InFlight(str(id), "", loop, None, _first(entry.value))


def _rounds(digit: Any, hops: int | None) -> int | None:
    return None if digit is None or hops is None else digit.of(hops)


def _first(pair: str | None) -> str | None:
    """The record of a pending input, which is a pair of a record and its hops."""
    parts: Any = None if pair is None else json.loads(pair)
    return compact(parts[0]) if isinstance(parts, list) and parts else None


def compact(value: Any) -> str:
    """JSON in the form of the keys and values of a `StateEntry`."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _batches(reader: TaskReader) -> Iterator[tuple[str, str, bytes, int]]:
    """The batches before a task: edge, sender, the encoded batch, and how many of its records were processed."""
    for channel, entries in reader.logs().items():
        for entry in entries:
            yield channel.edge, str(channel.sender), entry.payload, entry.skip
    data = reader.rounds_data()
    if data is None:
        return
    aside, skips = _set_aside(data)
    for ends, payloads in aside.items():
        for place, payload in enumerate(payloads):
            yield ends[0], f"{ends[1]}/{ends[2]}", payload, 0 if place else skips.get(ends, 0)


def _set_aside(data: bytes) -> tuple[Mapping[Any, Any], Mapping[Any, int]]:
    """The batches set aside for a later round, by channel, and how many records of the first were processed."""
    try:
        parts = cast("tuple[Any, ...]", load(data))
        _, _, _, _, aside, _, _, _, skips = parts
        return dict(aside), dict(skips)
    except (UnreadablePickleError, ValueError, TypeError) as error:
        raise SnapshotCorruptError(f"the rounds of a task cannot be read ({error}): restore another cut") from error


def _entries(task: str, reader: TaskReader, operator: str) -> Iterator[StateEntry]:
    """The state of an operator in one task. For each key the newest layer that has it counts."""
    newer: set[str] = set()
    layers = list(reader.state_layers(operator))
    for place, tables in enumerate(reversed(layers)):
        here: set[str] = set()
        for table in tables:
            for kind, group, key_int, key_str, key, value, data in _rows_in(table):
                # One layer, as most states have, needs no comparison.
                same = None if len(layers) == 1 else identity(kind, group, key_int, key_str, key, data)
                if same in newer:
                    continue
                if same is not None and place < len(layers) - 1:
                    here.add(same)
                if kind != "gone":
                    yield StateEntry(task, kind, key, value)
        newer |= here


def _rows_in(table: Any) -> Iterator[tuple[Any, ...]]:
    """Kind, key group, key_int, key_str, key and value as JSON, and data."""
    rows = as_state(table) if table.schema.names == ROWS_NAMES else table
    wanted = ("kind", "key_group", "key_int", "key_str", "key", "value", "data")
    # Some at a time: a caller may look at the first ones only.
    for batch in rows.to_batches(max_chunksize=1000):
        columns = with_values({name: batch[name].to_pylist() for name in batch.schema.names})
        yield from zip(*(columns[name] for name in wanted), strict=True)


def key_matcher(wanted: str) -> set[str]:
    """The JSON texts of the keys that a word on a command line may mean.

    >>> sorted(key_matcher("7")), sorted(key_matcher('["a", 1]')), sorted(key_matcher("a b"))
    (['"7"', '7'], ['"[\\\\"a\\\\", 1]"', '["a",1]'], ['"a b"'])
    """
    found = {compact(wanted)}
    with suppress(ValueError, RecursionError):
        found.add(compact(json.loads(wanted)))
    return found

"""Batches: records that travel together, with the number of times each has gone round a loop.

Records are a list, or columns (`columns.py`). Hops are one int if all records of a batch agree, as they usually do,
else one int per record; the records of columns always agree.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import groupby
from typing import Any, cast
from uuid import UUID

import numpy as np

from backedge.engine.batches.columns import COLUMNS_BYTE, Columns, Records, concat, decode_columns, encode_columns
from backedge.engine.batches.unpickle_check import check_reads_back
from backedge.graphs.task_errors import RecordSerializationError, describe, show

Hops = int | list[int]

ATOMS = frozenset({int, str, float, bool, type(None), bytes, complex})
"""Types whose values are immutable, so that sharing them is safe."""


_UNCHANGEABLE = ATOMS | {
    *(date, datetime, time, timedelta, Decimal, Fraction, UUID),
    *(np.bool_, np.int32, np.int64, np.float32, np.float64),
}
"""The same and other types that are common in records."""


class Batch:
    """Records that travel together. A batch never spans a barrier.

    >>> batch = Batch(["a", "b"], hops=2)
    >>> decode(encode(batch)) == batch
    True
    """

    __slots__ = ("hops", "records")

    def __init__(self, records: Records, hops: Hops = 0) -> None:
        self.records = records
        self.hops = hops

    def __len__(self) -> int:
        return len(self.records)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and self.records == other.records and self.hops == other.hops

    def part(self, start: int, end: int) -> Batch:
        """The records from `start` to `end`, as a batch.

        >>> Batch(["a", "b", "c"], [0, 1, 1]).part(1, 3)
        Batch(['b', 'c'], hops=1)
        """
        hops = self.hops
        return Batch(self.records[start:end], hops if isinstance(hops, int) else uniform(hops[start:end]))

    def rest(self, skip: int) -> Batch:
        """The batch without its first `skip` records."""
        return self.part(skip, len(self)) if skip else self

    __hash__ = None  # type: ignore[assignment]  # a batch is mutable

    def __repr__(self) -> str:
        return f"Batch({self.records!r}, hops={self.hops!r})"


def encode(batch: Batch, edge: str = "") -> bytes:
    """Encode a batch, for the wire and for logs alike. The bytes contain none of our classes.

    An error names the edge that the batch is sent over.
    """
    records, hops = batch.records, batch.hops
    if isinstance(records, Columns):
        if isinstance(hops, int):
            return encode_columns(records, hops)
        records = records.to_records()
    try:
        payload = pickle.dumps((records, hops), 5)
        check_reads_back(payload)
    except Exception as error:
        raise _does_not_pickle(records, error, edge) from error
    return payload


def decode(payload: bytes) -> Batch:
    """Decode the result of `encode`."""
    if payload[0] == COLUMNS_BYTE:
        return Batch(*decode_columns(payload))
    try:
        records, hops = pickle.loads(payload)
    except (AttributeError, ImportError) as error:
        raise RecordSerializationError(
            f"a record that was sent cannot be read here: {describe(error)}\n"
            "  let the class that it names be found in every process, where it was when the record was sent"
        ) from error
    return Batch(records, hops)


def is_immutable(value: Any) -> bool:
    """Whether the value is immutable.

    >>> is_immutable(("a", 1)), is_immutable(("a", [1]))
    (True, False)
    """
    if type(value) is tuple:
        return all(map(is_immutable, cast("tuple[Any, ...]", value)))
    return cast("type[Any]", type(value)) in ATOMS


def copy_value(value: Any) -> Any:
    """Copy a value through the encoding that a snapshot uses: several times faster than deepcopy."""
    return pickle.loads(pickle.dumps(value, 5))


def separate(value: Any) -> Any:
    """The value if it is immutable, else a copy. Flat lists and dicts, the most common values, are copied fastest.

    >>> point, pair = {"x": 1}, ("a", 1)
    >>> separate(pair) is pair, separate(point) == point, separate(point) is point
    (True, True, False)
    """
    kind = cast("type[Any]", type(value))
    if kind is tuple:
        for part in value:
            if type(part) not in _UNCHANGEABLE and not is_immutable(part):
                return copy_value(value)
        return value
    if kind is dict:
        # Two loops, because the values are what is rarely flat, and most dicts are too small for `issuperset` to pay
        # off.
        for part in value.values():
            if type(part) not in _UNCHANGEABLE:
                return copy_value(value)
        for key in value:
            if type(key) not in _UNCHANGEABLE:
                return copy_value(value)
        return value.copy()
    if kind is list and _UNCHANGEABLE.issuperset(map(type, value)):
        return value.copy()
    return value if kind in _UNCHANGEABLE else copy_value(value)


def copy_records(records: list[Any]) -> list[Any]:
    """Copy the list and its records. Immutable records are shared."""
    if ATOMS.issuperset(map(type, records)) or all(map(is_immutable, records)):
        return list(records)
    try:
        return copy_value(records)
    except Exception as error:
        raise _does_not_pickle(records, error) from error


def separate_record(record: Any) -> Any:
    """The record if it is immutable, else a copy."""
    try:
        return separate(record)
    except Exception as error:
        raise _does_not_pickle([record], error) from error


def separate_records(records: list[Any]) -> list[Any]:
    """Copies of the records that share no object with each other. Immutable records are shared."""
    return list(records) if ATOMS.issuperset(map(type, records)) else list(map(separate_record, records))


def without_repeats(records: list[Any]) -> list[Any]:
    """The records, with a copy wherever an object is there again, so that a change of one in place changes no other.

    >>> point = {"x": 1}
    >>> first, second = without_repeats([point, point])
    >>> first is point, second == point, second is point
    (True, True, False)
    """
    if ATOMS.issuperset(map(type, records)) or len(set(map(id, records))) == len(records):
        return records
    seen: set[int] = set()
    found: list[Any] = []
    for record in records:
        found.append(separate_record(record) if id(record) in seen else record)
        seen.add(id(record))
    return found


def own_copy(records: Records) -> Records:
    """Copy records in either form. Columns are shared, because they are immutable."""
    return records if isinstance(records, Columns) else copy_records(records)


def _does_not_pickle(records: list[Any], error: Exception, edge: str = "") -> RecordSerializationError:
    culprit = next((record for record in records if not _pickles(record)), records)
    where = edge and f" of edge {edge!r}"
    return RecordSerializationError(
        f"record {show(culprit)}{where} can neither travel nor be copied: it cannot be pickled and unpickled "
        f"({describe(error)})\n"
        "  send values that pickle: numbers, text, lists, dicts, arrays, objects of importable classes; exceptions "
        "whose __init__ passes all of its arguments to super().__init__"
    )


def _pickles(record: Any) -> bool:
    try:
        copy_value(record)
    except Exception:  # noqa: BLE001  # whether it raises is the question
        return False
    return True


def uniform(hops: list[int]) -> Hops:
    """One int if all hops agree.

    >>> uniform([2, 2]), uniform([2, 3])
    (2, [2, 3])
    """
    first = hops[0]
    return first if hops.count(first) == len(hops) else hops


def spread(hops: Hops, count: int) -> list[int]:
    """One int per record."""
    return [hops] * count if isinstance(hops, int) else hops


MIXED_RECORDS_MAX = 256


def merge(batches: list[Batch]) -> list[Batch]:
    """Combine batches: the same records in the same order, in fewer batches. Small ones may mix hops.

    Columns are combined if their names and types agree. There is at least one batch.

    >>> merge([Batch(["a"], 1), Batch(["b"], 1), Batch(["c"], 2)])
    [Batch(['a', 'b', 'c'], hops=[1, 1, 2])]
    """
    for batch in batches:
        if isinstance(batch.records, Columns):
            return [merged for _, alike in groupby(batches, _form) for merged in _merge_alike(list(alike))]
    return _merge_lists(batches)


def _form(batch: Batch) -> Any:
    """What two batches must have in common to be combined."""
    return (batch.hops, batch.records.batch.schema) if isinstance(batch.records, Columns) else None


def _merge_alike(batches: list[Batch]) -> list[Batch]:
    columns = [batch.records for batch in batches if isinstance(batch.records, Columns)]
    return [Batch(concat(columns), batches[0].hops)] if columns else _merge_lists(batches)


def _merge_lists(batches: list[Batch]) -> list[Batch]:
    merged: list[Batch] = []
    records, hops = list(batches[0].records), batches[0].hops
    for batch in batches[1:]:
        if isinstance(hops, int) and hops == batch.hops:
            records += batch.records
        elif len(records) < MIXED_RECORDS_MAX or len(batch) < MIXED_RECORDS_MAX:
            hops = [*spread(hops, len(records)), *spread(batch.hops, len(batch))]
            records += batch.records
        else:
            merged.append(Batch(records, hops))
            records, hops = list(batch.records), batch.hops
    return [*merged, Batch(records, hops)]


def runs(records: list[Any], hops: Hops) -> Iterator[tuple[list[Any], int]]:
    """Split a batch into stretches of equal hops, in order, for operators that see several records at once.

    >>> list(runs(["a", "b", "c"], [0, 0, 1]))
    [(['a', 'b'], 0), (['c'], 1)]
    """
    if isinstance(hops, int):
        yield records, hops
        return
    start = 0
    for position in range(1, len(records) + 1):
        if position == len(records) or hops[position] != hops[start]:
            yield records[start:position], hops[start]
            start = position

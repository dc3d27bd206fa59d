"""What the payloads of channels hold, decoded without the code that has encoded them."""

from __future__ import annotations

import pickle
from importlib import import_module
from typing import Any, NamedTuple, cast

COLUMNS = b"A"
"""The first byte of encoded columns."""


class Hop(NamedTuple):
    """A record and the number of times it has gone round a loop."""

    record: Any
    hops: int


def hops_in(payload: bytes) -> list[Hop]:
    """The records of an encoded batch, each with its hops."""
    records, hops = _rows(payload) if payload[:1] == COLUMNS else pickle.loads(payload)
    each: list[int] = [hops] * len(records) if isinstance(hops, int) else hops
    return [Hop(record, hop) for record, hop in zip(records, each, strict=True)]


def _rows(payload: bytes) -> tuple[list[Any], int]:
    """The rows of columns, and their hops: behind 16 bytes, the last 8 of which are the hops, is an Arrow stream."""
    pyarrow: Any = import_module("pyarrow")
    batch = pyarrow.ipc.open_stream(payload[16:]).read_next_batch()
    columns = [list(c.to_numpy_ndarray()) if hasattr(c, "to_numpy_ndarray") else c.to_pylist() for c in batch.columns]
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)], int.from_bytes(
        payload[8:16], "little"
    )


def rest_of(payload: bytes, skip: int) -> bytes:
    """An encoded batch without its first `skip` records."""
    if not skip:
        return payload
    rest = hops_in(payload)[skip:]
    return pickle.dumps(([one.record for one in rest], [one.hops for one in rest]), 5)


def frozen(value: Any) -> Any:
    """A value that can be counted, equal for equal records.

    >>> frozen({"a": [1, 2]}) == frozen({"a": [1, 2]})
    True
    """
    kind = cast("type[Any]", type(value))
    if kind is dict:
        return frozenset((key, frozen(item)) for key, item in value.items())
    if kind is list or kind is tuple:
        return tuple(map(frozen, value))
    if kind is set:
        return frozenset(value)
    return value if kind.__hash__ is not None else repr(value)

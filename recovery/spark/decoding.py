"""Plain values out of pickles and batches, as JSON, without calling or importing anything that a pickle names.

- null, true, false, numbers and text are themselves; NaN and the infinities are the texts "NaN", "Infinity" and
  "-Infinity".
- A list or tuple is a list, a set a list in order; bytes are {"base64": "..."}.
- A dict is an object; a key that is no text becomes the JSON of it, so 7 becomes "7".
- Columns of dates, times and decimals give text.

What holds anything else (an object of a class, an array, a complex number) has no JSON, nor has what is larger than
`VALUES_MAX`: None stands for it.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from recovery.stores.state_table import PlainUnpickler, fits
from recovery.stores.tables import pa

VALUES_MAX = 1_000_000
"""How many values a value may consist of: one that holds itself many times over would never end."""

_COLUMNS_HEADER_BYTES = 16
_AS_TEXT = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal)


class Record(NamedTuple):
    """A record in a loop, as JSON, and how often it has gone round. Both None where the batch cannot be read."""

    record: str | None
    hops: int | None


class Pair(NamedTuple):
    """What a row of state holds, as JSON: of a timer its key and its time, of what waits the value alone."""

    key: str | None
    value: str | None


def json_of(value: Any) -> str | None:
    """The JSON of a plain value; None for any other.

    >>> json_of({"a": (1, 2.5), 7: {b"x"}}), json_of([float("nan"), 1 << 70]), json_of(object())
    ('{"a":[1,2.5],"7":[{"base64":"eA=="}]}', '["NaN",1180591620717411303424]', None)
    """
    try:
        text = json.dumps(_Plain().of(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    # Half of a surrogate pair is no text for anybody else; escaped it is.
    return text if text.isascii() or _is_text(text) else json.dumps(json.loads(text), separators=(",", ":"))


def number_in(data: bytes) -> int | None:
    """The whole number of 64 bits that a pickle holds; None for anything else.

    >>> import pickle
    >>> number_in(pickle.dumps(7)), number_in(pickle.dumps("7")), number_in(pickle.dumps(1 << 63))
    (7, None, None)
    """
    value = _loaded(data)
    return value if type(value) is int and fits(value) else None


def pair_of(kind: str, data: bytes) -> Pair:
    """The key and value of a row of state that stayed as it was pickled.

    >>> import pickle
    >>> pair_of("value", pickle.dumps(("a", [1, 2])))
    Pair(key='"a"', value='[1,2]')
    """
    found = _loaded(data)
    parts = cast("tuple[Any, ...]", found) if type(found) is tuple else ()
    if kind == "value":
        return Pair(json_of(parts[0]), json_of(parts[1])) if len(parts) == 2 else Pair(None, None)
    if kind == "timer":
        return Pair(json_of(parts[0]), json_of(parts[1])) if len(parts) == 3 else Pair(None, None)
    return Pair(None, json_of(found))


def records_of(payload: bytes) -> list[Record]:
    """The records of a batch; a round marker has none.

    >>> import pickle
    >>> records_of(pickle.dumps((["a", {"n": 1}], [0, 2])))
    [Record(record='"a"', hops=0), Record(record='{"n":1}', hops=2)]
    """
    if payload[:1] == b"M":
        return []
    records, hops = _columns_in(payload) if payload[:1] == b"A" else _batch_in(payload)
    if not isinstance(records, list):
        return [Record(None, None)]
    many = cast("list[Any]", records)
    counts: list[Any] = cast("list[Any]", hops) if isinstance(hops, list) else [hops] * len(many)
    if len(counts) != len(many) or not all(type(count) is int for count in counts):
        counts = [None] * len(many)
    return [Record(json_of(record), count) for record, count in zip(many, counts, strict=True)]


def _columns_in(payload: bytes) -> tuple[Any, Any]:
    try:
        batch = pa.ipc.open_stream(payload[_COLUMNS_HEADER_BYTES:]).read_next_batch()
        return batch.to_pylist(), int.from_bytes(payload[8:_COLUMNS_HEADER_BYTES], "little")
    except (pa.ArrowException, ValueError, OSError):
        return None, None


def _batch_in(payload: bytes) -> tuple[Any, Any]:
    found = _loaded(payload)
    return cast("tuple[Any, Any]", found) if type(found) is tuple and len(cast("Any", found)) == 2 else (None, None)


def _loaded(data: bytes) -> Any:
    try:
        return PlainUnpickler(io.BytesIO(data)).load()
    except Exception:  # noqa: BLE001  # a pickle may do anything to what stands for an object
        return _UNREADABLE


_UNREADABLE = object()


class _Plain:
    """Makes of one value what JSON has. `ValueError` if there is no such thing."""

    def __init__(self) -> None:
        self._left = VALUES_MAX

    def of(self, value: Any) -> Any:
        """The value, with what JSON has in the place of what it has not."""
        self._left -= 1
        if self._left < 0:
            raise ValueError("too many values")
        kind = cast("type[Any]", type(value))
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return _number(value)
        if kind in (list, tuple):
            return [self.of(item) for item in value]
        if kind is dict:
            return self._object(value)
        if kind in (set, frozenset):
            return sorted((self.of(item) for item in value), key=_text)
        if kind in (bytes, bytearray):
            return {"base64": base64.b64encode(value).decode()}
        if isinstance(value, _AS_TEXT):
            return str(value)
        raise ValueError(f"{kind.__name__} is not plain")

    def _object(self, value: dict[Any, Any]) -> dict[str, Any]:
        items = {key if type(key) is str else _text(self.of(key)): self.of(item) for key, item in value.items()}
        if len(items) < len(value):
            raise ValueError("two keys have one name")
        return items


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- over Arrow arrays, for Spark --------------------------------------------------------------------------------

if TYPE_CHECKING:
    Array = Any
else:
    # Spark asks the types of a function for how it is to be called.
    Array = pa.Array

PAIRS = "struct<key: string, value: string>"
RECORDS = "array<struct<record: string, hops: bigint>>"


def pairs(kinds: Array, datas: Array) -> Array:
    """`pair_of` for each row; null where there is no data."""
    found = [
        None if data is None else pair_of(kind, data)._asdict()
        for kind, data in zip(kinds.to_pylist(), datas.to_pylist(), strict=True)
    ]
    return pa.array(found, pa.struct([("key", pa.string()), ("value", pa.string())]))


def records(payloads: Array) -> Array:
    """`records_of` for each row."""
    found = [[record._asdict() for record in records_of(payload)] for payload in payloads.to_pylist()]
    return pa.array(found, pa.list_(pa.struct([("record", pa.string()), ("hops", pa.int64())])))

"""Converts values in pickles and batches to JSON, without importing or calling anything that a pickle names.

- null, true, false, numbers and text stay as they are; NaN and the infinities become the strings "NaN", "Infinity"
  and "-Infinity". NumPy numbers become numbers, arrays of numbers become lists.
- Lists, tuples and deques become lists, sets become sorted lists, bytes become {"base64": "..."}.
- Dicts become objects; a key that is not text is replaced by its JSON, so 7 becomes "7".
- Dates, times, decimals, fractions and UUIDs become text.
- An object of any other class becomes {"class": "module.Name", ...} with its fields by name, `args` for constructor
  arguments without names in the pickle (a named tuple, an enum), and `items` for its elements. A class or function
  becomes {"global": "module.name"}.

Memory use and the length of the JSON are bounded by the size of the input. Values that are damaged or exceed a bound
become None; an invariant that reads one does not pass (`invariants.py`).
"""

from __future__ import annotations

import base64
import datetime
import decimal
import fractions
import json
import math
import re
import uuid
import zoneinfo
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from backedge.graphs.graph_errors import UnkeyableError
from backedge.graphs.other_keys import code_of
from backedge.graphs.routing import key_group
from backedge.recovery.cut.keyed_parts import ITEMS, fits
from backedge.recovery.spark.cut_tables.plain_pickles import Named, UnreadablePickleError, load
from backedge.recovery.stores.parquet_tables import pa
from backedge.recovery.stores.record_tables import columns_in

VALUES_MAX = 1_000_000
"""Most values within one value: an object that refers to itself many times would never end."""

JSON_CHARACTERS_MAX = 64 << 20
"""Maximum length of the JSON of one value, or of all records of a batch."""

_NUMBER_CHARACTERS_MAX = 4_300
_JSON_CHARACTERS_LEAST, _JSON_CHARACTERS_PER_BYTE = 16 << 10, 64
_COLUMNS_HEADER_BYTES = 16
_AS_TEXT = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal)


class Record(NamedTuple):
    """A record in a loop as JSON, and its number of trips; None where unreadable."""

    record: str | None
    hops: int | None


class Pair(NamedTuple):
    """The content of a state row as JSON: key and value, a timer's key and time, or a pending input as value only."""

    key: str | None
    value: str | None


class Budget:
    """Remaining numbers of values and characters, shared by values that were read together."""

    def __init__(self, size: int | None = None) -> None:
        self.values = VALUES_MAX
        asked = JSON_CHARACTERS_MAX if size is None else _JSON_CHARACTERS_LEAST + _JSON_CHARACTERS_PER_BYTE * size
        self.characters = min(asked, JSON_CHARACTERS_MAX)

    def take(self, characters: int, values: int = 1) -> None:
        """Consume part of the budget. Raises `ValueError` when it is exhausted."""
        self.values -= values
        self.characters -= characters
        if self.values < 0 or self.characters < 0:
            raise ValueError("too many values")


def json_of(value: Any, budget: Budget | None = None) -> str | None:
    """The JSON of a value; None if it has none or exceeds the budget.

    >>> json_of({"a": (1, 2.5), 7: {b"x"}}), json_of([float("nan"), 1 << 70]), json_of(object())
    ('{"a":[1,2.5],"7":[{"base64":"eA=="}]}', '["NaN",1180591620717411303424]', None)
    """
    try:
        plain = _Plain(budget or Budget()).of(value)
        text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, MemoryError):
        return None  # a forged value can fail in any way
    # A lone surrogate is invalid text for other readers unless it is escaped.
    return text if fits(text) else json.dumps(json.loads(text), separators=(",", ":"))


def position_in(data: bytes) -> int | None:
    """The position in a split if it is a number, or the offset of an (offset, digest) pair; None for other forms.

    >>> import pickle
    >>> position_in(pickle.dumps(7)), position_in(pickle.dumps((40, 12345))), position_in(pickle.dumps((40, 0, 12345)))
    (7, 40, None)
    """
    value = _loaded(data)
    if type(value) is tuple:
        parts = cast("tuple[Any, ...]", value)
        value = parts[0] if len(parts) == 2 else None
    return value if type(value) is int and fits(value) else None


def pair_of(kind: str, data: bytes) -> Pair:
    """The key and value of a pickled state row.

    >>> import pickle
    >>> pair_of("value", pickle.dumps(("a", [1, 2])))
    Pair(key='"a"', value='[1,2]')
    """
    found, budget = _loaded(data), Budget(len(data))
    if kind in ITEMS:
        parts = list(cast("tuple[Any, ...]", found)) if type(found) is tuple else []
        if len(parts) != ITEMS[kind]:
            return Pair(None, None)
        return Pair(json_of(parts[0], budget), None if len(parts) == 1 else json_of(parts[1], budget))
    return Pair(None, json_of(found, budget))


def identity_in(kind: str, group: int | None, data: bytes) -> str | None:
    """A text that two pickled state rows share if and only if their keys are equal; None if a key cannot be read.

    Numbers are equal across types, also within tuples. What extends a number, a text or a tuple is equal to it, and so
    it is in the same key group. A member of an enum is in the group of its value by chance alone, once in 128 times;
    then it cannot be told from one that extends its value.

    >>> import pickle, signal
    >>> keys = (1e16, True, "NaN", float("nan"), (1.0, "a"), signal.SIGINT, decimal.Decimal("1.50"))
    >>> [identity_in("gone", key_group(key), pickle.dumps((key,))) for key in keys]
    ['10000000000000000', '1', '"NaN"', 'nan', '(1:13:"a")', '2', '1.5']
    >>> identity_in("gone", key_group(day := datetime.date(2024, 1, 1)), pickle.dumps((day,)))
    '<datetime.date>"2024-01-01"'
    """
    found = _loaded(data)
    if type(found) is not tuple or len(cast("Any", found)) != ITEMS.get(kind):
        return None
    return identity_of(cast("tuple[Any, ...]", found)[0], group, len(data))


def identity_of(key: Any, group: int | None, size: int) -> str | None:
    """The same for a key that was read from a pickle of this size."""
    try:
        extended = _extended(key, Budget(size))
        return _identity(extended if _is_in(group, extended) else key, Budget(size))
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, MemoryError):
        return None  # a forged key can fail in any way


def _is_in(group: int | None, key: Any) -> bool:
    try:
        return key_group(key) == group
    except UnkeyableError:
        return False


def _extended(key: Any, budget: Budget) -> Any:
    """A key without classes, as if each of its objects extended what it was made of."""
    budget.take(20)
    match key:
        case Named() if key.of in _KNOWN:
            return _KNOWN[key.of](key) if key.of.startswith("numpy.") else key
        case Named(args=(extended,)):
            return _extended(extended, budget)
        case Named():
            return tuple([_extended(part, budget) for part in key.args])
        case tuple():
            return tuple([_extended(part, budget) for part in cast("tuple[Any, ...]", key)])
        case _:
            return key


def _identity(key: Any, budget: Budget) -> str:
    budget.take(20)
    match key:
        case Named() if key.of in _EXACT and (number := _exact(key)) is not None:
            return number
        case Named() if key.of.startswith("numpy.") and key.of in _KNOWN:
            return _identity(_KNOWN[key.of](key), budget)
        case Named(of="datetime.datetime", args=(packed, zone)):
            # Times of different zones are equal if they are the same moment.
            return f"<{key.of}>{code_of(cast(Any, datetime.datetime)(packed, _zone_in(zone)))}"
        case Named(args=(extended,), state=None) if key.of not in _KNOWN:
            return f"<{key.of}>{_identity(extended, budget)}"
        case Named(args=(_, *_)) if key.of not in _KNOWN:
            return _identity(key.args, budget)  # a named tuple
        case tuple():
            found = [_identity(part, budget) for part in cast("tuple[Any, ...]", key)]
            # With their lengths nothing must be escaped, which could double them at each level.
            return f"({''.join([f'{len(part)}:{part}' for part in found])})"
        case bool() | int():
            return str(int(key))
        case float():
            return str(int(key)) if key.is_integer() else repr(key)
        case str() if fits(key):
            # Not its JSON: Spark writes that of control characters otherwise.
            budget.take(len(key))
            return f'"{key}"'
        case _:
            text = json_of(key, budget)
    if text is None:
        raise ValueError("it is not plain")
    return f"<{key.of}>{text}" if isinstance(key, Named) else text


def records_of(payload: bytes) -> list[Record]:
    """The records of a batch; none for a round marker.

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
    if len(counts) != len(many) or not all(type(count) is int and fits(count) for count in counts):
        counts = [None] * len(many)
    budget = Budget(len(payload))
    return [Record(json_of(record, budget), count) for record, count in zip(many, counts, strict=True)]


def _columns_in(payload: bytes) -> tuple[Any, Any]:
    try:
        batch = columns_in(payload)
        batch.validate(full=True)
        if batch.num_rows + sum(map(_values_in, batch.columns)) > VALUES_MAX:
            return None, None
        return batch.to_pylist(), int.from_bytes(payload[8:_COLUMNS_HEADER_BYTES], "little")
    except (pa.ArrowException, ValueError, OverflowError, OSError, MemoryError, NotImplementedError):
        return None, None  # a time beyond the year 9999 has no value in Python


def _values_in(array: Any) -> int:
    """The number of values in an array, including nested ones, some of which take no bytes.

    Raises `ValueError` for types that are not supported.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        return len(array) + sum(_values_in(array.field(place)) for place in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return len(array) + _values_in(array.values)
    if pa.types.is_map(kind):
        return len(array) + _values_in(array.keys) + _values_in(array.items)
    # Dictionaries and views may repeat a text of any length in a few bytes. The engine sends neither.
    if pa.types.is_nested(kind) or any(is_of_kind(kind) for is_of_kind in _REPEATING):
        raise ValueError(f"values of type {kind} are not read")
    return len(array)


_REPEATING = (pa.types.is_dictionary, pa.types.is_string_view, pa.types.is_binary_view)


def _batch_in(payload: bytes) -> tuple[Any, Any]:
    found = _loaded(payload)
    return cast("tuple[Any, Any]", found) if type(found) is tuple and len(cast("Any", found)) == 2 else (None, None)


def _loaded(data: bytes) -> Any:
    try:
        return load(data)
    except UnreadablePickleError:
        return _UNREADABLE


_UNREADABLE = object()


class _Plain:
    """Converts one value to JSON types. Raises `ValueError` if it cannot."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def of(self, value: Any) -> Any:
        kind = cast("type[Any]", type(value))
        if value is None or kind is bool:
            self._budget.take(5)
            return value
        if kind is float:
            self._budget.take(8)
            return _number(value)
        if kind is int:
            self._budget.take(1 + value.bit_length() // 3)
            return value
        if kind is str:
            self._budget.take(2 + len(value))
            return value
        self._budget.take(2)
        if kind in (list, tuple):
            return [self.of(item) for item in value]
        if kind is dict:
            return self._object(value)
        if kind in (set, frozenset):
            return sorted((self.of(item) for item in value), key=_text)
        if kind in (bytes, bytearray):
            self._budget.take(2 * len(value))
            return {"base64": base64.b64encode(value).decode()}
        if isinstance(value, Named):
            return self._named(value)
        if isinstance(value, type) and issubclass(value, Named):
            return {"global": value.of}
        if isinstance(value, _AS_TEXT):
            self._budget.take(40)
            return str(value)
        raise ValueError(f"{kind.__name__} is not plain")

    def _object(self, value: dict[Any, Any]) -> dict[str, Any]:
        items = {self._key(key): self.of(item) for key, item in value.items()}
        if len(items) < len(value):
            raise ValueError("two keys have one name")
        return items

    def _key(self, key: Any) -> str:
        plain = self.of(key)
        return plain if type(key) is str else _text(plain)

    def _named(self, value: Named) -> Any:
        if value.of in _KNOWN:
            return self.of(_KNOWN[value.of](value))
        described: dict[str, Any] = {"class": value.of}
        if value.args:
            described["args"] = self.of(value.args)
        if value.items:
            described["items"] = self.of(value.items)
        fields: Any = self.of(_fields_of(value.state))
        if type(fields) is not dict:
            return described if fields is None else {**described, "state": fields}
        # If a field has one of our own names, the fields go into an object of their own.
        named = cast("dict[str, Any]", fields)
        return {**described, **named} if named.keys().isdisjoint(_OWN_NAMES) else {**described, "fields": named}


_OWN_NAMES = {"class", "args", "items", "state", "fields"}


def _fields_of(state: Any) -> Any:
    """The fields of an object: its dict and its slots."""
    parts = list(cast("tuple[Any, ...]", state)) if type(state) is tuple else []
    if len(parts) == 2 and type(parts[1]) is dict and (parts[0] is None or type(parts[0]) is dict):
        return {key: value for part in parts if part is not None for key, value in part.items()}
    return cast(Any, state)


# -- classes of the standard library and of NumPy ---------------------------------------------------------------

_NUMBER = re.compile(r"b1|[iu][1248]|f[248]")
_NUMBER_OR_TEXT = re.compile(rf"{_NUMBER.pattern}|[US]\d{{1,8}}")


def _time(kind: Any) -> Callable[[Named], str]:
    """A reader for dates and times: packed bytes, perhaps followed by a time zone."""

    def read(value: Named) -> str:
        packed, *zones = value.args
        if type(packed) is not bytes:
            raise ValueError("it is not packed as bytes")
        return f"{kind(packed)}{''.join(map(_zone, zones))}"

    return read


def _zone_in(zone: Any) -> datetime.tzinfo:
    match zone:
        case Named(of="datetime.timezone", args=(Named(of="datetime.timedelta", args=offset), *_)):
            return datetime.timezone(datetime.timedelta(*_whole(offset)))
        case Named(of="zoneinfo.ZoneInfo._unpickle", args=(str(name), *_)):
            with suppress(OSError):  # a forged name may be that of a folder
                return zoneinfo.ZoneInfo(name)
        case _:
            pass
    raise ValueError("it has a zone of another kind")


def _zone(zone: Any) -> str:
    if isinstance(zone, Named):
        first = zone.args[0]
        if zone.of == "datetime.timezone" and isinstance(first, Named) and first.of == "datetime.timedelta":
            text = str(datetime.timezone(datetime.timedelta(*_whole(first.args))))
            return "+00:00" if text == "UTC" else text.removeprefix("UTC")
        if zone.of == "zoneinfo.ZoneInfo._unpickle" and type(first) is str:
            return f"[{first}]"
    raise ValueError("it has a zone of another kind")


def _whole(numbers: Any) -> list[int]:
    if not all(type(number) is int for number in numbers):
        raise ValueError("it is not made of whole numbers")
    return list(numbers)


_EXACT = {"decimal.Decimal": decimal.Decimal, "fractions.Fraction": fractions.Fraction}


def _exact(value: Named) -> str | None:
    """A text for a decimal or a fraction that all numbers share that are equal to it; None if there is none."""
    text = str(_KNOWN[value.of](value))
    code: Any = code_of(_EXACT[value.of](text)) if len(text) < _NUMBER_CHARACTERS_MAX else None
    if isinstance(code, tuple):
        return "/".join(map(str, cast("tuple[int, int]", code)))
    return None if code is None else _identity(code, Budget())


def _decimal(value: Named) -> str:
    (text,) = value.args
    if type(text) is not str:
        raise ValueError("it is not made of text")
    return str(decimal.Decimal(text))


def _dict(value: Named) -> dict[Any, Any]:
    """The content of a dict subclass: constructor arguments, then items."""
    found: dict[Any, Any] = {}
    for part in value.args:
        found |= cast("dict[Any, Any]", part) if type(part) is dict else {}
    return found | dict(value.items)


def _dtype(dtype: Any, plain: re.Pattern[str] = _NUMBER) -> np.dtype[Any]:
    code = dtype.args[0] if isinstance(dtype, Named) and dtype.of == "numpy.dtype" else None
    if type(code) is not str or not plain.fullmatch(code):
        raise ValueError("it is not plain")
    return np.dtype(code).newbyteorder(">" if dtype.state[1] == ">" else "<")


def _scalar(value: Named) -> Any:
    dtype, data = value.args
    kind = _dtype(dtype, _NUMBER_OR_TEXT)
    if not kind.itemsize:
        return kind.type().item()  # an empty text, or no bytes
    (found,) = np.frombuffer(data, kind).tolist()
    return found


def _array(value: Named) -> Any:
    data, dtype, shape, order = value.args
    if not data:
        return []  # a forged shape could ask for any number of empty lists
    return np.frombuffer(data, _dtype(dtype)).reshape(_whole(shape), order="F" if order == "F" else "C").tolist()


def _whole_uuid(value: Named) -> str:
    return str(uuid.UUID(int=value.state["int"]))


def _fraction(value: Named) -> str:
    return str(fractions.Fraction(*_whole(value.args)))


_KNOWN: Mapping[str, Callable[[Named], Any]] = {
    "datetime.datetime": _time(datetime.datetime),
    "datetime.time": _time(datetime.time),
    "datetime.date": _time(datetime.date),
    "datetime.timedelta": lambda value: str(datetime.timedelta(*_whole(value.args))),
    "decimal.Decimal": _decimal,
    "fractions.Fraction": _fraction,
    "uuid.UUID": _whole_uuid,
    "collections.OrderedDict": _dict,
    "collections.defaultdict": _dict,
    "collections.Counter": _dict,
    "collections.deque": lambda value: value.items,
    **dict.fromkeys(("numpy._core.multiarray.scalar", "numpy.core.multiarray.scalar"), _scalar),
    **dict.fromkeys(("numpy._core.numeric._frombuffer", "numpy.core.numeric._frombuffer"), _array),
}
"""Class -> the function that converts its pickled form. Each must expect forged input."""


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


# -- over Arrow arrays, for Spark --------------------------------------------------------------------------------

if TYPE_CHECKING:
    Array = Any
else:
    # Spark derives the calling convention from the annotations.
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


def identities(kinds: Array, groups: Array, datas: Array) -> Array:
    """`identity_in` for each row; null where there is no data."""
    rows = zip(kinds.to_pylist(), groups.to_pylist(), datas.to_pylist(), strict=True)
    found = [None if data is None else identity_in(kind, group, data) for kind, group, data in rows]
    return pa.array(found, pa.string())


def records(payloads: Array, skips: Array) -> Array:
    """`records_of` for each row, without the records at its start that were processed before the cut."""
    rows = zip(payloads.to_pylist(), skips.to_pylist(), strict=True)
    found = [[record._asdict() for record in records_of(payload)[max(0, skip) :]] for payload, skip in rows]
    return pa.array(found, pa.list_(pa.struct([("record", pa.string()), ("hops", pa.int64())])))

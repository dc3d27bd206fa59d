"""The state of one operator in one task, as rows: what has a type in typed columns, the rest as it was pickled.

Encoded, a key group is a sequence of pickles. An entry of two is a value (key, value), one of three a timer (key,
at_ms, hops), one of five many values at once (`typed_groups.py`). They become rows of kind "value" and "timer";
"pending" are inputs that wait, "whole" belongs to the task.

- Where key and value both have a type, the typed columns say all, and `data` is null. Else `data` holds the entry as
  it was pickled, and the typed columns what can be told: of a timer its key, and its time in `value_int`.
- Integer keys with numbers are read back as one entry of many, the others as pickles. The order of the values in a
  group means nothing, and may change; timers keep theirs.
- Entries are taken apart without making objects of the user's: no code of theirs runs while a cut is written, and
  none while it is read.
- The rows come in parts, each of which becomes a file. A part holds either whole key groups that follow each other, or
  the rows that belong to no group. So a task that takes over some of the groups reads only the parts that hold them,
  and writing a state takes no more memory than a part.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from graphs.routing import KEY_GROUPS
from recovery.cut import OperatorState
from recovery.stored_groups import Pairs, Pickles, StoredGroups
from recovery.stores.parquet_tables import pa, schema, to_rows
from recovery.typed_groups import Numbers, TypedGroups

STATE = schema(
    {
        "kind": "string",
        "key_group": "int32",
        "key_int": "int64",
        "key_str": "string",
        "value_int": "int64",
        "value_float": "float64",
        "value_str": "string",
        "data": "binary",
    }
)
REPEATING = ("kind",)
# What is written as a dictionary is made as one: Parquet need not look for equal texts.
_KIND = pa.dictionary(pa.int8(), pa.string())
_MADE = STATE.set(STATE.get_field_index("kind"), pa.field("kind", _KIND))

_INT_MAX = (1 << 63) - 1
_INT_MIN = -(1 << 63)
_TYPED: dict[Any, tuple[str, str]] = {
    (int, int): ("key_int", "value_int"),
    (int, float): ("key_int", "value_float"),
    (int, str): ("key_int", "value_str"),
    (str, int): ("key_str", "value_int"),
    (str, float): ("key_str", "value_float"),
    (str, str): ("key_str", "value_str"),
}
_MANY = {(int, int), (int, float)}
_PIECE_ROWS = 65_536

PART_BYTES = 16 << 20
"""A part ends with the key group that would make it larger. Only a part of a single group may be."""

_NUMBER_BYTES = 20

Array = npt.NDArray[Any]


_PICKLED = ("kind", "key_group", "key_int", "key_str", "value_int", "data")
_Row = tuple[Any, ...]
"""A row that has `data`: these columns of it, the others but its task are null."""


class Opaque:
    """Stands for everything of a pickle that is no plain value. It takes whatever is done to it, and does nothing."""

    def __new__(cls, *args: Any, **named: Any) -> Opaque:
        return object.__new__(cls)

    def __init__(self, *args: Any, **named: Any) -> None:
        """Takes anything."""

    def __call__(self, *args: Any, **named: Any) -> Opaque:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        """Takes anything."""

    def __setstate__(self, state: Any) -> None:
        """Takes anything."""

    append = extend = add = __init__


class PlainUnpickler(pickle.Unpickler):
    """Reads plain values, and `Opaque` for all else, so that it calls nothing and imports nothing.

    >>> payload = pickle.dumps({"when": io.StringIO, "many": [1, 2]}, 5)
    >>> PlainUnpickler(io.BytesIO(payload)).load()["many"]
    [1, 2]
    """

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """The same for all."""
        return Opaque


class _Typed:
    """Rows of values whose typed columns say all: of one type of key and one of value, gathered group by group."""

    def __init__(self, key_column: str, value_column: str) -> None:
        self.columns = (key_column, value_column)
        self.groups: list[Array] = []
        self.keys: list[list[Any] | Array] = []
        self.values: list[list[Any] | Array] = []

    def add(self, groups: Array, keys: list[Any] | Array, values: list[Any] | Array) -> None:
        """Values: of each its group, its key, and itself."""
        self.groups.append(groups)
        self.keys.append(keys)
        self.values.append(values)

    def table(self) -> Any:
        """The rows of all groups."""
        groups = np.concatenate(self.groups)
        count = len(groups)
        columns: dict[str, Any] = {"kind": _repeated("value", _KIND, count), "key_group": groups}
        for column, parts in zip(self.columns, (self.keys, self.values), strict=True):
            columns[column] = _joined(parts, STATE.field(column).type)
        return _table(count, columns)


def _joined(parts: list[list[Any] | Array], kind: Any) -> Any:
    """One column of all parts: numbers at once, for there may be a part for each of many groups."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return pa.array(np.concatenate(parts), kind)
    return pa.chunked_array([pa.array(part, kind) for part in parts])


def _table(count: int, columns: dict[str, Any]) -> Any:
    """A table of some columns, the others null."""
    made: dict[str, Any] = {field.name: _repeated(None, field.type, count) for field in _MADE}
    for name, column in columns.items():
        is_made = isinstance(column, pa.Array | pa.ChunkedArray)
        made[name] = column if is_made else pa.array(column, _MADE.field(name).type)
    return pa.table(made, schema=_MADE)


def _repeated(value: Any, kind: Any, count: int) -> Any:
    """A column of equal values: one piece that is kept, again and again; the fewer there are, the faster it is read."""
    whole, rest = divmod(count, _PIECE_ROWS)
    piece = _piece(value, kind)
    return pa.chunked_array([*[piece] * whole, piece.slice(0, rest)])


@lru_cache(64)
def _piece(value: Any, kind: Any) -> Any:
    return pa.repeat(pa.scalar(value, kind), _PIECE_ROWS)


class _Rows:
    """The rows of one operator's state."""

    def __init__(self) -> None:
        self.typed = {types: _Typed(*columns) for types, columns in _TYPED.items()}
        self.single: list[_Row] = []

    def add_group(self, group: int, payload: bytes) -> None:
        """Take apart what a key group holds."""
        stream = io.BytesIO(payload)
        typed: dict[Any, tuple[list[Any], list[Any]]] = {}
        start, size = 0, len(payload)
        while start < size:
            try:
                # One for each entry: what it remembers of one pickle is not to be known to the next.
                entry: Any = PlainUnpickler(stream).load()
            except Exception:  # noqa: BLE001  # a pickle may do anything to an opaque object; then it stays as it is
                self.single.append(_pickled("value", group, payload[start:]))
                break
            end = stream.tell()
            parts = cast("tuple[Any, ...]", entry) if type(entry) is tuple else ()
            key, value = parts if len(parts) == 2 else (None, None)
            types: Any = (type(key), type(value))
            if types in _TYPED and fits(key) and fits(value):
                keys, values = typed.setdefault(types, ([], []))
                keys.append(key)
                values.append(value)
            elif not self._add_many(group, parts):
                self.single.append(_row(group, parts, payload[start:end]))
            start = end
        for types, (keys, values) in typed.items():
            self.typed[types].add(np.full(len(keys), group, np.int32), keys, values)

    def add_numbers(self, numbers: Numbers) -> None:
        """Take what is in columns already."""
        types = (int, int if numbers.code == "i" else float)
        self.typed[types].add(numbers.groups, numbers.keys, numbers.values)

    def _add_many(self, group: int, parts: tuple[Any, ...]) -> bool:
        match parts:
            case ("columns", "i", "i" | "f" as code, bytes(keys), bytes(values)):
                is_whole = len(keys) == len(values) and len(keys) % 8 == 0
                if is_whole:
                    groups = np.full(len(keys) // 8, group, np.int32)
                    self.add_numbers(
                        Numbers(code, groups, np.frombuffer(keys, "<i8"), np.frombuffer(values, f"<{code}8"))
                    )
                return is_whole
            case _:
                return False

    def table(self) -> Any:
        """All rows: first those whose columns say all."""
        tables = [typed.table() for typed in self.typed.values() if typed.keys]
        if self.single:
            columns = zip(_PICKLED, zip(*self.single, strict=True), strict=True)
            tables.append(_table(len(self.single), dict(columns)))
        return pa.concat_tables(tables) if tables else _MADE.empty_table()


def fits(value: Any) -> bool:
    """Whether a typed column can hold this int, float or text: not beyond 64 bits, nor half of a surrogate pair."""
    if type(value) is int:
        return _INT_MIN <= value <= _INT_MAX
    if type(value) is not str or value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _row(group: int, parts: tuple[Any, ...], data: bytes) -> _Row:
    """The row of an entry that stays as it was pickled, with what can be told of it."""
    if len(parts) not in {1, 2, 3}:
        return _pickled("value", group, data)
    key = parts[0]
    key_int = key if type(key) is int and fits(key) else None
    key_str = key if type(key) is str and fits(key) else None
    if len(parts) == 1:
        return "gone", group, key_int, key_str, None, data
    if len(parts) == 2:
        return "value", group, key_int, key_str, None, data
    at_ms = parts[1]
    return "timer", group, key_int, key_str, at_ms if type(at_ms) is int and fits(at_ms) else None, data


def _pickled(kind: str, group: int | None, data: bytes) -> _Row:
    return kind, group, None, None, None, data


class Part(NamedTuple):
    """Some rows of a state. `span`: the first and the last of their key groups; None if they belong to none."""

    rows: Any
    span: tuple[int, int] | None


def state_parts(state: OperatorState) -> Iterator[Part]:
    """The rows of one operator's state in one task, part by part: key groups in their order, then what has no group."""
    if isinstance(state.groups, TypedGroups):
        yield from _parts_of_numbers(state.groups)
    else:
        yield from _parts_of_pickles(state.groups)
    rows = _Rows()
    rows.single += [_pickled("pending", None, item) for item in state.pending]
    if state.whole is not None:
        rows.single.append(_pickled("whole", None, state.whole))
    if rows.single:
        yield Part(rows.table(), None)


def _parts_of_pickles(groups: Mapping[int, bytes]) -> Iterator[Part]:
    rows, size, first, last = _Rows(), 0, -1, -1
    for group in sorted(groups):
        payload = groups[group]
        if size and size + len(payload) > PART_BYTES:
            yield Part(rows.table(), (first, last))
            rows, size = _Rows(), 0
        if payload:
            first, last = group if not size else first, group
            size += len(payload)
            rows.add_group(group, payload)
    if size:
        yield Part(rows.table(), (first, last))


def _parts_of_numbers(groups: TypedGroups) -> Iterator[Part]:
    counts: Any = sum(np.bincount(numbers.groups, minlength=KEY_GROUPS) for numbers in groups.numbers)
    for first, last in _spans(np.atleast_1d(counts).tolist()):
        rows = _Rows()
        for numbers in groups.numbers:
            start, end = np.searchsorted(numbers.groups, (first, last + 1)).tolist()
            if start < end:
                rows.add_numbers(Numbers(numbers.code, *(column[start:end] for column in numbers[1:])))
        yield Part(rows.table(), (first, last))


def _spans(counts: list[int]) -> Iterator[tuple[int, int]]:
    """The first and the last key group of each part, from the number of rows in each group."""
    rows, first, last = 0, -1, -1
    for group, count in enumerate(counts):
        if rows and (rows + count) * _NUMBER_BYTES > PART_BYTES:
            yield first, last
            rows = 0
        if count:
            first, last = group if not rows else first, group
            rows += count
    if rows:
        yield first, last


def has_span(table: Any, span: tuple[int, int] | None) -> bool:
    """Whether these are the first and the last key group of a part; None: all of its rows belong to no group."""
    groups = table.column("key_group")
    if span is None or groups.null_count:
        return span is None and groups.null_count == len(groups)
    found = np.asarray(groups)
    return (found.min(), found.max()) == span if len(found) else False


def groups_of(table: Any, wanted: range | None = None) -> StoredGroups:
    """The key groups of a part; if some are wanted, only those."""
    in_group = _is_there(table, "key_group")
    if wanted is not None:
        groups = np.asarray(table.column("key_group").fill_null(-1))
        in_group &= (groups >= wanted.start) & (groups < wanted.stop)
    is_typed = ~_is_there(table, "data")
    parts: list[Numbers | Pairs | Pickles] = []
    for types, columns in _TYPED.items():
        is_of_these = in_group & is_typed & _is_there(table, columns[0]) & _is_there(table, columns[1])
        if is_of_these.any():
            parts.append(_typed_part(types, _rows(table.select(["key_group", *columns]), is_of_these)))
    pickled = _rows(table.select(["key_group", "data"]), in_group & ~is_typed)
    parts += [_pickles(batch) for batch in pickled.to_batches() if batch.num_rows]
    return StoredGroups(tuple(parts))


def rest_of(table: Any) -> tuple[tuple[bytes, ...], bytes | None]:
    """What waits, and what belongs to the task."""
    rows = to_rows(_rows(table.select(["kind", "data"]), ~_is_there(table, "key_group")))
    pending = tuple(data for kind, data in rows if kind == "pending")
    return pending, next((data for kind, data in rows if kind == "whole"), None)


def _rows(table: Any, which: npt.NDArray[np.bool_]) -> Any:
    """These rows of a table. Rows that follow each other, as those of a range of groups do, are not copied."""
    places = np.flatnonzero(which)
    if not len(places):
        return table.slice(0, 0)
    if places[-1] - places[0] + 1 == len(places):
        return table.slice(int(places[0]), len(places))
    return table.filter(pa.array(which))


def _typed_part(types: Any, rows: Any) -> Numbers | Pairs:
    groups, keys, values = rows.columns
    if types in _MANY:
        code = "i" if types[1] is int else "f"
        return Numbers(code, np.asarray(groups), np.asarray(keys), np.asarray(values))
    return Pairs(np.asarray(groups), keys.to_pylist(), values.to_pylist())


def _pickles(batch: Any) -> Pickles:
    groups, data = batch.columns
    _, ends, payload = data.buffers()
    first = data.offset
    offsets = np.frombuffer(ends, np.int32)[first : first + len(data) + 1]
    return Pickles(np.asarray(groups), offsets, memoryview(payload))


def _is_there(table: Any, column: str) -> npt.NDArray[np.bool_]:
    return cast("npt.NDArray[np.bool_]", table.column(column).is_valid().to_numpy())

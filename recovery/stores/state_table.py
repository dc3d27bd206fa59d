"""State of one operator in one task as rows: plain keys and values in typed columns, everything else pickled.

Keyed state comes in parts (`keyed_parts.py`). They become rows of kind "value", "timer" and "gone". Rows of kind
"pending" are waiting inputs; the row "whole" is state of the task itself.

- Numbers and pairs are in the typed columns, and `data` is null. A pickled entry is in `data`; the typed columns repeat
  its key and, in `value_int`, the time of a timer, if these fit.
- The order of the values in a group has no meaning and may change; timers keep their order.
- No entry is unpickled: user code runs neither while a cut is written nor while its rows are read.
- The rows of a process class's table are in files of their own, in the table "rows", with the columns `key_group`,
  `key` and `value`; the last two are structs of the columns that the class declares.
- The rows are split into parts, one file per part. A part holds either consecutive key groups or the rows without a
  group. So a task that takes over some of the groups reads only the parts that contain them, and writing a state
  needs no more memory than a part.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from backedge.graphs.routing import KEY_GROUPS
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.cut.keyed_parts import (
    KeyedPart,
    Kind,
    Numbers,
    Pairs,
    Pickles,
    Rows,
    concatenated,
    fits,
    in_groups,
    is_plain,
)
from backedge.recovery.stores.names import Table
from backedge.recovery.stores.parquet_pages import BytesColumn, is_worth_pages
from backedge.recovery.stores.parquet_tables import ROWS_NAMES, arrow_array, numbers_in, pa, schema, to_rows

STATE = schema(
    {
        "kind": "string",
        "key_group": "int32",
        "key_int": "int64",
        "key_str": "string",
        "value_int": "int64",
        "value_float": "float64",
        "value_str": "string",
        "value_bytes": "binary",
        "data": "binary",
    }
)
REPEATING = ("kind",)
# The column is built as a dictionary, so that Parquet need not search for equal texts.
_KIND = pa.dictionary(pa.int8(), pa.string())
_MADE = STATE.set(STATE.get_field_index("kind"), pa.field("kind", _KIND))

_Types = tuple[type[Any], type[Any]]
_TYPED: dict[_Types, tuple[str, str]] = {
    (int, int): ("key_int", "value_int"),
    (int, float): ("key_int", "value_float"),
    (int, str): ("key_int", "value_str"),
    (int, bytes): ("key_int", "value_bytes"),
    (str, int): ("key_str", "value_int"),
    (str, float): ("key_str", "value_float"),
    (str, str): ("key_str", "value_str"),
    (str, bytes): ("key_str", "value_bytes"),
}
_MANY = {(int, int), (int, float)}
_PIECE_ROWS = 65_536

PART_BYTES = 16 << 20
"""Size limit of a part. A part ends before the key group that would exceed it; only a single group may be larger."""

_NUMBER_BYTES = 20
_ENTRY_BYTES = 32
"""What an entry takes besides its value, or a little more."""
_CHUNK_BYTES = 1 << 30
_ARRAY_BYTES_MAX = (1 << 31) - 1

Array = npt.NDArray[Any]


PICKLED = ("kind", "key_group", "key_int", "key_str", "value_int", "data")
_Row = tuple[Any, ...]
"""A row with `data`: its values in the columns `PICKLED`. All other columns are null."""


class _TakesItems(type):
    def __setitem__(cls, key: Any, value: Any) -> None:
        """Ignore the item."""


class Opaque(metaclass=_TakesItems):
    """Replaces every object in a pickle that is not a plain value. Accepts any call and does nothing.

    It is always the class itself, because a pickle may make objects of what a call has returned: where a class is made
    by a function, that is such a result.
    """

    def __new__(cls, *args: Any, **named: Any) -> Any:
        return cls

    @staticmethod
    def _ignore(*args: Any, **named: Any) -> None:
        """Do nothing."""

    append = extend = add = __setstate__ = _ignore


class PlainUnpickler(pickle.Unpickler):
    """Reads plain values and replaces everything else by `Opaque`, so that it imports nothing and runs no user code.

    >>> payload = pickle.dumps({"when": io.StringIO, "many": [1, 2]}, 5)
    >>> PlainUnpickler(io.BytesIO(payload)).load()["many"]
    [1, 2]
    """

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return `Opaque` for every name."""
        return Opaque


def _table(count: int, columns: dict[str, Any]) -> Any:
    """Build a table with these columns; all others are null."""
    made: dict[str, Any] = {field.name: _repeated(None, field.type, count) for field in _MADE}
    for name, column in columns.items():
        is_made = isinstance(column, pa.Array | pa.ChunkedArray)
        made[name] = column if is_made else arrow_array(column, _MADE.field(name).type)
    return pa.table(made, schema=_MADE)


def _repeated(value: Any, kind: Any, count: int) -> Any:
    """Build a column of equal values by repeating a cached piece. Pieces are large: fewer pieces are read faster."""
    whole, rest = divmod(count, _PIECE_ROWS)
    piece = _piece(value, kind)
    return pa.chunked_array([*[piece] * whole, piece.slice(0, rest)])


@lru_cache(64)
def _piece(value: Any, kind: Any) -> Any:
    if value is None:
        return pa.nulls(_PIECE_ROWS, kind)
    numbers = arrow_array(np.zeros(_PIECE_ROWS), kind.index_type)
    return pa.DictionaryArray.from_arrays(numbers, arrow_array([value], kind.value_type))


def pickled_row(group: int, data: bytes) -> tuple[Any, ...]:
    """The row of a single entry that stays pickled, in the columns `PICKLED`: what a store has written, or would.

    >>> pickled_row(3, pickle.dumps(("a", [1]), 5))[:5]
    ('value', 3, None, 'a', None)
    """
    try:
        entry: Any = PlainUnpickler(io.BytesIO(data)).load()
    except Exception:  # noqa: BLE001  # any use of an `Opaque` may fail; then nothing is known of the entry
        return _pickled("value", group, data)
    return _row(group, cast("tuple[Any, ...]", entry) if type(entry) is tuple else (), data)


def _row(group: int, parts: tuple[Any, ...], data: bytes) -> _Row:
    """Build the row of an entry that stays pickled, with its key and its time in typed columns if they fit."""
    if len(parts) not in {1, 2, 3}:
        return _pickled("value", group, data)
    key = parts[0] if is_plain(parts[0]) else None
    key_int, key_str = (key if type(key) is of_type else None for of_type in (int, str))
    if len(parts) < 3:
        return ("gone" if len(parts) == 1 else "value"), group, key_int, key_str, None, data
    at_ms = parts[1] if type(parts[1]) is int and fits(parts[1]) else None
    return "timer", group, key_int, key_str, at_ms, data


def _pickled(kind: str, group: int | None, data: bytes) -> _Row:
    return kind, group, None, None, None, data


class Part(NamedTuple):
    """Some rows of a state.

    - columns: the rows, without the column `values` if that is given.
    - span: their first and last key group; None for rows without a group.
    - values: many bytes, which a store need not copy into a table.
    """

    columns: Any
    span: tuple[int, int] | None
    table: Table = "state"
    values: BytesColumn | None = None

    @property
    def rows(self) -> Any:
        if self.values is None:
            return self.columns
        column = pa.chunked_array(list(_bytes_of(self.values.values, self.values.sizes)))
        return self.columns.add_column(self.values.place, pa.field(self.values.name, pa.binary()), column)


def state_parts(state: OperatorState) -> Iterator[Part]:
    """Split one operator's state in one task into parts: key groups in order, then the rows without a group."""
    keyed = list(state.keyed)
    for first, last in _spans(_sizes(keyed)):
        of_span = list(in_groups(keyed, first, last))
        rows = [part for part in of_span if isinstance(part, Rows)]
        yield _table_part(rows, (first, last)) if rows else _keyed_part(of_span, (first, last))
    alone = [_pickled("pending", None, item) for item in state.pending]
    if state.whole is not None:
        alone.append(_pickled("whole", None, state.whole))
    if alone:
        yield Part(_table(len(alone), dict(zip(PICKLED, zip(*alone, strict=True), strict=True))), None)


def _sizes(keyed: Iterable[KeyedPart]) -> list[int]:
    """The bytes of each key group, or a little more."""
    found = np.zeros(KEY_GROUPS)
    for part in keyed:
        match part:
            case Pickles(_, groups, starts):
                sizes = np.diff(starts) + _ENTRY_BYTES
            case Pairs(groups, keys, values):
                texts = [each for each in (keys, values) if isinstance(each[0], str | bytes)]
                sizes = sum(map(_lengths, texts), np.full(len(keys), _ENTRY_BYTES))
            case _:
                # Counting one by one would hold Python's lock: 15 ms for ten million entries.
                starts = np.searchsorted(part.groups, np.arange(KEY_GROUPS + 1, dtype=part.groups.dtype))
                found += np.diff(starts) * _NUMBER_BYTES
                continue
        found += np.bincount(groups, sizes, KEY_GROUPS)
    return found.astype(np.int64).tolist()


def _lengths(texts: Any) -> Any:
    """How many bytes each of many texts, or values of bytes, takes in a file."""
    data = texts if type(texts[0]) is bytes else map(str.encode, texts)
    return np.fromiter(map(len, data), np.int64, len(texts))


def _table_part(rows: Sequence[Rows], span: tuple[int, int]) -> Part:
    groups, *columns = concatenated(sorted(rows, key=lambda part: int(part.groups[0])))
    structs = [pa.StructArray.from_arrays([pa.array(c) for c in each.values()], list(each)) for each in columns]
    return Part(pa.table([arrow_array(groups, pa.int32()), *structs], names=ROWS_NAMES), span, "rows")


def _keyed_part(keyed: Iterable[KeyedPart], span: tuple[int, int]) -> Part:
    typed: dict[_Types, list[Any]] = {}
    pickled: dict[Kind, list[Pickles]] = {}
    for part in keyed:
        if isinstance(part, Pickles):
            pickled.setdefault(part.kind, []).append(part)
        else:
            typed.setdefault(_types_of(part), []).append(part)
    if len(typed) == 1 and not pickled and (types := next(iter(typed)))[1] is bytes:
        column = _bytes_column(typed[types])
        if is_worth_pages(column):
            table = _typed_table(types, typed[types], with_values=False)
            return Part(table.remove_column(column.place), span, values=column)
    tables = [_typed_table(types, parts) for types, parts in typed.items()]
    return Part(pa.concat_tables([*tables, *(_pickled_table(kind, parts) for kind, parts in pickled.items())]), span)


def _types_of(part: Any) -> _Types:
    if isinstance(part, Numbers):
        return int, int if part.code == "i" else float
    types: Any = str if isinstance(part.keys, list) else int, type(part.values[0])
    return types


def _typed_table(types: _Types, parts: Sequence[Numbers | Pairs], *, with_values: bool = True) -> Any:
    """Build the table of plain entries whose keys have one type and whose values have one type."""
    groups = np.concatenate([part.groups for part in parts])
    key_column, value_column = _TYPED[types]
    columns = {"key_group": groups, key_column: _joined([part.keys for part in parts], key_column)}
    if types[1] is bytes and with_values:
        column = _bytes_column(parts)
        columns[value_column] = pa.chunked_array(list(_bytes_of(column.values, column.sizes)))
    elif with_values:
        columns[value_column] = _joined([part.values for part in parts], value_column)
    return _table(len(groups), {"kind": _repeated("value", _KIND, len(groups)), **columns})


def _joined(parts: Sequence[Any], name: str) -> Any:
    is_array = isinstance(parts[0], np.ndarray)
    return arrow_array(np.concatenate(parts) if is_array else list(chain.from_iterable(parts)), STATE.field(name).type)


def _bytes_column(parts: Sequence[Any]) -> BytesColumn:
    values = list(chain.from_iterable(part.values for part in parts))
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    return BytesColumn("value_bytes", STATE.get_field_index("value_bytes"), values, sizes)


def _pickled_table(kind: Kind, parts: Sequence[Pickles]) -> Any:
    groups = np.concatenate([part.groups for part in parts])
    columns = {
        "kind": _repeated(kind, _KIND, len(groups)),
        "key_group": groups,
        "data": pa.chunked_array([array for part in parts for array in _arrays_of(part)]),
    }
    keys = [part.keys for part in parts if part.keys is not None]
    if all(isinstance(shown, np.ndarray) for shown in keys):
        columns["key_int"] = np.concatenate(keys)
    else:
        each = [key for shown in keys for key in (shown if isinstance(shown, list) else shown.tolist())]
        for column, of_type in (("key_int", int), ("key_str", str)):
            columns[column] = [key if type(key) is of_type else None for key in each]
    if kind == "timer":
        columns["value_int"] = [time for part in parts for time in part.times or ()]
    return _table(len(groups), columns)


def _arrays_of(part: Pickles) -> Iterator[Any]:
    sizes = np.diff(part.starts)
    for start, end in pairwise(_chunk_starts(sizes, _CHUNK_BYTES)):
        yield _binary(sizes[start:end], part.data[int(part.starts[start]) : int(part.starts[end])])


def _bytes_of(values: Iterable[bytes], sizes: Array) -> Iterator[Any]:
    """The values in arrays that their offsets can describe."""
    left = iter(values)
    for start, end in pairwise(_chunk_starts(sizes, _CHUNK_BYTES)):
        yield _binary(sizes[start:end], b"".join(islice(left, end - start)))


def _chunk_starts(sizes: Array, bytes_max: int) -> list[int]:
    """Where chunks of values of these sizes begin, and the last one ends. None has twice as many bytes as `bytes_max`,
    unless it is a single value.

    >>> _chunk_starts(np.array([4, 9, 4, 1, 50, 9]), 10)
    [0, 1, 4, 5, 6]
    """
    ends = np.cumsum(sizes)
    if not len(ends) or ends[-1] <= bytes_max:
        return [0, len(sizes)]
    large = np.flatnonzero(sizes > bytes_max)
    inner = np.unique(np.concatenate([np.flatnonzero(np.diff(ends // bytes_max)) + 1, large, large + 1]))
    return [0, *inner[(inner > 0) & (inner < len(sizes))].tolist(), len(sizes)]


def _binary(sizes: Array, data: bytes | memoryview) -> Any:
    """A column of values of these sizes, one behind the other in `data`."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    if ends[-1] > _ARRAY_BYTES_MAX:
        raise OSError(f"a value has {ends[-1]:,} bytes, and a table holds at most {_ARRAY_BYTES_MAX:,} of one")
    ends = ends.astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _spans(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last key group of each part. `sizes` has the bytes of each group."""
    size, first, last = 0, -1, -1
    for group, of_group in enumerate(sizes):
        if size and size + of_group > PART_BYTES:
            yield first, last
            size = 0
        if of_group:
            first, last = group if not size else first, group
            size += of_group
    if size:
        yield first, last


def has_span(table: Any, span: tuple[int, int] | None) -> bool:
    """Whether `span` is the first and last key group of a part; None means that all its rows are without a group."""
    groups = table.column("key_group")
    if span is None or groups.null_count:
        return span is None and groups.null_count == len(groups)
    found = numbers_in(groups)
    return (found.min(), found.max()) == span if len(found) else False


KINDS = ("value", "timer", "gone", "pending", "whole")
_WITH_KEY = KINDS[:3]
_VALUES = ("value_int", "value_float", "value_str", "value_bytes")


class OddRows(NamedTuple):
    """Rows that no store writes: what they are, how many there are, and where the first is."""

    what: str
    rows: int
    first: int


def odd_rows(table: Any) -> Iterator[OddRows]:
    """The rows of a part that could be read in two ways, as their columns show: an audit or a restore refuses them.

    The pickles are not looked at. What must be in the columns beside one, `pickled_row` says.
    """
    kinds = table.column("kind").combine_chunks().dictionary_encode()
    listed: list[Any] = kinds.dictionary.to_pylist()
    if listed == ["value"] and not kinds.null_count and _are_typed_alike(table):
        return
    # `fill_null` would import pandas where it is installed.
    places = np.where(_is_there(table, "kind"), numbers_in(pa.chunked_array([kinds.indices])), -1)
    of_kind = {kind: places == (listed.index(kind) if kind in listed else -2) for kind in KINDS}
    there = {name: _is_there(table, name) for name in table.schema.names if name != "kind"}
    has_data, in_group = there["data"], there["key_group"]
    with_key = np.logical_or.reduce([of_kind[kind] for kind in _WITH_KEY])
    alone = of_kind["pending"] | of_kind["whole"]
    keys = there["key_int"].astype(np.int8) + there["key_str"]
    values = np.add.reduce([there[name].astype(np.int8) for name in _VALUES if name in there])
    typed, pickled = with_key & ~has_data, with_key & has_data
    # A timer has its time beside the pickle.
    beside = values - (of_kind["timer"] & there["value_int"])
    found = {
        "row of an unknown kind of state": ~with_key & ~alone,
        "key without a group": with_key & ~in_group,
        "row of a value without a key": typed & (keys == 0),
        "row with two keys": with_key & (keys > 1),
        "row with no value, or several": typed & (values != 1),
        "row without the pickle of its kind": ((typed & ~of_kind["value"]) | (alone & ~has_data)),
        "row with a value beside its pickle": pickled & (beside != 0),
        "row in a group that its kind does not have": alone & (in_group | (keys != 0) | (values != 0)),
    }
    for what, rows in found.items():
        if rows.any():
            yield OddRows(what, int(np.count_nonzero(rows)), int(np.argmax(rows)))
    wholes = np.flatnonzero(of_kind["whole"])
    if len(wholes) > 1:
        yield OddRows("second state of the task itself", len(wholes) - 1, int(wholes[1]))


def _are_typed_alike(table: Any) -> bool:
    """Whether all rows have their key in one column and their value in another, as most files have."""
    full = [name for name in table.schema.names if table.column(name).null_count == 0]
    empty = [name for name in table.schema.names if table.column(name).null_count == len(table)]
    if len(full) + len(empty) < table.num_columns or "key_group" not in full:
        return False
    return {name for name in full if name not in {"kind", "key_group"}} in map(set, _TYPED.values())


def parts_of(table: Any, wanted: range | None = None) -> Iterator[KeyedPart]:
    """Read what the rows of a part hold by key, or only that of the key groups in `wanted`."""
    groups = table.column("key_group")
    is_wanted = _is_there(table, "key_group")
    if wanted is not None:
        numbers = numbers_in(groups)
        is_wanted &= (numbers >= wanted.start) & (numbers < wanted.stop)
    if table.schema.names == ROWS_NAMES:
        rows = _rows(table, is_wanted)
        if rows.num_rows:
            yield Rows(numbers_in(rows.column("key_group")), *(_columns_of(rows.column(n)) for n in ("key", "value")))
        return
    is_typed = ~_is_there(table, "data")
    for types, columns in _TYPED.items():
        is_of_these = is_wanted & is_typed & _is_there(table, columns[0]) & _is_there(table, columns[1])
        if is_of_these.any():
            yield _typed_part(types, _rows(table.select(["key_group", *columns]), is_of_these))
    pickled = _rows(table.select(["kind", "key_group", "data"]), is_wanted & ~is_typed)
    kinds = pickled.column("kind").combine_chunks().dictionary_encode()
    numbers = numbers_in(pa.chunked_array([kinds.indices]))
    for number, kind in enumerate(kinds.dictionary.to_pylist()):
        of_kind = _rows(pickled.select(["key_group", "data"]), numbers == number)
        yield from (_pickles(kind, batch) for batch in of_kind.to_batches() if batch.num_rows)


def _columns_of(structs: Any) -> dict[str, Array]:
    parts = zip(structs.type, structs.flatten(), strict=True)
    return {field.name: part.to_numpy(zero_copy_only=False) for field, part in parts}


def rest_of(table: Any) -> tuple[tuple[bytes, ...], bytes | None]:
    """Read the rows without a group: the waiting inputs, and the state of the task itself (None if it has none)."""
    rows = to_rows(_rows(table.select(["kind", "data"]), ~_is_there(table, "key_group")))
    pending = tuple(data for kind, data in rows if kind == "pending")
    return pending, next((data for kind, data in rows if kind == "whole"), None)


def _rows(table: Any, which: npt.NDArray[np.bool_]) -> Any:
    """Select rows of a table. Consecutive rows, such as those of a range of groups, are not copied."""
    places = np.flatnonzero(which)
    if not len(places):
        return table.slice(0, 0)
    if places[-1] - places[0] + 1 == len(places):
        return table.slice(int(places[0]), len(places))
    return table.filter(arrow_array(which, pa.bool_()))


def _typed_part(types: Any, rows: Any) -> Numbers | Pairs:
    groups, keys, values = rows.columns
    if types in _MANY:
        code = "i" if types[1] is int else "f"
        return Numbers(code, numbers_in(groups), numbers_in(keys), numbers_in(values))
    return Pairs(numbers_in(groups), numbers_in(keys) if types[0] is int else keys.to_pylist(), values.to_pylist())


def _pickles(kind: Kind, batch: Any) -> Pickles:
    groups, data = batch.columns
    _, ends, payload = data.buffers()
    first = data.offset
    offsets = np.frombuffer(ends, np.int32)[first : first + len(data) + 1]
    return Pickles(kind, numbers_in(pa.chunked_array([groups])), offsets, memoryview(payload))


def _is_there(table: Any, column: str) -> npt.NDArray[np.bool_]:
    values = table.column(column)
    # Most columns are full or empty, and each look at their bits takes longer than to read a column of a small file.
    if values.null_count in (0, len(values)):
        return np.full(len(values), not values.null_count)
    return cast("npt.NDArray[np.bool_]", numbers_in(values.is_valid().cast(pa.uint8())) != 0)

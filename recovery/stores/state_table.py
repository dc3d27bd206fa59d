"""State of one operator in one task as rows: plain keys and values in typed columns, everything else pickled.

An encoded key group is a sequence of pickled entries: (key, value) is a value, (key, at_ms, hops) a timer, (key,) a key
that a delta removes, and an entry of five items holds many values at once (`typed_groups.py`). They become rows of kind
"value", "timer" and "gone". Rows of kind "pending" are waiting inputs; the row "whole" is state of the task itself.

- If the types of key and value have columns and both fit, the typed columns hold the entry and `data` is null.
  Otherwise `data` holds the pickled entry. The typed columns then repeat its key and, in `value_int`, the time of a
  timer, if these fit.
- Integer keys with numbers are read as arrays (`Numbers`), other typed entries as lists (`Pairs`), the rest as pickles
  (`Pickles`). The order of the values in a group has no meaning and may change; timers keep their order.
- Entries are parsed without creating the user's objects, so user code runs neither while a cut is written nor while
  its rows are read.
- The rows of a process class's table are in files of their own, in the table "rows", with the columns `key_group`,
  `key` and `value`; the last two are structs of the columns that the class declares.
- The rows are split into parts, one file per part. A part holds either consecutive key groups or the rows without a
  group. So a task that takes over some of the groups reads only the parts that contain them, and writing a state
  needs no more memory than a part.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from backedge.graphs.routing import KEY_GROUPS
from backedge.recovery.cut import OperatorState
from backedge.recovery.keyed_pickles import BytesRows, KeyedPickles, PickledRows, chunk_starts
from backedge.recovery.stored_groups import Pairs, Pickles, StoredGroups
from backedge.recovery.stores.names import Table
from backedge.recovery.stores.parquet_pages import BytesColumn, is_worth_pages
from backedge.recovery.stores.parquet_tables import ROWS_NAMES, arrow_array, numbers_in, pa, schema, to_rows
from backedge.recovery.table_groups import Rows, TableGroups, concatenated
from backedge.recovery.typed_groups import Numbers, TypedGroups

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

_INT_MAX = (1 << 63) - 1
_INT_MIN = -(1 << 63)
_TYPED: dict[Any, tuple[str, str]] = {
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


class _Typed:
    """Rows without `data` whose keys have one type and whose values have one type, collected group by group."""

    def __init__(self, key_column: str, value_column: str) -> None:
        self.columns = (key_column, value_column)
        self.groups: list[Array] = []
        self.keys: list[list[Any] | Array] = []
        self.values: list[list[Any] | Array] = []

    def add(self, groups: Array, keys: list[Any] | Array, values: list[Any] | Array) -> None:
        """Add rows, given as three columns: groups, keys and values."""
        self.groups.append(groups)
        self.keys.append(keys)
        self.values.append(values)

    def table(self) -> Any:
        """Build the table of all rows."""
        groups = np.concatenate(self.groups)
        count = len(groups)
        columns: dict[str, Any] = {"kind": _repeated("value", _KIND, count), "key_group": groups}
        for column, parts in zip(self.columns, (self.keys, self.values), strict=True):
            columns[column] = _joined(parts, STATE.field(column).type)
        return _table(count, columns)


def _joined(parts: list[list[Any] | Array], kind: Any) -> Any:
    """Join parts to one column. Arrays are concatenated first, because each of many groups may have its own part."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return arrow_array(np.concatenate(parts), kind)
    arrays = [arrow_array(part, kind) for part in parts]
    # Of more than 2 GB, one part becomes several chunks.
    chunks = (array.chunks if isinstance(array, pa.ChunkedArray) else [array] for array in arrays)
    return pa.chunked_array([chunk for several in chunks for chunk in several])


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


class _Rows:
    """The rows of one operator's state."""

    def __init__(self) -> None:
        self.typed = {types: _Typed(*columns) for types, columns in _TYPED.items()}
        self.single: list[_Row] = []

    def add_group(self, group: int, payload: bytes) -> None:
        """Add the entries of an encoded key group."""
        stream = io.BytesIO(payload)
        typed: dict[Any, tuple[list[Any], list[Any]]] = {}
        start, size = 0, len(payload)
        while start < size:
            try:
                # A new unpickler per entry: the memo of one pickle must not be visible to the next.
                entry: Any = PlainUnpickler(stream).load()
            except Exception:  # noqa: BLE001  # any use of an `Opaque` may fail; then nothing is known of the entry
                end = _end_of_pickle(payload, start)
                self.single.append(_pickled("value", group, payload[start:end]))
                start = end
                stream.seek(end)
                continue
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
        """Add values that are in columns already."""
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
        """Build the table of all rows: first the rows without `data`, then the others."""
        tables = [typed.table() for typed in self.typed.values() if typed.keys]
        if self.single:
            columns = zip(PICKLED, zip(*self.single, strict=True), strict=True)
            tables.append(_table(len(self.single), dict(columns)))
        return pa.concat_tables(tables) if tables else _MADE.empty_table()


def _end_of_pickle(payload: bytes, start: int) -> int:
    """The end of the pickle that begins here, found without loading it; if it has none, the end of all."""
    stream = io.BytesIO(payload)
    stream.seek(start)
    try:
        for _ in pickletools.genops(stream):
            continue
    except ValueError:
        return len(payload)
    return stream.tell()


def fits(value: Any) -> bool:
    """Whether a typed column can hold this int, float or text: at most 64 bits, and no half of a surrogate pair."""
    if type(value) is int:
        return _INT_MIN <= value <= _INT_MAX
    if type(value) is not str or value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def pickled_row(group: int, data: bytes) -> tuple[Any, ...]:
    """The row of a single entry that stays pickled, in the columns `PICKLED`: what a store has written, or would.

    >>> pickled_row(3, pickle.dumps(("a", [1]), 5))[:5]
    ('value', 3, None, 'a', None)
    """
    try:
        entry: Any = PlainUnpickler(io.BytesIO(data)).load()
    except Exception:  # noqa: BLE001  # as in `_Rows.add_group`
        return _pickled("value", group, data)
    return _row(group, cast("tuple[Any, ...]", entry) if type(entry) is tuple else (), data)


def _row(group: int, parts: tuple[Any, ...], data: bytes) -> _Row:
    """Build the row of an entry that stays pickled, with its key and its time in typed columns if they fit."""
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
        """The rows as a table."""
        if self.values is None:
            return self.columns
        column = pa.chunked_array(list(_bytes_of(self.values.values, self.values.sizes)))
        return self.columns.add_column(self.values.place, pa.field(self.values.name, pa.binary()), column)


def state_parts(state: OperatorState) -> Iterator[Part]:
    """Split one operator's state in one task into parts: key groups in order, then the rows without a group."""
    if isinstance(state.groups, TableGroups):
        yield from _parts_of_rows(state.groups)
    elif isinstance(state.groups, TypedGroups):
        yield from _parts_of_numbers(state.groups)
    elif isinstance(state.groups, KeyedPickles):
        yield from _parts_of_keyed_pickles(state.groups)
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
    for first, last in _spans([_NUMBER_BYTES * count for count in groups.counts()]):
        rows = _Rows()
        for numbers in groups.numbers:
            found = numbers.of(first, last)
            if len(found.keys):
                rows.add_numbers(found)
        yield Part(rows.table(), (first, last))


def _parts_of_rows(groups: TableGroups) -> Iterator[Part]:
    counts = groups.counts()
    for first, last in _spans([_NUMBER_BYTES * counts.get(group, 0) for group in range(KEY_GROUPS)]):
        rows = concatenated([groups.of(group) for group in range(first, last + 1) if group in counts])
        columns = [_struct(part) for part in rows[1:]]
        yield Part(pa.table([arrow_array(rows.groups, pa.int32()), *columns], names=ROWS_NAMES), (first, last), "rows")


def _struct(columns: Mapping[str, Array]) -> Any:
    return pa.StructArray.from_arrays([pa.array(column) for column in columns.values()], list(columns))


def _parts_of_keyed_pickles(groups: KeyedPickles) -> Iterator[Part]:
    for first, last in _spans(groups.sizes()):
        pieces = list(groups.rows(first, last))
        plain = [piece for piece in pieces if isinstance(piece, BytesRows)]
        pickled = [piece for piece in pieces if isinstance(piece, PickledRows)]
        if len(plain) == len(pieces) == 1 and is_worth_pages(column := _bytes_column(plain[0])):
            yield Part(_keyed_rows(plain, {}).remove_column(column.place), (first, last), "state", column)
            continue
        tables: list[Any] = []
        if plain:
            arrays = [array for piece in plain for array in _bytes_of(piece.values, piece.sizes)]
            tables.append(_keyed_rows(plain, {"value_bytes": pa.chunked_array(arrays)}))
        if pickled:
            tables.append(_keyed_rows(pickled, {"data": pa.chunked_array(list(map(_pickles_of, pickled)))}))
        yield Part(pa.concat_tables(tables), (first, last))


def _bytes_column(rows: BytesRows) -> BytesColumn:
    return BytesColumn("value_bytes", STATE.get_field_index("value_bytes"), rows.values, rows.sizes)


def _keyed_rows(pieces: Sequence[BytesRows | PickledRows], more: dict[str, Any]) -> Any:
    groups, keys = (np.concatenate(parts) for parts in zip(*((p.groups, p.keys) for p in pieces), strict=True))
    kind = _repeated("value", _KIND, len(keys))
    return _table(len(keys), {"kind": kind, "key_group": groups, "key_int": keys, **more})


def _bytes_of(values: Iterable[bytes], sizes: Array) -> Iterator[Any]:
    """The values in arrays that their offsets can describe."""
    left = iter(values)
    for start, end in pairwise(chunk_starts(sizes, _CHUNK_BYTES)):
        yield _binary(sizes[start:end], b"".join(islice(left, end - start)))


def _pickles_of(rows: PickledRows) -> Any:
    return _binary(rows.sizes, rows.data)


def _binary(sizes: Array, data: bytes) -> Any:
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
    places = numbers_in(pa.chunked_array([kinds.indices.fill_null(-1)]))
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


def groups_of(table: Any, wanted: range | None = None) -> StoredGroups:
    """Read the key groups of a part, or only the groups in `wanted`."""
    if table.schema.names == ROWS_NAMES:
        return StoredGroups(_rows_part(table, wanted))
    in_group = _is_there(table, "key_group")
    if wanted is not None:
        groups = numbers_in(table.column("key_group"))
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


def _rows_part(table: Any, wanted: range | None) -> tuple[Rows, ...]:
    groups = numbers_in(table.column("key_group"))
    if wanted is not None:
        table = _rows(table, (groups >= wanted.start) & (groups < wanted.stop))
        groups = numbers_in(table.column("key_group"))
    keys, values = (_columns_of(table.column(name)) for name in ("key", "value"))
    return (Rows(groups, keys, values),) if len(groups) else ()


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
    return Pairs(numbers_in(groups), keys.to_pylist(), values.to_pylist())


def _pickles(batch: Any) -> Pickles:
    groups, data = batch.columns
    _, ends, payload = data.buffers()
    first = data.offset
    offsets = np.frombuffer(ends, np.int32)[first : first + len(data) + 1]
    return Pickles(numbers_in(pa.chunked_array([groups])), offsets, memoryview(payload))


def _is_there(table: Any, column: str) -> npt.NDArray[np.bool_]:
    values = table.column(column)
    # Most columns are full or empty, and each look at their bits takes longer than to read a column of a small file.
    if values.null_count in (0, len(values)):
        return np.full(len(values), not values.null_count)
    return cast("npt.NDArray[np.bool_]", numbers_in(values.is_valid().cast(pa.uint8())) != 0)

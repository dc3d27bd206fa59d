"""Records that travel as columns: an immutable Arrow record batch.

A column can hold numbers, truth values, text, bytes, dates, times, lists and structs of these, and arrays of several
dimensions (tensors). Other values (objects, complex numbers, mixed types) travel as records.

For operators that do not accept columns, they are converted to records: a dict per row, of plain values; a row of a
tensor is an array.

On the wire and in logs, columns are the Arrow IPC stream of one batch after 16 bytes: b"A", seven zeros, and the hops
of all rows as a little-endian 64-bit number. Batches of records and round markers begin with other bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pickle import UnpicklingError
from typing import Any

import numpy as np
import numpy.typing as npt

from backedge.engine.batches.arrow import arrow
from backedge.graphs.task_errors import MisuseError, describe

_HEADER = struct.Struct("<c7xQ")
_PREFIX = b"A"
COLUMNS_BYTE = _PREFIX[0]
"""The first byte of encoded columns."""


class Columns:
    """The records of a record batch, in its order. Equal columns have equal names, types and values.

    >>> columns = Columns(arrow().record_batch({"n": [1, 2, 3], "s": ["a", "b", None]}))
    >>> len(columns), list(columns[1:])
    (3, [{'n': 2, 's': 'b'}, {'n': 3, 's': None}])
    """

    __slots__ = ("batch",)

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return self.batch.num_rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_records())

    def __getitem__(self, rows: slice) -> Columns:
        start, stop, step = rows.indices(self.batch.num_rows)
        if step != 1:
            return self.take(np.arange(start, stop, step))
        return Columns(self.batch.slice(start, max(0, stop - start)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Columns) and self.batch.equals(other.batch)

    __hash__ = None  # type: ignore[assignment]  # nothing is filed under columns

    def __repr__(self) -> str:
        return f"Columns({len(self)} rows of {', '.join(f'{field.name} {field.type}' for field in self.batch.schema)})"

    @property
    def names(self) -> list[str]:
        return self.batch.schema.names

    @property
    def size(self) -> int:
        """The size of their values in bytes."""
        return self.batch.nbytes

    def keys(self, name: str) -> npt.NDArray[Any] | tuple[list[Any], npt.NDArray[np.integer[Any]]] | None:
        """The values of a column as keys: numbers directly, others as distinct values and each row's position.

        None if there is no such column, or if its values are not all plain.

        >>> Columns(arrow().record_batch({"s": ["b", "a", "b"]})).keys("s")
        (['b', 'a'], array([0, 1, 0], dtype=int32))
        """
        if name not in self.names:
            return None
        column, types = self.batch.column(name), arrow().types
        kind = column.type
        is_number = types.is_integer(kind) or types.is_floating(kind)
        if not column.null_count and (is_number or types.is_boolean(kind)):
            return column.to_numpy(zero_copy_only=False)
        if not (is_number or types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind)):
            return None
        found = column.dictionary_encode("encode")
        return found.dictionary.to_pylist(), found.indices.to_numpy()

    def take(self, positions: npt.NDArray[np.integer[Any]], taken: Mapping[str, Any] | None = None) -> Columns:
        """The rows at these positions, in that order. `taken` has columns of the result that are known already.

        >>> Columns(arrow().record_batch({"n": [1, 2, 3]})).take(np.array([2, 0])).to_records()
        [{'n': 3}, {'n': 1}]
        """
        known = taken or {}
        arrays = [
            known[name] if name in known else _taken(column, positions)
            for name, column in zip(self.names, self.batch.columns, strict=True)
        ]
        return Columns(arrow().RecordBatch.from_arrays(arrays, schema=self.batch.schema))

    def to_records(self) -> list[Any]:
        first, *others = map(python_values, self.batch.columns)
        name, *names = self.names
        records: list[dict[str, Any]] = [{name: value} for value in first]
        # Column by column: building the dict of a whole row, as Arrow or zip would, takes a third longer.
        for name, values in zip(names, others, strict=True):
            for record, value in zip(records, values, strict=True):
                record[name] = value
        return records


Records = list[Any] | Columns
"""The records of a batch, in either form."""


def as_records(records: Records) -> list[Any]:
    """Convert columns to records; a list is returned unchanged."""
    return records.to_records() if isinstance(records, Columns) else records


def to_columns(table: Any) -> Records:
    """Convert an Arrow table or record batch to columns, or to records if some values cannot travel as columns.

    >>> to_columns(arrow().table({"n": [1, 2]}))
    Columns(2 rows of n int64)
    """
    names = table.schema.names
    if len(set(names)) < len(names):
        raise MisuseError(f"a table has the columns {names}, two of which have the same name: rename one")
    arrays = [_unified(column) for column in table.columns]
    if not arrays:
        return table.to_pylist()
    if all(map(_travels, arrays)):
        # From the arrays alone: other parts of a schema (metadata, nullability) would make equal batches differ.
        if isinstance(table, arrow().RecordBatch):
            return Columns(arrow().RecordBatch.from_arrays(arrays, names))
        batches = arrow().Table.from_arrays(arrays, names).combine_chunks().to_batches()
        if len(batches) == 1:
            return Columns(batches[0])
    rows = zip(*map(python_values, arrays), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]


def concat(parts: Sequence[Columns]) -> Columns:
    """The rows of several columns in order; names and types must be the same.

    >>> parts = [Columns(arrow().record_batch({"n": [n]})) for n in (1, 2)]
    >>> concat(parts).to_records()
    [{'n': 1}, {'n': 2}]
    """
    if len(parts) == 1:
        return parts[0]
    try:
        return _concatenated(parts)
    except arrow().ArrowInvalid:  # an array of text or bytes holds 2 GiB
        return _concatenated(list(map(_enlarged, parts)))


def joined(batches: Sequence[Records]) -> Records:
    """The records of several batches in order: as columns if all are columns with the same names and types.

    >>> joined([[1], [2, 3]])
    [1, 2, 3]
    """
    columns = [batch for batch in batches if isinstance(batch, Columns)]
    if len(columns) == len(batches) and len({each.batch.schema for each in columns}) == 1:
        return concat(columns)
    return [record for batch in batches for record in as_records(batch)]


def encode_columns(columns: Columns, hops: int) -> bytes:
    """Encode columns and their number of hops."""
    batch = columns.batch
    return b"".join((_HEADER.pack(_PREFIX, hops), batch.schema.serialize(), batch.serialize()))


def decode_columns(payload: bytes | memoryview) -> tuple[Columns, int]:
    """Decode the result of `encode_columns`, without a copy: the columns and their hops.

    Raises UnpicklingError, as for records, if the bytes are anything else.
    """
    try:
        _, hops = _HEADER.unpack_from(payload)
        stream = arrow().ipc.open_stream(arrow().py_buffer(payload).slice(_HEADER.size))
        return Columns(stream.read_next_batch()), hops
    except (struct.error, StopIteration, OSError, arrow().ArrowException) as error:
        raise UnpicklingError(describe(error)) from error


def _concatenated(parts: Sequence[Columns]) -> Columns:
    return Columns(arrow().concat_batches([part.batch for part in parts]))


def _enlarged(columns: Columns) -> Columns:
    """The same values in types that hold more text and bytes."""
    made = arrow()
    large = {made.string(): made.large_string(), made.binary(): made.large_binary()}
    fields = [field.with_type(large.get(field.type, field.type)) for field in columns.batch.schema]
    return Columns(columns.batch.cast(made.schema(fields)))


def is_tensor(kind: Any) -> bool:
    """Whether a column of this type holds arrays of the same shape."""
    return isinstance(kind, arrow().FixedShapeTensorType)


def _taken(column: Any, positions: npt.NDArray[np.integer[Any]]) -> Any:
    types = arrow().types
    if column.null_count or not (types.is_integer(column.type) or types.is_floating(column.type)):
        return column.take(arrow().array(positions))
    # NumPy takes half the time. The positions exist: it need not raise an error.
    return arrow().array(column.to_numpy().take(positions, mode="clip"))


def python_values(column: Any) -> list[Any]:
    """The values of a column as objects of Python; rows of a tensor as arrays.

    >>> python_values(arrow().array([1_000], arrow().timestamp("ns")))
    [datetime.datetime(1970, 1, 1, 0, 0, 0, 1)]
    """
    if is_tensor(column.type):
        whole = column.combine_chunks() if isinstance(column, arrow().ChunkedArray) else column
        # Each is copied by itself: the receiver of a record may change it, or keep it without the others.
        rows = (row.copy() for row in whole.drop_null().to_numpy_ndarray())
        return [next(rows) if is_there else None for is_there in whole.is_valid().to_pylist()]
    try:
        if (kind := _without_nanoseconds(column.type)) != column.type:
            column = column.cast(kind)
        return column.to_pylist()
    except (ValueError, OverflowError) as error:
        raise MisuseError(
            f"a column of {column.type} cannot be converted to values of Python: {describe(error)}\n"
            "  cast times to microseconds and to years that Python's datetime supports"
        ) from error


@cache
def _without_nanoseconds(kind: Any) -> Any:
    """The type with microseconds for nanoseconds: Arrow cuts times of day off, and makes others values of pandas where
    that is installed.
    """
    made = arrow()
    types = made.types
    if types.is_timestamp(kind) and kind.unit == "ns":
        return made.timestamp("us", kind.tz)
    if types.is_duration(kind) and kind.unit == "ns":
        return made.duration("us")
    if types.is_time64(kind):
        return made.time64("us")
    if types.is_list(kind):
        return made.list_(_without_nanoseconds(kind.value_type))
    if types.is_large_list(kind):
        return made.large_list(_without_nanoseconds(kind.value_type))
    if types.is_fixed_size_list(kind):
        return made.list_(_without_nanoseconds(kind.value_type), kind.list_size)
    if types.is_struct(kind):
        return made.struct([field.with_type(_without_nanoseconds(field.type)) for field in kind])
    if types.is_map(kind):
        return made.map_(_without_nanoseconds(kind.key_type), _without_nanoseconds(kind.item_type))
    return kind


def _unified(column: Any) -> Any:
    """The same values without a dictionary, and days as 32-bit numbers, which NumPy and polars take for days, too."""
    if isinstance(column.type, arrow().DictionaryType):
        column = column.cast(column.type.value_type)
    return column.cast(arrow().date32(), safe=False) if arrow().types.is_date64(column.type) else column


def _travels(column: Any) -> bool:
    # A missing tensor has no agreed representation.
    return not column.null_count if is_tensor(column.type) else _is_plain(column.type)


@cache
def _is_plain(kind: Any) -> bool:
    """Whether columns of this type are self-contained: no separate dictionary, no class needed to read them."""
    types = arrow().types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _is_plain(kind.value_type)
    if types.is_struct(kind):
        return all(_is_plain(kind.field(position).type) for position in range(kind.num_fields))
    if types.is_map(kind):
        return _is_plain(kind.key_type) and _is_plain(kind.item_type)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return False
    return not (types.is_nested(kind) or types.is_dictionary(kind) or isinstance(kind, arrow().BaseExtensionType))

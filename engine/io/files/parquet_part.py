"""Writes a Parquet file, one row group of many rows at a time.

The columns of the file are those of all its records, in the order in which they first occur, and the type of each holds
its values unchanged. If a row group needs more columns or wider types than those before it, these are written again. A
column that only contains None takes the type that it had in the last file of this task in which it had other values.

Columns are written unchanged if all batches of a row group have the same names and types, and the file's; otherwise
their rows are written like records. Tensors are converted to lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, time
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from backedge.engine.batches.arrow import arrow, parquet
from backedge.engine.batches.batch import ATOMS, copy_records
from backedge.engine.batches.columns import Columns, Records, as_records, is_tensor
from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.parts import column_names, unwritable
from backedge.graphs.task_errors import describe

ROWS_MAX = 64 * 1024
DICTIONARY_BYTES_MAX = 128 * 1024
"""A column with more distinct values is written without a dictionary: trying longer would take four times the time."""

_ALIKE = ((int, float, Decimal, np.number), (str,), (bytes, bytearray), (list, tuple, np.ndarray), (dict,))
"""Python types that may share a column unchanged."""


NO_COLUMN = (ValueError, TypeError, OverflowError, NotImplementedError)
"""What Arrow raises for values that no column holds."""


class ParquetPart:
    """Writes records that are dicts as rows. `types` outlives the part: column name -> its type."""

    def __init__(self, disk: Disk, path: Path, sink: str, types: dict[str, Any], rows_max: int = ROWS_MAX) -> None:
        self._sink = sink
        self._types = types
        self._rows_max = rows_max
        self._disk = disk
        self._path = path
        # Our own stream: only we close what writes to it, so a full disk is noticed.
        self._stream = disk.open(path)
        self._writer: Any = None
        self._schema: Any = None
        # The rows that are not yet written; at most one of the two is in use.
        self._columns: dict[str, list[Any]] = {}
        self._tables: list[Any] = []
        self._rows = 0

    def write(self, records: Records) -> None:
        """Add records. They are converted and written one row group at a time."""
        for start in range(0, len(records), self._rows_max):
            some = records[start : start + self._rows_max]
            table = _table(some) if isinstance(some, Columns) else None
            if table is not None and self._fits(table.schema):
                self._tables.append(table)
                self._rows += len(some)
            else:
                self._take_apart()
                self._add(as_records(some))
            if self._rows >= self._rows_max:
                self._flush()

    def close(self) -> None:
        """Write the remaining rows, and close the file."""
        if self._rows:
            self._flush()
        try:
            if self._writer is not None:
                self._writer.close()
            self._stream.close()
        except OSError:
            self._give_up()
            raise

    def _fits(self, schema: Any) -> bool:
        """Whether a table fits into the file unchanged, together with the rows that are not yet written."""
        if self._rows and not self._tables:
            return False
        if arrow().null() in schema.types:
            return False
        known = self._tables[0].schema if self._tables else self._schema
        return known is None or known.equals(schema)

    def _take_apart(self) -> None:
        """Convert tables that are not yet written to records, because they share a row group with records."""
        tables, self._tables = self._tables, []
        if tables:
            self._rows = 0
            self._add([record for table in tables for record in table.to_pylist()])

    def _add(self, records: list[Any]) -> None:
        names = column_names(self._sink, "Parquet", records, self._columns)
        if not ATOMS.issuperset(map(type, chain.from_iterable(record.values() for record in records))):
            # They are kept until the row group is full, and their sender may change them meanwhile.
            records = copy_records(records)
        for name in list(names)[len(self._columns) :]:
            self._columns[name] = [None] * self._rows
        for key, column in self._columns.items():
            column += [record.get(key) for record in records]
        self._rows += len(records)

    def _flush(self) -> None:
        table = arrow().concat_tables(self._tables) if self._tables else self._table_of_records()
        try:
            if self._schema != table.schema:
                self._widen(table.schema)
                self._types |= {field.name: field.type for field in table.schema if field.type != arrow().null()}
            self._writer.write_table(table)
        except OSError:
            self._give_up()
            raise
        except (NotImplementedError, ValueError) as error:
            self._give_up()
            (first,) = table.slice(0, 1).to_pylist()
            what = f"{', '.join(map(str, table.schema.types))} do not all go into it: {describe(error)}"
            raise unwritable(self._sink, "Parquet", first, what, "map the column to another type") from error
        self._columns = {name: [] for name in table.schema.names}
        self._tables = []
        self._rows = 0

    def _widen(self, schema: Any) -> None:
        """Write the file with these columns and types from here on; rows that it has already are written again."""
        if self._schema is None:
            self._writer = _writer(self._stream, schema)
        else:
            self._writer.close()
            self._stream.close()
            with self._disk.read(self._path) as former, parquet().ParquetFile(former) as file:
                self._disk.remove(self._path)
                self._stream = self._disk.open(self._path)
                self._writer = _writer(self._stream, schema)
                for group in range(file.num_row_groups):
                    self._writer.write_table(_widened(file.read_row_group(group), schema))
        self._schema = schema

    def _table_of_records(self) -> Any:
        types = {} if self._schema is None else {field.name: field.type for field in self._schema}
        return arrow().table(
            {name: self._array(name, column, types.get(name)) for name, column in self._columns.items()}
        )

    def _array(self, name: str, values: list[Any], kind: Any) -> Any:
        try:
            array = _converted(values, kind)
        except NO_COLUMN as error:
            try:
                array = _converted(values, None)
                array = array.cast(united(kind, array.type))
            except NO_COLUMN:
                raise self._misfit(name, values, kind, error) from error
        return array.cast(self._types[name]) if array.type == arrow().null() and name in self._types else array

    def _misfit(self, name: str, values: list[Any], kind: Any, error: Exception) -> Exception:
        """The error to raise for the first value that does not fit the values before it."""
        fits, fails = 0, len(values)
        while fails - fits > 1:
            middle = (fits + fails) // 2
            try:
                _converted(values[:middle], kind)
                fits = middle
            except NO_COLUMN:
                fails = middle
        columns = {key: column[fails - 1] for key, column in self._columns.items()}
        before = f" as {kind}, the type of the rows before" if kind is not None else " with the rows before"
        what = f"column {name!r} does not go{before}: {describe(error)}"
        return unwritable(self._sink, "Parquet", columns, what, "map the column to values of one type")

    def _give_up(self) -> None:
        # When dropped, it would try again to write its footer, and errors would go unnoticed.
        if self._writer is not None:
            self._writer.is_open = False


def join_parquet(disk: Disk, parts: Sequence[Path], path: Path, rows_max: int = ROWS_MAX) -> None:
    """Write the rows of files with the same columns and types into a new one, one row group of many rows at a time."""
    _write_rows(
        disk, parquet().read_schema(parts[0]), (rows for part in parts for rows in _groups(part)), path, rows_max
    )


def cut_parquet(disk: Disk, file: Path, spans: Iterable[tuple[int, int]], path: Path) -> None:
    """Write these rows of a file into a new one: starts and lengths."""
    wanted = list(spans)

    def rows() -> Iterator[Any]:
        first = 0
        for group in _groups(file):
            for start, length in wanted:
                begin, end = max(start - first, 0), min(start + length - first, group.num_rows)
                if begin < end:
                    yield group.slice(begin, end - begin)
            first += group.num_rows

    _write_rows(disk, parquet().read_schema(file), rows(), path, ROWS_MAX)


def count_rows(path: Path) -> int:
    return int(parquet().read_metadata(path).num_rows)


def _groups(path: Path) -> Iterator[Any]:
    with parquet().ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group)


def _write_rows(disk: Disk, schema: Any, rows: Iterable[Any], path: Path, rows_max: int) -> None:
    stream = disk.open(path)
    writer = _writer(stream, schema)
    tables: list[Any] = []

    def flush() -> None:
        writer.write_table(arrow().concat_tables(tables))
        tables.clear()

    try:
        for table in rows:
            tables.append(table)
            if sum(table.num_rows for table in tables) >= rows_max:
                flush()
        if tables:
            flush()
        writer.close()
        stream.close()
    except OSError:
        # When dropped, it would try again to write its footer.
        writer.is_open = False
        raise


def _writer(stream: Any, schema: Any) -> Any:
    return parquet().ParquetWriter(stream, schema, dictionary_pagesize_limit=DICTIONARY_BYTES_MAX)


def _widened(table: Any, schema: Any) -> Any:
    """The rows of a table with these columns and types. `ValueError` if a value would change."""
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.schema.names
        else arrow().nulls(len(table), field.type)
        for field in schema
    ]
    return arrow().Table.from_arrays(columns, schema=schema)


def _table(columns: Columns) -> Any:
    """Convert columns to a table; tensors become lists, which every Parquet reader supports."""
    arrays = [tensor_lists(column) if is_tensor(column.type) else column for column in columns.batch.columns]
    return arrow().Table.from_arrays(arrays, columns.names)


def tensor_lists(tensor: Any) -> Any:
    array = tensor.to_numpy_ndarray()
    lists, rows = arrow().array(array.reshape(-1)), array.size
    for length in reversed(array.shape[1:]):
        rows //= length
        lists = arrow().ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32) * np.int32(length), lists)
    return lists


def _converted(values: list[Any], kind: Any) -> Any:
    """Convert values to an array, of this type if given, provided that no value changes."""
    array = array_of(values)
    if kind is None or array.type == kind:
        return array
    if _is_narrower(kind, array.type) and are_same(array.cast(kind).cast(array.type), array):
        # Rows that arrived as columns have given the file a type that no Python value has.
        return array.cast(kind)
    # Not array(values, kind), which would truncate fractions.
    if united(kind, array.type) != kind:
        raise TypeError(f"{array.type} is not {kind}")
    return array.cast(kind)


def united(one: Any, other: Any) -> Any:
    """The type that holds the values of both; `TypeError` if there is none."""
    types = arrow().types
    if one.equals(other) or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if types.is_list(one) and types.is_list(other):
        return arrow().list_(united(one.value_type, other.value_type))
    if types.is_struct(one) and types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = united(fields.get(field.name, arrow().null()), field.type)
        return arrow().struct(list(fields.items()))
    if not are_akin(one, other):
        raise TypeError(f"{other} is not {one}")
    schemas = [arrow().schema([("column", each)]) for each in (one, other)]
    return arrow().unify_schemas(schemas, promote_options="permissive").field("column").type


def are_akin(one: Any, other: Any) -> bool:
    """Whether a value means the same in both types, if both hold it."""
    types = arrow().types
    if types.is_timestamp(one) and types.is_timestamp(other):
        return one.tz == other.tz
    families = (
        (types.is_integer, types.is_floating),
        (types.is_integer, types.is_decimal),
        (types.is_string, types.is_large_string, types.is_string_view),
        (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary),
        (types.is_date,),
        (types.is_time,),
        (types.is_duration,),
    )
    return any(all(any(is_it(each) for is_it in family) for each in (one, other)) for family in families)


def are_same(one: Any, other: Any) -> bool:
    return one.equals(other) or np.array_equal(
        *(a.to_numpy(zero_copy_only=False) for a in (one, other)), equal_nan=True
    )


def _is_narrower(kind: Any, other: Any) -> bool:
    types = arrow().types
    sorts = (types.is_integer, types.is_floating, types.is_timestamp)
    return any(is_it(kind) and is_it(other) for is_it in sorts) and are_akin(kind, other)


def array_of(values: list[Any]) -> Any:
    """An array of these values. `TypeError` if one of them, or something in them, would change beside the others."""
    _check_alike(values)
    array = arrow().array(values)
    if arrow().types.is_nested(array.type) and _may_hide_a_change(array.type):
        _check_within(values)
    return array


def _may_hide_a_change(kind: Any) -> bool:
    """Whether Arrow may have changed values to put them into this type. It does not change numbers."""
    types = arrow().types
    if types.is_nested(kind):
        return any(_may_hide_a_change(kind.field(place).type) for place in range(kind.num_fields))
    return types.is_temporal(kind) or types.is_binary(kind) or types.is_large_binary(kind)


def _check_within(values: Iterable[Any]) -> None:
    """Raise for mixed types in what is to be one column of a nested type."""
    dicts: list[dict[Any, Any]] = [value for value in values if isinstance(value, dict)]
    columns = [[each[name] for each in dicts if name in each] for name in dict.fromkeys(chain.from_iterable(dicts))]
    lists: list[Any] = [value for value in values if isinstance(value, (list, tuple, set, frozenset))]
    for column in (*columns, list(chain.from_iterable(lists))):
        if column:
            _check_alike(column)
            _check_within(column)


def _check_alike(values: list[Any]) -> None:
    """Raise for mixed types that Arrow would put into one column by changing some values."""
    kinds = set(map(type, values)) - {type(None)}
    if len(kinds) > 1 and not any(all(issubclass(kind, alike) for kind in kinds) for alike in _ALIKE):
        raise TypeError(f"it mixes {' and '.join(sorted(kind.__name__ for kind in kinds))}")
    if kinds == {datetime} and len({value.tzinfo is None for value in values if value is not None}) > 1:
        raise TypeError("it mixes times that have a time zone and times that have none")
    if kinds == {time} and any(value.tzinfo is not None for value in values if value is not None):
        raise TypeError("it has times of a day with a time zone")

"""Records as rows of a table whose columns have types: checked before the cut, so a wrong one can still be traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from backedge.engine.batches.arrow import arrow
from backedge.engine.batches.columns import Columns, Records, is_tensor
from backedge.engine.io.files.input_columns import Schema
from backedge.engine.io.files.parquet_part import NO_COLUMN, are_akin, are_same, array_of, tensor_lists
from backedge.engine.io.files.parts import column_names, unwritable
from backedge.graphs.task_errors import describe


class TableColumns:
    """The columns of a table, to which records are converted. Those of a new table are given by its first records.

    A column that the table lacks is refused, added to the table or left out: "fail", "widen" or "ignore". `takes` gets
    the type of a column that is new, and raises if the table cannot have it.
    """

    def __init__(
        self, sink: str, table: str, fields: Iterable[Any], new: Schema, takes: Callable[[Any], object]
    ) -> None:
        self._sink = sink
        self._table = table
        self._fields = {field.name: field for field in fields}
        self._new: Schema = new
        self._takes = takes

    def check(self, records: Records) -> Columns:
        """The records as columns of the table, all of them."""
        given = self._given(records)
        is_new_table = not self._fields
        for name in [name for name in given if name not in self._fields]:
            if self._new == "widen" or is_new_table:
                self._add(name, given[name], records)
            elif self._new == "fail":
                raise self._surplus(name, records)
        if not given.keys() & self._fields.keys():
            raise self._unwritable(records, 0, "none of its columns has a value and a place", self._known_columns())
        arrays = [self._array(field, given.get(name), records) for name, field in self._fields.items()]
        return Columns(arrow().RecordBatch.from_arrays(arrays, schema=arrow().schema(list(self._fields.values()))))

    def _given(self, records: Records) -> dict[str, Any]:
        """The values of the records by column."""
        if isinstance(records, Columns):
            columns = zip(records.names, records.batch.columns, strict=True)
            return {name: tensor_lists(column) if is_tensor(column.type) else column for name, column in columns}
        names = column_names(self._sink, f"a row of table {self._table}", records)
        return {name: [record.get(name) for record in records] for name in names}

    def _add(self, name: str, values: Any, records: Records) -> None:
        """Add a column to those of the table; not yet if all of its values are None, which have no type."""
        alike = [known for known in self._fields if known.lower() == name.lower()]
        if alike or not name:
            what = f"the table has a column {alike[0]!r}" if alike else "it has no name"
            row = 0 if isinstance(records, Columns) else next(row for row, each in enumerate(records) if name in each)
            raise self._unwritable(records, row, f"column {name!r} cannot be added: {what}", "rename it with map")

        def kind_of(some: Any) -> Any:
            kind = _plain_array(some).type
            if not arrow().types.is_null(kind):
                kind = widest(kind)
                self._takes(kind)
            return kind

        kind = self._tried(name, kind_of, values, records)
        if not arrow().types.is_null(kind):
            self._fields[name] = arrow().field(name, kind)

    def _array(self, field: Any, values: Any, records: Records) -> Any:
        rows = len(records)
        if values is None:
            array = arrow().nulls(rows, field.type)
        else:
            array = self._tried(field.name, lambda some: fitted(_plain_array(some), field.type), values, records)
        if array.null_count and not field.nullable:
            row = array.is_null().to_pylist().index(True)
            what = f"column {field.name!r} is lacking, which the table requires"
            raise self._unwritable(records, row, what, "give it a value with map")
        return array

    def _tried(self, name: str, convert: Callable[[Any], Any], values: Any, records: Records) -> Any:
        """What `convert` makes of the values of a column; if it raises, the error names the first row at fault."""
        try:
            return convert(values)
        except NO_COLUMN as error:
            fits, fails = 0, len(records)
            while fails - fits > 1:
                middle = (fits + fails) // 2
                try:
                    convert(values[:middle])
                    fits = middle
                except NO_COLUMN:
                    fails = middle
            known = self._fields.get(name)
            as_what = "" if known is None else f" as {known.type}"
            what = f"column {name!r} cannot hold a value{as_what}: {describe(error)}"
            raise self._unwritable(records, fails - 1, what, "map it to a value that the column holds") from error

    def _surplus(self, name: str, records: Records) -> Exception:
        rows = enumerate([] if isinstance(records, Columns) else records)
        row = next((row for row, record in rows if name in record), 0)
        fix = 'leave it out with map, or write with schema="widen", which adds it, or schema="ignore"'
        return self._unwritable(records, row, f"the table has no column {name!r}", fix)

    def _known_columns(self) -> str:
        return f"map records to dicts with columns of the table: {', '.join(self._fields) or 'it has none yet'}"

    def _unwritable(self, records: Records, row: int, what: str, fix: str) -> Exception:
        (record,) = records[row : row + 1]
        return unwritable(self._sink, f"a row of table {self._table}", record, what, fix)


def fitted(array: Any, kind: Any) -> Any:
    """The same values as this type. An error if a value would change, or means something else in it.

    >>> fitted(arrow().array([1, 2]), arrow().float64()).to_pylist()
    [1.0, 2.0]
    """
    if array.type.equals(kind):
        return array
    if not _means_the_same(kind, array.type):
        raise TypeError(f"{array.type} is not {kind}")
    taken = array.cast(kind)
    if _is_rounded(array, taken):
        raise ValueError(f"a number has more digits than {kind} holds")
    return taken


def _is_rounded(array: Any, taken: Any) -> bool:
    """Whether a number has become another one: Arrow verifies all casts but those between types of fractions."""
    types, given, kind = arrow().types, array.type, taken.type
    if types.is_map(kind):
        return any(_is_rounded(*(_of_maps(each, part) for each in (array, taken))) for part in ("keys", "items"))
    if _is_list(kind):
        return _is_rounded(array.flatten(), taken.flatten())
    if types.is_struct(kind):
        return any(_is_rounded(*(each.field(field.name) for each in (array, taken))) for field in given)
    is_narrower = types.is_floating(kind) and types.is_floating(given) and kind.bit_width < given.bit_width
    return is_narrower and not are_same(taken.cast(given), array)


def _of_maps(maps: Any, part: str) -> Any:
    """The keys or the items of these maps alone: an array of maps may be a part of another one."""
    return arrow().ListArray.from_arrays(maps.offsets, getattr(maps, part)).flatten()


def widest(kind: Any) -> Any:
    """The type of a new column for values of this type: later ones of the same sort go into it as well.

    >>> widest(arrow().list_(arrow().uint8()))
    ListType(list<item: int64>)
    """
    types, made = arrow().types, arrow()
    if types.is_null(kind):
        raise TypeError("a list or a struct without values has no type yet: create the table with that column")
    if types.is_timestamp(kind):
        return made.timestamp("us", None if kind.tz is None else "UTC")
    if _is_list(kind):
        return made.list_(widest(kind.value_type))
    if types.is_struct(kind):
        return made.struct([(field.name, widest(field.type)) for field in kind])
    if types.is_map(kind):
        return made.map_(widest(kind.key_type), widest(kind.item_type))
    sorts = (
        (types.is_integer, made.int64()),
        (types.is_floating, made.float64()),
        (_is_text, made.string()),
        (_is_bytes, made.binary()),
        (types.is_date, made.date32()),
        (types.is_time, made.time64("us")),
        (types.is_boolean, kind),
        (types.is_decimal128, kind),
    )
    for is_it, wide in sorts:
        if is_it(kind):
            return wide
    raise TypeError(f"no column of such a table has values of type {kind}")


def _means_the_same(kind: Any, given: Any) -> bool:
    """Whether values of type `given` mean the same in a column of type `kind`, if it holds them."""
    types = arrow().types
    if types.is_null(given) or given.equals(kind):
        return True
    if _is_list(kind) and _is_list(given):
        return _means_the_same(kind.value_type, given.value_type)
    if types.is_map(kind) and types.is_map(given):
        pairs = ((kind.key_type, given.key_type), (kind.item_type, given.item_type))
        return all(_means_the_same(*pair) for pair in pairs)
    if types.is_struct(kind) and types.is_struct(given):
        known = {field.name: field.type for field in kind}
        return all(field.name in known and _means_the_same(known[field.name], field.type) for field in given)
    if types.is_timestamp(kind) and types.is_timestamp(given):
        return (kind.tz is None) == (given.tz is None)
    return are_akin(kind, given)


def _plain_array(values: Any) -> Any:
    if not isinstance(values, list):
        return values
    return array_of(cast("list[Any]", values))


def _is_list(kind: Any) -> bool:
    types = arrow().types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _is_text(kind: Any) -> bool:
    return arrow().types.is_string(kind) or arrow().types.is_large_string(kind)


def _is_bytes(kind: Any) -> bool:
    types = arrow().types
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)

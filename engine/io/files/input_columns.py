"""The columns that a source of files declares, and how rows of files with others are fitted to them.

A row has the declared columns, in this order, with None where its file lacks one. A file with other columns or types:

- "fail": is refused.
- "ignore": its other columns are left out. Its values take the declared types; one that would change is refused.
- "widen": its other columns follow the declared ones. A column takes the type that holds the values of both.

What rows are fitted to must not depend on the files that there are: a restored run reads the rest of a file, and must
read the same. So the flow says it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, cast, get_args

from msgspec import Struct

from backedge.engine.batches.arrow import arrow
from backedge.engine.io.files.parquet_part import NO_COLUMN, are_same, united
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.task_errors import describe, show

Schema = Literal["fail", "ignore", "widen"]
Columns = Sequence[str] | Mapping[str, Any]


class MisfitError(Exception):
    """A file or a row of it does not fit. `row`: its place in what was to be fitted, if a row is to blame."""

    def __init__(self, what: str, row: int | None = None) -> None:
        super().__init__(what)
        self.row = row


class InputColumns(Struct, frozen=True):
    """Declared columns: name -> Arrow type, or None where rows are texts or JSON.

    >>> InputColumns({"id": None, "name": None}, "ignore").rows([{"name": "Ann", "age": 3}])
    [{'id': None, 'name': 'Ann'}]
    """

    types: Mapping[str, Any]
    schema: Schema

    def names_for(self, found: Collection[str]) -> list[str]:
        """The columns of the rows of a file with these columns."""
        others = [name for name in found if name not in self.types]
        if self.schema == "fail" and (others or len(found) < len(self.types)):
            lacking = [name for name in self.types if name not in found]
            told = [
                f"{what} {', '.join(map(repr, each))}" for what, each in (("has", others), ("lacks", lacking)) if each
            ]
            raise MisfitError(f"{' and '.join(told)}, and schema='fail': {self._fix()}")
        return [*self.types, *others] if self.schema == "widen" else list(self.types)

    def rows(self, records: list[Any]) -> list[dict[str, Any]]:
        """Fit records, which are dicts."""
        found: list[dict[str, Any]] = []
        keys: Collection[str] | None = None
        names: list[str] = []
        for row, record in enumerate(records):
            if not isinstance(record, dict):
                raise MisfitError(f"{show(record)} has no columns: leave columns= out", row)
            own = cast("dict[str, Any]", record)
            # Most records have the columns of the one before.
            if own.keys() != keys:
                try:
                    keys, names = own.keys(), self.names_for(own)
                except MisfitError as error:
                    raise MisfitError(f"the record {error}", row) from None
            found.append({name: own.get(name) for name in names})
        return found

    def types_for(self, schema: Any) -> dict[str, Any]:
        """The types of the columns of the rows of a file with this Arrow schema."""
        found = {field.name: field.type for field in schema}
        if len(found) < len(schema):
            raise MisfitError("has two columns of the same name: rename one")
        return {name: self._type_of(name, found.get(name)) for name in self.names_for(found)}

    def _type_of(self, name: str, found: Any) -> Any:
        declared = self.types.get(name, found)
        if found is None or found.equals(declared):
            return declared
        try:
            # What is written as a dictionary, such as a category of pandas, has the values of another type.
            both = united(declared, found.value_type if arrow().types.is_dictionary(found) else found)
        except NO_COLUMN:
            both = None
        if both is None or self.schema == "fail":
            raise MisfitError(f"has column {name!r} of type {found}, and {declared} is declared: {self._fix()}")
        return both if self.schema == "widen" else declared

    def _fix(self) -> str:
        return "write the file again, or declare what the files have with columns= and schema="


def fitted(batch: Any, types: Mapping[str, Any]) -> Any:
    """A record batch with these columns. Raises a `MisfitError` if a value would change."""
    columns = {
        name: _cast(name, batch.column(name), kind) if name in batch.schema.names else arrow().nulls(len(batch), kind)
        for name, kind in types.items()
    }
    return arrow().RecordBatch.from_arrays(list(columns.values()), list(columns))


def _cast(name: str, array: Any, kind: Any) -> Any:
    if array.type.equals(kind):
        return array
    if array.null_count == len(array):
        return arrow().nulls(len(array), kind)
    if arrow().types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if (taken := _unchanged(array, kind)) is not None:
        return taken
    row = next(row for row in range(len(array)) if _unchanged(array.slice(row, 1), kind) is None)
    try:
        value = show(array[row].as_py())
    except ValueError:  # a time with nanoseconds
        value = array.slice(row, 1).cast(arrow().string())[0].as_py()
    raise MisfitError(f"column {name!r} has {value}, which {kind} does not hold", row)


def _unchanged(array: Any, kind: Any) -> Any:
    try:
        taken = array.cast(kind)
        return taken if are_same(taken.cast(array.type), array) else None
    except NO_COLUMN:
        return None


def input_columns(columns: Columns | None, schema: Schema, *, has_types: bool) -> InputColumns | None:
    """The columns that a user declares; None if there are none. Raises a `BadOptionError`."""
    if schema not in get_args(Schema):
        raise BadOptionError(f"schema={schema!r}: give one of {', '.join(map(repr, get_args(Schema)))}")
    if columns is None:
        if schema != "fail":
            raise BadOptionError(f"schema={schema!r} has nothing to compare a file with: give columns=, too")
        return None
    given: Any = columns
    if has_types and not isinstance(given, Mapping):
        raise BadOptionError(f"columns={given!r} has no types: give {{name: type}}, such as {{'id': 'int64'}}")
    if isinstance(given, str) or (not has_types and isinstance(given, Mapping)):
        raise BadOptionError(
            f"columns={given!r} are no names of columns: give a list of them; this format has no types"
        )
    names: list[Any] = list(columns)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise BadOptionError(f"columns={given!r}: give each column once, by a name, and at least one")
    types: dict[str, Any] = {name: _type(name, given[name]) if has_types else None for name in names}
    return InputColumns(types, schema)


def _type(name: str, kind: Any) -> Any:
    if isinstance(kind, arrow().DataType):
        return kind
    try:
        return arrow().type_for_alias(kind)
    except (ValueError, TypeError) as error:
        raise BadOptionError(
            f"columns={{{name!r}: {kind!r}}}: {describe(error)}; give the name of an Arrow type, such as 'int64', "
            "'double', 'string' or 'timestamp[us]', or a pyarrow.DataType"
        ) from None

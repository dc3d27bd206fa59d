"""Records as rows of a table: which columns they have, and whether the table takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from engine.columns import Records, as_records
from engine.files.parts import unwritable
from graphs.graph_errors import BadOptionError

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Column:
    """A column of a table. `is_required`: a row must give it a value. `is_writable`: it is not computed."""

    name: str
    type: str
    is_required: bool
    is_writable: bool


class RowCheck:
    """Checks records before the cut that counts them as written: a wrong one can still be traced to its function.

    `takes` raises an exception for a value of a kind that the driver of the database cannot send.
    """

    def __init__(self, sink: str, table: str, columns: Iterable[Column], takes: Callable[[str, Any], object]) -> None:
        self._sink = sink
        self._table = table
        self._columns = {column.name: column for column in columns if column.is_writable}
        self._required = {column.name for column in self._columns.values() if column.is_required}
        self._takes = takes
        self._known: set[Row] = set()
        """The columns and types of records that were looked at before."""

    def check(self, records: Records) -> list[dict[str, Any]]:
        """The records, each of which is a dict with columns of the table."""
        found = as_records(records)
        if not all(isinstance(record, dict) for record in found):
            culprit = next(record for record in found if not isinstance(record, dict))
            raise self._unwritable(culprit, "it has no columns", "map records to dicts with names of columns as keys")
        shapes = {(*record, *map(type, record.values())): record for record in found}
        for shape in shapes.keys() - self._known:
            self._check_shape(shapes[shape])
            self._known.add(shape)
        return found

    def _check_shape(self, record: dict[Any, Any]) -> None:
        surplus = [name for name in record if name not in self._columns]
        if surplus or not record:
            known = ", ".join(self._columns)
            what = f"the table has no column {surplus[0]!r} to write" if surplus else "it is empty"
            raise self._unwritable(record, what, f"map records to dicts with columns of the table: {known}")
        lacking = sorted(self._required - record.keys())
        if lacking:
            what = f"column {lacking[0]!r} is lacking, which the table requires"
            raise self._unwritable(record, what, "add it to the record, or give the column a default")
        for name, value in record.items():
            try:
                self._takes(self._columns[name].type, value)
            except Exception as error:
                what = f"column {name!r} cannot hold a value of type {type(value).__name__}"
                raise self._unwritable(record, what, "map it to a value that the column holds") from error

    def _unwritable(self, record: Any, what: str, fix: str) -> Exception:
        return unwritable(self._sink, f"a row of table {self._table}", record, what, fix)


def by_columns(records: Iterable[dict[str, Any]]) -> dict[tuple[str, ...], list[Row]]:
    """The rows of these records, by the columns that they have.

    >>> by_columns([{"n": 1}, {"n": 2, "s": "x"}, {"n": 3}])
    {('n',): [(1,), (3,)], ('n', 's'): [(2, 'x')]}
    """
    found: dict[tuple[str, ...], list[Row]] = {}
    for record in records:
        found.setdefault(tuple(record), []).append(tuple(record.values()))
    return found


def last_of_each(records: Iterable[dict[str, Any]], key: Sequence[str]) -> list[dict[str, Any]]:
    """The last record of each key.

    >>> last_of_each([{"id": 1, "n": 1}, {"id": 2, "n": 1}, {"id": 1, "n": 2}], ["id"])
    [{'id': 1, 'n': 2}, {'id': 2, 'n': 1}]
    """
    return list({tuple(record[name] for name in key): record for record in records}.values())


def key_columns(key: object, table: str) -> tuple[str, ...]:
    """The option `key` of a table, as the names of columns."""
    names = (key,) if isinstance(key, str) else key
    if not isinstance(names, tuple | list):
        raise BadOptionError(f"table {table!r} is given key={key!r}: give the name of a column, or several in a tuple")
    found = tuple(cast("Sequence[object]", names))
    if not all(isinstance(name, str) and name for name in found):
        raise BadOptionError(f"table {table!r} is given key={key!r}: give names of columns")
    return cast("tuple[str, ...]", found)

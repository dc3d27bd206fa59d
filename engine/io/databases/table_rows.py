"""Records as rows of a table: which columns they have, and whether the table takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, cast

from backedge.engine.batches.columns import Records, as_records
from backedge.engine.io.files.parts import unwritable
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.task_errors import describe

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

    `takes` gets the type of a column and values for it, and raises an exception if no such column holds one of them.
    """

    def __init__(
        self, sink: str, table: str, columns: Iterable[Column], takes: Callable[[str, list[Any]], object]
    ) -> None:
        self._sink = sink
        self._table = table
        self._columns = {column.name: column for column in columns if column.is_writable}
        self._required = {column.name for column in self._columns.values() if column.is_required}
        self._takes = takes
        self._known: set[Row] = set()
        """The columns of records that were looked at before."""

    def check(self, records: Records) -> list[dict[str, Any]]:
        """The records, each of which is a dict with columns of the table."""
        found = as_records(records)
        if not all(isinstance(record, dict) for record in found):
            culprit = next(record for record in found if not isinstance(record, dict))
            raise self._unwritable(culprit, "it has no columns", "map records to dicts with names of columns as keys")
        shapes = {tuple(record): record for record in found}
        for shape in shapes.keys() - self._known:
            self._check_shape(shapes[shape])
            self._known.add(shape)
        for name in dict.fromkeys(chain.from_iterable(shapes)):
            self._check_column(name, found if len(shapes) == 1 else [record for record in found if name in record])
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

    def _check_column(self, name: str, records: list[dict[str, Any]]) -> None:
        column_type = self._columns[name].type
        try:
            self._takes(column_type, list(map(itemgetter(name), records)))
        except Exception:  # whatever a driver raises for a value
            for record in records:
                self._check_value(name, column_type, record)
            raise

    def _check_value(self, name: str, column_type: str, record: dict[str, Any]) -> None:
        try:
            self._takes(column_type, [record[name]])
        except Exception as error:
            what = f"column {name!r} cannot hold a value of type {type(record[name]).__name__}: {describe(error)}"
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


def check_texts(values: Iterable[Any], kinds: Iterable[type], refused: str = "") -> None:
    """Raise if a text among values of these kinds, or in a list, is no Unicode, or has the `refused` character.

    >>> check_texts(["fine", ["bad \\ud83d"]], {str, list})
    Traceback (most recent call last):
    ...
    UnicodeEncodeError: 'utf-8' codec can't encode character '\\ud83d' in position 8: surrogates not allowed
    """
    if any(issubclass(kind, (str, list, tuple)) for kind in kinds):
        text = "".join(_texts(values))
        text.encode()
        if refused and refused in text:
            raise ValueError(f"text with {refused!r}")


def _texts(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _texts(cast("Sequence[Any]", value))


def key_columns(key: object, table: str) -> tuple[str, ...]:
    """The option `key` of a table, as the names of columns."""
    names = (key,) if isinstance(key, str) else key
    if not isinstance(names, tuple | list):
        raise BadOptionError(f"table {table!r} is given key={key!r}: give the name of a column, or several in a tuple")
    found = tuple(cast("Sequence[object]", names))
    if not all(isinstance(name, str) and name for name in found):
        raise BadOptionError(f"table {table!r} is given key={key!r}: give names of columns")
    return cast("tuple[str, ...]", found)

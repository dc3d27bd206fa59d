"""Declares the table of a process class on columns: rows by key, with typed columns, as the class's keyed state.

class Totals(Process):
    table = Table(key={"user": "int64"}, columns={"sum": "float64", "n": "int64"})

    def on_batch(self, ctx, batch):
        rows = ctx.table.rows(batch["user"])
        ctx.table.combine(np.add, rows, sum=batch["amount"], n=1)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from backedge.graphs.exact_numbers import converted
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.public import public

KEY_TYPES = ("int64", "string")
_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
VALUE_TYPES = ("bool", *_INTEGERS, "float32", "float64")

Array = npt.NDArray[Any]


@public
@dataclass(frozen=True)
class Table:
    """The columns of a table, by name, with their types.

    - key: the columns that the input is keyed by, of type "int64" or "string".
    - columns: the others: "bool", "int8" to "int64", "uint8" to "uint64", "float32" or "float64".
    - initial: their values in a new row, 0 by default.

    >>> Table(key={"user": "int64"}, columns={"best": "float64"}, initial={"best": np.inf}).names
    ('user', 'best')
    """

    key: Mapping[str, str]
    columns: Mapping[str, str]
    initial: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.key, *self.columns)

    def check(self, what: str) -> None:
        for part, columns, types in (("key", self.key, KEY_TYPES), ("columns", self.columns, VALUE_TYPES)):
            if not columns:
                raise BadOptionError(f"the table of {what} has no {part}: give {part}={{name: type}}")
            for name, kind in columns.items():
                if kind not in types:
                    raise BadOptionError(
                        f"the table of {what} has {part}={{{name!r}: {kind!r}}}: give one of {', '.join(types)}"
                    )
        for name in self.key:
            if name in self.columns:
                raise BadOptionError(f"the table of {what} has two columns {name!r}: rename the one in columns=")
        for name, value in self.initial.items():
            if name not in self.columns:
                raise BadOptionError(f"the table of {what} has initial={{{name!r}: ...}}, which is not in columns=")
            kind, number = self.columns[name], np.asarray(value)
            if number.dtype.kind not in "biuf" or converted(number, np.dtype(kind))[1].size:
                raise BadOptionError(
                    f"the table of {what} has initial={{{name!r}: {value!r}}} for a column of type {kind}: give a "
                    "number that it can hold"
                )


class TableRows(Protocol):
    """`ctx.table`: the rows of the keys that this task keeps.

    A row is found by its number, which it keeps until the task is restored. A key that a batch holds several times has
    the same row each time.
    """

    def rows(self, *keys: Array) -> Array:
        """The rows of these keys, with an array for each key column. New keys get a new row."""
        ...

    def find(self, *keys: Array) -> Array:
        """The same without new rows: -1 where a key is unknown."""
        ...

    def get(self, name: str, rows: Array) -> Array:
        """The values of a column in these rows."""
        ...

    def set(self, rows: Array, /, **values: Any) -> None:
        """Set columns in these rows, each to an array or to one value; if a row occurs twice, the last value counts."""

    def combine(self, how: np.ufunc, rows: Array, /, **values: Any) -> None:
        """Combine columns with values, such as `np.add` or `np.minimum`; each occurrence of a row counts."""

    def scan(self) -> dict[str, Array]:
        """All rows, as a batch of all columns."""
        ...

    def __len__(self) -> int:
        """The number of rows."""
        ...

"""Combines the rows of a batch that have the same key, before they are sent: `KeyedStream.combine`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from graphs.graph_errors import BadOptionError

Array = npt.NDArray[Any]
How = Literal["sum", "min", "max", "first", "last"] | Callable[[Array, Array], Array]

NAMES = ("sum", "min", "max", "first", "last")


class Combiner(Struct, frozen=True):
    """Makes one row of the rows of a key: its `by` columns, and each of the columns in `how` combined."""

    by: tuple[str, ...]
    how: Mapping[str, How]

    def check(self, what: str) -> None:
        """Raise unless columns can be combined this way."""
        if not self.how:
            raise BadOptionError(f'{what} names no column: give combine({{column: "sum"}})')
        for name, how in self.how.items():
            if name in self.by:
                raise BadOptionError(f"{what} combines column {name!r}, which is part of the key: leave it out")
            if not callable(how) and how not in NAMES:
                raise BadOptionError(
                    f"{what} combines column {name!r} by {how!r}: give one of {', '.join(NAMES)}, or a function "
                    "(values, starts) such as np.logical_or.reduceat"
                )

    def __call__(self, table: Any) -> Any:
        """Combine the rows of an Arrow table."""
        missing = [name for name in (*self.by, *self.how) if name not in table.column_names]
        if missing:
            raise BadOptionError(
                f"combine needs the column {missing[0]!r}, and the rows have {', '.join(table.column_names)}: name "
                "columns that all rows have"
            )
        wanted = [(name, "list" if callable(how) else how) for name, how in self.how.items()]
        try:
            # In one thread the rows of a key stay in their order.
            combined = table.group_by(list(self.by), use_threads=False).aggregate(wanted)
        except import_module("pyarrow").ArrowNotImplementedError as error:
            told = ", ".join(f"{name!r} of type {table.schema.field(name).type} by {how}" for name, how in wanted)
            raise BadOptionError(
                f"combine cannot combine one of these columns: {told}: give it a function (values, starts)"
            ) from error
        for name, how in self.how.items():
            if callable(how):
                place = combined.schema.get_field_index(f"{name}_list")
                combined = combined.set_column(place, f"{name}_list", _reduced(name, combined.column(place), how))
        return combined.select([*self.by, *(f"{name}_{how}" for name, how in wanted)]).rename_columns(
            [*self.by, *self.how]
        )


def _reduced(name: str, lists: Any, how: Callable[[Array, Array], Array]) -> Any:
    joined = lists.combine_chunks()
    starts = joined.offsets.to_numpy()[:-1]
    values = joined.flatten().to_numpy(zero_copy_only=False)
    found = np.asarray(how(values, starts))
    if found.shape != starts.shape:
        raise BadOptionError(
            f"the function that combines column {name!r} returned an array of shape {found.shape} for {len(starts)} "
            "keys: return one value for each of the starts, as np.logical_or.reduceat does"
        )
    return import_module("pyarrow").array(found)

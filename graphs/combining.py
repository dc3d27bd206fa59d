"""Combines the rows of a batch that have the same key, before they are sent: `KeyedStream.combine`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy.typing as npt
from msgspec import Struct

from backedge.graphs.graph_errors import BadOptionError

Array = npt.NDArray[Any]
How = Literal["sum", "min", "max", "first", "last"] | Callable[[Array, Array], Array]

NAMES = ("sum", "min", "max", "first", "last")


class Combiner(Struct, frozen=True):
    """How the rows of a key become one: with its `by` columns, and each of the columns in `how` combined."""

    by: tuple[str, ...]
    how: Mapping[str, How]

    def check(self, what: str) -> None:
        if not isinstance(self.how, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # not every user checks types
            raise BadOptionError(f'{what} got {self.how!r}: give combine({{column: "sum"}})')
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

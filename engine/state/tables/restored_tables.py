"""Reads the rows of a table back from the keyed state of an operator, and puts those of several layers together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from backedge.engine.state.tables.table_state import TableState
from backedge.graphs.table import Table
from backedge.recovery.cut.cut import OperatorState, layers
from backedge.recovery.cut.keyed_parts import Rows


def rows_of(state: OperatorState) -> Iterator[Rows]:
    """The rows of a state part by part, those of the oldest layer first; none if it holds no table."""
    return (part for part in chain.from_iterable(layers(state)) if isinstance(part, Rows))


def holds_rows(state: OperatorState) -> bool:
    """Whether a state is that of a table. The first part decides: the operator of a table has no other keyed state."""
    return isinstance(next(chain.from_iterable(layers(state)), None), Rows)


def table_in_one(operator: str, state: OperatorState) -> tuple[list[Rows], int]:
    """The rows of all layers of a state that holds rows, as one layer, and their number."""
    first = next(rows_of(state))
    kinds = ({n: "string" if c.dtype == object else str(c.dtype) for n, c in part.items()} for part in first[1:])
    table = TableState(operator, Table(next(kinds), next(kinds)), tracks=False)
    table.restore(rows_of(state))
    return table.capture().parts(), len(table)

"""Reads the rows of a table back from the key groups of a state, and puts those of several layers together."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from backedge.engine.tables.table_state import TableState
from backedge.graphs.table import Table
from backedge.recovery.cut import OperatorState, layers
from backedge.recovery.stored_groups import StoredGroups
from backedge.recovery.table_groups import Rows, TableGroups, are_rows, rows_in


def rows_of(state: OperatorState) -> Iterator[Rows]:
    """The rows of a state part by part, those of the oldest layer first; none if it holds no table."""
    for groups in layers(state):
        yield from _rows_in(groups)


def _rows_in(groups: Mapping[int, bytes]) -> Iterator[Rows]:
    if isinstance(groups, StoredGroups):
        yield from (part for part in groups.parts if isinstance(part, Rows))
        return
    for group in groups:
        payload = io.BytesIO(groups[group])
        size = len(groups[group])
        while payload.tell() < size:
            entry = pickle.load(payload)
            if are_rows(entry):
                yield rows_in(group, entry)


def holds_rows(state: OperatorState) -> bool:
    """Whether a state is that of a table. The first entry decides: the operator of a table has no other keyed state."""
    return any(isinstance(first, Rows) or are_rows(first) for first in islice(_entries(state), 1))


def _entries(state: OperatorState) -> Iterator[Any]:
    """Stored parts, and the first entry of each key group that is in memory."""
    for groups in layers(state):
        if isinstance(groups, StoredGroups):
            yield from groups.parts
        else:
            yield from (pickle.loads(payload) for payload in groups.values() if payload)


def table_in_one(operator: str, state: OperatorState) -> tuple[TableGroups, int]:
    """The rows of all layers of a state that holds rows, as one layer, and their number."""
    first = next(rows_of(state))
    kinds = ({n: "string" if c.dtype == object else str(c.dtype) for n, c in part.items()} for part in first[1:])
    table = TableState(operator, Table(next(kinds), next(kinds)), tracks=False)
    table.restore(rows_of(state))
    return table.capture().groups(), len(table)

"""Compacts the keyed state in several files of a task into one: the values and timers that a restore would load."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import numpy as np

from backedge.engine.state.keyed_state import encode_entries, keyed_entries
from backedge.engine.state.tables.restored_tables import holds_rows, table_in_one
from backedge.graphs.ids import Epoch
from backedge.recovery.cut.cut import OperatorState, layers
from backedge.recovery.cut.keyed_parts import Numbers
from backedge.recovery.protocol.orders import Compact
from backedge.recovery.protocol.protocol_errors import ProtocolError


def cut_of(order: Compact) -> Epoch:
    """The cut whose list of files is to be put into one: the last file is its own."""
    epoch = order.files[-1].epoch
    if epoch is None:
        raise ProtocolError(f"task {order.task} has ended, so its state is in one file and need not be put into one")
    return epoch


def put_together(
    states: Mapping[str, OperatorState], *, is_delta: bool = False
) -> tuple[dict[str, OperatorState], int]:
    """The keyed state of each operator, without deltas, and its total number of entries.

    `is_delta`: the first layer is a delta, too. Then so is the result, which says which keys have no value any more.

    >>> from backedge.recovery.cut.keyed_parts import entries_of
    >>> one, two = encode_entries("count", {"a": 1}), encode_entries("count", {"a": 2})
    >>> states, keys = put_together({"count": OperatorState(one, deltas=(two,))})
    >>> entries_of(states["count"].keyed), len(states["count"].deltas), keys
    ([('a', 2)], 0, 1)
    """
    found: dict[str, OperatorState] = {}
    keys = 0
    for operator, state in states.items():
        if holds_rows(state):
            parts, rows = table_in_one(operator, state)
            found[operator], keys = OperatorState(parts), keys + rows
            continue
        numbers = _numbers_in_one(state)
        if numbers is not None:
            found[operator], keys = OperatorState((numbers,)), keys + len(numbers.keys)
            continue
        values, timers, gone = keyed_entries(state, operator)
        gone = gone if is_delta else {}
        keys += len(values) + len(timers) + len(gone)
        found[operator] = OperatorState(encode_entries(operator, values, timers, gone))
    return found, keys


def _numbers_in_one(state: OperatorState) -> Numbers | None:
    """The entries of all layers, if they are stored as columns of numbers: many times faster than one by one."""
    parts: list[Numbers] = []
    for part in chain.from_iterable(layers(state)):
        if not isinstance(part, Numbers) or part.code != (parts or [part])[0].code:
            return None
        parts.append(part)
    if not parts:
        return None
    # The newest layer first: of equal keys the first one is found, so the newest counts.
    code, groups, keys, values = (
        parts[0].code,
        *(np.concatenate(part[::-1]) for part in zip(*(p[1:] for p in parts), strict=True)),
    )
    _, places = np.unique(keys, return_index=True)
    places = places[np.argsort(groups[places], kind="stable")]
    return Numbers(code, groups[places], keys[places], values[places])

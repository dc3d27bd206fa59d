"""Compacts the keyed state in several files of a task into one: the values and timers that a restore would load."""

from __future__ import annotations

from collections.abc import Mapping

from engine.state import encode_groups, keyed_entries
from engine.tables.restored_tables import holds_rows, table_in_one
from graphs.ids import Epoch
from recovery.cut import OperatorState
from recovery.orders import Compact
from recovery.protocol_errors import ProtocolError


def cut_of(order: Compact) -> Epoch:
    """The cut whose list of files is to be put into one: the last file is its own."""
    epoch = order.files[-1].epoch
    if epoch is None:
        raise ProtocolError(f"task {order.task} has ended, so its state is in one file and need not be put into one")
    return epoch


def put_together(states: Mapping[str, OperatorState]) -> tuple[dict[str, OperatorState], int]:
    """The keyed state of each operator, without deltas, and its total number of entries.

    >>> import pickle
    >>> from graphs.routing import key_group
    >>> group, one, two = key_group("a"), pickle.dumps(("a", 1)), pickle.dumps(("a", 2))
    >>> states, keys = put_together({"count": OperatorState({group: one}, deltas=({group: two},))})
    >>> keyed_entries(states["count"]).values, len(states["count"].deltas), keys
    ({'a': 2}, 0, 1)
    """
    found: dict[str, OperatorState] = {}
    keys = 0
    for operator, state in states.items():
        if holds_rows(state):
            groups, rows = table_in_one(operator, state)
            found[operator], keys = OperatorState(groups), keys + rows
            continue
        values, timers = keyed_entries(state)
        keys += len(values) + len(timers)
        found[operator] = OperatorState(encode_groups(operator, values, timers))
    return found, keys

"""Translates a `Sweep` of the supervisor into the rollback of a sink."""

from __future__ import annotations

import re
from typing import NamedTuple

from graphs.ids import Attempt, Epoch
from recovery.orders import Sweep

_TRANSACTION = re.compile(r".+\.(\d+)\.attempt-(\d+)\.epoch-(\d+)", re.DOTALL)


class Turn(NamedTuple):
    """When a transaction was prepared, and by which task; defines the order in which output is read back."""

    epoch: int
    attempt: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # hides tuple.index, which no order needs


def turn_in(transaction: str) -> Turn | None:
    """Parse the name of a transaction; None if it is not one.

    >>> turn_in("done.3.attempt-1.epoch-12"), turn_in("lost+found")
    (Turn(epoch=12, attempt=1, index=3), None)
    """
    found = _TRANSACTION.fullmatch(transaction)
    if found is None:
        return None
    index, attempt, epoch = map(int, found.groups())
    return Turn(epoch, attempt, index)


class SweepOfSinks:
    """A sweep that is queried by the names of transactions. Entries with other names are left alone."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self._sweep.is_over

    def removes(self, transaction: str) -> bool:
        """Whether a prepared transaction will never be published."""
        turn = turn_in(transaction)
        return turn is not None and self._sweep.removes_prepared(transaction, Attempt(turn.attempt))

    def forgets(self, transaction: str) -> bool:
        """Whether no restore will need to know any more that this transaction was published."""
        turn = turn_in(transaction)
        return turn is not None and self._sweep.removes_note(transaction, Attempt(turn.attempt), Epoch(turn.epoch))

    def removes_open(self, attempt: int) -> bool:
        """Whether an attempt is over that may have left unprepared output behind."""
        return self._sweep.removes_open(Attempt(attempt))

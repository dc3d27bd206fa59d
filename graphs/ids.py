"""Ids. Distinct ids are distinct types, so that an epoch cannot be passed in place of an attempt."""

from __future__ import annotations

import re
from typing import NamedTuple, NewType

Epoch = NewType("Epoch", int)
Attempt = NewType("Attempt", int)


class TaskId(NamedTuple):
    """One parallel instance of a chain of operators; `name` is the first operator of the chain."""

    name: str
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # hides tuple.index, which no id needs

    def __str__(self) -> str:
        return f"{self.name}/{self.index}"


class ChannelId(NamedTuple):
    """A FIFO link. `edge` is the stable id of the logical edge.

    A restored channel carries the loop log of the channel it precedes, and has its own id.
    """

    edge: str
    sender: TaskId
    receiver: TaskId
    restored: bool = False

    def __str__(self) -> str:
        mark = " (restored)" if self.restored else ""
        return f"{self.edge} {self.sender}->{self.receiver}{mark}"


RESTORED_SENDER = TaskId("(restored)", 0)
"""Stands for the sender of a log that was rerouted for another parallelism."""


def prepared_by(transaction: str) -> tuple[str, int]:
    """The sink that prepared a transaction, and the index of its task.

    >>> prepared_by("late.orders.3.attempt-1.epoch-12")
    ('late.orders', 3)
    """
    sink, index, _, _ = transaction.rsplit(".", 3)
    return sink, int(index)


_TRANSACTION = re.compile(r".+\.(\d+)\.attempt-(\d+)\.epoch-(\d+)", re.DOTALL)


class Turn(NamedTuple):
    """When a transaction was prepared, and by which task; defines the order in which output is read back."""

    epoch: Epoch
    attempt: Attempt
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
    return Turn(Epoch(epoch), Attempt(attempt), index)

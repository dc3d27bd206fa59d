"""Ids. Distinct ids are distinct types, so that an epoch cannot be passed in place of an attempt."""

from __future__ import annotations

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

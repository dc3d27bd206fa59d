"""What a task needs from outside: readers for its sources and writers for its sinks. Drivers provide them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from backedge.engine.batches.batch import copy_records
from backedge.engine.batches.columns import Columns, Records
from backedge.graphs.ids import TaskId
from backedge.graphs.io import FoundSplits, SinkWriter
from backedge.graphs.plan import Operator


class Reader(Protocol):
    """Reads the splits of a source that belong to one task. It never changes records that it has returned."""

    @property
    def exhausted(self) -> bool:
        """Whether nothing more will ever arrive."""
        ...

    def read(self, records_max: int) -> Records:
        """The next records, as a list or as rows of columns; an empty list if none are available now."""
        ...

    def positions(self) -> dict[str, Any]:
        """Split name -> position after the last record returned."""
        ...

    def begin(self, split: str, position: Any) -> None:
        """Read one more split, from this position on."""

    def finished(self) -> list[str]:
        """Forget the splits that are read; return their names."""
        ...


Finder = Callable[[Collection[str]], FoundSplits]
"""Takes the splits that are known, and looks for others."""


class RecordsOnly:
    """Converts columns and copies records, for the writer of a sink that takes its own lists."""

    def __init__(self, writer: SinkWriter) -> None:
        self._writer = writer
        self.prepare = writer.prepare
        self.commit_together = partial(commit_all, writer)
        self.close = partial(close_writer, writer)

    def commit(self, transaction: str) -> None:
        commit_all(self._writer, [transaction])

    def write(self, records: Records) -> None:
        self._writer.write(records.to_records() if isinstance(records, Columns) else copy_records(records))


def commit_all(writer: SinkWriter, transactions: Sequence[str]) -> Collection[str]:
    """Have a writer commit transactions, in this order. Returns those that wait to be published with later ones."""
    together = getattr(writer, "commit_together", None)
    if together is not None:
        return together(transactions)
    for transaction in transactions:
        writer.commit(transaction)
    return ()


def close_writer(writer: SinkWriter) -> None:
    """Have a writer let go of what it holds, if it can: writers need no `close`.

    What cannot be removed now is swept later; how the task has ended must not be hidden by it.
    """
    close = getattr(writer, "close", None)
    if close is not None:
        with suppress(OSError):
            close()


class Services(Protocol):
    """Opens readers and writers for the tasks of one process."""

    def reader(self, operator: Operator, index: int, parallelism: int, positions: Mapping[str, Any] | None) -> Reader:
        """The reader of one source task. With `positions` it reads those splits from there, and no others."""
        ...

    def finder(self, operator: Operator, readers: str) -> Finder:
        """What finds the splits of a source. `readers` is the name of the operator that reads them."""
        ...

    def writer(self, operator: Operator, task: TaskId) -> SinkWriter:
        """The writer of one sink task. `task` carries the name of the sink operator."""
        ...

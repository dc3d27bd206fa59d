"""What a task needs from outside: where its sources read and its sinks write. Drivers provide it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from engine.columns import Records
from graphs.ids import TaskId
from graphs.plan import Operator


class Reader(Protocol):
    """Reads the splits of a source that belong to one task. Records it returned once are never changed by it."""

    @property
    def exhausted(self) -> bool:
        """Nothing more will ever come."""
        ...

    def read(self, records_max: int) -> Records:
        """The next records, or as many rows of columns; an empty list when there are none at the moment."""
        ...

    def positions(self) -> dict[str, Any]:
        """Split name -> position behind the last record returned."""
        ...


class Writer(Protocol):
    """Writes the output of a sink in transactions. Every method but `write` may be called again without harm."""

    @property
    def records(self) -> int:
        """How many records the open transaction holds."""
        ...

    def write(self, records: Records) -> None:
        """Adds records or columns to the transaction that is open."""
        ...

    def prepare(self, name: str) -> bool:
        """Makes the open transaction durable under this name and opens the next. False when there is nothing in it."""
        ...

    def commit(self, name: str) -> None:
        """Publishes what was prepared under this name, by this writer or by one of an earlier attempt."""
        ...


class Services(Protocol):
    """Opens readers and writers for the tasks of one process."""

    def reader(self, operator: Operator, index: int, parallelism: int, positions: Mapping[str, Any] | None) -> Reader:
        """The reader of one source task. With `positions` it reads those splits from there, and no others."""
        ...

    def writer(self, operator: Operator, task: TaskId) -> Writer:
        """The writer of one sink task. `task` carries the name of the sink operator."""
        ...

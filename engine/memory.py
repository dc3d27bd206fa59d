"""Sources and sinks in memory: lists in, lists out. They outlive the tasks that use them, like files would."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from engine.batch import copy_records
from engine.columns import Columns, Records
from engine.files.names import turn_of
from graphs.ids import Attempt, TaskId
from graphs.io import Generate, Items, Range
from graphs.plan import Operator
from recovery.orders import Sweep

RecordsAt = Callable[[range], list[Any]]
"""The records at some positions."""


def each(record_at: Callable[[int], Any]) -> RecordsAt:
    """Asks for one record after the other.

    >>> each("abcd".__getitem__)(range(1, 4, 2))
    ['b', 'd']
    """
    return lambda positions: [record_at(position) for position in positions]


class ListReader:
    """Reads numbered splits of a sequence: split "1-of-3" holds records 1, 4, 7 and so on.

    >>> reader = ListReader(each("abcd".__getitem__), 4, {"1-of-2": 0})
    >>> reader.read(1), reader.positions(), reader.exhausted
    (['b'], {'1-of-2': 1}, False)
    """

    def __init__(self, records_at: RecordsAt, count: int | None, positions: Mapping[str, int]) -> None:
        self._records_at = records_at
        self._positions = dict(positions)
        self._splits = {name: _split(name, count) for name in positions}

    @property
    def exhausted(self) -> bool:
        """Nothing more will ever come."""
        return all(self._positions[name] >= len(split) for name, split in self._splits.items())

    def read(self, records_max: int) -> list[Any]:
        """The next records of the first split that has any, copied: who reads may change them in place."""
        for name, split in self._splits.items():
            start = self._positions[name]
            indexes = split[start : start + records_max]
            if indexes:
                self._positions[name] = start + len(indexes)
                return copy_records(self._records_at(indexes))
        return []

    def positions(self) -> dict[str, Any]:
        """Split name -> records read of it."""
        return dict(self._positions)


def _split(name: str, count: int | None) -> range:
    """The indexes of a split. A source without end has more of them than a run will ever read."""
    index, splits = map(int, name.split("-of-"))
    return range(index, sys.maxsize if count is None else count, splits)


class ListStore:
    """The output of all sinks, by transaction: what was prepared, and what was committed, in the order of commits."""

    def __init__(self) -> None:
        self.prepared: dict[str, tuple[str, list[Any]]] = {}
        self.committed: dict[str, tuple[str, list[Any]]] = {}

    def output(self, operator: str) -> list[Any]:
        """Everything a sink has committed.

        >>> ListStore().output("printed")
        []
        """
        return [record for name, records in self.committed.values() if name == operator for record in records]

    def sweep(self, sweep: Sweep, operator: str | None = None) -> None:
        """Remove what a sink, or any, has prepared and will not publish."""
        for name, (owner, _) in list(self.prepared.items()):
            if operator in (None, owner) and sweep.removes_prepared(name, Attempt(turn_of(name).attempt)):
                del self.prepared[name]


class ListWriter:
    """Writes into a `ListStore`. What was written and not prepared dies with the writer."""

    def __init__(self, operator: str, store: ListStore) -> None:
        self._operator = operator
        self._store = store
        self._open: list[Any] = []

    @property
    def records(self) -> int:
        """How many records the open transaction holds."""
        return len(self._open)

    def write(self, records: Records) -> None:
        """Adds records to the transaction that is open; columns row by row."""
        self._open += records.to_records() if isinstance(records, Columns) else copy_records(records)

    def prepare(self, name: str) -> bool:
        """Moves the open transaction into the store."""
        if name in self._store.prepared or name in self._store.committed:
            return True
        if not self._open:
            return False
        self._store.prepared[name] = (self._operator, self._open)
        self._open = []
        return True

    def commit(self, name: str) -> None:
        """Publishes a prepared transaction; one that is published already stays as it is."""
        if name in self._store.committed:
            return
        if name not in self._store.prepared:
            raise LookupError(
                f"sink {self._operator!r} is asked to commit transaction {name!r}, which nobody prepared; "
                f"prepared are {sorted(self._store.prepared)}: the cut belongs to another store"
            )
        self._store.committed[name] = self._store.prepared.pop(name)


class MemoryServices:
    """Gives every source the list that `inputs` has for its operator's name, else what its description holds.

    What the sinks write goes into one store.

    >>> services = MemoryServices({"orders": [1, 2, 3]})
    >>> services.store.output("done")
    []
    """

    def __init__(self, inputs: Mapping[str, Sequence[Any]], store: ListStore | None = None) -> None:
        self._inputs = dict(inputs)
        self.store = store or ListStore()

    def reader(
        self, operator: Operator, index: int, parallelism: int, positions: Mapping[str, Any] | None
    ) -> ListReader:
        """The reader of one source task: its own split, or those it is restored with."""
        records_at, count = self._records_of(operator)
        fresh = {f"{index}-of-{parallelism}": 0}
        return ListReader(records_at, count, fresh if positions is None else positions)

    def writer(self, operator: Operator, task: TaskId) -> ListWriter:
        """The writer of one sink task."""
        return ListWriter(operator.name, self.store)

    def _records_of(self, operator: Operator) -> tuple[RecordsAt, int | None]:
        source = operator.function
        if operator.name in self._inputs:
            records = self._inputs[operator.name]
        elif isinstance(source, Items):
            records = cast("Items[Any]", source).records
        elif isinstance(source, Range):
            records = range(source.start, source.stop)
        elif isinstance(source, Generate):
            return each(cast("Generate[Any]", source).make), source.count
        else:
            raise LookupError(
                f"source {operator.name!r} reads {source!r}, which is not in memory, and is given no input: "
                f"give inputs={{{operator.name!r}: [...]}}; inputs are given for {sorted(self._inputs) or 'none'}"
            )
        return each(records.__getitem__), len(records)

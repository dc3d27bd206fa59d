"""Sources and sinks in memory: lists in, lists out. Like files, they outlive the tasks that use them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backedge.engine.batches.batch import copy_records
from backedge.engine.batches.columns import Columns, Records
from backedge.engine.io.files.checks import check_source
from backedge.engine.io.later_output import LaterOutput
from backedge.engine.io.reader import SourceReader, finder_of, positions_of
from backedge.engine.operators.services import Finder
from backedge.graphs.ids import TaskId
from backedge.graphs.io import FoundSplits, Rollback, SinkWriter, Source
from backedge.graphs.plan import Operator
from backedge.graphs.sources_and_sinks import Items
from backedge.recovery.protocol.orders import Sweep


class OutputReplacedError(LookupError):
    """A transaction to be committed that a later run has removed, because it went back to a cut before it."""


class ListStore:
    """The output of all sinks, by transaction: prepared ones, and committed ones in the order of commits.

    `replaced` are those that a run has removed because it went back to a cut before them.
    """

    def __init__(self) -> None:
        self.prepared: dict[str, tuple[str, list[Any]]] = {}
        self.committed: dict[str, tuple[str, list[Any]]] = {}
        self.replaced: dict[str, tuple[str, list[Any]]] = {}

    def output(self, operator: str) -> list[Any]:
        """Everything a sink has committed.

        >>> ListStore().output("printed")
        []
        """
        return [record for name, records in self.committed.values() if name == operator for record in records]

    def roll_back(self, rollback: Rollback, operator: str | None = None) -> None:
        """Remove what a sink (or any sink) has prepared and will not publish."""
        for name, (owner, _) in list(self.prepared.items()):
            if operator in (None, owner) and rollback.removes(name):
                del self.prepared[name]

    def replace(self, later: LaterOutput, transactions_max: int | None = None) -> int:
        """Remove what was prepared or published after a cut, or the first of it; return how many transactions."""
        dead = [(of, name) for of in (self.prepared, self.committed) for name in of if later.removes(name)]
        for transactions, name in dead[:transactions_max]:
            self.replaced[name] = transactions.pop(name)
        return len(dead)


class ListWriter:
    """Writes into a `ListStore`. Unprepared output is lost with the writer."""

    def __init__(self, operator: str, store: ListStore) -> None:
        self._operator = operator
        self._store = store
        self._open: list[Any] = []

    def write(self, records: Records) -> None:
        self._open += records.to_records() if isinstance(records, Columns) else copy_records(records)

    def prepare(self, name: str) -> bool:
        if name in self._store.prepared or name in self._store.committed:
            return True
        if not self._open:
            return False
        self._store.prepared[name] = (self._operator, self._open)
        self._open = []
        return True

    def commit(self, name: str) -> None:
        """Publish a prepared transaction; do nothing if it is already published."""
        if name in self._store.committed:
            return
        if name in self._store.replaced:
            raise OutputReplacedError(f"sink {self._operator!r} was asked to commit {name!r}, which was removed")
        if name not in self._store.prepared:
            raise LookupError(
                f"sink {self._operator!r} was asked to commit transaction {name!r}, which was never prepared; "
                f"prepared are {sorted(self._store.prepared)}: the cut belongs to another store"
            )
        self._store.committed[name] = self._store.prepared.pop(name)


SPLITS, SPLITS_A_LOOK = 5, 2


def numbered_splits(known: Collection[str]) -> FoundSplits:
    """What the next look finds of a list that is read as splits which arrive.

    >>> numbered_splits({"0-of-5", "1-of-5", "2-of-5"})
    FoundSplits(new=['3-of-5', '4-of-5'], is_last=True, gone=())
    """
    new = [f"{index}-of-{SPLITS}" for index in range(SPLITS)][len(known) : len(known) + SPLITS_A_LOOK]
    return FoundSplits(new, is_last=len(known) + len(new) == SPLITS)


@dataclass(frozen=True)
class ArrivingItems(Items[Any]):
    """A list in the place of a source that looks for splits."""

    pause_s: float | None = None

    @property
    def look_s(self) -> float | None:
        return self.pause_s


class MemoryServices:
    """Reads each source from the list that `inputs` has under its operator's name; opens the source if there is none.

    All sinks write to one store.

    >>> services = MemoryServices({"orders": [1, 2, 3]})
    >>> services.store.output("done")
    []
    """

    def __init__(self, inputs: Mapping[str, Sequence[Any]], store: ListStore | None = None) -> None:
        self._inputs = dict(inputs)
        self._splits: dict[str, tuple[str, ...] | None] = {}
        self.store = store or ListStore()

    def reader(
        self, operator: Operator, index: int, parallelism: int, positions: Mapping[str, Any] | None
    ) -> SourceReader:
        """The reader of one source task: its share of the splits, or the restored ones."""
        name = operator.name
        source: Source[Any] = Items(self._inputs[name]) if name in self._inputs else operator.function
        if positions is None:
            if name not in self._splits:
                self._splits[name] = None if name in self._inputs else check_source(operator)
            positions = positions_of(source, index, parallelism, self._splits[name])
        return SourceReader(name, source, positions)

    def finder(self, operator: Operator, readers: str) -> Finder:
        """Of a source with a list, the splits come by and by."""
        return numbered_splits if readers in self._inputs else finder_of(operator)

    def writer(self, operator: Operator, task: TaskId) -> SinkWriter:
        return ListWriter(operator.name, self.store)

    def sweep(self, sweep: Sweep) -> None:
        """Remove the leftovers of attempts, for all sinks."""
        self.store.roll_back(sweep)

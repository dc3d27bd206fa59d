"""The protocols of sources and sinks, and the built-in ones that need no files.

docs/extending.md shows how to write a source or a sink.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from asyncio import CancelledError
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, cast

from graphs.graph_errors import BadOptionError
from graphs.options import check_function, is_above_zero, is_whole
from graphs.wording import one_line

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_in = TypeVar("T_in", contravariant=True)


RAISED_BY_USERS = (Exception, SystemExit, GeneratorExit, CancelledError)
"""Exceptions that count as raised by a user's function. An escaping SystemExit would end the task's process without a
cause, and a cancelled call would leave its record without an answer. KeyboardInterrupt comes from the keyboard."""


class FunctionRaisedError(Exception):
    """Raised by a source or sink `from` the exception of a user's function. `call` says which call raised.

    The run fails with the user's own exception, because reading again would raise it again.
    """

    def __init__(self, call: str) -> None:
        super().__init__(call)
        self.call = call


class ArrowRows(Protocol):
    """Rows that stay columns: a pyarrow `RecordBatch`."""

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        ...


class SplitReader(Protocol[T_co]):
    """One split of a source, open for reading."""

    @property
    def position(self) -> Any:
        """The position after the last record that was read. A plain value, because it becomes part of the cut."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to read in this split, now or later."""
        ...

    def read(self, records_max: int) -> Sequence[T_co] | ArrowRows:
        """Read up to `records_max` records, as a list or as columns. An empty list means that none is available now."""
        ...


class Source(ABC, Generic[T]):
    """The input of a flow. A subclass names its splits and opens a split at a position.

    A split is a part of the input that one task reads at a time. It has a name and a position: a plain value that says
    how far it has been read. Names and positions are all that a cut contains of a source. A restored run opens each
    split at its position in the cut, in another process and perhaps in another task, and must read the same records
    from there.

    An instance is a description that is pickled and sent to the tasks of a run. Each task opens its splits through its
    own copy, so a source may store a connection in an attribute once it opens a split.
    """

    shares_records: ClassVar[bool] = False
    """Whether others hold references to the records that are read. Then they are copied: operators may change them."""

    @property
    def bounded(self) -> bool:
        """Whether it ends. An unbounded source is read until the run is stopped."""
        return True

    @property
    def label(self) -> str | None:
        """The default name of an operator that reads this source."""
        return None

    @property
    def relative_path(self) -> str | None:
        """The path that it reads, if it is relative. The processes of a run have other working folders."""
        return None

    def absolute(self) -> Source[T]:
        """The same source with an absolute path."""
        return self

    @property
    def idle_s(self) -> float:
        """Seconds to wait after a read that returned nothing."""
        return 0.02

    def validate_input(self) -> None:
        """Raise an exception if it cannot be read. Called once, before anything runs; its text becomes the error."""

    def splits(self) -> Sequence[str] | None:
        """The names of all splits. Called once, before anything runs; the tasks get the splits in turn, in this order.

        None means one split per task, named "0-of-3" to "2-of-3" if the source has three tasks.
        """
        return None

    def first_position(self, split: str) -> Any:
        """The position of a split before anything was read."""
        return 0

    def is_read(self, split: str, position: Any) -> bool:
        """Whether the position is known to be the end of its split. Such a split is not opened."""
        return False

    def check_unchanged(self, positions: Mapping[str, Any]) -> None:
        """Raise if the unread part of these splits is no longer what it was when the run began.

        Called when a task starts, with all of its splits.
        """

    @abstractmethod
    def open_split(self, split: str, position: Any) -> SplitReader[T]:
        """Open a split. Its first record is the one after `position`."""


Guarantee = Literal["transactional", "idempotent", "at least once"]
"""A sink's promise for a record that a complete cut counts as written, whatever process dies.

transactional: it is published once. idempotent: it may be published again, without effect. at least once: it may be
published again, and then occurs twice.
"""


class SinkWriter(Protocol):
    """The writer of one task. It publishes in two steps: prepare when a cut is taken, commit when it is complete.

    One that holds a connection may also have a method `close()`: it is called when the task is over, unless its process
    dies, and gives up what was not prepared.

    One that publishes the transactions of several cuts together may also have `commit_together(transactions)`, which is
    called instead of `commit`, in the order of preparation. It returns those that wait for later ones: cuts list them
    until it returns them no more, and it gets them again with each complete cut. A restore may give them to another
    task.
    """

    def write(self, records: Any, /) -> None:
        """Add a list of records to the open transaction. The writer owns the list and the records from now on."""
        ...

    def prepare(self, transaction: str, /) -> bool:
        """Make the open transaction durable under this name, but not visible, and open the next one.

        The name is unique: no other task and no other attempt of the run uses it. Return False if nothing was written.
        """
        ...

    def commit(self, transaction: str, /) -> None:
        """Make a prepared transaction visible. It may have been prepared by another task, in an attempt that died.

        This may be called again for the same transaction, by other tasks and concurrently, and must then change
        nothing. Raise if the transaction is neither prepared nor published: it is lost, and that must not go unnoticed.
        """
        ...


class Rollback(Protocol):
    """The leftovers of a sink that the chain of the job has made dead for good.

    A rollback may be carried out late, after another supervisor has taken over. So a sink removes what this names,
    never "everything that is not listed": transactions that a later attempt has prepared are not listed here.
    """

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, so that containers that are now empty may be removed."""
        ...

    @property
    def committed(self) -> Collection[str]:
        """At the end of the run, the transactions that its last cut lists, of all sinks.

        For a sink that publishes several together: all tasks have ended, so what waits for later ones is published now.
        """
        ...

    def removes(self, transaction: str) -> bool:
        """Whether a prepared transaction will never be published."""
        ...

    def forgets(self, transaction: str) -> bool:
        """Whether no restore will need to know any more that this transaction was published."""
        ...

    def removes_open(self, attempt: int) -> bool:
        """Whether an attempt is over that may have left unprepared output behind."""
        ...

    @property
    def settles(self) -> bool:
        """Whether something may be settled that was not before. If not, there is no need to look."""
        ...

    def is_settled(self, transaction: str) -> bool:
        """Whether no run can go back to before this transaction, so that it will not be withdrawn."""
        ...


class Withdrawal(Protocol):
    """The output of a sink that earlier attempts have prepared or published after a cut.

    The chain of the job has made it dead for good: a run goes back to that cut and replaces its output. This may be
    carried out again, and late; what later attempts publish is not part of it.
    """

    @property
    def attempt(self) -> int:
        """The attempt that carries it out."""
        ...

    def removes(self, transaction: str) -> bool:
        """Whether a transaction is part of it."""
        ...

    def removes_open(self, attempt: int) -> bool:
        """Whether an attempt is over that may have left output behind."""
        ...


class KeptOutput(Protocol):
    """The storage that a run provides for the output of a sink without transactions of its own."""

    def validate(self, fresh: bool) -> None:
        """Raise if it is not writable, or if it contains output although the run is to be `fresh`."""
        ...

    def open(self, sink: DeliverySink[Any]) -> SinkWriter:
        """Open a writer. The sink delivers what is committed."""
        ...

    def roll_back(self, rollback: Rollback, sink: DeliverySink[Any]) -> None:
        """Remove leftovers."""
        ...

    @property
    def can_withdraw(self) -> bool:
        """Whether it can remove committed records."""
        ...

    def withdraw(self, later: Withdrawal) -> None:
        """Remove records that were committed after a cut."""
        ...


@dataclass(frozen=True)
class SinkPlace:
    """The place of a sink in a run: the argument that it is opened with.

    - operator: the name of the operator that writes to it. task: the index of the task, from 0.
    - job: the name of the flow. run: identifies this run and runs that resume it, and is part of the name of all
      output.
    - attempt: part of the name of all unpublished output. kept: storage for output that the run itself provides.
    """

    operator: str
    job: str
    run: str
    attempt: int
    task: int
    kept: KeptOutput


class Sink(ABC, Generic[T_in]):
    """The output of a flow. A subclass says how it is written in transactions and what a rollback removes.

    An instance is a description that is pickled and sent to the tasks of a run.
    """

    guarantee: ClassVar[Guarantee] = "transactional"
    """What the sink promises. `backedge graph` shows it."""

    keeps: ClassVar[bool] = False
    """Whether its records are part of the run's result."""

    takes_columns: ClassVar[bool] = False
    """Whether its writers accept columns. Other writers get lists of records."""

    @property
    def label(self) -> str | None:
        """The default name of an operator that writes to this sink."""
        return None

    @property
    def relative_path(self) -> str | None:
        """The path that it writes to, if it is relative. The processes of a run have other working folders."""
        return None

    def absolute(self) -> Sink[T_in]:
        """The same sink with an absolute path."""
        return self

    def validate_output(self, place: SinkPlace, fresh: bool) -> None:
        """Raise an exception if the sink cannot be written to. Called before anything runs; its text becomes the error.

        A `fresh` run resumes no other run: refuse it if its output would be mixed with that of another run.
        """

    def claim(self, place: SinkPlace) -> bool:
        """Claim the output for this run; raise if another run has claimed it. False: this run had claimed it before."""
        return False

    def release(self, place: SinkPlace) -> None:
        """Release the claim if this run holds it: no run will resume it."""

    @abstractmethod
    def open_writer(self, place: SinkPlace) -> SinkWriter:
        """Open the writer of one task."""

    @abstractmethod
    def roll_back(self, place: SinkPlace, rollback: Rollback) -> None:
        """Remove leftovers of attempts. If something cannot be removed, go on, and raise an `OSError`."""

    def can_withdraw(self, place: SinkPlace) -> bool:
        """Whether the sink can remove what it has published, as `run(..., replace_output=True)` asks for."""
        return False

    def withdraw(self, place: SinkPlace, later: Withdrawal) -> None:
        """Remove what was prepared and published after a cut. Called before any task of the attempt runs.

        Remove what is prepared first: a process that was presumed dead may be publishing it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no withdraw(place, later): remove that output")

    def rehearse(self, folder: str) -> Sink[T_in] | None:
        """The same sink, restricted to writing below this folder, which is created after the call.

        With it, `simulate` really writes, commits and rolls back. None: the simulator keeps the output itself, in
        transactions like those of `Collect`.
        """
        return None

    def published(self) -> list[Any]:
        """The published records. Called on a rehearsed sink, to check that each record occurs once."""
        raise NotImplementedError(f"{type(self).__name__} can be rehearsed but has no published(): return its records")


@dataclass(frozen=True)
class Delivery(Generic[T]):
    """The argument of `DeliverySink.deliver`: the records that one task wrote between two cuts, once a cut lists them.

    It may be delivered again after a failure, with the same records and the same `transaction`.
    """

    records: list[T]
    transaction: str
    epoch: int
    to_driver: Callable[[list[Any]], None]
    """Sends lines to the process that started the run, which prints them; for a sink that `keeps`, its records."""


class DeliverySink(Sink[T_in]):
    """A sink that passes records on and has no transactions. The run keeps them until a complete cut lists them.

    At least once: a process that dies between a delivery and its note delivers again. A subclass whose deliveries can
    be repeated without effect sets `guarantee = "idempotent"`.
    """

    guarantee = "at least once"
    takes_columns = True

    @abstractmethod
    def deliver(self, delivery: Delivery[Any]) -> object:
        """Pass the records on."""

    def validate_output(self, place: SinkPlace, fresh: bool) -> None:
        """Raise if the run cannot keep records for this sink."""
        place.kept.validate(fresh)

    def open_writer(self, place: SinkPlace) -> SinkWriter:
        """A writer that keeps records until they are delivered."""
        return place.kept.open(self)

    def roll_back(self, place: SinkPlace, rollback: Rollback) -> None:
        """Remove records that will not be delivered."""
        place.kept.roll_back(rollback, self)

    def can_withdraw(self, place: SinkPlace) -> bool:
        """Whether the run keeps the records in a folder. Records that were delivered cannot be taken back."""
        return self.keeps and place.kept.can_withdraw

    def withdraw(self, place: SinkPlace, later: Withdrawal) -> None:
        """Remove kept records."""
        place.kept.withdraw(later)


def rate_of(source: Source[Any]) -> float | None:
    """The records per second at which all tasks together may read a source: its attribute `rate`, if any."""
    return getattr(source, "rate", None)


def check_rate(rate: float | None) -> None:
    """Raise unless this is a valid rate, or None."""
    if rate is not None and not is_above_zero(rate):
        raise BadOptionError(f"rate={rate!r} would read nothing: give records per second above 0, or leave it out")


class _NumberedSplit:
    """Split "1-of-3" of numbered records: 1, 4, 7 and so on. The position counts the records that were read."""

    def __init__(self, records_at: Callable[[range], Any], count: int | None, split: str, position: int) -> None:
        self._records_at = records_at
        self._numbers = _numbers_of(split, count)
        self.position = position

    @property
    def is_done(self) -> bool:
        return self.position >= len(self._numbers)

    def read(self, records_max: int) -> Any:
        numbers = self._numbers[self.position : self.position + records_max]
        records = self._records_at(numbers)
        self.position += len(numbers)
        return records


def _numbers_of(split: str, count: int | None) -> range:
    """The numbers of the records of a split. An unbounded source has more than a run will ever read."""
    index, splits = map(int, split.split("-of-"))
    return range(index, sys.maxsize if count is None else count, splits)


class _Numbered(Source[T]):
    """A source of numbered records, distributed to the tasks in turn."""

    shares_records = True

    def count_records(self) -> int | None:
        """The number of records; None if unbounded."""
        raise NotImplementedError

    def records_at(self, numbers: range) -> Any:
        """The records with these numbers, as a list or as columns."""
        raise NotImplementedError

    def __length_hint__(self) -> int:
        return self.count_records() or 0

    def is_read(self, split: str, position: Any) -> bool:
        return position >= len(_numbers_of(split, self.count_records()))

    def open_split(self, split: str, position: Any) -> SplitReader[T]:
        return _NumberedSplit(self.records_at, self.count_records(), split, position)


class ArrowReadable(Protocol):
    """A table of pandas, polars or pyarrow: what hands its columns on as Arrow does."""

    def __arrow_c_stream__(self, requested_schema: object | None = None, /) -> object:
        """The columns, as Arrow's C interface passes them."""
        ...


@dataclass(frozen=True)
class Items(_Numbered[T]):
    """The records of a list; or the rows of a table of pandas, polars or Arrow, each a dict.

    >>> Items([1, 2, 3]).bounded
    True
    """

    records: Sequence[T] | ArrowReadable
    rate: float | None = None

    def __post_init__(self) -> None:
        check_rate(self.rate)
        records: Any = self.records
        if hasattr(records, "__arrow_c_stream__"):
            object.__setattr__(self, "records", _ArrowTable(records))
            return
        if isinstance(records, str | bytes):
            raise BadOptionError(
                f"Items got {records[:20]!r}, each letter of which would become a record: give a list with it, "
                "or read the file of this name with TextLines(path)"
            )
        # Records are read by their position, and again after a restore.
        if isinstance(records, Mapping) or not (hasattr(records, "__len__") and hasattr(records, "__getitem__")):
            raise BadOptionError(
                f"Items got something of type {type(records).__name__}, whose records have no positions: "  # pyright: ignore[reportUnknownArgumentType]
                "give a list, as in Items(list(records))"
            )

    def count_records(self) -> int:
        records: Any = self.records
        return len(records)

    def records_at(self, numbers: range) -> Any:
        records: Any = self.records
        return records.rows_at(numbers) if isinstance(records, _ArrowTable) else [records[number] for number in numbers]


class _ArrowTable:
    """The rows of a table by their numbers."""

    def __init__(self, table: ArrowReadable) -> None:
        try:
            read = _arrow().table(table)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise BadOptionError(
                f"Items got something of type {type(table).__name__} that is no table with columns of one type each "
                f"({one_line(error)}): give such a table, with a different name for each column, or a list, as in "
                "Items(list(series))"
            ) from error
        # Without metadata: pandas describes there what its index was.
        self._table = read.replace_schema_metadata(None).combine_chunks()

    def __len__(self) -> int:
        return self._table.num_rows

    def rows_at(self, numbers: range) -> Any:
        """The rows with these numbers, as a record batch."""
        first = numbers.start if len(numbers) else 0
        taken = self._table.slice(first, len(numbers)) if numbers.step == 1 else self._table.take(list(numbers))
        columns = [column.combine_chunks() for column in taken.columns]
        return _arrow().RecordBatch.from_arrays(columns, schema=taken.schema)


def _arrow() -> Any:
    """The module pyarrow, imported for those who read tables."""
    return import_module("pyarrow")


@dataclass(frozen=True)
class Range(_Numbered[int]):
    """The integers from `start` up to, not including, `stop`.

    >>> Range(10).stop
    10
    """

    stop: int
    start: int = 0
    rate: float | None = None

    def __post_init__(self) -> None:
        check_rate(self.rate)
        if not (is_whole(self.start) and is_whole(self.stop)):
            raise BadOptionError(f"Range got start={self.start!r} and stop={self.stop!r}: give integers")

    def count_records(self) -> int:
        return len(range(self.start, self.stop))

    def records_at(self, numbers: range) -> list[int]:
        every = range(self.start, self.stop)
        return [every[number] for number in numbers]


@dataclass(frozen=True)
class Generate(_Numbered[T]):
    """The records `make(position)` for the positions 0, 1, 2, ...: `count` of them, or without end.

    `make` must return the same record for the same position, or a restored run would read something else.

    >>> Generate(lambda position: position * position).bounded
    False
    """

    make: Callable[[int], T]
    count: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        check_rate(self.rate)
        check_function(self.make, "Generate")
        if self.count is not None and not (is_whole(self.count) and self.count >= 0):
            raise BadOptionError(
                f"Generate has count={self.count!r}: give an integer of 0 or more, or leave it out to go on without end"
            )

    @property
    def bounded(self) -> bool:
        return self.count is not None

    def count_records(self) -> int | None:
        return self.count

    def records_at(self, numbers: range) -> list[T]:
        records: list[T] = []
        for number in numbers:
            try:
                records.append(self.make(number))
            except RAISED_BY_USERS as error:
                raise FunctionRaisedError(f"make({number})") from error
        return records


class _PolledSplit(Generic[T]):
    """The results of a function so far. The position is the last one that it returned."""

    def __init__(self, function: Callable[[Any], Any], position: Any) -> None:
        self._function = function
        self.position = position
        self.is_done = False

    def read(self, records_max: int) -> list[T]:
        try:
            found = self._function(self.position)
            if found is None:
                self.is_done = True
                return []
            if not (isinstance(found, tuple) and len(cast("tuple[Any, ...]", found)) == 2):
                raise TypeError(f"it returned {found!r}: return (records, position), or None at the end")
            records, position = cast("tuple[Sequence[T], Any]", found)
            taken = list(records)
        except RAISED_BY_USERS as error:
            raise FunctionRaisedError(f"function({self.position!r})") from error
        self.position = position
        return taken


@dataclass(frozen=True)
class Poll(Source[T]):
    """Calls `function(position)` repeatedly for `(records, position)`: new records, and the position after them.

    The first call gets `start`, each later one the position that the previous call returned. This also holds for the
    first call after a restore, because the position is part of the cut. Return a few thousand records at most. Return
    `([], position)` if nothing is new: the function is called again after `every` seconds. Return None when there will
    never be more, which a source that `ends` does.

    >>> reader = Poll(lambda n: ([n, n + 1], n + 2), start=5).open_split("polled", 5)
    >>> reader.read(100), reader.position
    ([5, 6], 7)
    """

    function: Callable[[Any], tuple[Sequence[T], Any] | None]
    every: float = 1.0
    start: Any = None
    ends: bool = False
    rate: float | None = None

    shares_records = True

    def __post_init__(self) -> None:
        check_rate(self.rate)
        check_function(self.function, "Poll")
        if not is_above_zero(self.every):
            raise BadOptionError(f"Poll has every={self.every!r}: give the seconds between two calls, above 0")

    @property
    def bounded(self) -> bool:
        return self.ends

    @property
    def idle_s(self) -> float:
        return self.every

    def splits(self) -> Sequence[str]:
        """One: a function has one position."""
        return ["polled"]

    def first_position(self, split: str) -> Any:
        return self.start

    def open_split(self, split: str, position: Any) -> SplitReader[T]:
        return _PolledSplit(self.function, position)


@dataclass(frozen=True)
class Collect(DeliverySink[Any]):
    """Keeps the records; the result of the run returns them as a list, each exactly once.

    >>> Collect().label is None
    True
    """

    guarantee = "transactional"
    keeps = True

    def deliver(self, delivery: Delivery[Any]) -> None:
        """Send the records to the driver, which counts each transaction once."""
        delivery.to_driver(delivery.records)


@dataclass(frozen=True)
class Print(DeliverySink[Any]):
    """Prints each record of a committed epoch, after `prefix`.

    >>> Print("late: ").prefix
    'late: '
    """

    prefix: str = ""

    def can_withdraw(self, place: SinkPlace) -> bool:
        """Nothing has to be removed: printed lines are kept nowhere."""
        return True

    def withdraw(self, place: SinkPlace, later: Withdrawal) -> None:
        """Do nothing."""

    def deliver(self, delivery: Delivery[Any]) -> None:
        """Send the lines to the driver."""
        delivery.to_driver([f"{self.prefix}{record}" for record in delivery.records])


@dataclass(frozen=True)
class Call(DeliverySink[T_in]):
    """Calls `function(records)` with the records of each committed epoch; `function(records, epoch)` with `with_epoch`.

    At least once: a process that dies between the call and its note repeats the call, with the same records and the
    same epoch. Each task makes its own calls: write with parallelism=1 to get the records of an epoch in one call.
    Epochs increase, so a function that stores the last epoch it has seen can recognise repeated calls.

    >>> Call(print).function is print
    True
    """

    function: Callable[..., object]
    with_epoch: bool = False

    def __post_init__(self) -> None:
        check_function(self.function, "Call")

    def deliver(self, delivery: Delivery[Any]) -> object:
        """Call the function."""
        epoch = (delivery.epoch,) if self.with_epoch else ()
        try:
            return self.function(delivery.records, *epoch)
        except RAISED_BY_USERS as error:
            call = "function(records, epoch)" if epoch else "function(records)"
            raise FunctionRaisedError(call) from error

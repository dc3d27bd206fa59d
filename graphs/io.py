"""Where records come from and where they go: the protocols of sources and sinks, and those that need no files.

docs/extending.md shows how to write a source or a sink.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, cast

from graphs.graph_errors import BadOptionError
from graphs.options import check_function, is_above_zero, is_whole

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_in = TypeVar("T_in", contravariant=True)


RAISED_BY_USERS = (Exception, SystemExit, GeneratorExit, CancelledError)
"""What counts as raised by a user's function. SystemExit that left a task would end its process without a cause, and a
cancelled call would leave its record without an answer. KeyboardInterrupt is the person at the keyboard."""


class FunctionRaisedError(Exception):
    """Raised by a source `from` what a function of the user's raised. `call` says which call that was.

    The run fails with the user's own exception: reading again would raise it again.
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
        """The position behind the last record that was read. A plain value: it goes into the cut."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether this split has nothing more to read, now or later."""
        ...

    def read(self, records_max: int) -> Sequence[T_co] | ArrowRows:
        """Read up to `records_max` records, as a list or as columns. An empty list: there is none at the moment."""
        ...


class Source(ABC, Generic[T]):
    """What a flow reads. Subclasses say what its splits are, and open a split at a position.

    A split is a part of the input that one task reads at a time. It has a name, and a position: a plain value that says
    how far it has been read. Names and positions are all that a cut holds of a source. A restored run opens each split
    at its position in the cut, in another process and perhaps in another task, and must read what followed it before.

    An instance is a description that travels to the tasks of a run by pickling. Each task opens its splits through a
    copy of its own, so a source may keep a connection on itself once it opens a split.
    """

    shares_records: ClassVar[bool] = False
    """Whether something else holds the objects that are read, too. They are copied then: operators may change them."""

    @property
    def bounded(self) -> bool:
        """Whether it ends. A source that does not is read until the run is stopped."""
        return True

    @property
    def label(self) -> str | None:
        """What an operator that reads this is called, unless it is given a name."""
        return None

    @property
    def relative_path(self) -> str | None:
        """The path that it reads, if that is relative to the working folder. Processes of a run have others."""
        return None

    def absolute(self) -> Source[T]:
        """The same source with an absolute path."""
        return self

    @property
    def idle_s(self) -> float:
        """Seconds until it is read again when it had nothing to read."""
        return 0.02

    def validate_input(self) -> None:
        """Raise an exception if this cannot be read. Called once, before anything runs; its text becomes the error."""

    def splits(self) -> Sequence[str] | None:
        """The names of all splits. Called once, before anything runs; the tasks get them in turn, in this order.

        None stands for one split a task, named "0-of-3" to "2-of-3" where the source has three tasks.
        """
        return None

    def first_position(self, split: str) -> Any:
        """The position of a split of which nothing has been read."""
        return 0

    def is_read(self, split: str, position: Any) -> bool:
        """Whether a position is known to be the end of its split, which is not opened then."""
        return False

    def check_unchanged(self, positions: Mapping[str, Any]) -> None:
        """Raise if what is still to be read of these splits is not what it was when the run began.

        Called when a task starts, with all of its splits.
        """

    @abstractmethod
    def open_split(self, split: str, position: Any) -> SplitReader[T]:
        """Open a split. Its first record is the one that follows `position`."""


Guarantee = Literal["transactional", "idempotent", "at least once"]
"""What a sink promises of a record that a complete cut counts as written, whatever dies.

transactional: it is published once. idempotent: it may be published again, which changes nothing. at least once: it may
be published again, and is then there twice.
"""


class SinkWriter(Protocol):
    """One task of a sink. Publishes in two steps: prepare when a cut is taken, commit when it is complete."""

    def write(self, records: Any, /) -> None:
        """Add records, a list, to the open transaction. List and records belong to the writer from now on."""
        ...

    def prepare(self, transaction: str, /) -> bool:
        """Make the open transaction durable, not visible, under this name, and open the next one.

        The name is unique: no other task and no other attempt of the run uses it. False: nothing was written.
        """
        ...

    def commit(self, transaction: str, /) -> None:
        """Make a prepared transaction visible. Another task may have prepared it, in an attempt that has died.

        It may be called again for the same transaction, by other tasks and at the same time, which must change nothing.
        Raise if it is neither prepared nor published: it is lost, and that must not pass unnoticed.
        """
        ...


class Rollback(Protocol):
    """Which leftovers of a sink the chain of the job has made dead for good.

    It may be carried out late, when another supervisor has taken over. So a sink removes what this says, and never
    "everything that is not listed": what a later attempt has prepared is not listed here.
    """

    @property
    def is_over(self) -> bool:
        """Whether the run has come to an end, so that containers that are empty now may go."""
        ...

    def removes(self, transaction: str) -> bool:
        """Whether a prepared transaction will never be published."""
        ...

    def forgets(self, transaction: str) -> bool:
        """Whether no restore will ask any more if this transaction was published."""
        ...

    def removes_open(self, attempt: int) -> bool:
        """Whether an attempt is over that may have left something behind that it did not prepare."""
        ...


class KeptOutput(Protocol):
    """The place that a run has for the output of one sink that has no transactions itself."""

    def validate(self, fresh: bool) -> None:
        """Raise if it cannot be written to, or if it holds output and the run is to be `fresh`."""
        ...

    def open(self, sink: DeliverySink[Any]) -> SinkWriter:
        """Write to it. What is committed is delivered by the sink."""
        ...

    def roll_back(self, rollback: Rollback, sink: DeliverySink[Any]) -> None:
        """Remove leftovers."""
        ...


@dataclass(frozen=True)
class SinkPlace:
    """Where a sink stands: what it is opened with.

    - operator: the name of the operator that writes to it. task: the number of the task, from 0.
    - job: the name of the flow. run: names this run and those that resume it, and is part of the name of all output.
    - attempt: part of the name of all that is not published yet. kept: a place for output that the run itself offers.
    """

    operator: str
    job: str
    run: str
    attempt: int
    task: int
    kept: KeptOutput


class Sink(ABC, Generic[T_in]):
    """What a flow writes. Subclasses say how it is written in transactions, and what is rolled back.

    An instance is a description that travels to the tasks of a run by pickling.
    """

    guarantee: ClassVar[Guarantee] = "transactional"
    """What it promises. `backedge graph` shows it."""

    keeps: ClassVar[bool] = False
    """Whether its records are part of the result of the run."""

    takes_columns: ClassVar[bool] = False
    """Whether its writers take columns as they are. Others get lists of records."""

    @property
    def label(self) -> str | None:
        """What an operator that writes this is called, unless it is given a name."""
        return None

    @property
    def relative_path(self) -> str | None:
        """The path that it writes, if that is relative to the working folder. Processes of a run have others."""
        return None

    def absolute(self) -> Sink[T_in]:
        """The same sink with an absolute path."""
        return self

    def validate_output(self, place: SinkPlace, fresh: bool) -> None:
        """Raise an exception if this cannot be written to. Called before anything runs; its text becomes the error.

        A `fresh` run continues no other: refuse it where output would be mixed with that of another run.
        """

    def claim(self, place: SinkPlace) -> bool:
        """Claim the output for this run; raise if another one has it. False: this run had claimed it before."""
        return False

    def release(self, place: SinkPlace) -> None:
        """Give up the claim, if this run has it: nothing will resume it."""

    @abstractmethod
    def open_writer(self, place: SinkPlace) -> SinkWriter:
        """Open the writer of one task."""

    @abstractmethod
    def roll_back(self, place: SinkPlace, rollback: Rollback) -> None:
        """Remove what attempts have left behind. Go on where something cannot be removed; raise an `OSError` then."""

    def rehearse(self, folder: str) -> Sink[T_in] | None:
        """The same sink, writing below this folder alone, which is made after the call.

        With it, `simulate` really writes, commits and rolls back. None: the simulator keeps the output itself, in
        transactions like those of `Collect`.
        """
        return None

    def published(self) -> list[Any]:
        """The records that are published. Asked of a rehearsed sink, to see that each is there once."""
        raise NotImplementedError(f"{type(self).__name__} can be rehearsed, and does not say what it has published")


@dataclass(frozen=True)
class Delivery(Generic[T]):
    """What a `DeliverySink` gets: the records that one task wrote between two cuts, once a complete cut lists them.

    It may come again after a failure, with the same records under the same `transaction`.
    """

    records: list[T]
    transaction: str
    epoch: int
    to_driver: Callable[[list[Any]], None]
    """Hands lines to the process that started the run, which prints them; of a sink that `keeps`, its records."""


class DeliverySink(Sink[T_in]):
    """A sink that hands records on and has no transactions itself. The run keeps them until a complete cut lists them.

    At least once: a process that dies between the delivery and the note that it was made delivers again. A subclass
    whose deliveries may be repeated without effect says `guarantee = "idempotent"`.
    """

    guarantee = "at least once"
    takes_columns = True

    @abstractmethod
    def deliver(self, delivery: Delivery[Any]) -> object:
        """Hand the records on."""

    def validate_output(self, place: SinkPlace, fresh: bool) -> None:
        """Raise if the run cannot keep records for this sink."""
        place.kept.validate(fresh)

    def open_writer(self, place: SinkPlace) -> SinkWriter:
        """A writer that keeps records until they are delivered."""
        return place.kept.open(self)

    def roll_back(self, place: SinkPlace, rollback: Rollback) -> None:
        """Remove what will not be delivered."""
        place.kept.roll_back(rollback, self)


def rate_of(source: Source[Any]) -> float | None:
    """Records a second that a source may be read at, over all of its tasks: its attribute `rate`, if it has one."""
    return getattr(source, "rate", None)


def check_rate(rate: float | None) -> None:
    """Raise unless this is a rate, or none."""
    if rate is not None and not is_above_zero(rate):
        raise BadOptionError(f"rate={rate!r} reads nothing: give records a second above 0, or leave it out")


class _NumberedSplit(Generic[T]):
    """Split "1-of-3" of numbered records: 1, 4, 7 and so on. The position is how many of them were read."""

    def __init__(self, records_at: Callable[[range], list[T]], count: int | None, split: str, position: int) -> None:
        self._records_at = records_at
        self._numbers = _numbers_of(split, count)
        self.position = position

    @property
    def is_done(self) -> bool:
        return self.position >= len(self._numbers)

    def read(self, records_max: int) -> list[T]:
        numbers = self._numbers[self.position : self.position + records_max]
        records = self._records_at(numbers)
        self.position += len(numbers)
        return records


def _numbers_of(split: str, count: int | None) -> range:
    """The numbers of the records of a split. A source without end has more than a run will ever read."""
    index, splits = map(int, split.split("-of-"))
    return range(index, sys.maxsize if count is None else count, splits)


class _Numbered(Source[T]):
    """A source of records that have numbers, dealt to the tasks in turn."""

    shares_records = True

    def count_records(self) -> int | None:
        """How many records there are; None: without end."""
        raise NotImplementedError

    def records_at(self, numbers: range) -> list[T]:
        """The records of these numbers."""
        raise NotImplementedError

    def __length_hint__(self) -> int:
        return self.count_records() or 0

    def is_read(self, split: str, position: Any) -> bool:
        return position >= len(_numbers_of(split, self.count_records()))

    def open_split(self, split: str, position: Any) -> SplitReader[T]:
        return _NumberedSplit(self.records_at, self.count_records(), split, position)


@dataclass(frozen=True)
class Items(_Numbered[T]):
    """The records of a list.

    >>> Items([1, 2, 3]).bounded
    True
    """

    records: Sequence[T]
    rate: float | None = None

    def __post_init__(self) -> None:
        check_rate(self.rate)
        records: Any = self.records
        # Any of them is asked for by its position, and again after a restore.
        if isinstance(records, Mapping) or not (hasattr(records, "__len__") and hasattr(records, "__getitem__")):
            raise BadOptionError(
                f"Items is given something of type {type(records).__name__}, whose records have no positions: "  # pyright: ignore[reportUnknownArgumentType]
                "give a list, as in Items(list(records))"
            )

    def count_records(self) -> int:
        return len(self.records)

    def records_at(self, numbers: range) -> list[T]:
        return [self.records[number] for number in numbers]


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
            raise BadOptionError(f"Range is given start={self.start!r} and stop={self.stop!r}: give integers")

    def count_records(self) -> int:
        return len(range(self.start, self.stop))

    def records_at(self, numbers: range) -> list[int]:
        every = range(self.start, self.stop)
        return [every[number] for number in numbers]


@dataclass(frozen=True)
class Generate(_Numbered[T]):
    """The record at each position 0, 1, 2, ... as `make(position)` gives it: `count` of them, or without end.

    `make` must give the same record for the same position, or a restored run reads something else.

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
    """What a function has returned so far. The position is the last one that it returned."""

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
    """Calls `function(position)` again and again, for `(records, position)`: what is new, and the position behind it.

    The first call gets `start`, each later one the position that the last one returned, and so does the first call
    after a restore: the position is part of the cut. Return a few thousand records at most, `([], position)` when there
    is nothing new, and the function is called again after `every` seconds; None when there will never be more, which
    a source that `ends` does.

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
    """Keeps the records; the result of the run gives them back as a list, each once.

    >>> Collect().label is None
    True
    """

    guarantee = "transactional"
    keeps = True

    def deliver(self, delivery: Delivery[Any]) -> None:
        """Hand them to the driver. It counts a transaction once."""
        delivery.to_driver(delivery.records)


@dataclass(frozen=True)
class Print(DeliverySink[Any]):
    """Prints each record of a committed epoch, behind `prefix`.

    >>> Print("late: ").prefix
    'late: '
    """

    prefix: str = ""

    def deliver(self, delivery: Delivery[Any]) -> None:
        """Hand the lines to the driver."""
        delivery.to_driver([f"{self.prefix}{record}" for record in delivery.records])


@dataclass(frozen=True)
class Call(DeliverySink[T_in]):
    """Calls `function(records)` with the records of each committed epoch; `function(records, epoch)` with `with_epoch`.

    At least once: a process that dies between the call and the note that it was made makes it again, with the same
    records and the same epoch. Each task calls for itself: write with parallelism=1 to get the records of an epoch in
    one call. Epochs grow, so a function that keeps the last one it has seen knows what it has had already.

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

"""Where records come from and where they go: the protocols of sources and sinks, and those that need no files.

docs/extending.md shows how to write a source or a sink.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

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

    def validate(self) -> None:
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
    def open(self, split: str, position: Any) -> SplitReader[T]:
        """Open a split. Its first record is the one that follows `position`."""


class Sink(Generic[T_in]):
    """What a flow writes."""

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

    def open(self, split: str, position: Any) -> SplitReader[T]:
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


@dataclass(frozen=True)
class Collect(Sink[Any]):
    """Keeps the records; the result of the run gives them back as a list.

    >>> Collect().label is None
    True
    """


@dataclass(frozen=True)
class Print(Sink[Any]):
    """Prints each record of a committed epoch, behind `prefix`.

    >>> Print("late: ").prefix
    'late: '
    """

    prefix: str = ""


@dataclass(frozen=True)
class Call(Sink[T_in]):
    """Calls `function(records)` with the records of each committed epoch.

    At least once: a process that dies between the call and the note that it was made makes it again.

    >>> Call(print).function is print
    True
    """

    function: Callable[[list[T_in]], object]

    def __post_init__(self) -> None:
        check_function(self.function, "Call")

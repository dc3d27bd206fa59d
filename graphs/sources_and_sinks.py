"""The built-in sources and sinks that need neither files nor a database."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, Protocol, TypeVar, cast

from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.io import (
    RAISED_BY_USERS,
    Delivery,
    DeliverySink,
    FunctionRaisedError,
    OtherInputError,
    SinkPlace,
    Source,
    SplitReader,
    Withdrawal,
)
from backedge.graphs.options import check_function, is_above_zero, is_whole
from backedge.graphs.public import public
from backedge.graphs.wording import one_line

T = TypeVar("T")
T_in = TypeVar("T_in", contravariant=True)


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


@public
@dataclass(frozen=True)
class Items(_Numbered[T]):
    """The records of a list; or the rows of a table of pandas, polars or Arrow, each a dict.

    >>> Items([1, 2, 3]).bounded
    True
    """

    records: Sequence[T] | ArrowReadable

    def __post_init__(self) -> None:
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

    def is_read(self, split: str, position: Any) -> bool:
        return position == len(_numbers_of(split, self.count_records()))

    def open_split(self, split: str, position: Any) -> SplitReader[T]:
        if position > (count := len(_numbers_of(split, self.count_records()))):
            raise OtherInputError(
                f"split {split!r} has {count} records, and {position} of it were read before the run was interrupted: "
                "give the source the same records, or start a new run without resume"
            )
        return super().open_split(split, position)

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
        first = numbers.start if len(numbers) else 0
        taken = self._table.slice(first, len(numbers)) if numbers.step == 1 else self._table.take(list(numbers))
        columns = [column.combine_chunks() for column in taken.columns]
        return _arrow().RecordBatch.from_arrays(columns, schema=taken.schema)


def _arrow() -> Any:
    return import_module("pyarrow")


@public
@dataclass(frozen=True)
class Range(_Numbered[int]):
    """The integers from `start` up to, not including, `stop`.

    >>> Range(10).stop
    10
    """

    stop: int
    start: int = 0

    def __post_init__(self) -> None:
        if not (is_whole(self.start) and is_whole(self.stop)):
            raise BadOptionError(f"Range got start={self.start!r} and stop={self.stop!r}: give integers")
        if self.stop - self.start > sys.maxsize:
            raise BadOptionError(
                f"Range got stop={self.stop!r}, behind more integers than a run can count: give a lower one, or read "
                "Generate(int), which has no end"
            )

    def count_records(self) -> int:
        return len(range(self.start, self.stop))

    def records_at(self, numbers: range) -> list[int]:
        every = range(self.start, self.stop)
        return [every[number] for number in numbers]


@public
@dataclass(frozen=True)
class Generate(_Numbered[T]):
    """The records `make(position)` for the positions 0, 1, 2, ...: `count` of them, or without end.

    `make` must return the same record for the same position, or a restored run would read something else.

    >>> Generate(lambda position: position * position).bounded
    False
    """

    make: Callable[[int], T]
    count: int | None = None

    def __post_init__(self) -> None:
        check_function(self.make, "Generate")
        if self.count is not None and not (is_whole(self.count) and 0 <= self.count <= sys.maxsize):
            raise BadOptionError(
                f"Generate has count={self.count!r}: give an integer of 0 or more, below 2 to the power of 63, or "
                "leave it out to go on without end"
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
            if isinstance(records, str | bytes | Mapping):
                raise TypeError(f"it returned {records!r} as its records: return a list with it, or [] for none")
            taken = list(records)
        except RAISED_BY_USERS as error:
            raise FunctionRaisedError(f"function({self.position!r})") from error
        self.position = position
        return taken


@public
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

    shares_records = True

    def __post_init__(self) -> None:
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


@public
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


@public
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
        delivery.to_driver([f"{self.prefix}{record}" for record in delivery.records])


@public
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
        epoch = (delivery.epoch,) if self.with_epoch else ()
        try:
            return self.function(delivery.records, *epoch)
        except RAISED_BY_USERS as error:
            call = "function(records, epoch)" if epoch else "function(records)"
            raise FunctionRaisedError(call) from error

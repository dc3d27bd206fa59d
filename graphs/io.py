"""Where records come from and where they go: frozen descriptions. The engine opens what they describe.

`rate` limits a source to so many records a second, over all of its tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Generic, TypeVar

from graphs.graph_errors import BadOptionError
from graphs.options import check_function, is_above_zero, is_whole

T = TypeVar("T")
T_in = TypeVar("T_in", contravariant=True)


class Source(Generic[T]):
    """What a flow reads. A bounded source ends; an unbounded one goes on until the run is stopped."""

    @property
    def bounded(self) -> bool:
        return True

    @property
    def label(self) -> str | None:
        """What an operator that reads this is called, unless it is given a name."""
        return None


class Sink(Generic[T_in]):
    """What a flow writes."""

    @property
    def label(self) -> str | None:
        """What an operator that writes this is called, unless it is given a name."""
        return None


def _check_rate(rate: float | None) -> None:
    if rate is not None and not is_above_zero(rate):
        raise BadOptionError(f"rate={rate!r} reads nothing: give records a second above 0, or leave it out")


@dataclass(frozen=True)
class Items(Source[T]):
    """The records of a list.

    >>> Items([1, 2, 3]).bounded
    True
    """

    records: Sequence[T]
    rate: float | None = None

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        records: Any = self.records
        # Any of them is asked for by its position, and again after a restore.
        if isinstance(records, Mapping) or not (hasattr(records, "__len__") and hasattr(records, "__getitem__")):
            raise BadOptionError(
                f"Items is given something of type {type(records).__name__}, whose records have no positions: "  # pyright: ignore[reportUnknownArgumentType]
                "give a list, as in Items(list(records))"
            )


@dataclass(frozen=True)
class Range(Source[int]):
    """The integers from `start` up to, not including, `stop`.

    >>> Range(10).stop
    10
    """

    stop: int
    start: int = 0
    rate: float | None = None

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        if not (is_whole(self.start) and is_whole(self.stop)):
            raise BadOptionError(f"Range is given start={self.start!r} and stop={self.stop!r}: give integers")


@dataclass(frozen=True)
class Generate(Source[T]):
    """The record at each position 0, 1, 2, ... as `make(position)` gives it: `count` of them, or without end.

    `make` must give the same record for the same position, or a restored run reads something else.

    >>> Generate(lambda position: position * position).bounded
    False
    """

    make: Callable[[int], T]
    count: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        check_function(self.make, "Generate")
        if self.count is not None and not (is_whole(self.count) and self.count >= 0):
            raise BadOptionError(
                f"Generate has count={self.count!r}: give an integer of 0 or more, or leave it out to go on without end"
            )

    @property
    def bounded(self) -> bool:
        return self.count is not None


@dataclass(frozen=True)
class _Files:
    """A file, a folder of files, or a URI of either."""

    path: str
    rate: float | None = None

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        path: Any = self.path
        if not isinstance(path, str) or not path or "\0" in path:
            raise BadOptionError(f"path {path!r} names no file: give a file, a folder or a URI, as a string")

    @property
    def label(self) -> str | None:
        return PurePosixPath(self.path.replace("\\", "/")).name.split(".")[0] or None


@dataclass(frozen=True)
class JsonLines(_Files, Source[dict[str, Any]], Sink[Any]):
    """Files of one JSON value a line, to read or to write.

    >>> JsonLines("in/orders/").label
    'orders'
    """


@dataclass(frozen=True)
class CSV(_Files, Source[dict[str, Any]], Sink[Any]):
    """Files of comma-separated values under a header line, to read or to write.

    >>> CSV("prices.csv").label
    'prices'
    """


@dataclass(frozen=True)
class Parquet(_Files, Source[dict[str, Any]], Sink[Any]):
    """Parquet files, a record a row, to read or to write.

    >>> Parquet("s3://bucket/edges/").label
    'edges'
    """


@dataclass(frozen=True)
class TextLines(_Files, Source[str]):
    """Text files, a record a line, without its line end.

    >>> TextLines("logs/today.txt").label
    'today'
    """


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

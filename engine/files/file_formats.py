"""The formats of files: what each one reads and writes, and where.

A new one is a class here, or in a package of its own: `FileSource` lists and opens the splits, `FileSink` writes parts.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, ClassVar, TypeVar

from engine.files.locations import Location, Stamp
from engine.files.parquet_split import ParquetSplit
from engine.files.splits import RANGE_BYTES_MAX, Position, Split, check_files, ranges, row_groups
from engine.files.text_splits import CsvSplit, JsonSplit, TextSplit
from graphs.graph_errors import BadOptionError
from graphs.io import Sink, Source, SplitReader, check_rate

T = TypeVar("T")


@dataclass(frozen=True)
class Files:
    """A file, a folder of files, or a URI of either."""

    path: str
    rate: float | None = None

    def __post_init__(self) -> None:
        check_rate(self.rate)
        path: Any = self.path
        if not isinstance(path, str) or not path or "\0" in path:
            raise BadOptionError(f"path {path!r} names no file: give a file, a folder or a URI, as a string")

    @property
    def label(self) -> str | None:
        """The name of the file or the folder."""
        return PurePosixPath(self.path.replace("\\", "/")).name.split(".")[0] or None

    @property
    def relative_path(self) -> str | None:
        """The path, unless it is absolute or a URI."""
        return None if "://" in self.path or os.path.isabs(self.path) else self.path

    def absolute(self) -> Any:
        """The same files, wherever the process runs."""
        return self if self.relative_path is None else replace(self, path=os.path.abspath(self.path))


class FileSource(Files, Source[T]):
    """Reads files. A split is a file, a range of a big one, or a part that the format has."""

    endings: ClassVar[tuple[str, ...]]
    """The endings of the files that are read in a folder."""

    @cached_property
    def location(self) -> Location:
        """Where the path leads."""
        return Location(self.path)

    @abstractmethod
    def splits_of(self, path: str, stamp: Stamp, range_bytes_max: int) -> Iterator[Split]:
        """The splits of one file."""

    @abstractmethod
    def open_split(self, split: Split, position: Position) -> SplitReader[T]:
        """Open a split whose file is the one that was listed."""

    def list_splits(self, range_bytes_max: int = RANGE_BYTES_MAX) -> list[Split]:
        """All splits as they are now, in the order of the names of their files."""
        files = self.location.files(self.endings)
        return [split for path, stamp in files.items() for split in self.splits_of(path, stamp, range_bytes_max)]

    def splits(self) -> Sequence[str]:
        """The names of all splits, which say what the files were when they were listed."""
        return [split.name for split in self.list_splits()]

    def first_position(self, split: str) -> Position:
        """Where a split begins."""
        return Split.parse(split).first

    def is_read(self, split: str, position: Position) -> bool:
        """Whether nothing is left behind this position: the file may be gone."""
        return Split.parse(split).is_read(position)

    def check_unchanged(self, positions: Mapping[str, Position]) -> None:
        """Raise if a file that is still to be read is not the one that was listed."""
        check_files(self.location, {Split.parse(name): position for name, position in positions.items()})

    def open(self, split: str, position: Position) -> SplitReader[T]:
        """Open a split, unless its file was exchanged since the task started."""
        parsed = Split.parse(split)
        check_files(self.location, {parsed: position})
        return self.open_split(parsed, position)


class FileSink(Files, Sink[Any]):
    """Writes files into a folder."""


def with_compressed(*endings: str) -> tuple[str, ...]:
    """These endings, and those of the same files compressed.

    >>> with_compressed(".csv")
    ('.csv', '.csv.gz')
    """
    return (*endings, *(f"{ending}.gz" for ending in endings))


class JsonLines(FileSource[dict[str, Any]], FileSink):
    """Files of one JSON value a line, to read or to write.

    >>> JsonLines("in/orders/").label
    'orders'
    """

    endings = with_compressed(".jsonl", ".ndjson", ".json")

    def splits_of(self, path: str, stamp: Stamp, range_bytes_max: int) -> Iterator[Split]:
        """Ranges of bytes."""
        return ranges(path, stamp, range_bytes_max)

    def open_split(self, split: Split, position: Position) -> SplitReader[dict[str, Any]]:
        """Open a range of lines."""
        return JsonSplit(self.location, split, position)


class CSV(FileSource[dict[str, Any]], FileSink):
    """Files of comma-separated values under a header line, to read or to write.

    >>> CSV("prices.csv").label
    'prices'
    """

    endings = with_compressed(".csv")

    def splits_of(self, path: str, stamp: Stamp, range_bytes_max: int) -> Iterator[Split]:
        """The whole file: a line end may stand in quotes, which only a reader from the start can tell."""
        yield Split(path, stamp.size, 0, stamp.size, time_ns=stamp.time_ns)

    def open_split(self, split: Split, position: Position) -> SplitReader[dict[str, Any]]:
        """Open a file."""
        return CsvSplit(self.location, split, position)


class Parquet(FileSource[dict[str, Any]], FileSink):
    """Parquet files, a record a row, to read or to write.

    >>> Parquet("s3://bucket/edges/").label
    'edges'
    """

    endings = (".parquet",)

    def splits_of(self, path: str, stamp: Stamp, range_bytes_max: int) -> Iterator[Split]:
        """Row groups."""
        return row_groups(self.location, path, stamp)

    def open_split(self, split: Split, position: Position) -> SplitReader[dict[str, Any]]:
        """Open a row group."""
        return ParquetSplit(self.location, split, position)


class TextLines(FileSource[str]):
    """Text files, a record a line, without its line end.

    >>> TextLines("logs/today.txt").label
    'today'
    """

    endings = with_compressed("")

    def splits_of(self, path: str, stamp: Stamp, range_bytes_max: int) -> Iterator[Split]:
        """Ranges of bytes."""
        return ranges(path, stamp, range_bytes_max)

    def open_split(self, split: Split, position: Position) -> SplitReader[str]:
        """Open a range of lines."""
        return TextSplit(self.location, split, position)

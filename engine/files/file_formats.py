"""The file formats: what each one reads and writes, and where.

A new format is a class here or in another package: `FileSource` lists and opens the splits, `FileSink` writes parts.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, TypeVar

from engine.files.disk import Disk, UnsyncedDisk
from engine.files.locations import Location, Stamp
from engine.files.names import path_name
from engine.files.output_folders import STAGING, check_output_folder, claim_folder, output_folder, release_folder
from engine.files.parquet_part import ParquetPart
from engine.files.parquet_split import ParquetSplit
from engine.files.parts import CsvPart, JsonPart, Part, PicklePart, read_pickles
from engine.files.splits import RANGE_BYTES_MAX, Position, Split, check_files, ranges, row_groups
from engine.files.staging import Staging
from engine.files.text_splits import CsvSplit, JsonSplit, TextSplit
from engine.files.writers import FileWriter
from graphs.graph_errors import BadOptionError
from graphs.ids import Attempt
from graphs.io import Rollback, Sink, SinkPlace, Source, SplitReader, check_rate

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
            raise BadOptionError(f"path {path!r} does not name a file: give a file, a folder or a URI, as a string")

    @property
    def label(self) -> str | None:
        """The name of the file or the folder."""
        return PurePosixPath(self.path.replace("\\", "/")).name.split(".")[0] or None

    @property
    def relative_path(self) -> str | None:
        """The path, unless it is absolute or a URI."""
        return None if "://" in self.path or os.path.isabs(self.path) else self.path

    def absolute(self) -> Any:
        """The same files with an absolute path."""
        return self if self.relative_path is None else replace(self, path=os.path.abspath(self.path))


class FileSource(Files, Source[T]):
    """Reads files. A split is a file, a range of a big file, or a part that the format defines."""

    endings: ClassVar[tuple[str, ...]]
    """The endings of the files to read in a folder."""

    @cached_property
    def location(self) -> Location:
        """The location of the path."""
        return Location(self.path)

    @abstractmethod
    def splits_of(self, path: str, stamp: Stamp, range_bytes_max: int) -> Iterator[Split]:
        """The splits of one file."""

    @abstractmethod
    def open_part(self, split: Split, position: Position) -> SplitReader[T]:
        """Open a split whose file is still the one that was listed."""

    def list_splits(self, range_bytes_max: int = RANGE_BYTES_MAX) -> list[Split]:
        """All splits as of now, in the order of their files' names."""
        files = self.location.files(self.endings)
        return [split for path, stamp in files.items() for split in self.splits_of(path, stamp, range_bytes_max)]

    def splits(self) -> Sequence[str]:
        """The names of all splits, which identify the files as they were when listed."""
        return [split.name for split in self.list_splits()]

    def first_position(self, split: str) -> Position:
        """Where a split begins."""
        return Split.parse(split).first

    def is_read(self, split: str, position: Position) -> bool:
        """Whether nothing is left after this position; then the file may be gone."""
        return Split.parse(split).is_read(position)

    def check_unchanged(self, positions: Mapping[str, Position]) -> None:
        """Raise if a file with unread parts is not the one that was listed."""
        check_files(self.location, {Split.parse(name): position for name, position in positions.items()})

    def open_split(self, split: str, position: Position) -> SplitReader[T]:
        """Open a split; raise if its file was replaced since the task started."""
        parsed = Split.parse(split)
        check_files(self.location, {parsed: position})
        return self.open_part(parsed, position)


class FileSink(Files, Sink[Any]):
    """Writes files into a folder: each transaction becomes one file, exactly once."""

    takes_columns = True
    disk: ClassVar[Disk] = Disk()
    """All operations on files go through this."""

    ending: ClassVar[str]
    """The ending of the written files."""

    spark_format: ClassVar[str]
    """Spark's name of this format."""

    @abstractmethod
    def new_part(self, path: Path, sink: str, types: dict[str, Any]) -> Part:
        """Create a file for a transaction. `types` is shared by all parts of a task."""

    def validate_output(self, place: SinkPlace, fresh: bool) -> None:
        """Create the folder; raise if it cannot be written to, or if it contains output and the run is fresh."""
        folder = output_folder(place.operator, self.path)
        check_output_folder(place.operator, folder, folder, fresh)

    def claim(self, place: SinkPlace) -> bool:
        """Claim the folder."""
        return claim_folder(place.operator, output_folder(place.operator, self.path), place.job, place.run)

    def release(self, place: SinkPlace) -> None:
        """Release the claim."""
        release_folder(output_folder(place.operator, self.path), place.job, place.run)

    def open_writer(self, place: SinkPlace) -> FileWriter:
        """A writer of files."""
        types: dict[str, Any] = {}

        def new_part(path: Path) -> Part:
            return self.new_part(path, place.operator, types)

        folder = output_folder(place.operator, self.path)
        attempt = Attempt(place.attempt)
        return FileWriter(
            place.operator,
            attempt,
            place.task,
            self._staging(place),
            self.disk,
            new_part,
            folder,
            place.run,
            self.ending,
        )

    def roll_back(self, place: SinkPlace, rollback: Rollback) -> None:
        """Remove parts that will not be published."""
        staging = self._staging(place)
        try:
            staging.roll_back(rollback)
        finally:
            if rollback.is_over:
                self.disk.remove_empty(staging.folder.parent)
                self.disk.remove_empty(staging.folder.parent.parent)

    def rehearse(self, folder: str) -> Sink[Any]:
        """The same steps in another folder."""
        return RehearsedFiles(folder)

    def _staging(self, place: SinkPlace) -> Staging:
        above = output_folder(place.operator, self.path) / STAGING / path_name(place.job)
        return Staging(above / path_name(place.operator), self.disk)


class RehearsedFiles(FileSink):
    """What `simulate` writes in place of files of any format: the same steps, and records as they are.

    >>> RehearsedFiles("rehearsal").published()
    []
    """

    disk = UnsyncedDisk()
    ending = ".pickle"

    def new_part(self, path: Path, sink: str, types: dict[str, Any]) -> Part:
        """A file of pickles."""
        return PicklePart(self.disk, path, sink)

    def published(self) -> list[Any]:
        """The records of all files."""
        parts = sorted(Path(self.path).glob(f"*{self.ending}"))
        return [record for part in parts for batch in read_pickles(part) for record in batch]


def with_compressed(*endings: str) -> tuple[str, ...]:
    """These endings, also with `.gz` appended.

    >>> with_compressed(".csv")
    ('.csv', '.csv.gz')
    """
    return (*endings, *(f"{ending}.gz" for ending in endings))


class JsonLines(FileSource[dict[str, Any]], FileSink):
    """Files with one JSON value per line, to read or to write.

    >>> JsonLines("in/orders/").label
    'orders'
    """

    endings = with_compressed(".jsonl", ".ndjson", ".json")

    ending = ".jsonl"
    spark_format = "json"

    def splits_of(self, path: str, stamp: Stamp, range_bytes_max: int) -> Iterator[Split]:
        """Ranges of bytes."""
        return ranges(path, stamp, range_bytes_max)

    def open_part(self, split: Split, position: Position) -> SplitReader[dict[str, Any]]:
        """Open a range of lines."""
        return JsonSplit(self.location, split, position)

    def new_part(self, path: Path, sink: str, types: dict[str, Any]) -> Part:
        """A file of this format."""
        return JsonPart(self.disk, path, sink)


class CSV(FileSource[dict[str, Any]], FileSink):
    """Files of comma-separated values with a header line, to read or to write.

    >>> CSV("prices.csv").label
    'prices'
    """

    endings = with_compressed(".csv")

    ending = ".csv"
    spark_format = "csv"

    def splits_of(self, path: str, stamp: Stamp, range_bytes_max: int) -> Iterator[Split]:
        """The whole file: a line end may be inside quotes, which only a reader from the start can tell."""
        yield Split(path, stamp.size, 0, stamp.size, time_ns=stamp.time_ns)

    def open_part(self, split: Split, position: Position) -> SplitReader[dict[str, Any]]:
        """Open a file."""
        return CsvSplit(self.location, split, position)

    def new_part(self, path: Path, sink: str, types: dict[str, Any]) -> Part:
        """A file of this format."""
        return CsvPart(self.disk, path, sink)


class Parquet(FileSource[dict[str, Any]], FileSink):
    """Parquet files, one record per row, to read or to write.

    >>> Parquet("s3://bucket/edges/").label
    'edges'
    """

    endings = (".parquet",)

    ending = ".parquet"
    spark_format = "parquet"

    def splits_of(self, path: str, stamp: Stamp, range_bytes_max: int) -> Iterator[Split]:
        """Row groups."""
        return row_groups(self.location, path, stamp)

    def open_part(self, split: Split, position: Position) -> SplitReader[dict[str, Any]]:
        """Open a row group."""
        return ParquetSplit(self.location, split, position)

    def new_part(self, path: Path, sink: str, types: dict[str, Any]) -> Part:
        """A file of this format."""
        return ParquetPart(self.disk, path, sink, types)


class TextLines(FileSource[str]):
    """Text files, one record per line, without its line end.

    >>> TextLines("logs/today.txt").label
    'today'
    """

    endings = with_compressed("")

    def splits_of(self, path: str, stamp: Stamp, range_bytes_max: int) -> Iterator[Split]:
        """Ranges of bytes."""
        return ranges(path, stamp, range_bytes_max)

    def open_part(self, split: Split, position: Position) -> SplitReader[str]:
        """Open a range of lines."""
        return TextSplit(self.location, split, position)

"""The file formats: what each one reads and writes, and where.

A new format is a class here or in another package: `FileSource` lists and opens the splits, `FileSink` writes parts.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, TypeVar

from backedge.engine.batches.arrow import parquet
from backedge.engine.io.files.disk import Disk, UnsyncedDisk
from backedge.engine.io.files.file_errors import OutputError, unpublished
from backedge.engine.io.files.file_output import FileOutput
from backedge.engine.io.files.former_places import WriterOfSeveralPlaces
from backedge.engine.io.files.input_columns import Columns, InputColumns, Schema, input_columns
from backedge.engine.io.files.locations import Location, Stamp, is_hidden
from backedge.engine.io.files.object_location import is_in_object_store, location_of
from backedge.engine.io.files.objects_in_memory import ObjectsInMemory
from backedge.engine.io.files.output_storage import STAGING
from backedge.engine.io.files.parquet_part import ParquetPart, count_rows, cut_parquet, join_parquet
from backedge.engine.io.files.parquet_split import ParquetSplit
from backedge.engine.io.files.parts import (
    CsvPart,
    FileFormat,
    JsonPart,
    Part,
    PicklePart,
    csv_header,
    cut_bytes,
    join_bytes,
    pickles_in,
    read_pickles,
)
from backedge.engine.io.files.splits import RANGE_BYTES_MAX, Position, Split, check_files, path_of, ranges, row_groups
from backedge.engine.io.files.text_splits import CsvSplit, JsonSplit, TextSplit
from backedge.engine.operators.services import commit_all
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.ids import prepared_by
from backedge.graphs.io import (
    FoundSplits,
    OtherInputError,
    Rollback,
    Sink,
    SinkPlace,
    SinkWriter,
    Source,
    SplitReader,
    Withdrawal,
)
from backedge.graphs.options import check_count, is_above_zero
from backedge.graphs.public import public

T = TypeVar("T")


@dataclass(frozen=True)
class Files:
    """A file, a folder of files, or a URI of either."""

    path: str

    def __post_init__(self) -> None:
        path: Any = self.path
        if not isinstance(path, str) or not path or "\0" in path:
            raise BadOptionError(f"path {path!r} does not name a file: give a file, a folder or a URI, as a string")

    @property
    def label(self) -> str | None:
        """The name of the file or the folder; of a pattern, that of the folder above."""
        path = PurePosixPath(self.path.replace("\\", "/"))
        return next(part for part in (path, *path.parents) if "*" not in part.name).name.split(".")[0] or None

    @property
    def relative_path(self) -> str | None:
        """The path, unless it is absolute or a URI."""
        return None if "://" in self.path or os.path.isabs(self.path) else self.path

    def absolute(self) -> Any:
        """The same files with an absolute path."""
        return self if self.relative_path is None else replace(self, path=os.path.abspath(self.path))


@dataclass(frozen=True)
class FileSource(Files, Source[T]):
    """Reads files. A split is a file, a range of a big file, or a part that the format defines.

    With `watch`, a number of seconds, it looks that often for files that have arrived in a folder. A file is read once
    it has not been modified for so long, and must not change from then on; an object is complete when it is there. It
    ends when everything is read and a file of the name `until` is in the folder; without that, it does not end.
    """

    watch: float | None = field(default=None, kw_only=True)
    until: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.watch is not None and not is_above_zero(self.watch):
            raise BadOptionError(f"watch={self.watch!r} is no pause between two looks: give seconds above 0")
        if self.until is not None and (self.watch is None or not self.until or "/" in self.until):
            raise BadOptionError(
                f"until={self.until!r} with watch={self.watch!r}: give the seconds between two looks, watch=5, and the "
                'name of a file in the folder that says that no more will come, until="_DONE"'
            )

    endings: ClassVar[tuple[str, ...]]
    """The endings of the files to read in a folder."""

    @cached_property
    def location(self) -> Location:
        return location_of(self.path)

    @abstractmethod
    def splits_of(self, path: str, stamp: Stamp, range_bytes_max: int) -> Iterator[Split]:
        """The splits of one file."""

    @abstractmethod
    def open_part(self, split: Split, position: Position) -> SplitReader[T]:
        """Open a split whose file is still the one that was listed."""

    @property
    def bounded(self) -> bool:
        return self.watch is None or self.until is not None

    @property
    def look_s(self) -> float | None:
        return self.watch

    def validate_input(self) -> None:
        """Raise if files are to arrive in what is no folder."""
        if self.watch is not None:
            self.location.check_folder()

    @cached_property
    def _found(self) -> dict[str, Stamp]:
        """The files whose splits are known."""
        return {}

    @cached_property
    def _gone(self) -> dict[str, list[str]]:
        """Those of them that are gone, each with its splits. One is forgotten when none of these is known any more."""
        return {}

    def find_splits(self, known: Collection[str]) -> FoundSplits:
        """The splits of the files that are complete by now and were not before."""
        # Looked for first: what is there now was there when that file was.
        is_last = self.until is not None and self.location.has(self.until)
        found, gone, files = self._found, self._gone, self.location.arriving(self.endings)
        if not found:
            found |= {split.path: split.stamp for split in map(Split.parse, known)}
        for path, names in list(gone.items()):
            is_known = any(name in known for name in names)
            if not is_known:
                del found[path]
            if not is_known or path in files:
                del gone[path]
        settled_ns = time.time_ns() - round((self.watch or 0) * 1e9)
        new: list[str] = []
        for path, stamp in files.items():
            former = found.get(path)
            if former is None:
                if path != self.until and (is_last or stamp.time_ns <= settled_ns):
                    try:
                        new += [split.name for split in self.splits_of(path, stamp, RANGE_BYTES_MAX)]
                    except FileNotFoundError:
                        continue  # it was renamed or removed just now
                    found[path] = stamp
            elif former != stamp:
                raise OtherInputError(
                    f"{self.location.shown(path)} has changed since it was found: put the former file back, or move it "
                    "away if it has been read; write new records to new files, and give each its name when it is "
                    "complete"
                )
        if lacking := self.location.removed(found.keys() - files.keys() - gone.keys()):
            gone |= {path: [] for path in lacking}
            for name in known:
                if (path := path_of(name)) in lacking:
                    gone[path].append(name)
        return FoundSplits(new, is_last, tuple(name for names in gone.values() for name in names))

    def would_find(self, sink: Sink[Any]) -> bool:
        """Whether a sink writes files that it reads to its folder or one below it."""
        if not isinstance(sink, FileSink) or not sink.ending.endswith(self.endings):
            return False
        here, there = (f"{path.rstrip('/')}/" for path in (self.path, sink.path))
        return there.startswith(here) and not is_hidden(there.removeprefix(here))

    def list_splits(self, range_bytes_max: int = RANGE_BYTES_MAX) -> list[Split]:
        """All splits as of now, in the order of their files' names."""
        files = self.location.files(self.endings)
        return [split for path, stamp in files.items() for split in self.splits_of(path, stamp, range_bytes_max)]

    def splits(self) -> Sequence[str]:
        """The names of all splits, which identify the files as they were when listed."""
        return [split.name for split in self.list_splits()]

    def size_of(self, split: str) -> int:
        """Bytes of text, or rows."""
        parsed = Split.parse(split)
        return parsed.stop - parsed.start

    def first_position(self, split: str) -> Position:
        return Split.parse(split).first

    def is_read(self, split: str, position: Position) -> bool:
        """Whether nothing is left after this position; then the file may be gone."""
        return Split.parse(split).is_read(position)

    def check_unchanged(self, positions: Mapping[str, Position]) -> None:
        check_files(self.location, {Split.parse(name): position for name, position in positions.items()})

    def open_split(self, split: str, position: Position) -> SplitReader[T]:
        """Open a split; raise if its file was replaced since the task started."""
        parsed = Split.parse(split)
        check_files(self.location, {parsed: position})
        return self.open_part(parsed, position)


@dataclass(frozen=True)
class ColumnFiles(FileSource[dict[str, Any]]):
    """Files whose rows have columns. With `columns`, all rows have these; `schema` says what becomes of a file that has
    others, or other types: "fail", "ignore" or "widen".
    """

    columns: Columns | None = field(default=None, kw_only=True)
    schema: Schema = field(default="fail", kw_only=True)

    has_types: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        input_columns(self.columns, self.schema, has_types=self.has_types)

    @cached_property
    def declared(self) -> InputColumns | None:
        """The columns that it declares."""
        return input_columns(self.columns, self.schema, has_types=self.has_types)


ROLL_BYTES = 64 << 20
ROLL_S = 60.0
REHEARSED_ROLL_BYTES = 200
"""A few records, so that a simulated run publishes several files, of several cuts each."""


@dataclass(frozen=True)
class FileSink(Files, FileFormat, Sink[Any]):
    """Writes files or objects, exactly once. A cut makes its records final, and they become visible soon after.

    A task publishes a file when its records take up `roll_bytes`, when `roll_s` seconds have passed since the first of
    them became final, and at the end of the run. With None for both, each cut has a file of its own, at once.
    """

    roll_bytes: int | None = field(default=ROLL_BYTES, kw_only=True)
    roll_s: float | None = field(default=ROLL_S, kw_only=True)

    takes_columns = True
    spark_format: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.roll_bytes is not None:
            check_count(self.roll_bytes, "roll_bytes", "a sink of files")
        if self.roll_s is not None and not is_above_zero(self.roll_s):
            raise BadOptionError(f"a sink of files has roll_s={self.roll_s!r}: give seconds above 0, or None")

    def validate_output(self, place: SinkPlace, fresh: bool) -> None:
        if isinstance(self, ColumnFiles) and self.columns is not None:
            raise OutputError(f"sink {place.operator!r} has columns=, which says what is read of files: leave it out")
        if isinstance(self, FileSource) and self.watch is not None:
            raise OutputError(f"sink {place.operator!r} has watch=, which says when files are read: leave it out")
        self._output(place).check(fresh)

    def claim(self, place: SinkPlace) -> bool:
        """Claim the folder, or the place in an object store, and note it."""
        is_new = self._output(place).claim()
        place.kept.note_place(self.path)
        return is_new

    def release(self, place: SinkPlace) -> None:
        self._output(place).release()

    def open_writer(self, place: SinkPlace) -> SinkWriter:
        types: dict[str, Any] = {}

        def new_part(disk: Disk, path: Path) -> Part:
            return self.new_part(disk, path, place.operator, types)

        writers = [output.open_writer(new_part) for output in self._outputs(place)]
        return writers[0] if len(writers) == 1 else WriterOfSeveralPlaces(writers)

    def roll_back(self, place: SinkPlace, rollback: Rollback) -> None:
        """Remove what will not be published. At the end of the run, publish what tasks that died have left."""
        try:
            self._publish(place, rollback.committed)
        except OSError as error:
            raise unpublished(place.operator, self._output(place).staging_location, error) from error
        errors: list[OSError] = []
        for output in self._outputs(place):
            try:
                output.roll_back(rollback)
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def can_withdraw(self, place: SinkPlace) -> bool:
        return all(output.can_withdraw for output in self._outputs(place))

    def withdraw(self, place: SinkPlace, later: Withdrawal) -> None:
        """Publish what the cut lists, and remove what was prepared and published after it."""
        place = replace(place, attempt=later.attempt)
        self._publish(place, later.listed)
        for output in self._outputs(place):
            output.withdraw(later)

    def _publish(self, place: SinkPlace, committed: Collection[str]) -> None:
        """Publish what any task has prepared of these transactions of all sinks."""
        own = [name for name in committed if prepared_by(name)[0] == place.operator]
        if own:
            commit_all(self.open_writer(place), own)

    def of_ending(self, ending: str) -> FileSink:
        if ending in ("", self.ending):
            return self
        for other in _FORMATS:
            if other.ending == ending:
                return other(self.path)
        raise OutputError(
            f"files with the ending {ending!r} wait in {self.path}, and this sink writes {self.ending!r}: resume the "
            "run with the sink that wrote them, and stop it"
        )

    @property
    def other_endings(self) -> Sequence[str]:
        return [other.ending for other in _FORMATS if other.ending != self.ending]

    def rehearse(self, folder: str) -> Sink[Any]:
        """The same steps in another folder, or in a store in memory."""
        rehearsed = RehearsedObjects if is_in_object_store(self.path) else RehearsedFiles
        return rehearsed(folder, roll_bytes=None if self.roll_bytes is None else REHEARSED_ROLL_BYTES, roll_s=None)

    def _output(self, place: SinkPlace) -> FileOutput:
        return FileOutput(self, place)

    def _outputs(self, place: SinkPlace) -> list[FileOutput]:
        """Where it writes, then the former places of which this run has the claim."""
        former = [replace(self, path=path) for path in place.kept.noted_places() if path != self.path]
        return [self._output(place), *(output for sink in former if (output := sink._output(place)).is_claimed)]


class RehearsedFiles(FileSink):
    """What `simulate` writes in place of files of any format: the same steps, and records as they are.

    >>> RehearsedFiles("rehearsal").published()
    []
    """

    disk = UnsyncedDisk()
    ending = ".pickle"

    def new_part(self, disk: Disk, path: Path, sink: str, types: dict[str, Any]) -> Part:
        return PicklePart(disk, path, sink)

    def published(self) -> list[Any]:
        """The records of all files. What waits to be published together is not among them."""
        files = sorted(Path(self.path).glob(f"*{self.ending}"))
        return [record for file in files for batch in read_pickles(file) for record in batch]


@dataclass(frozen=True)
class RehearsedObjects(RehearsedFiles):
    """The same for a sink in an object store. All of it is in memory, except for what a task is writing.

    >>> RehearsedObjects("rehearsal").published()
    []
    """

    store: ObjectsInMemory = field(default_factory=ObjectsInMemory, kw_only=True)

    def published(self) -> list[Any]:
        names = [name for name in self.store.list() if not name.startswith(STAGING)]
        files = ((BytesIO(self.store.read(name)), name) for name in names)
        return [record for file, name in files for batch in pickles_in(file, name) for record in batch]

    def _output(self, place: SinkPlace) -> FileOutput:
        return FileOutput(self, place, self.store)


def with_compressed(*endings: str) -> tuple[str, ...]:
    """These endings, also with `.gz` appended.

    >>> with_compressed(".csv")
    ('.csv', '.csv.gz')
    """
    return (*endings, *(f"{ending}.gz" for ending in endings))


@public
@dataclass(frozen=True)
class JsonLines(ColumnFiles, FileSink):
    """Files with one JSON value per line, to read or to write.

    >>> JsonLines("in/orders/").label
    'orders'
    """

    endings = with_compressed(".jsonl", ".ndjson", ".json")

    ending = ".jsonl"
    spark_format = "json"

    def splits_of(self, path: str, stamp: Stamp, range_bytes_max: int) -> Iterator[Split]:
        return ranges(self.location, path, stamp, range_bytes_max, may_grow=self.watch is None)

    def open_part(self, split: Split, position: Position) -> SplitReader[dict[str, Any]]:
        return JsonSplit(self.location, split, position, self.declared)

    def new_part(self, disk: Disk, path: Path, sink: str, types: dict[str, Any]) -> Part:
        return JsonPart(disk, path, sink)


@public
@dataclass(frozen=True)
class CSV(ColumnFiles, FileSink):
    """Files of comma-separated values with a header line, to read or to write.

    >>> CSV("prices.csv").label
    'prices'
    """

    endings = with_compressed(".csv")

    ending = ".csv"
    spark_format = "csv"

    def splits_of(self, path: str, stamp: Stamp, range_bytes_max: int) -> Iterator[Split]:
        """The whole file: a line end may be inside quotes, which only a reader from the start can tell."""
        return ranges(self.location, path, stamp, max(1, stamp.size), may_grow=self.watch is None)

    def open_part(self, split: Split, position: Position) -> SplitReader[dict[str, Any]]:
        return CsvSplit(self.location, split, position, self.declared)

    def new_part(self, disk: Disk, path: Path, sink: str, types: dict[str, Any]) -> Part:
        return CsvPart(disk, path, sink)

    def join(self, disk: Disk, parts: Sequence[Path], path: Path) -> None:
        join_bytes(disk, parts, path, header_bytes=len(self.form_of(parts[0])))

    def length_of(self, path: Path) -> int:
        """Bytes after the header."""
        return path.stat().st_size - len(self.form_of(path))

    def extract(self, disk: Disk, file: Path, spans: Sequence[tuple[int, int]], path: Path) -> None:
        """The header, and these bytes after it."""
        cut_bytes(disk, file, spans, path, header_bytes=len(self.form_of(file)))

    def form_of(self, path: Path) -> bytes:
        with path.open("rb") as file:
            return csv_header(file)


@public
@dataclass(frozen=True)
class Parquet(ColumnFiles, FileSink):
    """Parquet files, one record per row, to read or to write.

    >>> Parquet("s3://bucket/edges/").label
    'edges'
    """

    endings = (".parquet",)

    has_types = True

    ending = ".parquet"
    spark_format = "parquet"

    def splits_of(self, path: str, stamp: Stamp, range_bytes_max: int) -> Iterator[Split]:
        return row_groups(self.location, path, stamp)

    def open_part(self, split: Split, position: Position) -> SplitReader[dict[str, Any]]:
        return ParquetSplit(self.location, split, position, self.declared)

    def new_part(self, disk: Disk, path: Path, sink: str, types: dict[str, Any]) -> Part:
        return ParquetPart(disk, path, sink, types)

    def join(self, disk: Disk, parts: Sequence[Path], path: Path) -> None:
        """The rows of one after the other, in row groups of many rows."""
        join_parquet(disk, parts, path)

    def length_of(self, path: Path) -> int:
        return count_rows(path)

    def extract(self, disk: Disk, file: Path, spans: Sequence[tuple[int, int]], path: Path) -> None:
        cut_parquet(disk, file, spans, path)

    def form_of(self, path: Path) -> Any:
        return parquet().read_schema(path)


@public
@dataclass(frozen=True)
class TextLines(FileSource[str]):
    """Text files, one record per line, without its line end.

    >>> TextLines("logs/today.txt").label
    'today'
    """

    endings = with_compressed("")

    def splits_of(self, path: str, stamp: Stamp, range_bytes_max: int) -> Iterator[Split]:
        return ranges(self.location, path, stamp, range_bytes_max, may_grow=self.watch is None)

    def open_part(self, split: Split, position: Position) -> SplitReader[str]:
        return TextSplit(self.location, split, position)


_FORMATS = (JsonLines, CSV, Parquet)

"""Splits: the parts of a source that one task reads at a time, and how a source falls into them.

A split is a text file, a range of a big one, or a row group of a Parquet file. Its name says all of that, and the size
that the file had when it was listed: a run reads what was there when it began, and notices what has changed since.

A position is how far a split has been read: the byte offset in a text file, the rows of a row group. In a compressed
file it is the offset in what is unpacked, and whether that was the end, which nothing else tells: (offset, 0 or 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs

from engine.files.arrow import parquet
from engine.files.errors import InputChangedError, MalformedInputError
from engine.files.locations import Location
from graphs.io import CSV, JsonLines, Parquet, TextLines

Position = int | tuple[int, int]
FileSource = JsonLines | CSV | Parquet | TextLines

RANGE_BYTES_MAX = 64 * 1024 * 1024
"""Larger text files are read in several ranges, by as many tasks as there are."""

_ENDINGS = {JsonLines: (".jsonl", ".ndjson", ".json"), CSV: (".csv",), Parquet: (".parquet",), TextLines: ("",)}


@dataclass(frozen=True, slots=True)
class Split:
    """The lines of a file that begin in a range of its bytes, or a row group: number `group`, of `stop` rows.

    >>> Split("a.jsonl", size=12, start=0, stop=12).name
    'a.jsonl?size=12&start=0&stop=12'
    >>> Split.parse("a.jsonl?size=12&start=0&stop=12").first
    0
    """

    path: str
    size: int
    start: int
    stop: int
    group: int | None = None

    @property
    def name(self) -> str:
        """All there is to know, as text."""
        path = self.path.replace("%", "%25").replace("?", "%3F")
        group = "" if self.group is None else f"&group={self.group}"
        return f"{path}?size={self.size}&start={self.start}&stop={self.stop}{group}"

    @classmethod
    def parse(cls, name: str) -> Split:
        """The split of this name."""
        path, _, query = name.partition("?")
        try:
            numbers = {key: int(value) for key, (value,) in parse_qs(query, strict_parsing=True).items()}
            return cls(path.replace("%3F", "?").replace("%25", "%"), **numbers)
        except (ValueError, TypeError) as error:
            raise InputChangedError(f"{name!r} is not a split of files: the cut belongs to another source") from error

    @property
    def is_compressed(self) -> bool:
        """Whether it has to be unpacked, from the start of the file on."""
        return self.group is None and self.path.lower().endswith(".gz")

    @property
    def first(self) -> Position:
        """The position of a split of which nothing has been read."""
        return (0, 0) if self.is_compressed else self.start if self.group is None else 0

    def is_read(self, position: Position) -> bool:
        """Whether nothing is left behind this position."""
        return bool(position[1]) if isinstance(position, tuple) else position >= self.stop


def list_splits(source: FileSource, range_bytes_max: int = RANGE_BYTES_MAX) -> list[Split]:
    """All splits of a source as it is now, in the order of the names of its files."""
    location = Location(source.path)
    endings = _ENDINGS[type(source)]
    if not isinstance(source, Parquet):
        endings = (*endings, *(f"{ending}.gz" for ending in endings))
    splits: list[Split] = []
    for path, size in location.files(endings).items():
        if isinstance(source, Parquet):
            splits += _row_groups(location, path, size)
        elif isinstance(source, CSV) or path.lower().endswith(".gz"):
            # A line end of CSV may stand in quotes, which only a reader from the start can tell.
            splits.append(Split(path, size, 0, size))
        else:
            splits += _ranges(path, size, range_bytes_max)
    return splits


def check_unchanged(location: Location, positions: dict[Split, Position]) -> None:
    """Raise if a file that is still to be read is not the one that was listed."""
    unread = [split for split, position in positions.items() if not split.is_read(position)]
    sizes = location.sizes(sorted({split.path for split in unread}))
    for split in unread:
        size = sizes[split.path]
        # Lines may have been added to a text file, behind what this run reads. Others are written anew to change.
        may_grow = split.group is None and not split.is_compressed
        if size < split.size or (size > split.size and not may_grow):
            raise changed(location, split, f"it has {size:,} bytes now")


def changed(location: Location, split: Split, how: str) -> InputChangedError:
    """The error to raise when a file is not the one that was listed."""
    return InputChangedError(
        f"{location.shown(split.path)} has changed since the run listed it with {split.size:,} bytes: {how}; "
        "put the former file back, or start a new run over what there is"
    )


def _ranges(path: str, size: int, range_bytes_max: int) -> Iterator[Split]:
    count = max(1, -(-size // range_bytes_max))
    bounds = [size * number // count for number in range(count + 1)]
    for start, stop in pairwise(bounds):
        yield Split(path, size, start, stop)


def _row_groups(location: Location, path: str, size: int) -> Iterator[Split]:
    try:
        metadata: Any = parquet().read_metadata(location.open(path))
    except ValueError as error:
        raise MalformedInputError(
            f"{location.shown(path)} is not Parquet ({error}): take the file out, or write it again"
        ) from error
    for group in range(metadata.num_row_groups):
        yield Split(path, size, 0, metadata.row_group(group).num_rows, group)

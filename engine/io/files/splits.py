"""Splits: the parts of a source that one task reads at a time, and how a source is divided into them.

A split is a text file, a range of a big one, or a row group of a Parquet file. Its name says so, and includes the size
and modification time of the file when it was listed, or the version of the object; for Parquet also a digest of the
footer, which locates everything in the file. A run reads the files that existed when it began, and notices later
changes.

A position says how far a split has been read. For a row group it is the number of rows. For text it is (offset,
digest): an offset in bytes and a CRC-32 of the lines before it, which are read again after a restart and must be the
same. For a compressed file it is (offset, is_end, digest): the offset in the unpacked content, and whether it is the
end.

Only the following may change: a text file that is a single split, and no object, may get more lines, which are left to
the next run, or another modification time. That lines were added, and none was changed, is shown by a digest of its
former end (`tail`): behind a repaired line that is longer now, as many bytes would be left as it has more. Nothing else
may change until it is read: parts of a file are read by different tasks at different times, and only the size and time
of the file show that all of them read the same file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from backedge.engine.batches.arrow import parquet
from backedge.engine.io.files.file_errors import InputChangedError, MalformedInputError
from backedge.engine.io.files.locations import Location, Stamp

Position = int | tuple[int, ...]

RANGE_BYTES_MAX = 64 * 1024 * 1024
"""Larger text files are read in several ranges, which several tasks can share."""

_TAIL_BYTES = 256

_FOOTER_END_BYTES = 8
"""The length of the footer, and four magic bytes."""


@dataclass(frozen=True, slots=True)
class Split:
    """The lines of a file that begin in a byte range, or a row group: number `group`, with `stop` rows.

    >>> Split("a.jsonl", size=12, start=0, stop=12, time_ns=5).name
    'a.jsonl?size=12&time_ns=5&start=0&stop=12'
    >>> Split.parse("a.jsonl?size=12&time_ns=5&start=0&stop=12").first
    (0, 0)
    """

    path: str
    size: int
    start: int
    stop: int
    group: int | None = None
    time_ns: int = 0
    footer: int = 0
    version: int = 0
    tail: int = 0

    @property
    def name(self) -> str:
        """The complete description of the split, as text."""
        path = self.path.replace("%", "%25").replace("?", "%3F")
        footer, group = ("", "") if self.group is None else (f"&footer={self.footer}", f"&group={self.group}")
        stamp = f"size={self.size}&time_ns={self.time_ns}{f'&version={self.version}' if self.version else ''}"
        stamp += f"&tail={self.tail}" if self.tail else ""
        return f"{path}?{stamp}{footer}&start={self.start}&stop={self.stop}{group}"

    @classmethod
    def parse(cls, name: str) -> Split:
        query = name.partition("?")[2]
        try:
            numbers = {key: int(value) for key, value in (item.split("=") for item in query.split("&"))}
            return cls(path_of(name), **numbers)
        except (ValueError, TypeError) as error:
            raise InputChangedError(f"{name!r} is not a split of files: the cut belongs to another source") from error

    @property
    def stamp(self) -> Stamp:
        """The version of its file."""
        return Stamp(self.size, self.time_ns, self.version)

    @property
    def is_compressed(self) -> bool:
        """Whether it must be unpacked, from the start of the file."""
        return self.group is None and self.path.lower().endswith(".gz")

    @property
    def first(self) -> Position:
        """The position of a split before anything was read."""
        return (0, 0, 0) if self.is_compressed else (self.start, 0) if self.group is None else 0

    @property
    def is_whole_text(self) -> bool:
        return self.group is None and self.start == 0 and self.stop == self.size

    def is_read(self, position: Position) -> bool:
        """Whether nothing is left after this position."""
        if not isinstance(position, tuple):
            return position >= self.stop
        return bool(position[1]) if self.is_compressed else position[0] >= self.stop


def path_of(name: str) -> str:
    """The path of the file of a split.

    >>> path_of("what%3F.jsonl?size=12&time_ns=5&start=0&stop=12")
    'what?.jsonl'
    """
    return name.partition("?")[0].replace("%3F", "?").replace("%25", "%")


def check_files(location: Location, positions: dict[Split, Position]) -> None:
    """Raise if a file with unread parts is not the one that was listed."""
    unread = [split for split, position in positions.items() if not split.is_read(position)]
    stamps = location.stamps(sorted({split.path for split in unread}))
    for split in unread:
        now = stamps[split.path]
        may_grow = split.is_whole_text and not split.is_compressed and not split.version
        if now.size < split.size or (now.size > split.size and not may_grow):
            raise changed(location, split, f"it now has {now.size:,} bytes")
        if now.size > split.size and split.tail and split.tail != tail_of(location, split.path, split.size):
            raise changed(location, split, f"it now has {now.size:,} bytes, and not only lines that were added")
        if now.version != split.version:
            raise changed(location, split, "it is another version of the object, which was written since")
        if now.time_ns != split.time_ns and not split.is_whole_text:
            times = f"it was modified at {_time(now.time_ns)}, previously at {_time(split.time_ns)}"
            raise changed(location, split, f"{times}, while parts of it were still unread")


def changed(location: Location, split: Split, how: str) -> InputChangedError:
    """The error to raise if a file is not the one that was listed."""
    former = "restore the former file with its modification time (cp -p, touch -d)"
    if split.version:
        former = "upload the former object, which some stores take for the same version"
    return InputChangedError(
        f"{location.shown(split.path)} has changed since the run listed it with {split.size:,} bytes: {how}; "
        f"{former}, or start a new run on the present files"
    )


def tail_of(location: Location, path: str, size: int) -> int:
    """A digest of the bytes before this size; 0 if the name is one that no cut holds, which is refused soon."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return 0
    with location.open(path) as file:
        file.seek(max(0, size - _TAIL_BYTES))
        return zlib.crc32(file.read(min(size, _TAIL_BYTES)))


def footer_digest(file: Any) -> int:
    """A digest of the footer of an open Parquet file, which locates all of its parts."""
    size = file.size()
    file.seek(size - _FOOTER_END_BYTES)
    length = int.from_bytes(file.read(4), "little")
    file.seek(max(0, size - _FOOTER_END_BYTES - length))
    return zlib.crc32(file.read(length))


def _time(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(timespec="milliseconds")


def ranges(location: Location, path: str, stamp: Stamp, range_bytes_max: int, *, may_grow: bool) -> Iterator[Split]:
    """The splits of a text file. A compressed file is read as a whole."""
    if path.lower().endswith(".gz"):
        yield Split(path, stamp.size, 0, stamp.size, time_ns=stamp.time_ns, version=stamp.version)
        return
    size = stamp.size
    count = max(1, -(-size // range_bytes_max))
    tail = tail_of(location, path, size) if may_grow and count == 1 and not stamp.version else 0
    bounds = [size * number // count for number in range(count + 1)]
    for start, stop in pairwise(bounds):
        yield Split(path, size, start, stop, time_ns=stamp.time_ns, version=stamp.version, tail=tail)


def row_groups(location: Location, path: str, stamp: Stamp) -> Iterator[Split]:
    try:
        file = location.open(path)
        metadata: Any = parquet().read_metadata(file)
        footer = footer_digest(file)
    except ValueError as error:
        raise MalformedInputError(
            f"{location.shown(path)} is not Parquet ({error}): remove the file, or write it again"
        ) from error
    for group in range(metadata.num_row_groups):
        yield Split(
            path, stamp.size, 0, metadata.row_group(group).num_rows, group, stamp.time_ns, footer, stamp.version
        )

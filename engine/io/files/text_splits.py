"""Reads JSON lines, CSV and plain text: lines in, records out, with the offset after them.

JSON: one value per line; blank lines are skipped. CSV: a header line, then records, each a dict of texts; numbers stay
text, because the type of a column is only known at its last line. Text: the lines themselves.

Lines are read one block at a time. A line belongs to the byte range in which it begins, so every line belongs to
exactly one range, wherever ranges are cut. Lines end with a line feed; the last line of a file may lack it.

Lines are digested as they are taken. After a restart, the lines taken before are read again: if they differ, the file
was replaced, and the run would read half of each file.
"""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Iterator
from typing import Any, cast

from backedge.engine.io.files.file_errors import MalformedInputError
from backedge.engine.io.files.input_columns import InputColumns, MisfitError
from backedge.engine.io.files.locations import Location
from backedge.engine.io.files.splits import Position, Split, changed

BLOCK_BYTES = 1024 * 1024
LINE_BYTES_MAX = 256 * 1024 * 1024
FIELD_CHARACTERS_MAX = 64 * 1024 * 1024
"""The default limit of the csv module is 131,072, which some texts exceed."""

_raw_decode = json.JSONDecoder().raw_decode


class Lines:
    """The lines of a split from a position on.

    `offset` is the end of the last line taken, and `digest` covers all lines of the split before it.
    """

    def __init__(self, location: Location, split: Split, position: Position) -> None:
        self.offset, *_, self.digest = cast("tuple[int, ...]", position)
        self._location = location
        self._split = split
        self._stream = _open(location, split)
        self._stop = None if split.is_compressed else split.stop
        self._tail = b""
        self._lines: list[bytes] = []
        self._next = 0
        self._is_at_end = False
        self._ends_without_feed = False
        if position == split.first:
            self._seek_first()
        else:
            self._seek_behind(self.offset)

    @property
    def is_done(self) -> bool:
        """Whether every line was taken. For a compressed file this is only known once no further line is returned."""
        return self._next == len(self._lines) and not self._goes_on()

    def take(self, lines_max: int) -> list[str]:
        """Take the next lines, without their line feeds; an empty list at the end."""
        if self._next == len(self._lines):
            self._fill()
        taken = self._lines[self._next : self._next + lines_max]
        if not taken:
            return []
        text = b"\n".join(taken)
        try:
            lines = text.decode().split("\n")
        except UnicodeDecodeError as error:
            raise self._not_text(taken) from error
        if self.offset == 0:
            lines[0] = lines[0].removeprefix("\ufeff")
        self._next += len(taken)
        self.offset += len(text)
        self.digest = zlib.crc32(text, self.digest)
        if not (self._ends_without_feed and self._next == len(self._lines)):
            self.offset += 1
            self.digest = zlib.crc32(b"\n", self.digest)
        return lines

    def malformed(self, offset: int, lines_behind: int, what: str) -> MalformedInputError:
        """The error to raise for the line that is `lines_behind` lines after this offset."""
        # Counted only on demand; otherwise a restored run would have to store it.
        line = self._lines_before(offset) + 1 + lines_behind
        return MalformedInputError(f"{self._location.shown(self._split.path)} line {line}: {what}")

    def _goes_on(self) -> bool:
        return not self._is_at_end and (self._stop is None or self.offset < self._stop)

    def _fill(self) -> None:
        """Read blocks until there is at least one line."""
        self._lines, self._next = [], 0
        if not self._goes_on():
            return
        pieces, length = [self._tail], len(self._tail)
        while block := self._read():
            pieces.append(block)
            length += len(block)
            if b"\n" in block:
                break
            if length > LINE_BYTES_MAX:
                raise self.malformed(self.offset, 0, f"longer than {LINE_BYTES_MAX:,} bytes: is this a text file?")
        data = b"".join(pieces)
        end = data.rfind(b"\n") + 1 if block else len(data)
        if self._stop is not None:
            if not block and self.offset + end < self._stop:
                raise changed(self._location, self._split, f"it ends at {self.offset + end:,} bytes")
            if self.offset + end > self._stop:
                # The line that contains the last byte of the range is the last one that begins in it.
                end = data.find(b"\n", self._stop - self.offset - 1) + 1 or end
        self._is_at_end = not block
        self._tail = data[end:]
        self._lines = data[:end].split(b"\n")
        self._ends_without_feed = bool(self._lines[-1])
        if not self._ends_without_feed:
            self._lines.pop()

    def _seek_first(self) -> None:
        if self.offset == 0:
            return
        # A range may begin anywhere: its first line is the first that begins in it.
        self.offset -= 1
        self._stream.seek(self.offset)
        while block := self._read():
            found = block.find(b"\n")
            if found >= 0:
                self.offset += found + 1
                self._tail = block[found + 1 :]
                return
            self.offset += len(block)
        if self.offset < self._split.stop:
            raise changed(self._location, self._split, f"it ends at {self.offset:,} bytes")
        self._is_at_end = True

    def _seek_behind(self, offset: int) -> None:
        """Continue after lines that were taken before, which must still be there."""
        left = offset
        if not self._split.is_compressed:
            first = Lines(self._location, self._split, self._split.first).offset
            self._stream.seek(first)
            left -= first
        digest = 0
        while left > 0:
            block = self._read(min(left, BLOCK_BYTES))
            if not block:
                raise changed(self._location, self._split, f"{left:,} bytes that were read from it are missing")
            digest = zlib.crc32(block, digest)
            left -= len(block)
        if left or digest != self.digest:
            what = f"the part that was read from it, up to byte {offset:,}, is no longer the same"
            raise changed(self._location, self._split, what)

    def _read(self, bytes_max: int | None = None) -> bytes:
        try:
            return self._stream.read(bytes_max or BLOCK_BYTES)
        except OSError as error:
            # System errors have a number; an error without one comes from decompression.
            if error.errno is None and self._split.is_compressed and self._location.numbers_errors:
                shown = self._location.shown(self._split.path)
                raise MalformedInputError(
                    f"{shown} cannot be unpacked ({error}): it is truncated or not gzip; write it again, or remove it"
                ) from error
            raise

    def _lines_before(self, offset: int) -> int:
        stream, count = _open(self._location, self._split), 0
        while offset > 0 and (block := stream.read(min(offset, BLOCK_BYTES))):
            count += block.count(b"\n")
            offset -= len(block)
        return count

    def _not_text(self, lines: list[bytes]) -> MalformedInputError:
        for behind, line in enumerate(lines):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return self.malformed(self.offset, behind, f"not UTF-8 ({error.reason}): write the file in UTF-8")
        return self.malformed(self.offset, 0, "not UTF-8: write the file in UTF-8")


def _open(location: Location, split: Split) -> Any:
    return location.open_compressed(split.path) if split.is_compressed else location.open(split.path)


class TextSplit:
    """Lines as records, without line ends."""

    def __init__(self, location: Location, split: Split, position: Position) -> None:
        self.location = location
        self.split = split
        self.lines = Lines(location, split, position)

    @property
    def position(self) -> Position:
        end = (int(self.lines.is_done),) if self.split.is_compressed else ()
        return (self.lines.offset, *end, self.lines.digest)

    @property
    def is_done(self) -> bool:
        return self.split.is_read(self.position)

    def read(self, records_max: int) -> list[Any]:
        """Read at most `records_max` records; none only at the end."""
        records = self._take(records_max)
        while not records and not self.is_done:
            records = self._take(records_max)
        return records

    def _take(self, records_max: int) -> list[Any]:
        """The records of `records_max` lines: fewer or none if lines contain none."""
        return [line.removesuffix("\r") for line in self.lines.take(records_max)]


class JsonSplit(TextSplit):
    """One JSON value per line."""

    def __init__(
        self, location: Location, split: Split, position: Position, columns: InputColumns | None = None
    ) -> None:
        super().__init__(location, split, position)
        self._columns = columns

    def _take(self, records_max: int) -> list[Any]:
        start = self.lines.offset
        lines = self.lines.take(records_max)
        records: list[Any] = []
        for number, line in enumerate(lines):
            try:
                record, end = _raw_decode(line)
            except ValueError:
                end = -1
            except RecursionError as error:
                raise self.lines.malformed(start, number, "nested too deeply: flatten the value") from error
            else:
                if end == len(line):
                    records.append(record)
                    continue
            self._read_carefully(line, start, number, records)
        if self._columns is None:
            return records
        try:
            return self._columns.rows(records)
        except MisfitError as misfit:
            with_record = [number for number, line in enumerate(lines) if line.strip()]
            raise self.lines.malformed(start, with_record[misfit.row or 0], str(misfit)) from None

    def _read_carefully(self, line: str, start: int, number: int, records: list[Any]) -> None:
        """Parse a line that is not exactly one value: blank, surrounded by space, or malformed."""
        if not line.strip():
            return
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise self.lines.malformed(
                start,
                number,
                f"not JSON ({error}): repair the line so that the file keeps its size, or "
                'read the file with TextLines and parse the lines in a map with on_error="dead_letter"',
            ) from error


class CsvSplit(TextSplit):
    """Comma-separated values with a header line. A record may span several lines if its line ends are quoted."""

    def __init__(
        self, location: Location, split: Split, position: Position, columns: InputColumns | None = None
    ) -> None:
        super().__init__(location, split, split.first)
        csv.field_size_limit(max(csv.field_size_limit(), FIELD_CHARACTERS_MAX))
        self._columns: list[str] = []
        self._picked: dict[str, int | None] | None = None
        self._given: list[str] = []
        self._start()
        header = self._rows(1)
        while not header and not self.lines.is_done:
            header = self._rows(1)
        if header:
            self._columns = header[0]
            if len(set(self._columns)) < len(self._columns):
                raise self.lines.malformed(0, 0, f"the header {self._columns} names a column twice: rename one")
            if columns is not None:
                self._picked = self._pick(columns)
        if position != split.first:
            self.lines = Lines(location, split, position)
            self._start()

    def _take(self, records_max: int) -> list[Any]:
        columns, picked = self._columns, self._picked
        rows = self._rows(records_max, len(columns))
        if picked is None:
            return [dict(zip(columns, row, strict=True)) for row in rows]
        return [{name: None if place is None else row[place] for name, place in picked.items()} for row in rows]

    def _pick(self, columns: InputColumns) -> dict[str, int | None]:
        """The columns of the records, each with its place in a row; None for those that the file lacks."""
        try:
            names = columns.names_for(self._columns)
        except MisfitError as misfit:
            raise self.lines.malformed(0, 0, f"the header {misfit}") from None
        places = {name: place for place, name in enumerate(self._columns)}
        return {name: places.get(name) for name in names}

    def _start(self) -> None:
        """Start parsing at the current line."""
        self._first_offset = self.lines.offset
        self._parsed: Iterator[list[str]] = csv.reader(self._feed(), strict=True)

    def _rows(self, rows_max: int, values: int | None = None) -> list[list[str]]:
        self._given = self.lines.take(rows_max)[::-1]
        rows: list[list[str]] = []
        try:
            while self._given:
                row = next(self._parsed, None)
                if not row:
                    continue
                if values is not None and len(row) != values:
                    raise self._malformed(f"{len(row)} values under a header of {values} columns: repair the record")
                rows.append(row)
        except csv.Error as error:
            raise self._malformed(f"not CSV ({error}): repair the record or its quotes") from error
        return rows

    def _feed(self) -> Iterator[str]:
        """The lines taken, and more of them if the last record continues."""
        while True:
            if not self._given:
                self._given = self.lines.take(1)
            if not self._given:
                return
            yield self._given.pop() + "\n"

    def _malformed(self, what: str) -> MalformedInputError:
        lines: Any = self._parsed
        return self.lines.malformed(self._first_offset, lines.line_num - 1, what)

"""Reads JSON lines, CSV and plain text: lines in, records out, with the offset after them.

JSON: one value per line; blank lines are skipped. CSV: a header line, then records, each a dict of texts; numbers stay
text, because the type of a column is only known at its last line. Text: the lines themselves.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import Any

from backedge.engine.files.file_errors import MalformedInputError
from backedge.engine.files.line_formats import Lines, position_in
from backedge.engine.files.locations import Location
from backedge.engine.files.splits import Position, Split

FIELD_CHARACTERS_MAX = 64 * 1024 * 1024
"""The default limit of the csv module is 131,072, which some texts exceed."""

_raw_decode = json.JSONDecoder().raw_decode


class TextSplit:
    """Lines as records, without line ends."""

    def __init__(self, location: Location, split: Split, position: Position) -> None:
        self.location = location
        self.split = split
        self.lines = Lines(location, split, position)

    @property
    def position(self) -> Position:
        return position_in(self.lines, self.split)

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
        return records

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
                f"not JSON ({error}): repair the line, or read the file with TextLines and parse the lines in a map "
                'with on_error="dead_letter"',
            ) from error


class CsvSplit(TextSplit):
    """Comma-separated values with a header line. A record may span several lines if its line ends are quoted."""

    def __init__(self, location: Location, split: Split, position: Position) -> None:
        super().__init__(location, split, split.first)
        csv.field_size_limit(max(csv.field_size_limit(), FIELD_CHARACTERS_MAX))
        self._columns: list[str] = []
        self._given: list[str] = []
        self._start()
        header = self._rows(1)
        while not header and not self.lines.is_done:
            header = self._rows(1)
        if header:
            self._columns = header[0]
            if len(set(self._columns)) < len(self._columns):
                raise self.lines.malformed(0, 0, f"the header {self._columns} names a column twice: rename one")
        if position != split.first:
            self.lines = Lines(location, split, position)
            self._start()

    def _take(self, records_max: int) -> list[Any]:
        columns = self._columns
        return [dict(zip(columns, row, strict=True)) for row in self._rows(records_max, len(columns))]

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

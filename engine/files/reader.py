"""Reads the splits of one task, one behind the other, so that one file is open at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from engine.columns import Records
from engine.files.locations import Location
from engine.files.parquet_split import ParquetSplit
from engine.files.splits import FileSource, Position, Split, check_unchanged
from engine.files.text_splits import CsvSplit, JsonSplit, TextSplit
from graphs.io import CSV, JsonLines, Parquet, TextLines


class OpenSplit(Protocol):
    """A split that is being read."""

    @property
    def position(self) -> Position:
        """How far it has been read."""
        ...

    def read(self, records_max: int) -> Records:
        """The next records. It may be called until the split is read, and give none at times."""
        ...


class FileReader:
    """Reads splits from their positions on. Files that are still to be read must be what they were when listed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = Path(folder, "words.txt").write_text("a\\nb\\nc\\n")
    ...     reader = FileReader(TextLines(folder), {Split("words.txt", 6, 0, 6): (0, 0)})
    ...     reader.read(2), reader.read(2), reader.exhausted
    (['a', 'b'], ['c'], True)
    """

    def __init__(self, source: FileSource, positions: Mapping[Split, Position]) -> None:
        self._location = Location(source.path)
        self._open_split = _FORMATS[type(source)]
        self._positions = {split.name: position for split, position in positions.items()}
        self._unread = [split for split, position in positions.items() if not split.is_read(position)][::-1]
        self._open: OpenSplit | None = None
        check_unchanged(self._location, dict(positions))

    @property
    def exhausted(self) -> bool:
        """Nothing more will ever come."""
        return not self._unread

    def read(self, records_max: int) -> Records:
        """The next records of the split that is open, or of the next one."""
        while self._unread:
            split = self._unread[-1]
            if self._open is None:
                # It may have been exchanged since the reader was made.
                check_unchanged(self._location, {split: self._positions[split.name]})
                self._open = self._open_split(self._location, split, self._positions[split.name])
            records = self._open.read(records_max)
            self._positions[split.name] = self._open.position
            if split.is_read(self._open.position):
                self._open = None
                self._unread.pop()
            if records:
                return records
        return []

    def positions(self) -> dict[str, Any]:
        """Split name -> position; splits that are read stay listed."""
        return dict(self._positions)


_FORMATS = {JsonLines: JsonSplit, CSV: CsvSplit, Parquet: ParquetSplit, TextLines: TextSplit}

"""Reads the rows of a Parquet file: a row group is a split, decoded a few thousand rows at a time.

Rows are returned as columns; an operator that takes records converts them at its door.
"""

from __future__ import annotations

from typing import Any

from backedge.engine.batches.arrow import parquet
from backedge.engine.io.files.file_errors import MalformedInputError
from backedge.engine.io.files.input_columns import InputColumns, MisfitError, fitted
from backedge.engine.io.files.locations import Location
from backedge.engine.io.files.splits import Position, Split, changed, footer_digest
from backedge.graphs.io import ArrowRows

ROWS_MAX = 8192
"""The number of rows decoded at a time."""


class ParquetSplit:
    """The rows of a row group. The position is the number of rows read."""

    def __init__(
        self, location: Location, split: Split, position: Position, columns: InputColumns | None = None
    ) -> None:
        self._location = location
        self._split = split
        self._rows_read = 0
        self._batch: Any = None
        self._at = 0
        try:
            opened = location.open(split.path)
            file = parquet().ParquetFile(opened)
            if footer_digest(opened) != split.footer:
                raise changed(location, split, "its footer differs, so its content does too")
            if file.num_row_groups <= (split.group or 0):
                raise changed(location, split, f"it has {file.num_row_groups} row groups")
            self._types: dict[str, Any] | None = None
            read: list[str] | None = None
            if columns is not None:
                self._types = columns.types_for(file.schema_arrow)
                read = [name for name in file.schema_arrow.names if name in self._types]
            self._rows_before = sum(file.metadata.row_group(group).num_rows for group in range(split.group or 0))
            # Tasks run in parallel, so threads within each of them would gain nothing.
            self._batches = file.iter_batches(ROWS_MAX, row_groups=[split.group], columns=read, use_threads=False)
        except MisfitError as misfit:
            raise MalformedInputError(f"{location.shown(split.path)} {misfit}") from None
        except (ValueError, OSError) as error:
            raise self._unreadable(error) from error
        rows = position if isinstance(position, int) else position[0]
        while self._rows_read < rows:
            self.read(rows - self._rows_read)

    @property
    def position(self) -> Position:
        return self._rows_read

    @property
    def is_done(self) -> bool:
        return self._split.is_read(self._rows_read)

    def read(self, records_max: int) -> ArrowRows:
        if self._batch is None or self._at == self._batch.num_rows:
            self._batch, self._at = self._next_batch(), 0
        rows = self._batch.slice(self._at, records_max)
        self._at += rows.num_rows
        self._rows_read += rows.num_rows
        return rows

    def _next_batch(self) -> Any:
        try:
            batch: Any = next(self._batches, None)
        except (ValueError, OSError) as error:
            raise self._unreadable(error) from error
        if batch is None:
            raise changed(
                self._location, self._split, f"its row group {self._split.group} has {self._rows_read:,} rows"
            )
        if self._types is None:
            return batch
        try:
            return fitted(batch, self._types)
        except MisfitError as misfit:
            row = self._rows_before + self._rows_read + (misfit.row or 0) + 1
            shown = self._location.shown(self._split.path)
            raise MalformedInputError(f"{shown} row {row:,}: {misfit}: repair it, or declare another type") from None

    def _unreadable(self, error: Exception) -> Exception:
        """The error to raise. Errors of the system or network may be gone the next time, so they are passed on."""
        if isinstance(error, OSError) and (error.errno is not None or not self._location.numbers_errors):
            return error
        return MalformedInputError(
            f"{self._location.shown(self._split.path)} row group {self._split.group}: not Parquet ({error}): "
            "remove the file, or write it again"
        )

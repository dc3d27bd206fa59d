"""Reads a data file of one version of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from backedge.graphs.io import ArrowRows, OtherInputError

READ = -1
"""The position of a file of which all rows were read; before that, it is the number of rows read."""


class FileRows:
    """One file, open for reading: `batches` has its rows, always in the same order.

    >>> from backedge.engine.batches.arrow import arrow
    >>> rows = FileRows("a file", iter([arrow().record_batch({"n": [1, 2, 3]})]), 1)
    >>> rows.read(5).to_pylist(), rows.position, rows.is_done
    ([{'n': 2}, {'n': 3}], -1, True)
    """

    def __init__(self, title: str, batches: Iterator[Any], position: int) -> None:
        self._title = title
        self._batches = (batch for batch in batches if batch.num_rows)
        self._at = 0
        self.position = 0
        try:
            self._batch: Any = next(self._batches, None)
        except FileNotFoundError as error:
            raise OtherInputError(
                f"{title} has gone ({error}): the version that the run reads was cleaned up"
            ) from error
        while self.position < position:
            if self._batch is None:
                raise OtherInputError(f"{title} has {self.position} rows, and {position} were read of it")
            self._take(position - self.position)
        self._end()

    @property
    def is_done(self) -> bool:
        return self.position == READ

    def read(self, records_max: int) -> list[Any] | ArrowRows:
        if self._batch is None:
            return []
        rows = self._take(records_max)
        self._end()
        return rows

    def _take(self, rows_max: int) -> Any:
        rows = self._batch.slice(self._at, rows_max)
        self._at += rows.num_rows
        self.position += rows.num_rows
        if self._at == self._batch.num_rows:
            self._batch, self._at = next(self._batches, None), 0
        return rows

    def _end(self) -> None:
        if self._batch is None:
            self.position = READ

"""What tables of all formats have in common: how a cut becomes one commit, and a version a bounded source.

- One task writes a table, so each complete cut is one commit, and transactions are committed in their order. The marker
  is the number of the last one (`order_of`): what is not behind it is committed. A table keeps one number for each sink
  of a run, in the place that its format has for it, and this number becomes visible with the rows.
- An attempt that has committed refuses all earlier ones: its numbers are larger. Until then a process that was taken
  for dead can commit what a complete cut lists, and nothing else; the next attempt finds that by its number.
- If another program commits at the same time, the table is read again, the marker too, and the commit is repeated.
"""

from __future__ import annotations

import os
import pickle
import random
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, get_args

import numpy as np

from backedge.engine.batches.arrow import arrow
from backedge.engine.batches.columns import Columns, Records, as_records
from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.file_errors import OutputError
from backedge.engine.io.files.input_columns import Schema
from backedge.engine.io.files.names import turn_of
from backedge.engine.io.lakes.file_rows import READ, FileRows
from backedge.engine.io.lakes.new_columns import TableColumns
from backedge.engine.io.marked_output import Check, MarkedSink, MarkedStore, superseded
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.io import OtherInputError, Rollback, SinkPlace, Source, SplitReader
from backedge.graphs.options import check_choice

PAUSES_S = tuple(min(0.05 * 2**turn, 2.0) for turn in range(12))
"""How long a commit waits after each conflict, at most; then the attempt fails."""

BYTES_MAX, ROWS_MAX = 1 << 30, 8192
"""A transaction with more bytes is converted this many rows at a time."""

_EPOCHS = 1 << 40


class ConflictError(Exception):
    """Another program has committed to the table since it was read."""


def order_of(transaction: str) -> int:
    """The number of a transaction: those of later attempts and epochs have larger ones; a task's end comes last.

    >>> sorted(["s.0.attempt-2.epoch-3", "s.0.attempt-1.epoch-0", "s.0.attempt-1.epoch-10"], key=order_of)
    ['s.0.attempt-1.epoch-10', 's.0.attempt-1.epoch-0', 's.0.attempt-2.epoch-3']
    """
    turn = turn_of(transaction)
    return turn.attempt * _EPOCHS + (turn.epoch or _EPOCHS - 1)


@dataclass(frozen=True)
class LakeTable(Source[dict[str, Any]], MarkedSink):
    """A table of some format."""

    schema: Schema = field(default="fail", kw_only=True)
    is_rehearsed: bool = field(default=False, init=False, repr=False)
    """Whether `simulate` writes it: each record is a pickle then, which comes back as it was."""

    one_task = True

    def absolute(self) -> Any:
        """The same table at an absolute path."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        check_choice(self.schema, get_args(Schema), "schema", f"table {self.title}")

    @abstractmethod
    def store(self) -> LakeStore: ...

    # -- reading -------------------------------------------------------------------------------------------------

    @abstractmethod
    def version_to_read(self) -> int | None:
        """The version that a run reads which begins now; None if there is none yet."""

    @abstractmethod
    def open_version(self, version: int) -> Mapping[str, Callable[[], Iterator[Any]]]:
        """What reads each data file of a version, as record batches."""

    def splits(self) -> Sequence[str]:
        """The files of the version, in the order of their names."""
        version = self.version_to_read()
        return [] if version is None else sorted(f"{version}/{file}" for file in self.open_version(version))

    def is_read(self, split: str, position: Any) -> bool:
        return position == READ

    def open_split(self, split: str, position: Any) -> SplitReader[dict[str, Any]]:
        version, _, file = split.partition("/")
        # The reader of a task, which has a copy of this, opens one file of a version after the other.
        opened = getattr(self, "_opened", None)
        if opened is None or opened[0] != version:
            opened = version, self.open_version(int(version))
            object.__setattr__(self, "_opened", opened)
        if file not in opened[1]:
            raise OtherInputError(f"version {version} of table {self.title} has no file {file}: it is another table")
        return FileRows(f"{file} of table {self.title}", opened[1][file](), position)

    # -- writing -------------------------------------------------------------------------------------------------

    @abstractmethod
    def moved_to(self, folder: str) -> LakeTable:
        """The same table in this folder."""

    def rehearse(self, folder: str) -> LakeTable:
        table = self.moved_to(folder)
        object.__setattr__(table, "is_rehearsed", True)
        return table

    def published(self) -> list[Any]:
        version = self.version_to_read()
        files = {} if version is None else dict(self.open_version(version))
        pickles = [pickled for read in files.values() for batch in read() for pickled in batch.column("record")]
        return [pickle.loads(pickled.as_py()) for pickled in pickles]


class LakeStore(MarkedStore):
    """One table that a sink writes to."""

    disk = Disk()

    def __init__(self, described: LakeTable) -> None:
        self._described = described
        self._columns: TableColumns | None = None

    @property
    def title(self) -> str:
        return self._described.title

    @abstractmethod
    def opened(self) -> Any:
        """The table as it is now; None if there is none yet."""

    @abstractmethod
    def schema_of(self, table: Any) -> Any:
        """The columns of a table, as a schema of Arrow."""

    def check_type(self, kind: Any) -> None:
        """Raise if no column of such a table has this type, which `widest` has made."""

    @abstractmethod
    def marker_of(self, table: Any, place: SinkPlace) -> int | None:
        """The number of the last transaction that a sink has committed."""

    @abstractmethod
    def append(self, table: Any, rows: Any, place: SinkPlace, marker: int) -> Any:
        """Add rows, and set the marker, in one commit; add columns that the table lacks. Returns the table then.

        `ConflictError` if another program has committed since the table was opened, so that nothing was added.
        """

    @abstractmethod
    def latest_files(self, table: Any) -> Iterable[str]:
        """The files of the last commit, those of the log included."""

    def enter(self, place: SinkPlace) -> Check:
        table = self.opened()
        fields = () if table is None else self.schema_of(table)
        schema = self._described.schema
        columns = self._columns = TableColumns(place.operator, self.title, fields, schema, self.check_type)
        if self._described.is_rehearsed:
            return lambda records: columns.check([{"record": pickle.dumps(each)} for each in as_records(records)])
        return columns.check

    def commit(self, place: SinkPlace, written: Mapping[str, Records]) -> None:
        if self._columns is None:
            raise RuntimeError(f"table {self.title} is not open yet: call enter() first")
        for pause_s in PAUSES_S:
            table = self.opened()
            marker = (None if table is None else self.marker_of(table, place)) or 0
            if marker // _EPOCHS > place.attempt:
                raise superseded(place, f"to table {self.title}", marker // _EPOCHS)
            due = sorted((name for name in written if order_of(name) > marker), key=order_of)
            if not due:
                # The process that committed it may have died before that was durable.
                self._make_durable(table)
                return
            pieces = (piece for name in due for piece in _pieces(written[name]))
            batches = [self._columns.check(piece).batch for piece in pieces]
            tables = [arrow().Table.from_batches([batch]) for batch in batches]
            rows = arrow().concat_tables(tables, promote_options="default")
            try:
                self._make_durable(self.append(table, rows, place, order_of(due[-1])))
                return
            except ConflictError:
                time.sleep(random.uniform(0, pause_s))
        raise OSError(f"table {self.title} could not be written: another program has committed to it each time")

    def _make_durable(self, table: Any) -> None:
        """Sync the files of the last commit if they are on a local disk: these packages leave that to the system."""
        files = [Path(file) for file in self.latest_files(table) if "://" not in file]
        for file in files:
            self.disk.sync_file(file)
        if files:
            root = Path(os.path.commonpath([file.parent for file in files]))
            folders = {folder for file in files for folder in file.parents if folder.is_relative_to(root.parent)}
            for folder in folders:
                self.disk.sync_folder(folder)

    def forget(self, place: SinkPlace, rollback: Rollback) -> None:
        """The one marker of the sink stays: a later run of the same job goes on from it."""

    def close(self) -> None:
        """Nothing is open between commits."""


def _pieces(records: Records) -> list[Records]:
    """The same rows in pieces of which no column is too large for one array of text."""
    if not isinstance(records, Columns) or records.size <= BYTES_MAX:
        return [records]
    # Not slices: Arrow would refuse those that end behind the limit in the whole.
    rows = len(records)
    return [records.take(np.arange(start, min(start + ROWS_MAX, rows))) for start in range(0, rows, ROWS_MAX)]


def check_path(path: str) -> None:
    """Raise if the packages would take a local path for another one: they make URIs of paths, and quote nothing."""
    marks = [mark for mark in path if mark in "%?#\\" or ord(mark) < ord(" ")]
    if marks and "://" not in path:
        raise BadOptionError(
            f"the path {path!r} of a table has {marks[0]!r}, which has a meaning in URIs: give one without that"
        )


def make_folder(folder: str, what: str) -> None:
    """Create a local folder, and see that files can be written there: the first commit comes too late to find out."""
    try:
        os.makedirs(folder, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"{what} cannot be written ({error.strerror}): make folder {folder} writable, or give another path"
        ) from error


def absolute_path(path: str) -> str:
    """A local path as an absolute one; a URI as it is."""
    return path if "://" in path else os.path.abspath(path)

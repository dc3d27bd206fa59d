"""Reads the splits of one task, one after the other, for any kind of source."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from copy import copy
from typing import Any

from backedge.engine.batches.batch import separate_records
from backedge.engine.batches.columns import Records, to_columns
from backedge.engine.io.files.checks import check_members, check_names
from backedge.engine.io.files.file_errors import InputChangedError
from backedge.engine.operators.services import Finder
from backedge.graphs.discovery import source_name
from backedge.graphs.io import FoundSplits, FunctionRaisedError, OtherInputError, Source, SplitReader
from backedge.graphs.plan import Operator
from backedge.graphs.task_errors import MisuseError, TaskError, show, user_error


class SourceReader:
    """Reads splits of a source, starting at their positions. `name` is the name of the operator.

    One split is open at a time. If it has nothing to read at the moment, the others are tried as well.

    >>> from backedge.graphs.sources_and_sinks import Items
    >>> reader = SourceReader("letters", Items(list("abcd")), {"1-of-2": 0})
    >>> reader.read(1), reader.positions(), reader.exhausted
    (['b'], {'1-of-2': 1}, False)
    """

    def __init__(self, name: str, source: Source[Any], positions: Mapping[str, Any]) -> None:
        self._name = name
        self._source = copy(source)
        self._positions = dict(positions)
        self._unread = deque(split for split, at in positions.items() if not source.is_read(split, at))
        self._open: dict[str, SplitReader[Any]] = {}
        self._source.check_unchanged(positions)

    @property
    def exhausted(self) -> bool:
        return not self._unread

    def read(self, records_max: int) -> Records:
        """The next records of the first split that has any; an empty list if none are available now."""
        for _ in range(len(self._unread)):
            split = self._unread[0]
            records = self._read(split, records_max)
            if records:
                return records
            if self._unread and self._unread[0] == split:
                self._unread.rotate(-1)
        return []

    def positions(self) -> dict[str, Any]:
        return dict(self._positions)

    def begin(self, split: str, position: Any) -> None:
        self._source.check_unchanged({split: position})
        self._positions[split] = position
        if not self._source.is_read(split, position):
            self._unread.append(split)

    def finished(self) -> list[str]:
        found = [split for split in self._positions if split not in self._unread]
        for split in found:
            del self._positions[split]
        return found

    def _read(self, split: str, records_max: int) -> Records:
        opened = self._open.get(split)
        if opened is None:
            try:
                opened = self._open[split] = self._source.open_split(split, self._positions[split])
            except OtherInputError as error:
                raise InputChangedError(f"source {self._name!r}: {error}") from None
            check_members(f"source {self._name!r} opens a split as a reader", opened, ("read", "position", "is_done"))
        try:
            found = opened.read(records_max)
        except OtherInputError as error:
            raise InputChangedError(f"source {self._name!r}: {error}") from None
        except FunctionRaisedError as error:
            raise _users(self._name, error) from error.__cause__
        self._positions[split] = opened.position
        if opened.is_done:
            del self._open[split]
            self._unread.remove(split)
        if isinstance(found, list):
            return separate_records(found) if self._source.shares_records else found
        if hasattr(found, "schema"):
            return to_columns(found)
        raise MisuseError(
            f"source {self._name!r} reads {show(found)}, which is of type {type(found).__name__}: return a list of "
            "records from read, or a RecordBatch of pyarrow"
        )


def finder_of(operator: Operator) -> Finder:
    """What looks for the splits of a source; it raises a `TaskError` that names the source."""
    source: Source[Any] = copy(operator.function)
    name = source_name(operator)

    def find(known: Collection[str]) -> FoundSplits:
        try:
            found: Any = source.find_splits(known)
        except OtherInputError as error:
            raise InputChangedError(f"source {name!r}: {error}") from None
        except FunctionRaisedError as error:
            raise _users(name, error) from error.__cause__
        if not isinstance(found, FoundSplits):
            raise MisuseError(f"source {name!r} finds {show(found)}: return FoundSplits(new, is_last) from find_splits")
        check_names(name, found.new, known)
        return found

    return find


def _users(source: str, error: FunctionRaisedError) -> BaseException:
    """The error to raise for one of the user's function."""
    cause = error.__cause__
    if cause is None or isinstance(cause, TaskError):
        return cause or error
    return user_error(source, cause, hook=error.call, can_set_aside=False)


def positions_of(source: Source[Any], index: int, parallelism: int, splits: tuple[str, ...] | None) -> dict[str, Any]:
    """The splits that one of several tasks begins with, at their first positions.

    `splits` are the splits of the source as listed before the run.

    >>> from backedge.graphs.sources_and_sinks import Items
    >>> positions_of(Items([*"abc"]), 1, 2, None), positions_of(Items([*"abc"]), 1, 2, ("x", "y", "z"))
    ({'1-of-2': 0}, {'y': 0})
    """
    names = (f"{index}-of-{parallelism}",) if splits is None else splits[index::parallelism]
    return {name: source.first_position(name) for name in names}


def splits_in_all(positions: Mapping[str, Any], listed: tuple[str, ...] | None) -> int:
    """The number of splits that all tasks of a source have together, of which one has those of `positions`.

    >>> splits_in_all({"0-of-3": 7}, None), splits_in_all({"x": 0, "y": 0}, ("x", "y", "z"))
    (3, 3)
    """
    # Without a list, the tasks that began have named one each, and their splits stay when there are other tasks.
    return len(listed) if listed is not None else int(next(iter(positions)).rpartition("-of-")[2])

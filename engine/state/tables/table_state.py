"""The table of one operator in one task: rows of typed columns that can be captured while they change.

Rows are in blocks of `BLOCK_ROWS`, and a block belongs to one key group. So a row keeps its number, and what is written
needs no sorting. A capture shares the blocks with the live table and takes them piece by piece (`table_captures.py`).
Each row is marked with the number of the last capture before its last change, so a delta has the rows that changed
since its base, whichever capture that is. (`engine/state/touched_keys.py` has the rules for deltas, which are the same
here: an abort drops nothing, and a capture that does not find its base writes everything.) No row is ever removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from backedge.engine.batches.arrays import values_to_array
from backedge.engine.batches.arrow import arrow
from backedge.engine.batches.repeated_keys import Content, RepeatedKeys
from backedge.engine.state.keyed_state import LAST_STATE
from backedge.engine.state.tables.row_index import ROWS_MAX, IntegerIndex, distinct_integers, index_for
from backedge.engine.state.tables.table_captures import (
    BLOCK_ROWS,
    SHIFT,
    DeltaCapture,
    Held,
    TableCapture,
    WholeCapture,
)
from backedge.engine.state.touched_keys import TouchedKeys
from backedge.graphs.exact_numbers import converted
from backedge.graphs.ids import Epoch
from backedge.graphs.routing import KEY_GROUPS, groups_of_keys
from backedge.graphs.table import Array, Table
from backedge.graphs.task_errors import MisuseError, show
from backedge.recovery.cut.keyed_parts import Rows

_BASES_MAX = 64
_SHARE_OF_NEW = 4
_TOO_MANY = 1 << 62
_NOT_THERE = (
    "was given rows that it does not have: give the numbers that rows(keys) returns; those of unknown keys are -1"
)


class TableState:
    """`ctx.table`, described in `graphs/table.py`.

    - own_groups: the key groups that the task keeps. tracks: whether deltas can be written.

    >>> from backedge.recovery.cut.keyed_parts import entries_of
    >>> table = TableState("sums", Table(key={"id": "int64"}, columns={"sum": "int64"}))
    >>> table.combine(np.add, table.rows([7, 8, 7]), sum=[1, 2, 3])
    >>> capture = table.capture()
    >>> table.set(table.rows([7]), sum=0)
    >>> sorted(entries_of(capture.parts()))
    [(7, {'sum': 4}), (8, {'sum': 2})]
    """

    def __init__(
        self, operator: str, declared: Table, own_groups: range = range(KEY_GROUPS), *, tracks: bool = True
    ) -> None:
        self.operator = operator
        self.declared = declared
        self._own_groups = own_groups
        self._tracks = tracks
        self._index = index_for(list(declared.key.values()))
        self._repeated = RepeatedKeys[Array]()
        self._columns: dict[str, Array] = {
            name: np.empty(0, object if kind == "string" else kind)
            for name, kind in {**declared.key, **declared.columns}.items()
        }
        # Block -> its key group, and how many rows it has. Key group -> its last block, -1 if it has none.
        self._block_groups = np.empty(0, np.int32)
        self._filled = np.empty(0, np.int64)
        self._last_blocks = np.full(KEY_GROUPS, -1, np.int64)
        self._count = 0
        # The number of the newest capture, and the mark of each row and block: the one after which it changed last.
        self._now = 0
        self._changed_at = np.empty(0, np.int32)
        self._block_changed_at = np.empty(0, np.int32)
        # Epoch of a capture that a delta may be relative to -> its number. Number -> changes after it, at least those.
        self._numbers: dict[Epoch, int] = {}
        self._changes: dict[int, int] = {0: 0}
        # Epoch of a delta -> the number after which what it holds changed. Number -> how many rows it marks, at least.
        self._deltas: dict[Epoch, int] = {}
        self._marked: dict[int, int] = {0: 0}
        self._open: list[TableCapture] = []
        # The index, if it can tell which rows it found last, and which of them have no mark.
        self._integers = self._index if isinstance(self._index, IntegerIndex) else None
        # Whether all restored rows have exactly the declared columns.
        self._is_as_declared = True

    # -- for user code -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count

    def rows(self, *keys: Any) -> Array:
        return self._rows_of(self._as_keys(keys), adds=True)

    def find(self, *keys: Any) -> Array:
        return self._rows_of(self._as_keys(keys), adds=False)

    def _rows_of(self, wanted: list[Array], *, adds: bool) -> Array:
        # Texts are not compared: as arrays of objects, that would take as long as finding their rows.
        content = None if any(column.dtype == object for column in wanted) else Content.of_arrays(wanted)
        if content is not None and (known := self._repeated.find(content)) is not None:
            return known.astype(np.int64)
        found = self._index.find(wanted)
        unknown = np.flatnonzero(found < 0) if len(found) and found.min() < 0 else found[:0]
        if len(unknown) and adds:
            missing = [column[unknown] for column in wanted]
            self._add(missing)
            found[unknown] = self._index.find(missing)
        # A row stays that of its key. A key without a row may get one later, so that it has none is not kept.
        if content is not None and (adds or not len(unknown)):
            self._repeated.note(content, 4 * len(found), lambda: found.astype(np.int32))
        return found

    def get(self, name: str, rows: Array) -> Array:
        return self._columns[self._known(name)][self._checked(rows)[0]]

    def set(self, rows: Array, /, **values: Any) -> None:
        rows, are_found = self._checked(rows)
        checked = self._checked_values(rows, values)
        self._touch(rows, are_found)
        for name, of_rows in checked.items():
            self._columns[name][rows] = of_rows

    def combine(self, how: np.ufunc, rows: Array, /, **values: Any) -> None:
        """Combine columns with values; each occurrence of a row counts."""
        rows, are_found = self._checked(rows)
        checked = self._checked_values(rows, values)
        self._touch(rows, are_found)
        for name, of_rows in checked.items():
            how.at(self._columns[name], rows, of_rows)

    def scan(self) -> dict[str, Array]:
        parts = [self._span(block) for block in range(len(self._filled))]
        return {
            name: np.concatenate([column[:0], *(column[part] for part in parts)])
            for name, column in self._columns.items()
        }

    def _as_keys(self, keys: Sequence[Any]) -> list[Array]:
        kinds = self.declared.key
        if len(keys) != len(kinds):
            raise self._misused(f"was given {len(keys)} key columns: give one for each of {', '.join(kinds)}")
        found: list[Array] = []
        for given, (name, kind) in zip(keys, kinds.items(), strict=True):
            array = np.asarray(given, object if kind == "string" else None)
            if kind == "int64" and len(array) and (array.dtype.kind not in "iu" or not _fits(array, np.int64)):
                raise self._misused(f"was given keys {name} of type {array.dtype}, not {kind}")
            found.append(array if kind == "string" else np.ascontiguousarray(array, np.int64))
        return found

    def _known(self, name: str, *, to_write: bool = False) -> str:
        names = self.declared.columns if to_write else self._columns
        if name not in names:
            raise self._misused(f"has no column {name!r} to {'change' if to_write else 'read'}: {', '.join(names)}")
        return name

    def _checked(self, rows: Array) -> tuple[Array, bool]:
        """The rows, and whether they are those that the index found last, which need no other look."""
        rows = np.asarray(rows)
        if not len(rows):
            return np.empty(0, np.int64), False
        if self._integers is not None and self._integers.has_found(rows):
            return rows, True
        if rows.dtype.kind not in "iu":
            raise self._misused(f"was given rows of type {rows.dtype}: give the numbers that rows(keys) returns")
        if rows.min() < 0 or rows.max() >= len(self._filled) << SHIFT:
            raise self._misused(_NOT_THERE)
        return rows.astype(np.int64, copy=False), False

    def _checked_values(self, rows: Array, values: Mapping[str, Any]) -> dict[str, Array]:
        """The values of each column for these rows, before anything changes."""
        found: dict[str, Array] = {}
        for name, given in values.items():
            column = self._columns[self._known(name, to_write=True)].dtype
            array = np.asarray(given)
            if isinstance(given, list) and array.dtype.kind == "f":
                array = values_to_array(cast("list[Any]", given))
            np.broadcast_to(array, rows.shape)
            if not array.size:
                found[name] = array
                continue
            if array.dtype.kind not in "biuf" or (column.kind in "iu" and array.dtype.kind == "f"):
                raise self._misused(
                    f"was given values of type {array.dtype} for column {name!r} of type {column}: convert them, or "
                    "declare another type"
                )
            found[name], lost = converted(array, column)
            if lost.size:
                raise self._misused(
                    f"was given {lost.flat[0]} for column {name!r} of type {column}, which cannot hold it: declare a "
                    "type that can"
                )
        return found

    def _misused(self, what: str) -> MisuseError:
        return MisuseError(f"the table of operator {self.operator!r} {what}")

    # -- rows ----------------------------------------------------------------------------------------------------

    def _add(self, keys: list[Array]) -> None:
        """Add rows for keys that have none."""
        declared = self.declared
        names = list(declared.key)
        if len(keys) == 1 and declared.key[names[0]] == "int64":
            distinct: list[Array] = [distinct_integers(keys[0])]
        else:
            parts = arrow().table({name: arrow().array(key) for name, key in zip(names, keys, strict=True)})
            once = parts.group_by(names, use_threads=False).aggregate([])
            distinct = [once[name].to_numpy() for name in names]
        groups = groups_of_keys(distinct)
        strange = np.flatnonzero((groups < self._own_groups.start) | (groups >= self._own_groups.stop))
        if len(strange):
            key = [column[strange[:1]].tolist()[0] for column in distinct]
            raise self._misused(
                f"was given key {show(key)}, which another task keeps: key_by the columns that are its key"
            )
        order = np.argsort(groups, kind="stable")
        distinct, groups = [column[order] for column in distinct], groups[order]
        rows = self._allot(groups)
        self._changed_at[rows] = self._now
        self._block_changed_at[rows >> SHIFT] = self._now
        self._changes[self._now] += len(rows)
        self._marked[self._now] += len(rows)
        for name, column in zip(names, distinct, strict=True):
            self._columns[name][rows] = column
        for name in declared.columns:
            self._columns[name][rows] = declared.initial.get(name, 0)
        self._index.add(distinct, rows)
        self._count += len(rows)

    def _allot(self, groups: Array) -> Array:
        """New rows for keys of these groups, which are in order: in the last block of each group, then in new ones."""
        counts = np.bincount(groups, minlength=KEY_GROUPS)
        last = self._last_blocks
        room = np.where(last >= 0, BLOCK_ROWS - self._filled[last], 0) if len(self._filled) else np.zeros_like(counts)
        added = -(np.minimum(room - counts, 0) // BLOCK_ROWS)
        first_added = len(self._filled) + np.cumsum(added) - added
        # The place of each key among those that the last block of its group has no room for.
        beyond = np.arange(len(groups)) - (np.cumsum(counts) - counts + room)[groups]
        block = np.where(beyond < 0, (last + 1)[groups], first_added[groups])
        rows = (block << SHIFT) + beyond
        self._add_blocks(np.repeat(np.arange(KEY_GROUPS), added))
        last[added > 0] = (first_added + added - 1)[added > 0]
        # Not in place: captures share it.
        self._filled = self._filled + np.bincount(rows >> SHIFT, minlength=len(self._filled))
        return rows

    def _add_blocks(self, groups: Array) -> None:
        if not len(groups):
            return
        blocks = len(self._filled) + len(groups)
        if blocks << SHIFT > ROWS_MAX:
            raise self._misused(f"would have more than {ROWS_MAX:,} rows in a task: raise the parallelism")
        if blocks << SHIFT > len(self._changed_at):
            capacity = max(16, 2 * blocks) << SHIFT
            self._columns = {name: _grown(column, capacity) for name, column in self._columns.items()}
            self._changed_at = _grown(self._changed_at, capacity)
        self._block_groups = np.append(self._block_groups, groups.astype(np.int32))
        self._filled = np.append(self._filled, np.zeros(len(groups), np.int64))
        self._block_changed_at = np.append(self._block_changed_at, np.full(len(groups), self._now, np.int32))

    def _span(self, block: int) -> slice:
        start = block << SHIFT
        return slice(start, start + int(self._filled[block]))

    def _touch(self, rows: Array, are_found: bool) -> None:
        """These rows are about to change. `are_found`: the index found them last."""
        if self._changes[self._now] > self._limit:
            # Too many for a delta, even if the table grows: what a later one is relative to comes after them.
            self._changes[self._now] = _TOO_MANY
            if not self._open:
                return
        index = self._integers if are_found and self._tracks else None
        unmarked = rows if index is None or index.unmarked is None else rows[index.unmarked]
        if not len(unmarked):
            return
        new = unmarked[self._changed_at.take(unmarked, mode="clip") != self._now]
        if len(new):
            self._mark(new)
        # While a capture is open, batches that change many rows for the first time do enough.
        if index is not None and (not self._open or _SHARE_OF_NEW * len(new) < len(rows)):
            index.mark()

    def _mark(self, rows: Array) -> None:
        """Mark rows as changed after the newest capture."""
        rows = distinct_integers(rows)
        if (rows & (BLOCK_ROWS - 1) >= self._filled[rows >> SHIFT]).any():
            raise self._misused(_NOT_THERE)
        marks = self._changed_at[rows]
        for capture in self._open:
            capture.keep(rows, marks)
        self._changed_at[rows] = self._now
        self._block_changed_at[rows >> SHIFT] = self._now
        self._changes[self._now] += len(rows)
        self._marked[self._now] += len(rows)
        if self._deltas:
            self._unmark(marks)

    def _unmark(self, marks: Array) -> None:
        """Rows have these marks no more."""
        first = next(iter(self._marked))
        for number, count in enumerate(np.bincount(np.maximum(marks - first + 1, 0)).tolist(), first - 1):
            if number in self._marked:
                self._marked[number] -= count

    # -- captures ------------------------------------------------------------------------------------------------

    def has_base(self, base: Epoch) -> bool:
        """Whether the changes since this capture are known and few enough to be written as a delta."""
        return base in self._numbers and self._changes_since(base) <= self._limit

    @property
    def _limit(self) -> int:
        """The most changes that a delta holds."""
        return max(TouchedKeys.tracked_min, self._count // TouchedKeys.share)

    def capture(self, epoch: Epoch = LAST_STATE, base: Epoch | None = None) -> TableCapture:
        """Capture the rows that changed since `base`, or all rows if the changes are not known."""
        at, since = self._now, None
        if base is not None and self.has_base(base):
            since = self._numbers[base]
            capture = DeltaCapture(self, at, self._changes_since(base), since, self._block_changed_at > since)
            self._numbers = {one: number for one, number in self._numbers.items() if one >= base}
        else:
            capture = WholeCapture(self, at, self._count, self._filled)
        self._begin_marks()
        if self._tracks:
            self._note(epoch, at, since)
        oldest = next(iter(self._numbers.values()), at)
        _begin(self._changes, self._now, oldest)
        # The delta of the oldest one may hold what changed before it.
        _begin(self._marked, self._now, next(iter(self._deltas.values()), oldest))
        self._open.append(capture)
        return capture

    def _note(self, epoch: Epoch, number: int, since: int | None) -> None:
        """Note the number of a capture, and if it is a delta, after which one what it holds changed."""
        # Behind all others, also if there was one with this epoch.
        self._numbers.pop(epoch, None)
        self._deltas.pop(epoch, None)
        self._numbers[epoch] = number
        if since is not None:
            self._deltas[epoch] = since
        if len(self._numbers) > _BASES_MAX:
            del self._numbers[next(iter(self._numbers))]
        while self._deltas and (first := next(iter(self._deltas))) not in self._numbers:
            del self._deltas[first]

    def _begin_marks(self) -> None:
        self._now += 1
        for capture in self._open:
            capture.is_newest = False
        if self._integers is not None:
            self._integers.forget_marks()

    def supersedes(self, epoch: Epoch, base: Epoch) -> bool:
        """Whether the delta of this capture, the newest one, holds all rows that the delta of its base holds."""
        since, number_of_base = self._deltas.get(base), self._numbers.get(base)
        if since is None or number_of_base is None or epoch not in self._deltas:
            return False
        return all(self._marked.get(number) == 0 for number in range(since + 1, number_of_base + 1))

    def _changes_since(self, base: Epoch) -> int:
        """How many rows changed since a capture; more if a row changed between several."""
        since = self._numbers[base]
        return sum(count for number, count in self._changes.items() if number > since)

    def release(self, capture: TableCapture) -> None:
        if capture in self._open:
            self._open.remove(capture)

    def block(self, block: int, count: int) -> Rows:
        """A copy of the first `count` rows of a block."""
        start = block << SHIFT
        found = {name: column[start : start + count].copy() for name, column in self._columns.items()}
        keys = {name: found.pop(name) for name in self.declared.key}
        return Rows(np.full(count, self._block_groups[block]), keys, found)

    def changed(self, first: int, end: int, since: int, at: int) -> Held:
        """What the rows of these blocks hold that changed last after the capture `since`, and not after `at`."""
        # Marks up to `since` become large as unsigned numbers.
        marks = (self._changed_at[first << SHIFT : end << SHIFT] - (since + 1)).view(np.uint32)
        return self.held((first << SHIFT) + np.flatnonzero(marks < at - since))

    def held(self, rows: Array) -> Held:
        """What these rows hold."""
        return Held(rows, {name: self._columns[name].take(rows, mode="clip") for name in self.declared.columns})

    def with_keys(self, held: Held) -> Rows:
        """What rows held, with their keys and key groups. These never change, so any thread may ask for them."""
        rows, columns = held.numbers, self._columns
        return Rows(
            self._block_groups[rows >> SHIFT], {name: columns[name][rows] for name in self.declared.key}, held.values
        )

    # -- restores ------------------------------------------------------------------------------------------------

    def restore(self, layers: Iterable[Rows]) -> None:
        """Add restored rows, the oldest layer first. Columns that they do not have keep their initial values."""
        for restored in layers:
            self._check_restored(restored)
            self._is_as_declared &= _types(restored.values) == dict(self.declared.columns)
            keys = [restored.keys[name] for name in self.declared.key]
            values = {name: restored.values[name] for name in self.declared.columns if name in restored.values}
            self.set(self.rows(*keys), **values)

    def _check_restored(self, rows: Rows) -> None:
        kinds = _types(rows.keys)
        if kinds != dict(self.declared.key):
            raise self._misused(
                f"is restored with rows whose key is {kinds}: restore it with a class that has that key"
            )
        for name, column in rows.values.items():
            kind = self.declared.columns.get(name)
            if kind is not None and not np.can_cast(column.dtype, kind):
                raise self._misused(
                    f"is restored with a column {name!r} of type {column.dtype}, some of whose values are no {kind}: "
                    "declare a type that can hold them"
                )

    def begin(self, epoch: Epoch) -> None:
        """Declare the restored rows to be the whole table of this cut, so that a delta may be relative to it.

        If the class has other columns now, the next capture writes everything: no list of files holds both.
        """
        self._begin_marks()
        self._numbers = {epoch: self._now - 1} if self._tracks and self._is_as_declared else {}
        self._changes, self._marked, self._deltas = {self._now: 0}, {self._now: 0}, {}


def _begin(counts: dict[int, int], now: int, oldest: int) -> None:
    """Count from 0 after this capture, and forget what was counted before the one after the oldest."""
    counts[now] = 0
    while (number := next(iter(counts))) <= oldest:
        del counts[number]


def _types(columns: Mapping[str, Array]) -> dict[str, str]:
    return {name: "string" if column.dtype == object else str(column.dtype) for name, column in columns.items()}


def _fits(values: Array, kind: npt.DTypeLike) -> bool:
    """Whether integers of this type can hold these values."""
    limits = np.iinfo(kind)
    return np.can_cast(values.dtype, kind) or bool(values.min() >= limits.min and values.max() <= limits.max)


def _grown(column: Array, capacity: int) -> Array:
    # Rows that are not there yet have the mark 0, so that no delta has them.
    grown = np.zeros(capacity, column.dtype)
    grown[: len(column)] = column
    return grown

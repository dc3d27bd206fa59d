"""The table of one operator in one task: rows of typed columns that can be captured while they change.

Rows are in blocks of `BLOCK_ROWS`, and a block belongs to one key group. So a row keeps its number, and what is written
needs no sorting. A capture shares the blocks with the live table and takes them piece by piece. Of rows that change in
the meantime it keeps what they held (`former_rows.py`). Each row holds the number of the last capture before its last
change, so a delta has the rows that changed since its base, whichever capture that is. (`touched_keys.py` has the rules
for deltas, which are the same here: an abort drops nothing, and a capture that does not find its base writes
everything.) No row is ever removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.files.arrow import arrow
from engine.repeated_keys import Content, RepeatedKeys
from engine.state import LAST_STATE
from engine.tables.former_rows import ChangedPiece, Former, FormerRows, Piece
from engine.tables.row_index import distinct_integers, index_for
from engine.task_errors import MisuseError, show
from engine.touched_keys import TouchedKeys
from graphs.ids import Epoch
from graphs.routing import KEY_GROUPS, groups_of_keys
from graphs.table import Array, Table
from recovery.table_groups import Rows, TableGroups

BLOCK_ROWS = 4096
_SHIFT = BLOCK_ROWS.bit_length() - 1
_BASES_MAX = 64
_TOO_MANY = 1 << 62
_ROW_COST = 8
"""To keep what a row held takes as long as copying this many rows of a block."""


class TableState:
    """`ctx.table`, described in `graphs/table.py`.

    - own_groups: the key groups that the task keeps. tracks: whether deltas can be written.

    >>> table = TableState("sums", Table(key={"id": "int64"}, columns={"sum": "int64"}))
    >>> table.combine(np.add, table.rows([7, 8, 7]), sum=[1, 2, 3])
    >>> capture = table.capture()
    >>> table.set(table.rows([7]), sum=0)
    >>> sorted(entry for groups in [capture.groups()] for group in groups for entry in groups.of(group).entries())
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
        # The number of the newest capture, and for each row and block the one after which it changed last.
        self._now = 0
        self._changed_at = np.empty(0, np.int32)
        self._block_changed_at = np.empty(0, np.int32)
        # Epoch of a capture that a delta may be relative to -> its number. Number -> changes after it, at least those.
        self._numbers: dict[Epoch, int] = {}
        self._changes: dict[int, int] = {0: 0}
        self._open: list[TableCapture] = []
        # Whether all restored rows have exactly the declared columns.
        self._is_as_declared = True

    # -- for user code -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of rows."""
        return self._count

    def rows(self, *keys: Any) -> Array:
        """The rows of these keys; new keys get a new row."""
        return self._rows_of(self._as_keys(keys), adds=True)

    def find(self, *keys: Any) -> Array:
        """The rows of these keys; -1 where a key is unknown."""
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
        """The values of a column in these rows."""
        return self._columns[self._known(name)][self._checked(rows)]

    def set(self, rows: Array, /, **values: Any) -> None:
        """Set columns in these rows."""
        rows = self._checked(rows)
        checked = self._checked_values(rows, values)
        self._touch(rows)
        for name, of_rows in checked.items():
            self._columns[name][rows] = of_rows

    def combine(self, how: np.ufunc, rows: Array, /, **values: Any) -> None:
        """Combine columns with values; each occurrence of a row counts."""
        rows = self._checked(rows)
        checked = self._checked_values(rows, values)
        self._touch(rows)
        for name, of_rows in checked.items():
            how.at(self._columns[name], rows, of_rows)

    def scan(self) -> dict[str, Array]:
        """All rows, as a batch of all columns."""
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

    def _checked(self, rows: Array) -> Array:
        if not len(rows):
            return np.empty(0, np.int64)
        if rows.dtype.kind not in "iu":
            raise self._misused(f"was given rows of type {rows.dtype}: give the numbers that rows(keys) returns")
        if rows.min() < 0 or rows.max() >= len(self._filled) << _SHIFT:
            raise self._misused("was given rows that it does not have: those of unknown keys are -1")
        return rows.astype(np.int64, copy=False)

    def _checked_values(self, rows: Array, values: Mapping[str, Any]) -> dict[str, Array]:
        """The values of each column for these rows, before anything changes."""
        found: dict[str, Array] = {}
        for name, given in values.items():
            column = self._columns[self._known(name, to_write=True)].dtype
            array = found[name] = np.asarray(given)
            np.broadcast_to(array, rows.shape)
            if not array.size:
                continue
            if array.dtype.kind not in "biuf" or (column.kind in "iu" and array.dtype.kind == "f"):
                raise self._misused(
                    f"was given values of type {array.dtype} for column {name!r} of type {column}: convert them, or "
                    "declare another type"
                )
            if column.kind in "iu" and not _fits(array, column):
                raise self._misused(
                    f"was given values from {array.min()} to {array.max()} for column {name!r} of type {column}: "
                    "declare a type that can hold them"
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
        self._block_changed_at[rows >> _SHIFT] = self._now
        self._changes[self._now] += len(rows)
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
        rows = (block << _SHIFT) + beyond
        self._add_blocks(np.repeat(np.arange(KEY_GROUPS), added))
        last[added > 0] = (first_added + added - 1)[added > 0]
        self._filled += np.bincount(rows >> _SHIFT, minlength=len(self._filled))
        return rows

    def _add_blocks(self, groups: Array) -> None:
        """Add an empty block for each of these groups."""
        if not len(groups):
            return
        blocks = len(self._filled) + len(groups)
        if blocks << _SHIFT > len(self._changed_at):
            capacity = max(16, 2 * blocks) << _SHIFT
            self._columns = {name: _grown(column, capacity) for name, column in self._columns.items()}
            self._changed_at = _grown(self._changed_at, capacity)
        self._block_groups = np.append(self._block_groups, groups.astype(np.int32))
        self._filled = np.append(self._filled, np.zeros(len(groups), np.int64))
        self._block_changed_at = np.append(self._block_changed_at, np.full(len(groups), self._now, np.int32))

    def _span(self, block: int) -> slice:
        start = block << _SHIFT
        return slice(start, start + int(self._filled[block]))

    def _touch(self, rows: Array) -> None:
        """These rows are about to change."""
        is_tracked = self._changes[self._now] <= self._limit
        if not is_tracked:
            # Too many for a delta, even if the table grows: what a later one is relative to comes after them.
            self._changes[self._now] = _TOO_MANY
            if not self._open:
                return
        # What is marked as changed after the newest capture is kept for all captures that are open.
        rows = rows[self._changed_at.take(rows, mode="clip") != self._now]
        if not len(rows):
            return
        is_touched = np.zeros(len(self._filled), np.bool_)
        is_touched[rows >> _SHIFT] = True
        for capture in self._open:
            capture.keep(rows, is_touched)
        if not is_tracked:
            return
        self._changes[self._now] += len(rows)
        self._changed_at[rows] = self._now
        self._block_changed_at[is_touched] = self._now

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
        is_delta = base is not None and self.has_base(base)
        if base is not None and is_delta:
            since = self._numbers[base]
            capture = TableCapture(self, self._block_changed_at > since, self._changes_since(base), since)
            self._numbers = {one: number for one, number in self._numbers.items() if one >= base}
        else:
            capture = TableCapture(self, self._filled > 0, self._count, None)
        self._now += 1
        if self._tracks:
            self._numbers[epoch] = self._now - 1
            self._numbers = dict(list(self._numbers.items())[-_BASES_MAX:])
        oldest = min(self._numbers.values(), default=self._now)
        self._changes = {number: count for number, count in self._changes.items() if number > oldest}
        self._changes[self._now] = 0
        self._open.append(capture)
        return capture

    def supersedes(self, epoch: Epoch, base: Epoch) -> bool:
        """Not known: rows are not compared."""
        return False

    def _changes_since(self, base: Epoch) -> int:
        """How many rows changed since a capture; more if a row changed between several."""
        since = self._numbers[base]
        return sum(count for number, count in self._changes.items() if number > since)

    def release(self, capture: TableCapture) -> None:
        """Stop sharing rows with this capture."""
        if capture in self._open:
            self._open.remove(capture)

    def piece(self, block: int, count: int, since: int | None) -> Piece | ChangedPiece | None:
        """The first `count` rows of a block, or those that changed after a capture; None if there are none."""
        start = block << _SHIFT
        all_rows = slice(start, start + count)
        if since is None:
            found = {name: column[all_rows].copy() for name, column in self._columns.items()}
            return Piece(self._as_rows(block, found), start)
        changed_at = self._changed_at[all_rows]
        is_changed = changed_at > since
        numbers = start + np.flatnonzero(is_changed)
        if not len(numbers):
            return None
        found = {name: column[numbers] for name, column in self._columns.items()}
        return ChangedPiece(self._as_rows(block, found), numbers, changed_at[is_changed], since)

    def _as_rows(self, block: int, found: dict[str, Array]) -> Rows:
        keys = {name: found.pop(name) for name in self.declared.key}
        count = len(next(iter(keys.values())))
        return Rows(np.full(count, self._block_groups[block]), keys, found)

    def held(self, rows: Array) -> Former:
        """What these rows hold."""
        values = {name: self._columns[name].take(rows, mode="clip") for name in self.declared.columns}
        return Former(rows, self._changed_at.take(rows, mode="clip"), values)

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
        self._now += 1
        self._numbers = {epoch: self._now - 1} if self._tracks and self._is_as_declared else {}
        self._changes = {self._now: 0}


class TableCapture:
    """The rows at one moment, taken block by block. It must be released.

    - keys: the number of rows, at least.
    - is_left: for each block whether it is still to be taken. since: of which only what changed after this capture is.
    """

    def __init__(self, table: TableState, is_left: Array, keys: int, since: int | None) -> None:
        self.keys = keys
        self.is_left = is_left
        self._table = table
        self._since = since
        self._counts = table._filled.copy()  # pyright: ignore[reportPrivateUsage]
        self._pieces: dict[int, Piece | ChangedPiece] = {}
        self._former = FormerRows()
        self._next = 0

    def keep(self, rows: Array, is_touched: Array) -> None:
        """Keep what these rows hold, which are about to change; or take their blocks, if that is less work."""
        if len(self.is_left) < len(is_touched):
            # Blocks that were added later are no part of it.
            self.is_left = np.append(self.is_left, np.zeros(len(is_touched) - len(self.is_left), np.bool_))
        is_shared = is_touched & self.is_left
        blocks = np.flatnonzero(is_shared)
        if len(rows) * _ROW_COST >= len(blocks) * BLOCK_ROWS:
            self._take(blocks.tolist())
        else:
            are_all = len(blocks) == np.count_nonzero(is_touched)
            self._former.keep(self._table.held(rows if are_all else rows[is_shared[rows >> _SHIFT]]))

    def _take(self, blocks: Iterable[int]) -> int:
        """Take these blocks; return the number of their rows, of which a delta takes those that changed."""
        rows = 0
        for block in blocks:
            self.is_left[block] = False
            count = int(self._counts[block])
            piece = self._table.piece(block, count, self._since)
            if piece is not None:
                self._pieces[block] = piece
            rows += count
        return rows

    def encode_some(self, entries_max: int) -> int:
        """Pass over some blocks; return the number of their rows, at most `entries_max`. If fewer, all are taken."""
        rows = 0
        while rows < entries_max and self._next < len(self.is_left):
            if self.is_left[self._next]:
                rows += self._take([self._next])
            self._next += 1
        return min(rows, entries_max)

    def groups(self) -> TableGroups:
        """The rows by key group. Takes what is left."""
        self.encode_some(len(self.is_left) * BLOCK_ROWS + 1)
        for block, former in self._former.by_block(_SHIFT):
            if block in self._pieces:
                self._pieces[block] = self._pieces[block].before(former)
        pieces = (self._pieces[block].rows for block in sorted(self._pieces))
        return TableGroups([rows for rows in pieces if len(rows.groups)])

    def release(self) -> None:
        """Stop sharing rows with the live table."""
        self._table.release(self)


def _types(columns: Mapping[str, Array]) -> dict[str, str]:
    return {name: "string" if column.dtype == object else str(column.dtype) for name, column in columns.items()}


def _fits(values: Array, kind: npt.DTypeLike) -> bool:
    """Whether integers of this type can hold these values."""
    limits = np.iinfo(kind)
    return np.can_cast(values.dtype, kind) or bool(values.min() >= limits.min and values.max() <= limits.max)


def _grown(column: Array, capacity: int) -> Array:
    grown = np.empty(capacity, column.dtype)
    grown[: len(column)] = column
    return grown

"""Finds the rows of many keys at once, and numbers new ones.

Integers that are close together are positions in an array. Others are looked up in a hash table of NumPy arrays, all of
them in one pass, and those that meet another key in a few more. (pyarrow's `index_in` and a sorted array were measured
as well: the first builds its table in each call, the other takes three times as long and must be merged with new keys.)
Texts are looked up in a dict, each distinct one once. A composite key is looked up part by part: numbers of its parts
make up an integer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from backedge.engine.batches.arrow import arrow
from backedge.graphs.table import Array

Number = Callable[[Array], Array]
"""Gives the rows of new keys, of which it is passed the positions."""

_SPREAD = np.uint64(0xD6E8FEB86659FD93)
_SPAN_MIN, _SPAN_PER_KEY = 1 << 20, 8
"""Integers that spread over the least span are never hashed. Their array takes 8 MB at most."""
_NONE = np.empty(0, np.int64)
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1
ROWS_MAX = _MARK = 1 << 30


class RowIndex(Protocol):
    """Keys with a row each."""

    def find(self, keys: Sequence[Array]) -> Array:
        """The row of each key, -1 if it has none."""
        ...

    def add(self, keys: Sequence[Array], rows: Array) -> None:
        """Add keys that have no row; each occurs once."""
        ...


def index_for(types: Sequence[str]) -> RowIndex:
    """An index for keys with parts of these types.

    >>> index = index_for(["string", "int64"])
    >>> index.add([np.array(["a", "b"], object), np.array([1, 1])], np.array([5, 6]))
    >>> index.find([np.array(["b", "a", "a"], object), np.array([1, 1, 2])]).tolist()
    [6, 5, -1]
    """
    if len(types) > 1:
        return CompositeIndex(types)
    return IntegerIndex() if types[0] == "int64" else TextIndex()


class IntegerIndex:
    """Rows of integers: in an array if they are close together, as numbers of users or vertices often are, or hashed.

    While it is an array, it tells which of the rows that it finds are not marked as changed. To look at the mark of
    each row would take longer than to find it, because marks lie far apart; a mark in the array is found with the row.
    A capture ends all marks, but those in the array are only removed with the next batches, some with each. Until then
    it tells nothing.

    >>> index = IntegerIndex()
    >>> index.add([np.array([30, 10])], np.array([0, 1]))
    >>> index.find([np.array([10, 20, 30])]).tolist()
    [1, -1, 0]
    """

    def __init__(self) -> None:
        # The row of each integer from `_first` on, -1 if it has none; or of each slot, while `_keys` has their keys.
        # A key is in the first free slot after the one that it hashes to.
        self._rows = np.empty(0, np.int32)
        self._first = 0
        self._keys: Array | None = None
        self._count = 0
        self._lowest, self._highest = _INT_MAX, _INT_MIN
        # Places of marks since the newest capture, and of those before it. The rows found last and their places, if
        # they are in the array and each key has one.
        self._marked: list[Array] = []
        self._outdated: list[Array] = []
        self._found: tuple[Array, Array] | None = None
        self.unmarked: Array | None = None
        """Which of the rows found last have no mark; None if it cannot tell."""

    def find(self, keys: Sequence[Array]) -> Array:
        (wanted,) = keys
        self._found = self.unmarked = None
        if self._keys is not None:
            return self._found_hashed(wanted, self._keys)
        places = wanted - self._first
        # Integers below the first one wrap around to large places.
        unsigned = places.view(np.uint64)
        if len(wanted) and unsigned.max() < len(self._rows):
            rows = self._rows.take(places, mode="clip")
            lowest = rows.min()
            self._remove_marks(rows, lowest)
            found = rows.astype(np.int64)
            if lowest >= 0 and found.ndim == 1:
                self._found = found.copy(), places
            return found
        found = np.full(len(wanted), -1, np.int64)
        is_inside = unsigned < len(self._rows)
        inside = self._rows[places[is_inside]]
        found[is_inside] = np.where(inside < _MARK, inside, inside - _MARK)
        return found

    def _remove_marks(self, rows: Array, lowest: int) -> None:
        """Remove the marks of these rows, and note which have none."""
        if not self._marked and not self._outdated:
            return
        without = np.flatnonzero(rows < _MARK) if lowest < _MARK else _NONE
        if lowest >= 0:
            rows &= _MARK - 1
        else:
            np.bitwise_and(rows, _MARK - 1, out=rows, where=rows >= 0)
        self.unmarked = None if self._outdated else without

    def has_found(self, rows: Array) -> bool:
        """Whether these are the rows found last, and all there. They are compared, because the caller may have changed
        them.
        """
        if self._found is None or rows.dtype != np.int64 or self._found[0].shape != rows.shape:
            return False
        # As bytes, in half the time that comparing numbers takes.
        return arrow().py_buffer(self._found[0]).equals(arrow().py_buffer(np.ascontiguousarray(rows)))

    def mark(self) -> None:
        """The rows found last have all been marked as changed since the newest capture."""
        if self._found is None:
            return
        _, places = self._found
        removed = 0
        while self._outdated and removed < len(places):
            outdated = self._outdated.pop()
            self._rows[outdated] &= _MARK - 1
            removed += len(outdated)
        if not self._outdated:
            new = distinct_integers(places if self.unmarked is None else places[self.unmarked])
            self._rows[new] |= _MARK
            self._marked.append(new)
            self.unmarked = _NONE

    def forget_marks(self) -> None:
        """There is a newer capture."""
        self._outdated += self._marked
        self._marked, self.unmarked = [], None

    def _found_hashed(self, wanted: Array, keys: Array) -> Array:
        slots = self._slots(wanted)
        found = self._rows.take(slots).astype(np.int64)
        left = np.flatnonzero((keys.take(slots) != wanted) & (found >= 0))
        slots = slots[left]
        while len(left):
            slots = (slots + 1) & (len(self._rows) - 1)
            rows, is_other = self._rows[slots], keys[slots] != wanted[left]
            found[left] = rows
            goes_on = is_other & (rows >= 0)
            left, slots = left[goes_on], slots[goes_on]
        return found

    def add(self, keys: Sequence[Array], rows: Array) -> None:
        (new,) = keys
        if not len(new):
            return
        self._count += len(new)
        self._lowest = min(self._lowest, int(new.min()))
        self._highest = max(self._highest, int(new.max()))
        span = self._highest - self._lowest + 1
        is_close = span <= max(_SPAN_MIN, _SPAN_PER_KEY * self._count)
        if self._keys is None:
            is_full = not is_close or not self._first <= self._lowest <= self._highest < self._first + len(self._rows)
        else:
            is_full = 2 * self._count > len(self._rows)
        self._found = None
        if is_full:
            self._marked, self._outdated = [], []
            is_used = np.flatnonzero(self._rows >= 0)
            former = (
                is_used + self._first if self._keys is None else self._keys[is_used],
                self._rows[is_used] & _MARK - 1,
            )
            self._resize(span if is_close else None)
            self._place(*former)
        self._place(new, rows.astype(np.int32))

    def _resize(self, span: int | None) -> None:
        """Make room for so many integers in a row, on both sides; or for slots."""
        if span is None:
            size = 1 << (3 * self._count).bit_length()
            self._first, self._keys = 0, np.zeros(size, np.int64)
        else:
            size = 2 * span
            self._first, self._keys = max(self._lowest - span // 2, _INT_MIN), None
        self._rows = np.full(size, -1, np.int32)

    def _place(self, keys: Array, rows: Array) -> None:
        if self._keys is None:
            self._rows[keys - self._first] = rows
            return
        slots = self._slots(keys)
        while len(keys):
            is_free = self._rows[slots] < 0
            # Of several keys for a free slot the last one gets it; the others go on.
            self._rows[slots[is_free]] = rows[is_free]
            is_left = self._rows[slots] != rows
            self._keys[slots[~is_left]] = keys[~is_left]
            keys, rows, slots = keys[is_left], rows[is_left], (slots[is_left] + 1) & (len(self._rows) - 1)

    def _slots(self, keys: Array) -> Array:
        # Not the hash of key groups: all keys of a task, and of a restored part of it, are alike in that one.
        mixed = keys.view(np.uint64) * _SPREAD
        mixed ^= mixed >> np.uint64(32)
        mixed *= _SPREAD
        return (mixed >> np.uint64(64 - (len(self._rows) - 1).bit_length())).astype(np.int64)


class TextIndex:
    def __init__(self) -> None:
        self._rows: dict[str, int] = {}

    def find(self, keys: Sequence[Array]) -> Array:
        texts = arrow().array(keys[0])
        if texts.null_count:
            raise TypeError("a key of a table is None: give texts")
        if texts.type != arrow().string() and len(texts):
            raise TypeError(f"keys of a table are of type {texts.type}: give texts")
        encoded = texts.dictionary_encode()
        rows = [self._rows.get(text, -1) for text in encoded.dictionary.to_pylist()]
        return np.array(rows, np.int64)[encoded.indices.to_numpy()]

    def add(self, keys: Sequence[Array], rows: Array) -> None:
        self._rows.update(zip(keys[0].tolist(), rows.tolist(), strict=True))


class CompositeIndex:
    """Rows of keys with several parts. The values of a part are numbered; the numbers of two parts are an integer."""

    def __init__(self, types: Sequence[str]) -> None:
        self._parts = [index_for([kind]) for kind in types]
        self._counts = [0] * len(types)
        # What two parts make up has a number too, which makes up the next one with the third part, and so on.
        self._pairs = [IntegerIndex() for _ in types[1:]]
        self._pair_counts = [0] * (len(types) - 2)

    def find(self, keys: Sequence[Array]) -> Array:
        found = self._parts[0].find(keys[:1])
        for part, column, pairs in zip(self._parts[1:], keys[1:], self._pairs, strict=True):
            other = part.find([column])
            is_known = (found >= 0) & (other >= 0)
            found = np.where(is_known, pairs.find([_pair(found, other)]), -1)
        return found

    def add(self, keys: Sequence[Array], rows: Array) -> None:
        numbers = [self._numbers(self._parts, self._counts, place, column) for place, column in enumerate(keys)]
        found = numbers[0]
        for place, other in enumerate(numbers[1:-1]):
            found = self._numbers(self._pairs, self._pair_counts, place, _pair(found, other))
        self._pairs[-1].add([_pair(found, numbers[-1])], rows)

    @staticmethod
    def _numbers(indexes: Sequence[RowIndex], counts: list[int], place: int, column: Array) -> Array:
        """The number of each value; new values get the next ones."""
        index = indexes[place]
        new = first_of_each(column[index.find([column]) < 0])
        index.add([new], np.arange(counts[place], counts[place] + len(new)))
        counts[place] += len(new)
        return index.find([column])


def first_of_each(column: Array) -> Array:
    """The distinct values of a column.

    >>> first_of_each(np.array(["b", "a", "b"], object)).tolist()
    ['b', 'a']
    """
    if column.dtype == object:
        return np.array(list(dict.fromkeys(column.tolist())), object)
    return distinct_integers(column)


def distinct_integers(column: Array) -> Array:
    """The distinct integers of a column, in order. NumPy's `unique` takes 20 times as long.

    >>> distinct_integers(np.array([2, 1, 2])).tolist()
    [1, 2]
    """
    ordered = np.sort(column)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def _pair(first: Array, second: Array) -> Array:
    return (first << 32) | second

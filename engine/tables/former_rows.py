"""What rows of a table held before they changed, for a capture that has not taken their blocks yet.

Copying a whole block because one of its rows changes would hold up the first batch after a capture: a thousand rows can
be in as many blocks. So only what these rows held is kept. It is put back into the copies of their blocks once all are
taken, by the thread that writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from graphs.table import Array
from recovery.table_groups import Rows


class Former(NamedTuple):
    """What some rows held: the number of each row, its values, and after which capture it had changed last."""

    numbers: Array
    changed_at: Array
    values: Mapping[str, Array]

    def at(self, places: Array | slice) -> Former:
        """The rows at these places."""
        values = {name: column[places] for name, column in self.values.items()}
        return Former(self.numbers[places], self.changed_at[places], values)


class FormerRows:
    """What was kept for one capture.

    >>> kept = FormerRows()
    >>> kept.keep(Former(np.array([9, 2]), np.array([0, 0]), {"n": np.array([90, 20])}))
    >>> kept.keep(Former(np.array([2, 3]), np.array([1, 0]), {"n": np.array([21, 30])}))
    >>> [(block, former.values["n"].tolist()) for block, former in kept.by_block(3)]
    [(0, [20, 30]), (1, [90])]
    """

    def __init__(self) -> None:
        self._kept: list[Former] = []

    def keep(self, former: Former) -> None:
        """Keep what rows hold that are about to change."""
        self._kept.append(former)

    def by_block(self, shift: int) -> Iterator[tuple[int, Former]]:
        """What the rows of each block held before they first changed; a block has 2**shift rows. Forgets them."""
        kept, self._kept = self._kept, []
        if not kept:
            return
        numbers = np.concatenate([each.numbers for each in kept])
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        first = order[np.append(True, ordered[1:] != ordered[:-1])]
        changed_at = np.concatenate([each.changed_at for each in kept])
        values = {name: np.concatenate([each.values[name] for each in kept])[first] for name in kept[0].values}
        former = Former(numbers[first], changed_at[first], values)
        blocks = former.numbers >> shift
        starts = [0, *(np.flatnonzero(blocks[1:] != blocks[:-1]) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], len(blocks)], strict=True):
            yield int(blocks[start]), former.at(slice(start, end))


class Piece(NamedTuple):
    """A copy of the rows of one block, which begin with number `start`."""

    rows: Rows
    start: int

    def before(self, former: Former) -> Piece:
        """The same before some of its rows changed. It is changed in place."""
        # Rows that were added later are behind its end.
        former = former.at(former.numbers < self.start + len(self.rows.groups))
        _put(former, self.rows, former.numbers - self.start)
        return self


class ChangedPiece(NamedTuple):
    """A copy of those rows of one block that have changed after the capture `since`, with what `Former` has of them."""

    rows: Rows
    numbers: Array
    changed_at: Array
    since: int

    def before(self, former: Former) -> ChangedPiece:
        """The same before some of its rows changed. Rows that had not changed until then are not in it."""
        places = np.searchsorted(self.numbers, former.numbers)
        is_here = self.numbers.take(places, mode="clip") == former.numbers
        former, places = former.at(is_here), places[is_here]
        _put(former, self.rows, places)
        self.changed_at[places] = former.changed_at
        stays = self.changed_at > self.since
        return ChangedPiece(self.rows.at(stays), self.numbers[stays], self.changed_at[stays], self.since)


def _put(former: Former, rows: Rows, places: Array) -> None:
    for name, column in former.values.items():
        rows.values[name][places] = column

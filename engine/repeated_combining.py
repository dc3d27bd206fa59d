"""Combines the rows of keys that come again without looking for equal keys again (`KeyedStream.combine`).

Only sums of numbers of 64 bits without missing values: the rows are added in their order, as Arrow adds them, so the
sums are the same to the last bit. Everything else is left to Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.files.arrow import arrow
from engine.repeated_keys import Content, RepeatedKeys
from graphs.combining import Combiner


@dataclass(frozen=True)
class _Groups:
    """The distinct keys of a batch, and for each row the position of its key."""

    keys: Sequence[Any]
    of_row: npt.NDArray[np.int64]


class RepeatedCombiner:
    """Does what a combiner does, and calls it unless the keys of a table have come before.

    >>> combine = RepeatedCombiner(Combiner(("k",), {"n": "sum"}))
    >>> rows = arrow().table({"k": [2, 1, 2], "n": [1, 2, 3]})
    >>> [combine(rows).to_pydict() for _ in range(3)] == [{"k": [2, 1], "n": [4, 2]}] * 3
    True
    """

    def __init__(self, combiner: Combiner) -> None:
        self._combiner = combiner
        self._repeated = RepeatedKeys[_Groups]()
        self._only_sums = all(how == "sum" for how in combiner.how.values())

    def __call__(self, table: Any) -> Any:
        """Combine the rows of an Arrow table."""
        by, names = self._combiner.by, list(self._combiner.how)
        is_plain = self._only_sums and {*by, *names} <= set(table.column_names)
        if not is_plain or not all(_is_summed_alike(table[name]) for name in names):
            return self._combiner(table)
        keys = [_whole(table[name]) for name in by]
        content = Content.of_columns(keys)
        groups = self._repeated.find(content)
        if groups is None:
            combined = self._combiner(table)
            size = table.num_rows * 8 + len(content)
            self._repeated.note(content, size, lambda: _grouped(keys))
            return combined
        sums = [_sums(_whole(table[name]), groups) for name in names]
        return arrow().table([*groups.keys, *sums], [*by, *names])


def _whole(column: Any) -> Any:
    chunks = column.chunks
    return chunks[0] if len(chunks) == 1 else column.combine_chunks()


def _is_summed_alike(column: Any) -> bool:
    return not column.null_count and column.type in (arrow().int64(), arrow().float64())


def _grouped(keys: Sequence[Any]) -> _Groups:
    names = [f"key {place}" for place in range(len(keys))]
    rows = arrow().table([*keys, np.arange(len(keys[0]))], [*names, "row"])
    found = rows.group_by(names, use_threads=False).aggregate([("row", "list")])
    lists = _whole(found["row_list"])
    of_row = np.empty(len(keys[0]), np.int64)
    of_row[lists.flatten().to_numpy()] = np.repeat(np.arange(len(lists)), lists.value_lengths().to_numpy())
    return _Groups([_whole(found[name]) for name in names], of_row)


def _sums(column: Any, groups: _Groups) -> Any:
    values = column.to_numpy()
    sums = np.zeros(len(groups.keys[0]), values.dtype)
    # Arrow adds infinities, undefined and very large numbers without a warning.
    with np.errstate(all="ignore"):
        np.add.at(sums, groups.of_row, values)
    return arrow().array(sums)

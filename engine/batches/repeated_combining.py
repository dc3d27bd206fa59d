"""Combines the rows of a key in a batch (`KeyedStream.combine`), without looking again for keys that come again.

The latter only for sums of numbers of 64 bits without missing values: the rows are added in their order, as Arrow adds
them, so the sums are the same to the last bit. Everything else is left to Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from backedge.engine.batches.arrays import to_array, to_arrow
from backedge.engine.batches.arrow import arrow
from backedge.engine.batches.repeated_keys import Content, RepeatedKeys
from backedge.graphs.combining import Combiner
from backedge.graphs.exact_numbers import check_sums, largest
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.task_errors import show


@dataclass(frozen=True)
class _Groups:
    """The distinct keys of a batch, and for each row the position of its key."""

    keys: Sequence[Any]
    of_row: npt.NDArray[np.int64]


class RepeatedCombiner:
    """Combines tables as `combined` does, which it calls unless the keys of a table have come before.

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
        by, names = self._combiner.by, list(self._combiner.how)
        is_plain = self._only_sums and {*by, *names} <= set(table.column_names)
        if not is_plain or not all(_is_summed_alike(table[name]) for name in names) or any(_too_large(table, names)):
            return combined(self._combiner, table)
        keys = [_whole(table[name]) for name in by]
        content = Content.of_columns(keys)
        groups = self._repeated.find(content)
        if groups is None:
            size = table.num_rows * 8 + len(content)
            self._repeated.note(content, size, lambda: _grouped(keys))
            return combined(self._combiner, table)
        sums = [_sums(_whole(table[name]), groups) for name in names]
        return arrow().table([*groups.keys, *sums], [*by, *names])


def combined(combiner: Combiner, table: Any) -> Any:
    """Combine the rows of an Arrow table.

    >>> rows = arrow().table({"k": [2, 1, 2], "n": [1, 2, 3]})
    >>> combined(Combiner(("k",), {"n": "max"}), rows).to_pydict()
    {'k': [2, 1], 'n': [3, 2]}
    """
    by, how = combiner.by, combiner.how
    missing = [name for name in (*by, *how) if name not in table.column_names]
    if missing:
        raise BadOptionError(
            f"combine needs the column {missing[0]!r}, and the rows have {', '.join(table.column_names)}: name "
            "columns that all rows have"
        )
    wanted = [(name, "list" if callable(of_name) else of_name) for name, of_name in how.items()]
    try:
        # In one thread the rows of a key stay in their order.
        found = table.group_by(list(by), use_threads=False).aggregate(wanted)
    except arrow().ArrowNotImplementedError as error:
        told = ", ".join(f"{name!r} of type {table.schema.field(name).type} by {how}" for name, how in wanted)
        raise BadOptionError(
            f"combine cannot combine one of these columns: {told}: give it a function (values, starts)"
        ) from error
    # By their places, because a column of the key may have the name that Arrow gives to one of these.
    keys, made = found.columns[: len(by)], found.columns[len(by) :]
    columns = dict(zip(how, made, strict=True))
    columns |= {name: _reduced(name, columns[name], of_name) for name, of_name in how.items() if callable(of_name)}
    for name in _too_large(table, [name for name, of_name in how.items() if of_name == "sum"]):
        _check_sums(name, columns[name], [table[key] for key in by], table[name])
    return arrow().table(dict(zip(by, keys, strict=True)) | columns)


def _too_large(table: Any, names: Sequence[str]) -> Iterator[str]:
    """The columns of integers so large that their sum could exceed 64 bits."""
    for name in names:
        kind, types = table[name].type, arrow().types
        if types.is_integer(kind):
            numbers = _whole(table[name].drop_null() if table[name].null_count else table[name]).to_numpy()
            bits = 64 if types.is_unsigned_integer(kind) else 63
            if largest(numbers) * table.num_rows >= 1 << bits:
                yield name


def _check_sums(name: str, sums: Any, keys: Sequence[Any], values: Any) -> None:
    """Raise if sums have exceeded 64 bits: Arrow lets them wrap around."""
    names = [f"key {place}" for place in range(len(keys))]
    floats = arrow().table([*keys, values.cast(arrow().float64(), safe=False)], [*names, "value"])
    as_floats = floats.group_by(names, use_threads=False).aggregate([("value", "sum")])["value_sum"]
    try:
        check_sums(*(_whole(column.fill_null(0)).to_numpy() for column in (sums, as_floats)))
    except OverflowError as error:
        raise BadOptionError(
            f"combine adds up column {name!r}, and {error}, which it cannot hold: convert the column to float64 first, "
            "or combine it with a function"
        ) from error


def _reduced(name: str, lists: Any, how: Callable[[Any, Any], Any]) -> Any:
    joined = _whole(lists)
    starts = joined.offsets.to_numpy()[:-1]
    found = how(to_array(joined.flatten()), starts)
    if np.shape(found) != starts.shape:
        raise BadOptionError(
            f"the function that combines column {name!r} returned an array of shape {np.shape(found)} for "
            f"{len(starts)} keys: return one value for each of the starts, as np.logical_or.reduceat does"
        )
    column = to_arrow(found)
    if column is None:
        raise BadOptionError(
            f"the function that combines column {name!r} returned {show(found)}, which no column can hold unchanged: "
            "return values of one type"
        )
    return column


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

"""Assigns rows to files by key group, so that each task of a source reads the keys that it keeps.

Task i of P reads the files i, i + P, i + 2 P, and so on. So file n holds key groups of task n modulo P, provided that
the flow keys its records by the same column.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql import types

from backedge.graphs.routing import KEY_GROUPS, groups_of_task, key_groups
from backedge.recovery.spark.prepare.screening import column_named

if TYPE_CHECKING:
    from pyspark.sql import Column

KEY_TYPES = (
    types.StringType,
    types.IntegralType,
    types.FloatType,
    types.DoubleType,
    types.BooleanType,
    types.BinaryType,
)
"""Column types that the engine accepts as keys."""


def deal_groups(groups: Collection[int], tasks: int, files: int) -> dict[int, int]:
    """Key group -> number of its file: about `files` files, none empty, the same number for each task.

    If some task would get no group, the files are laid out for a single task.

    >>> deal_groups([0, 1, 64, 65, 127], tasks=2, files=4)
    {0: 0, 1: 2, 64: 1, 65: 1, 127: 3}
    """
    kept = [sorted(set(groups) & set(groups_of_task(task, tasks))) for task in range(tasks)]
    if not all(kept):
        return deal_groups(groups, 1, files) if tasks > 1 else {}
    parts = max(1, min(files // tasks, *map(len, kept)))
    return {
        group: at * parts // len(of_task) * tasks + task
        for task, of_task in enumerate(kept)
        for at, group in enumerate(of_task)
    }


def key_group_of(column: str) -> Column:
    """The key group of a column, as the engine computes it; arbitrary for null."""
    functions: Any = F
    return functions.arrow_udf(_grouping(), "int")(column_named(column))


def file_of(group: Column, dealt: dict[int, int]) -> Column:
    """The number of the file of a key group."""
    return F.element_at(F.array(*(F.lit(dealt.get(number, 0)) for number in range(KEY_GROUPS))), group + 1)


def _grouping() -> Callable[[Any], Any]:
    """`_groups` without annotations, because Spark would misread them."""
    return lambda keys: _groups(keys)


def _groups(keys: Any) -> Any:
    arrow: Any = import_module("pyarrow")
    kinds = arrow.types
    if kinds.is_integer(keys.type) or kinds.is_floating(keys.type) or kinds.is_boolean(keys.type):
        filled = keys.fill_null(False if kinds.is_boolean(keys.type) else 0)
        return arrow.array(key_groups(filled.to_numpy(zero_copy_only=False)), arrow.int32())
    # Columns repeat keys, so each distinct key is hashed once.
    encoded = keys.fill_null(b"" if kinds.is_binary(keys.type) else "").dictionary_encode()
    groups = arrow.array(key_groups(encoded.dictionary.to_pylist()), arrow.int32())
    return groups.take(encoded.indices)

"""Checks a file with rows of a process class's table: each key once, in the key group computed from its columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from backedge.graphs.routing import groups_of_keys
from backedge.graphs.wording import counted
from backedge.recovery.stores.parquet_tables import pa

Fault = tuple[int, str]


def row_faults(opened: Any, span: tuple[int, int] | None) -> list[Fault]:
    """Faults in a file, each with its statement. `span`: the key groups that the manifest names for it."""
    rows = opened.read()
    groups = rows["key_group"]
    keys, values = (rows[name].combine_chunks() for name in ("key", "value"))
    columns = {**_parts("key", keys), **_parts("value", values), "key_group": groups}
    faults = [
        (5, f"{counted(column.null_count, 'row')} without a value in column {name} of table rows")
        for name, column in columns.items()
        if column.null_count
    ]
    if faults or not len(rows):
        return faults
    found = groups.to_numpy()
    if span != (found.min(), found.max()):
        faults.append((5, "1 file with key groups that the manifest does not name"))
    wrong = np.flatnonzero(groups_of_keys([part.to_numpy(zero_copy_only=False) for part in keys.flatten()]) != found)
    if len(wrong):
        first = keys[int(wrong[0])].as_py()
        faults.append((5, f"{counted(len(wrong), 'key in the wrong group')}; first: {first}"))
    once = pa.table(_parts("key", keys)).group_by(list(_parts("key", keys))).aggregate([([], "count_all")])
    doubled = once.filter(pa.compute.greater(once["count_all"], 1)) if len(once) < len(rows) else once.slice(0, 0)
    if len(doubled):
        first = list(doubled.select(list(_parts("key", keys))).to_pylist()[0].values())
        faults.append((5, f"{counted(len(doubled), 'duplicate key')}; first: {first}"))
    return faults


def _parts(name: str, struct: Any) -> dict[str, Any]:
    return {f"{name}.{field.name}": part for field, part in zip(struct.type, struct.flatten(), strict=True)}

"""A stored job whose second cut has read further than its first."""

from __future__ import annotations

import pickle
from pathlib import Path

from msgspec.structs import replace

from backedge.recovery.stores.cut_store import CutStore
from tests.command.test_looking import GRAPH
from tests.stores.snapshots import SOURCE, append, begin, complete, manifest_for, snapshots_of, write


def two_cuts(root: Path) -> None:
    """Make the job."""
    store = CutStore(str(root), "job")
    begin(store)
    store.describe_graph("abc", GRAPH)
    complete(store, 1)
    snapshots = snapshots_of(2)
    source = snapshots[SOURCE]
    orders = source.operators["orders"]
    orders = replace(orders, splits={**orders.splits, "a.jsonl": pickle.dumps(9, 5)}, records=12)
    snapshots[SOURCE] = replace(source, operators={**source.operators, "orders": orders})
    files = write(store, snapshots)
    append(store, manifest_for(files, 2), files)

"""A job of several cuts with something of everything in them, in a folder whose name is hard on readers."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from backedge.graphs.deployment import Channel, Deployment, Task
from backedge.graphs.plan import Edge, Plan
from backedge.graphs.routing import key_group
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.cut.keyed_parts import Rows
from backedge.recovery.stores.cut_store import CutStore
from tests.stores.snapshots import (
    BACK,
    IN,
    RANK,
    SINK,
    SOURCE,
    begin,
    complete,
    held,
    log_of,
    manifest_for,
    snapshots_of,
    write,
)

HARD_NAME = "cuts [1] {a,b} ä+%20"
FLOATS = {"half": 0.5, "large": 1e10, "nan": float("nan"), "inf": float("inf"), "minus": float("-inf")}
SUMS = {7: 2.5, -1: 0.5, 1 << 40: 1000.25}
TEXTS = {'"quoted"': "line\nbreak", "ä": "back\\slash"}


def _deployment() -> Deployment:
    """Two tasks of one actor, and the loop of one of them."""
    edge = Edge("orders.out->rank.in", "orders", "out", "rank", "in")
    channels = {
        IN: Channel(IN, edge, is_back=False, depth=0, within_actor=True),
        BACK: Channel(BACK, edge, is_back=True, depth=0, within_actor=False),
    }
    operators = {SOURCE: ("orders", "cleaned"), RANK: ("rank", "counts", "sums"), SINK: ("done",)}
    tasks = {
        task: Task(task, names, (), (), "slice-0", 0, task == SOURCE, task == RANK, None)
        for task, names in operators.items()
    }
    return Deployment(Plan("job", {}, (), "abc"), tasks, channels, (), {"rank": 1})


def rows_of(values: Mapping[int, float]) -> list[Rows]:
    """Rows of a table with an integer as key and a sum as value."""
    return [
        Rows(np.array([key_group(key)], np.int32), {"id": np.array([key])}, {"sum": np.array([value])})
        for key, value in values.items()
    ]


def columns_batch(hops: int) -> bytes:
    """Two rows as columns."""
    rows = pa.record_batch({"n": [1, 2], "s": ["a", None]})
    return struct.pack("<c7xQ", b"A", hops) + rows.schema.serialize().to_pybytes() + rows.serialize().to_pybytes()


def job_of_cuts(folder: Path) -> Path:
    """Epochs 1 and 2 of the first attempt, 4 of the second. In 2 and 4 a task has ended; 3 is not complete."""
    store = CutStore(str(folder / HARD_NAME), "job")
    begin(store)
    complete(store, 1, name="before")
    complete(store, 2, ended=True)
    write(store, snapshots_of(3))
    begin(store, 2, restored=2)
    _complete_other(store, 4)
    return Path(store.path)


def _complete_other(store: CutStore, epoch: int) -> None:
    """A cut with floats, texts, columns and a table of typed columns."""
    snapshots = snapshots_of(epoch, 2, ended=True)
    task = snapshots[RANK]
    log = log_of(columns_batch(3), pickle.dumps((["x", 1j], [0, 1]), 5), b"?", first=4, before=9)
    inputs = tuple(replace(record, log=log if record.channel == BACK else ()) for record in task.inputs)
    states = {
        **task.operators,
        "counts": OperatorState(keyed=held({**FLOATS, **TEXTS})),
        "sums": OperatorState(keyed=rows_of(SUMS)),
    }
    snapshots[RANK] = replace(task, inputs=inputs, operators=states)
    files = write(store, snapshots)
    # Not an assertion: under -O the entry would not be created.
    if not store.create(len(store.chain()) + 1, manifest_for(files, epoch, 2), files, _deployment()):
        raise LookupError(f"epoch {epoch} could not be recorded")

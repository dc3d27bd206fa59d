"""What keyed state costs one task at a cut and at a restore, in one process, without Ray; files go into a folder.

`python -m bench.scale_of_keys values|columns COUNT` prints a line of JSON: keys, and for each step its CPU
seconds and the memory in MB at its peak beyond what was there before. `values` are integers by key in a dict; `columns`
is a table whose rows have 80 bytes, 12.5 million of them are a gigabyte.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec.structs import replace

from backedge import Table
from backedge.engine.state.keyed_state import KeyedState, StateCapture, StateEncoder, keyed_entries
from backedge.engine.state.tables.restored_tables import rows_of
from backedge.engine.state.tables.table_captures import TableCapture
from backedge.engine.state.tables.table_state import TableState
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.routing import KEY_GROUPS
from backedge.recovery.cut.cut import OperatorState, TaskSnapshot
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.settling import Settling
from backedge.recovery.stores.store_calls import has_content
from backedge.recovery.stores.task_files import StoredFile, TaskFiles
from backedge.recovery.stores.task_tables import TaskReader, write_files
from bench.increments_in_process import count
from bench.metering import Meter

OPERATOR = "kept"
ATTEMPT = Attempt(1)
CHANGED = 100
"""One of so many keys changes before the delta."""
COLUMNS = 9
CHUNK_ROWS = 100_000
ENTRIES_AT_ONCE = 10_000
HALF = range(KEY_GROUPS // 2)


class Kept(ABC):
    """Keyed state of one kind."""

    state: Any

    @abstractmethod
    def change(self, keys: np.ndarray) -> None:
        """Give these keys new values."""

    @abstractmethod
    def encoder(self, capture: Any) -> Any:
        """What encodes a capture piece by piece."""

    @abstractmethod
    def restored(self, state: OperatorState) -> int:
        """Put what was read together; return how many keys there are."""


class Values(Kept):
    """Integers by key."""

    def __init__(self) -> None:
        self.state = KeyedState(OPERATOR)

    def change(self, keys: np.ndarray) -> None:
        for key in keys.tolist():
            self.state.replace(key, count(self.state.touch_if_needed(key, 0), key)[0])

    def encoder(self, capture: StateCapture) -> StateEncoder:
        return StateEncoder(OPERATOR, capture.entries, gone=capture.gone)

    def restored(self, state: OperatorState) -> int:
        return len(keyed_entries(state).values)


class Columns(Kept):
    """A table of columns with random values, which no encoding makes small."""

    def __init__(self) -> None:
        self.table = Table(key={"key": "int64"}, columns={f"column {number}": "int64" for number in range(COLUMNS)})
        self.state = TableState(OPERATOR, self.table)
        self.random = np.random.default_rng(7)

    def change(self, keys: np.ndarray) -> None:
        for start in range(0, len(keys), CHUNK_ROWS):
            rows = self.state.rows(keys[start : start + CHUNK_ROWS])
            self.state.set(rows, **{name: self.random.integers(0, 1 << 62, len(rows)) for name in self.table.columns})

    def encoder(self, capture: TableCapture) -> TableCapture:
        return capture

    def restored(self, state: OperatorState) -> int:
        table = TableState(OPERATOR, self.table)
        table.restore(rows_of(state))
        return len(table)


KINDS: dict[str, Callable[[], Kept]] = {"values": Values, "columns": Columns}


class Steps:
    """The steps of one state."""

    def __init__(self, kept: Kept, keys: int, folder: str) -> None:
        self.kept, self.keys, self.meter = kept, keys, Meter()
        self.store = FolderStore(folder)

    def figures(self) -> dict[str, Any]:
        """Take every step, and check that each restore has the keys that it should."""
        keys = np.arange(self.keys)
        self.meter("fill", lambda: self.kept.change(keys))
        whole = self._cut(Epoch(1), None)
        # Not metered: it is what `fill` does, in a tenth of a second, which waiting for memory doubles or halves.
        self.kept.change(keys[::CHANGED])
        delta = self._cut(Epoch(2), Epoch(1))
        del self.kept.state
        gc.collect()
        self.meter("verify", lambda: self._verify(whole))
        restored = self.meter("restore", lambda: self.kept.restored(self._read(whole, delta, None)))
        half = self.meter("rescale", lambda: self.kept.restored(self._read(whole, delta, HALF)))
        if restored != self.keys or not 0.4 * self.keys < half < 0.6 * self.keys:
            raise RuntimeError(f"of {self.keys} keys {restored} were restored, and {half} by one task of two")
        return {"keys": self.keys, "steps": self.meter.found, "bytes": _size(whole), "delta_bytes": _size(delta)}

    def _cut(self, epoch: Epoch, base: Epoch | None) -> TaskFiles:
        kind = "whole" if base is None else "delta"
        if base is not None and not self.kept.state.has_base(base):
            raise RuntimeError(f"what changed since {base} is not known")
        capture = self.meter(f"{kind} capture", lambda: self.kept.state.capture(epoch, base))
        encoder = self.kept.encoder(capture)

        def encoded() -> OperatorState:
            while encoder.encode_some(ENTRIES_AT_ONCE) == ENTRIES_AT_ONCE:
                continue
            return OperatorState(encoder.parts())

        state = self.meter(f"{kind} encode", encoded)
        capture.release()
        snapshot = TaskSnapshot(TaskId(OPERATOR, 0), epoch, ATTEMPT, {OPERATOR: state}, (), (), base=base)
        with Settling(self.store, 0) as settling:
            return self.meter(f"{kind} write", lambda: write_files(ATTEMPT, epoch, snapshot, {}, {}, settling))

    def _read(self, whole: TaskFiles, delta: TaskFiles, groups: range | None) -> OperatorState:
        first, last = (TaskReader(files, self._verified).state(OPERATOR, groups) for files in (whole, delta))
        return replace(first, deltas=(last.keyed,))

    def _verify(self, files: TaskFiles) -> None:
        if not all(has_content(self.store, file.name, file.size, file.digest) for file in files.files):
            raise RuntimeError("a file has other bytes than were written")

    def _verified(self, file: StoredFile) -> bytes:
        return self.store.read(file.name)


def _size(files: TaskFiles) -> int:
    return sum(file.size for file in files.files)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as place:
        print(json.dumps(Steps(KINDS[sys.argv[1]](), int(sys.argv[2]), place).figures()))

"""What a cut costs a task that writes what changed, beside one that writes everything: CPU time, without Ray.

One task counts by key in this process. Measured are the capture, which holds the task up (stall), the encoding, and the
files, which are kept in memory. `increments.py` describes the cases.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from backedge import Collect, Flow, Items, Source
from backedge.engine.batches.batch import Batch
from backedge.engine.io.files.objects_in_memory import ObjectsInMemory
from backedge.engine.io.memory import MemoryServices
from backedge.engine.operators.runtime import TaskRuntime
from backedge.engine.state.capture import Capture
from backedge.engine.state.keyed_state import KeyedState, WholeState, keyed_entries
from backedge.graphs.deployment import Task
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.cut.cut import TaskSnapshot
from backedge.recovery.stores.settling import Settling
from backedge.recovery.stores.task_files import StoredFile, TaskFiles
from backedge.recovery.stores.task_tables import TaskReader, write_files
from bench.measuring import Samples, interleaved

DELTAS = 10
BATCH_RECORDS = 1_000
NOTED_RECORDS = 1_000_000
ATTEMPT = Attempt(1)
OPERATOR = "count"
MASK = 2**64 - 1


def measured(keys: int, large: int, changed: int, turns: int) -> tuple[dict[str, Samples], float]:
    """Cuts and restores of both kinds in turns; and the bytes of a delta, as a share of a whole cut."""
    small, larger, plain = Counted(keys, changed), Counted(large, changed), Counted(keys, changed, WholeState)
    whole = small.cut(None)
    deltas: list[TaskFiles] = []
    for _ in range(DELTAS):
        small.change()
        deltas.append(small.cut(small.epoch))
    larger.cut(None, writes=False)
    stalls: dict[str, list[float]] = {"whole": [], "delta": [], "large": []}

    def measure(name: str, counted: Counted, *, is_delta: bool, writes: bool = True) -> float:
        counted.change()
        began = time.process_time()
        counted.cut(counted.epoch if is_delta else None, writes=writes)
        stalls[name].append(counted.stall_ms)
        return (time.process_time() - began) * 1e3

    found = interleaved(
        {
            "whole": lambda: measure("whole", small, is_delta=False),
            "whole_stall": lambda: stalls["whole"][-1],
            "delta": lambda: measure("delta", small, is_delta=True),
            "delta_stall": lambda: stalls["delta"][-1],
            "large_capture": lambda: (measure("large", larger, is_delta=True, writes=False), stalls["large"][-1])[1],
            "whole_restore": lambda: small.restore_ms([whole]),
            "deltas_restore": lambda: small.restore_ms([whole, *deltas]),
            "plain": plain.change_ms,
            "noted": small.change_ms,
        },
        turns,
    )
    return found, size_of(deltas[-1]) / size_of(whole)


def size_of(files: TaskFiles) -> int:
    """The bytes of all files."""
    return sum(file.size for file in files.files)


class Counted:
    """One task that keeps a number for each of so many keys.

    - files: what was written. epoch: the last one. stall_ms: what its capture took.
    """

    def __init__(self, keys: int, changed: int, keyed_state: type[KeyedState] = KeyedState) -> None:
        self.task, self.runtime = _counting(keyed_state)
        self.files = ObjectsInMemory()
        self.epoch = Epoch(0)
        self.stall_ms = 0.0
        self._keys, self._step = keys, max(1, keys // changed)
        self._changed = range(0, keys, self._step)
        self._feed(range(keys))

    def change(self) -> None:
        """New values for some of the keys: others than the last time, so that no delta takes the place of another."""
        self._changed = range((self._changed.start + 1) % self._step, self._keys, self._step)
        self._feed(self._changed)

    def change_ms(self) -> float:
        """The CPU time of a million records, on the keys that change."""
        began = time.process_time()
        for _ in range(NOTED_RECORDS // len(self._changed)):
            self._feed(self._changed)
        return (time.process_time() - began) * 1e3

    def _feed(self, keys: Sequence[int]) -> None:
        [channel] = self.task.inputs
        for start in range(0, len(keys), BATCH_RECORDS):
            self.runtime.process(channel, Batch(list(keys[start : start + BATCH_RECORDS])), 0)

    def cut(self, base: Epoch | None, *, writes: bool = True) -> TaskFiles:
        """Capture, encode and write, relative to a cut or whole."""
        self.epoch = Epoch(self.epoch + 1)
        began = time.process_time()
        capture = self.runtime.capture(self.epoch, ATTEMPT, base)
        self.stall_ms = (time.process_time() - began) * 1e3
        if capture.base != base:
            raise RuntimeError(f"epoch {self.epoch} was to be written since {base}, and is since {capture.base}")
        snapshot = _encoded(self.task, self.epoch, capture)
        store = self.files if writes else _Nowhere()
        return write_files(ATTEMPT, self.epoch, snapshot, {}, {}, Settling(store, sys.maxsize))

    def restore_ms(self, cuts: Sequence[TaskFiles]) -> float:
        """The CPU time of reading these files, the first of them whole, and of putting their values together."""
        gc.collect()
        began = time.process_time()
        self.restored(cuts)
        return (time.process_time() - began) * 1e3

    def restored(self, cuts: Sequence[TaskFiles]) -> dict[int, int]:
        """The values in these files."""
        whole, *deltas = (TaskReader(cut, self._read).state(OPERATOR) for cut in cuts)
        return keyed_entries(replace(whole, deltas=tuple(delta.keyed for delta in deltas))).values

    def _read(self, file: StoredFile) -> bytes:
        return self.files.read(file.name)


class _Nowhere(ObjectsInMemory):
    def write(self, files: Mapping[str, bytes]) -> None:
        """The files of ten million keys would take what memory there is."""


def _encoded(task: Task, epoch: Epoch, capture: Capture) -> TaskSnapshot:
    while not capture.encode_some():
        continue
    return TaskSnapshot(task.id, epoch, ATTEMPT, capture.states, (), (), base=capture.base)


def count(value: int, key: int) -> tuple[int, int]:
    """A number of 31 bits that no table makes small: those of neighbouring keys have nothing in common."""
    mixed = ((value + key + 1) * 0x9E37_79B9_7F4A_7C15) & MASK
    mixed = ((mixed ^ mixed >> 29) * 0xBF58_476D_1CE4_E5B9) & MASK
    return mixed >> 33, key


def _counting(keyed_state: type[KeyedState]) -> tuple[Task, TaskRuntime]:
    deployment = expand(counting_flow(Items([])).plan(), 1)
    [task] = [task for task in deployment.tasks.values() if OPERATOR in task.operators]
    runtime = TaskRuntime(task, deployment, MemoryServices({}), keyed_state=keyed_state)
    runtime.open(None)
    return task, runtime


def counting_flow(numbers: Source[int], function: Any = None) -> Flow:
    """Keep a number for each key, by `count` or by this function."""
    flow = Flow("increments")
    keyed = flow.read(numbers, name="numbers").key_by(_same).stateful_map(function or count, initial=0, name=OPERATOR)
    keyed.filter(_is_never, name="chosen").write(Collect(), name="none")
    return flow


def _same(key: int) -> int:
    return key


def _is_never(key: int) -> bool:
    return False

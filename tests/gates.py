"""Gates: a test says how much a run may read, and when it may end. So nothing depends on how fast a machine is.

A run that a test looks at, kills or rescales reads from a source behind a gate: it lasts until the test opens the gate.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from msgspec import structs

from backedge import Flow, Generate, Items, Range, Source
from backedge.graphs.kinds import Read
from backedge.recovery.protocol.orders import AttemptStart
from backedge.recovery.stores.cut_store import CutStore

T = TypeVar("T")
Found = TypeVar("Found")

HANG_S = 300.0
"""No test waits for this long unless something hangs."""

LOOK_S = 0.05
NUMBERED = (Generate, Items, Range)
OPEN = 1 << 31


class Gate(str):
    """The path of a file whose size says how many records of each split may come. Processes of a run look at it."""

    def let(self, count: int) -> None:
        """Let `count` records of each split come, the earlier ones included."""
        with open(self, "ab") as file:
            file.truncate(count)

    def open(self) -> None:
        """Let all records come, and the run end."""
        self.let(OPEN)

    @property
    def allowed(self) -> int:
        """How many records of each split may come."""
        return os.stat(self).st_size if os.path.exists(self) else 0

    @property
    def is_open(self) -> bool:
        """Whether nothing is held back any more."""
        return self.allowed >= OPEN


@dataclass(frozen=True)
class Gated(Source[T]):
    """A source behind a gate: `at_first` records of each split come at once, and none ends before the gate is open.

    A position is that of the source; beside it, unless that is one, the number of records before it.
    """

    source: Source[T]
    gate: Gate
    at_first: int = 0

    shares_records = True

    @property
    def bounded(self) -> bool:
        return self.source.bounded

    def splits(self) -> Sequence[str] | None:
        return self.source.splits()

    def position(self, at: Any, count: int) -> Any:
        return at if isinstance(self.source, NUMBERED) else (at, count)

    def at_and_count(self, position: Any) -> tuple[Any, int]:
        return (position, position) if isinstance(self.source, NUMBERED) else position

    def first_position(self, split: str) -> Any:
        return self.position(self.source.first_position(split), 0)

    def is_read(self, split: str, position: Any) -> bool:
        return self.gate.is_open and self.source.is_read(split, self.at_and_count(position)[0])

    def check_unchanged(self, positions: Mapping[str, Any]) -> None:
        self.source.check_unchanged({split: self.at_and_count(each)[0] for split, each in positions.items()})

    def open_split(self, split: str, position: Any) -> Any:
        at, count = self.at_and_count(position)
        return _GatedSplit(self, self.source.open_split(split, at), count)


class _GatedSplit:
    def __init__(self, gated: Gated[Any], reader: Any, count: int) -> None:
        self._gated = gated
        self._reader = reader
        self._count = count

    @property
    def position(self) -> Any:
        return self._gated.position(self._reader.position, self._count)

    @property
    def is_done(self) -> bool:
        return self._reader.is_done and self._gated.gate.is_open

    def read(self, records_max: int) -> Any:
        left = max(self._gated.at_first, self._gated.gate.allowed) - self._count
        if left <= 0 or self._reader.is_done:
            return []
        records = self._reader.read(min(records_max, left))
        self._count += len(records)
        return records


def behind(flow: Flow, gate: Gate, at_first: int = 0) -> Flow:
    """The same flow, whose sources are behind a gate."""
    for name, operator in flow.draft.operators.items():
        if isinstance(operator.kind, Read):
            kind = dataclasses.replace(operator.kind, source=Gated(operator.kind.source, gate, at_first))
            flow.draft.operators[name] = structs.replace(operator, kind=kind)
    return flow


@contextmanager
def opened_after(attempts: int, gate: Gate, root: Path, job: str) -> Iterator[None]:
    """Within the block, open the gate as soon as a job has begun `attempts` attempts."""

    def open_gate() -> None:
        wait_for((root / job / "chain").exists, f"the first attempt of {job}")
        chain = CutStore(str(root), job).chain
        wait_for(lambda: sum(isinstance(entry, AttemptStart) for entry in chain()) >= attempts, f"{attempts} attempts")
        gate.open()

    with ThreadPoolExecutor(1) as beside:
        opened = beside.submit(open_gate)
        yield
        opened.result()


def wait_for(holds: Callable[[], Found], what: object) -> Found:
    """Wait until something holds that the test has caused, and return what it found."""
    deadline_s = time.monotonic() + HANG_S
    while not (found := holds()):
        assert time.monotonic() < deadline_s, f"it hangs: {what}"
        time.sleep(LOOK_S)
    return found

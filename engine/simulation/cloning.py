"""Copies of a world, by pickling; equal copies are equal bytes.

What never changes is not copied: plans, tasks and channels are shared by identity, snapshots and the like by content. A
number stands for each in the bytes.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from engine.simulation.world import WorldOptions
from graphs.deployment import Channel, Component, Deployment, Task
from graphs.ids import ChannelId, TaskId
from graphs.plan import Edge, Operator, Plan
from recovery.channels import Queued
from recovery.coordinator import SnapshotOptions
from recovery.cut import Cut, InputRecord, LogEntry, OutputRecord, TaskSnapshot
from recovery.effects import Report, TaskRecord
from recovery.messages import Barrier, Data, End, Mode
from recovery.orders import AttemptStart, Manifest
from recovery.restored import TaskRestore
from recovery.termination import Termination

_BY_IDENTITY = (Plan, Deployment, Task, Channel, Component, Edge, Operator, SnapshotOptions, WorldOptions, Termination)
_BY_CONTENT = (Cut, TaskSnapshot, Manifest, AttemptStart, Report, TaskRecord, TaskRestore, InputRecord, OutputRecord)
_BY_VALUE = (TaskId, ChannelId, Data, Barrier, End, Queued, LogEntry, Mode)
_KINDS = {**dict.fromkeys(_BY_IDENTITY, 0), **dict.fromkeys(_BY_CONTENT, 1), **dict.fromkeys(_BY_VALUE, 2)}


class _Shared:
    """The objects that numbers stand for. They are kept as long as the process lives."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.by_identity: dict[int, tuple[int, Any]] = {}
        self.by_content: dict[Any, int] = {}

    def number_of(self, obj: Any, kind: int) -> int:
        """The number of an object, equal for equal content."""
        if kind == 2:
            number = self.by_content.get((type(obj), obj))
            return self._add(obj, (type(obj), obj)) if number is None else number
        known = self.by_identity.get(id(obj))
        if known is not None:
            return known[0]
        content = id(obj) if kind == 0 else _write(obj, skip=obj)
        number = self.by_content.get(content)
        if number is None:
            number = self._add(obj, content)
        self.by_identity[id(obj)] = (number, obj)
        return number

    def _add(self, obj: Any, content: Any) -> int:
        self.objects.append(obj)
        self.by_content[content] = len(self.objects) - 1
        return len(self.objects) - 1


_SHARED = _Shared()


def _shared(number: int) -> Any:
    return _SHARED.objects[number]


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, skip: Any) -> None:
        super().__init__(buffer, 5)
        self.skip = skip

    def reducer_override(self, obj: Any, /) -> Any:
        kind = _KINDS.get(obj.__class__)
        if kind is None or obj is self.skip:
            return NotImplemented
        return _shared, (_SHARED.number_of(obj, kind),)


def _write(state: Any, skip: Any = None) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, skip).dump(state)
    return buffer.getvalue()


def dump(state: Any) -> bytes:
    """A copy of the state, as bytes; `load` makes it live."""
    return _write(state)


def load(data: bytes) -> Any:
    """The state that `dump` copied, in this process."""
    return pickle.loads(data)

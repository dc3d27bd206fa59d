"""Copies of a world, and marks to tell worlds apart, both by pickling.

What never changes is not copied: plans, tasks and channels are shared by identity, snapshots and the like by content. A
number stands for each in the bytes.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable
from typing import Any

from engine.simulation.store import FileName
from engine.simulation.world import World, WorldOptions
from graphs.deployment import Channel, Component, Deployment, Task
from graphs.ids import ChannelId, TaskId
from graphs.plan import Edge, Operator, Plan
from recovery.channels import Inbox, Outlet, Queued
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

    def __init__(self, write: Callable[[Any, Any], bytes]) -> None:
        self.write = write
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
        content = id(obj) if kind == 0 else self.write(obj, obj)
        number = self.by_content.get(content)
        if number is None:
            number = self._add(obj, content)
        self.by_identity[id(obj)] = (number, obj)
        return number

    def _add(self, obj: Any, content: Any) -> int:
        self.objects.append(obj)
        self.by_content[content] = len(self.objects) - 1
        return len(self.objects) - 1


class _Copier(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, skip: Any) -> None:
        super().__init__(buffer, 5)
        self.skip = skip

    def reducer_override(self, obj: Any, /) -> Any:
        kind = _KINDS.get(obj.__class__)
        if kind is None or obj is self.skip:
            return NotImplemented
        return _shared, (_COPIED.number_of(obj, kind),)


class _Marker(pickle.Pickler):
    """Leaves out how many batches a channel has carried, and their digests: they tell the way, not the place."""

    def __init__(self, buffer: io.BytesIO, skip: Any) -> None:
        super().__init__(buffer, 5)
        self.skip = skip

    def reducer_override(self, obj: Any, /) -> Any:
        essence = _ESSENCES.get(obj.__class__)
        if essence is not None:
            return _mark, essence(obj)
        kind = _KINDS.get(obj.__class__)
        if kind is None or obj is self.skip:
            return NotImplemented
        return _mark, (_MARKED.number_of(obj, kind),)


def _payload(data: Data | Queued | LogEntry) -> tuple[Any, ...]:
    return (data.payload,)


def _inbox(inbox: Inbox) -> tuple[Any, ...]:
    waits = inbox.in_front is not None and not inbox.in_front.ended
    return list(inbox.queue), inbox.last_barrier, inbox.end_received, inbox.ended, waits


_ESSENCES: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    Inbox: _inbox,
    Outlet: lambda outlet: (),
    Data: _payload,
    Queued: _payload,
    LogEntry: _payload,
    Barrier: lambda barrier: (barrier.epoch, barrier.mode, barrier.within),
    End: lambda end: (),
    InputRecord: lambda record: (record.channel, record.log, record.ended),
    OutputRecord: lambda record: (record.channel,),
}


def _essence(world: World) -> tuple[Any, ...]:
    """What decides what can happen, in an order that does not tell the way."""
    return (
        sorted(world.hosts.items()),
        sorted((channel, list(wire)) for channel, wire in world.wires.items() if wire),
        sorted(world.unrestored.items()),
        sorted(world.store.files.items(), key=_file_name),
        (world.reports, list(world.appends), world.store.chain),
        (world.supervisor, world.coordinator),
        (world.is_finished, world.failure),
    )


def _file_name(file: tuple[FileName, TaskSnapshot]) -> tuple[int, int, TaskId]:
    attempt, epoch, task = file[0]
    return attempt, epoch or 0, task


def _shared(number: int) -> Any:
    return _COPIED.objects[number]


def _mark(*parts: Any) -> None:
    raise TypeError("a mark is compared, not loaded")


def _copied(state: Any, skip: Any = None) -> bytes:
    buffer = io.BytesIO()
    _Copier(buffer, skip).dump(state)
    return buffer.getvalue()


def _marked(state: Any, skip: Any = None) -> bytes:
    buffer = io.BytesIO()
    _Marker(buffer, skip).dump(state)
    return buffer.getvalue()


_COPIED = _Shared(_copied)
_MARKED = _Shared(_marked)


def dump(state: Any) -> bytes:
    """A copy of the state, as bytes; `load` makes it live."""
    return _copied(state)


def load(data: bytes) -> Any:
    """The state that `dump` copied, in this process."""
    return pickle.loads(data)


def mark(world: World, left: Any) -> bytes:
    """Equal for worlds in which the same things are possible."""
    return hashlib.blake2b(_marked((_essence(world), left)), digest_size=16).digest()

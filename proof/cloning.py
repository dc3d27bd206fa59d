"""Copies simulated objects by pickling, and reduces them to what distinguishes them.

Immutable objects are not copied: plans, tasks and channels are shared by identity, snapshots and the like by content.
In the bytes, a number stands for each.

The essence of an object is what decides what can happen to it: equal essence, equal future. It leaves out the number of
batches that a channel has carried, and their digests, because they describe the past, and what is only a cache. It also
leaves out the order in which a dict or set was filled: the core only uses it to iterate.
"""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from copy import copy
from enum import Enum
from typing import Any, cast

from engine.channel_ends import RemoteBackEdge, RemoteChannel
from engine.driver_ports import FlowLimits
from engine.simulation.host import Host
from engine.simulation.world_options import WorldOptions
from engine.task_driver import TaskDriver
from engine.typed_state import Packing
from graphs.deployment import Channel, Component, Deployment, Task
from graphs.ids import ChannelId, TaskId
from graphs.plan import Edge, Operator, Plan
from recovery.channels import Inbox, Outlet, Queued
from recovery.coordinator import SnapshotOptions
from recovery.cut import Cut, InputRecord, LogEntry, OutputRecord, TaskSnapshot
from recovery.effects import Report, TaskRecord
from recovery.messages import Barrier, Data, End, Mode
from recovery.orders import AttemptStart, Manifest
from recovery.rescale import RestorePlan
from recovery.restored import TaskRestore
from recovery.termination import Termination

_BY_IDENTITY = (Plan, Deployment, Task, Channel, Component, Edge, Operator, SnapshotOptions, WorldOptions, FlowLimits)
_BY_CONTENT = (
    Cut,
    TaskSnapshot,
    Manifest,
    AttemptStart,
    Report,
    TaskRecord,
    TaskRestore,
    RestorePlan,
    InputRecord,
    OutputRecord,
    Termination,
)
_BY_VALUE = (TaskId, ChannelId, Data, Barrier, End, Queued, LogEntry, Mode)
_KINDS = {**dict.fromkeys(_BY_IDENTITY, 0), **dict.fromkeys(_BY_CONTENT, 1), **dict.fromkeys(_BY_VALUE, 2)}


class _Shared:
    """The objects behind the numbers. They are kept for the life of the process."""

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
        content = id(obj) if kind == 0 else _copied(obj, obj)
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


class _Copier(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, skip: Any) -> None:
        super().__init__(buffer, 5)
        self.skip = skip

    def reducer_override(self, obj: Any, /) -> Any:
        kind = _KINDS.get(obj.__class__)
        if kind is None or obj is self.skip:
            return NotImplemented
        return _shared, (_SHARED.number_of(obj, kind),)


def _shared(number: int) -> Any:
    return _SHARED.objects[number]


def _copied(state: Any, skip: Any = None) -> bytes:
    buffer = io.BytesIO()
    _Copier(buffer, skip).dump(state)
    return buffer.getvalue()


def dump(state: Any) -> bytes:
    """Copy the state to bytes; `load` restores it."""
    return _copied(state)


def load(data: bytes) -> Any:
    """Restore what `dump` copied, in the same process."""
    return pickle.loads(data)


# -- essence -----------------------------------------------------------------------------------------------------


def _inbox(inbox: Inbox) -> tuple[Any, ...]:
    waits = inbox.in_front is not None and not inbox.in_front.ended
    return inbox.queue, inbox.skip, inbox.last_barrier, inbox.end_received, inbox.ended, waits


def _host(host: Host) -> tuple[Any, ...]:
    """Leaves out most of the driver's counts: in the explorer, no time passes in a turn."""
    driver, snapshots = host.driver, host.driver.snapshots
    encoding = snapshots.captures, snapshots.encoded, snapshots.records, tuple(host.writes)
    return (
        host.id,
        host.attempt,
        host.is_started,
        host.orders,
        host.aborts,
        host.core,
        host.runtime,
        encoding,
        driver.room.drain,
        _bounded_ends(driver) if driver.limits.credit_bytes is not None else (),
    )


def _bounded_ends(driver: TaskDriver) -> tuple[Any, ...]:
    """What the ends of the task's channels know. Credit arrives at once, so only differences of the counts matter."""
    ends = [out for out in driver.outputs.values() if isinstance(out, RemoteChannel)]
    waiting = [tuple(end.waiting) if isinstance(end, RemoteBackEdge) else () for end in ends]
    spending = [(end.sent - end.consumed, end.window, end.batch_records_max) for end in ends]
    granting = [(end.consumed - end.said.consumed, end.window - end.said.window) for end in driver.arrivals.values()]
    return spending, waiting, granting


_ESSENCES: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    Host: _host,
    Inbox: _inbox,
    Outlet: lambda outlet: (),
    Packing: lambda packing: (),
    Data: lambda data: (data.payload,),
    Queued: lambda queued: (queued.payload,),
    LogEntry: lambda entry: (entry.payload, entry.skip),
    Barrier: lambda barrier: (barrier.epoch, barrier.mode, barrier.within, barrier.patience_ms),
    End: lambda end: (),
    InputRecord: lambda record: (record.channel, record.log, record.ended),
    OutputRecord: lambda record: (record.channel,),
}
_ATOMS = frozenset((int, str, bytes, bool, float, type(None), type))
_SLOTS: dict[type, tuple[str, ...] | None] = {}


def essence(thing: Any) -> Any:
    """The part that decides what can happen, in a form that can be hashed and compared.

    >>> essence({"held": {2, 1}}) == essence({"held": {1, 2}})
    True
    """
    return _essence(thing, ())


def _essence(thing: Any, around: tuple[int, ...]) -> Any:
    kind = cast("type[Any]", thing.__class__)
    if kind in _ATOMS:
        return thing
    if id(thing) in around:
        return "around"
    around = (*around, id(thing))
    chosen = _ESSENCES.get(kind)
    if chosen is not None:
        return kind, *(_essence(part, around) for part in chosen(thing))
    if kind is dict:
        return dict, frozenset((_essence(k, around), _essence(v, around)) for k, v in thing.items())
    if kind in (set, frozenset):
        return set, frozenset(_essence(member, around) for member in thing)
    if issubclass(kind, (tuple, list, deque)):
        return kind, *(_essence(member, around) for member in thing)
    if issubclass(kind, Iterator):
        # What it still has to give, which a copy gives in its place.
        return "left", *(_essence(part, around) for part in copy(thing))
    if _KINDS.get(kind) == 0 or callable(thing) or issubclass(kind, Enum):
        return kind, _SHARED.number_of(thing, 0)
    return _of_attributes(thing, kind, around)


def _of_attributes(thing: Any, kind: type[Any], around: tuple[int, ...]) -> Any:
    if kind not in _SLOTS:
        _SLOTS[kind] = getattr(kind, "__slots__", None) if not hasattr(thing, "__dict__") else None
    slots = _SLOTS[kind]
    if slots is None:
        return kind, frozenset((name, _essence(value, around)) for name, value in thing.__dict__.items())
    return kind, *(_essence(getattr(thing, name), around) for name in slots)

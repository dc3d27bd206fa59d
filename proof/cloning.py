"""Copies simulated objects by pickling, and reduces them to what distinguishes them.

Immutable objects are not copied: plans, tasks and channels are shared by identity, snapshots and the like by content.
In the bytes, a number stands for each.

The essence of an object is what decides what can happen to it: equal essence, equal future. It leaves out the number of
batches that a channel has carried, and their digests, because they describe the past, and what is only a cache. It also
leaves out the order in which a dict or set was filled: the core only uses it to iterate.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from enum import Enum
from typing import Any

import numpy as np

from backedge.engine.simulation.world.host import Host
from backedge.engine.simulation.world.world_options import WorldOptions
from backedge.engine.state.typed_state import Packing
from backedge.engine.task.channel_ends import RemoteBackEdge, RemoteChannel
from backedge.engine.task.driver import TaskDriver
from backedge.engine.task.ports import FlowLimits
from backedge.graphs.deployment import Channel, Component, Deployment, Task
from backedge.graphs.ids import ChannelId, TaskId
from backedge.graphs.plan import Edge, Operator, Plan
from backedge.recovery.cut.cut import Cut, InputRecord, LogEntry, OutputRecord, TaskSnapshot
from backedge.recovery.protocol.channels import Inbox, Outlet, Queued
from backedge.recovery.protocol.effects import Report, TaskRecord
from backedge.recovery.protocol.life import Life
from backedge.recovery.protocol.messages import Barrier, Data, End, Mode
from backedge.recovery.protocol.orders import AttemptStart, FileId, Manifest, StateFile
from backedge.recovery.protocol.restored import TaskRestore
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from backedge.recovery.protocol.termination import Termination
from backedge.recovery.restore.plan import RestorePlan

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
_BY_VALUE = (TaskId, ChannelId, FileId, StateFile, Data, Barrier, End, Queued, LogEntry, Mode, Life)
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


def _shared(number: int) -> Any:
    return _SHARED.objects[number]


def _reducer(kind: int) -> Callable[[Any], Any]:
    return lambda thing: (_shared, (_SHARED.number_of(thing, kind),))


_REDUCERS = {**copyreg.dispatch_table, **{each: _reducer(kind) for each, kind in _KINDS.items()}}
"""How to pickle what is shared. Nine of ten objects are not: the pickler looks their type up, and calls nothing."""


def _copied(state: Any, skip: Any = None) -> bytes:
    """Pickle the state. `skip` itself is not replaced by a number, only what it holds."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, 5)
    pickler.dispatch_table = _REDUCERS if skip is None else {**_REDUCERS, skip.__class__: _reducer_but(skip)}
    pickler.dump(state)
    return buffer.getvalue()


def _reducer_but(skip: Any) -> Callable[[Any], Any]:
    usual = _REDUCERS[skip.__class__]
    return lambda thing: thing.__reduce_ex__(5) if thing is skip else usual(thing)


def dump(state: Any) -> bytes:
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
        _bounded_ends(driver) if driver.limits.credit_bytes is not None else (),
    )


def _bounded_ends(driver: TaskDriver) -> tuple[Any, ...]:
    """What the ends of the task's channels know. Credit arrives at once, so only differences of the counts matter."""
    ends = [out for out in driver.outputs.values() if isinstance(out, RemoteChannel)]
    waiting = [tuple(end.waiting) if isinstance(end, RemoteBackEdge) else () for end in ends]
    spending = [(end.sent - end.consumed, end.window, end.half_window) for end in ends]
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
    Barrier: lambda barrier: (barrier.epoch, barrier.mode, barrier.patience_ms),
    End: lambda end: (),
    InputRecord: lambda record: (record.channel, record.log, record.ended),
    OutputRecord: lambda record: (record.channel,),
    np.ndarray: lambda array: tuple(array.tolist()),
}
_WHOLE = frozenset((int, str, bytes, bool, float, type(None), type, TaskId, ChannelId, Mode))
"""Kinds that are their own essence."""

_Way = Callable[[Any, type[Any], set[int]], Any]


def essence(thing: Any) -> Any:
    """The part that decides what can happen, in a form that can be hashed and compared, in this process.

    >>> essence({"held": {2, 1}}) == essence({"held": {1, 2}})
    True
    """
    return _essence(thing, set())


def _essence(thing: Any, around: set[int]) -> Any:
    """`around`: the ids of the objects that hold this one."""
    kind: type[Any] = thing.__class__
    if kind in _WHOLE:
        return thing
    if id(thing) in around:
        return "around"
    around.add(id(thing))
    found = (_WAYS.get(kind) or _way_for(thing, kind))(thing, kind, around)
    around.remove(id(thing))
    return found


def _of_all(things: Iterable[Any], around: set[int]) -> list[Any]:
    return [thing if thing.__class__ in _WHOLE else _essence(thing, around) for thing in things]


def _of_dict(thing: dict[Any, Any], kind: type[Any], around: set[int]) -> Any:
    return dict, frozenset(zip(_of_all(thing, around), _of_all(thing.values(), around), strict=True))


def _of_set(thing: Iterable[Any], kind: type[Any], around: set[int]) -> Any:
    return set, frozenset(_of_all(thing, around))


def _of_members(thing: Iterable[Any], kind: type[Any], around: set[int]) -> Any:
    return kind, *_of_all(thing, around)


def _of_iterator(thing: Iterator[Any], kind: type[Any], around: set[int]) -> Any:
    # What it still has to give, which a copy gives in its place.
    return "left", *_of_all(copy(thing), around)


def _of_number(thing: Any, kind: type[Any], around: set[int]) -> Any:
    return kind, _SHARED.number_of(thing, 0)


def _of_attributes(thing: Any, kind: type[Any], around: set[int]) -> Any:
    attributes = thing.__dict__
    return kind, frozenset(zip(attributes, _of_all(attributes.values(), around), strict=True))


def _of_slots(thing: Any, kind: type[Any], around: set[int]) -> Any:
    return kind, *_of_all([getattr(thing, name) for name in kind.__slots__], around)


_WAYS: dict[type, _Way] = {dict: _of_dict, set: _of_set, frozenset: _of_set}
"""How to work out the essence of each kind, as kinds are met."""


def _way_for(thing: Any, kind: type[Any]) -> _Way:
    way = _first_way_for(thing, kind)
    _WAYS[kind] = _noted(way) if _KINDS.get(kind) == 1 else way
    return _WAYS[kind]


def _first_way_for(thing: Any, kind: type[Any]) -> _Way:
    chosen = _ESSENCES.get(kind)
    if chosen is not None:
        return lambda thing, kind, around: (kind, *_of_all(chosen(thing), around))
    if issubclass(kind, (tuple, list, deque)):
        return _of_members
    if issubclass(kind, Iterator):
        return _of_iterator
    if _KINDS.get(kind) == 0 or callable(thing) or issubclass(kind, Enum):
        return _of_number
    return _of_attributes if hasattr(thing, "__dict__") else _of_slots


_NOTED: dict[int, Any] = {}
_NUMBERS: dict[Any, int] = {}


def _noted(way: _Way) -> _Way:
    """For what is shared by its content, and so never changes: a number for its essence, worked out once."""

    def noted(thing: Any, kind: type[Any], around: set[int]) -> Any:
        found = _NOTED.get(id(thing))
        if found is None:
            found = kind, _NUMBERS.setdefault(way(thing, kind, around), len(_NUMBERS))
            if id(thing) in _SHARED.by_identity:  # it is kept, so no other object gets this id
                _NOTED[id(thing)] = found
        return found

    return noted

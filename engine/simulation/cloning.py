"""Copies and fingerprints of a world, by pickling. What never changes (plan, tasks, channels) is shared by reference."""

from __future__ import annotations

import hashlib
import io
import pickle
from typing import Any

from graphs.deployment import Channel, Component, Deployment, Task
from graphs.plan import Edge, Operator, Plan

_SHARED_TYPES = (Plan, Deployment, Task, Channel, Component, Edge, Operator)
_shared: dict[int, Any] = {}


def _look_up(key: int) -> Any:
    return _shared[key]


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any, /) -> Any:
        if isinstance(obj, _SHARED_TYPES):
            _shared[id(obj)] = obj
            return _look_up, (id(obj),)
        return NotImplemented


def dump(state: Any) -> bytes:
    """A copy of the state, as bytes; `load` makes it live."""
    buffer = io.BytesIO()
    _Pickler(buffer, 5).dump(state)
    return buffer.getvalue()


def load(data: bytes) -> Any:
    """The state that `dump` copied."""
    return pickle.loads(data)


def fingerprint(state: Any) -> bytes:
    """Equal for states of equal content. Written without references between parts, so that sharing makes no difference."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, 5)
    pickler.fast = True
    pickler.dump(state)
    return hashlib.blake2b(buffer.getbuffer(), digest_size=16).digest()

"""The items of a channel: data (batches and round markers), barriers, END."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from backedge.graphs.ids import Epoch, TaskId

Path = tuple[int, ...]
"""The nesting path of a round: (3,) is round 3; (3, 0) the first round of the inner iteration within it."""


class Mode(Enum):
    """The policy of one epoch. The barrier carries it, so one run may mix policies.

    A probe is counted but not stored. Probes and snapshots are ordered independently: neither outdates the other.
    """

    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    BETWEEN_ROUNDS = "between_rounds"
    PROBE = "probe"
    UNALIGNED_PROBE = "unaligned_probe"

    def __init__(self, value: str) -> None:
        self.is_probe = value in ("probe", "unaligned_probe")
        self.captures_on_receipt = value in ("unaligned", "unaligned_probe")


class Marker(NamedTuple):
    """The end of round `path` on its channel.

    `contributions` are the measured values of that round, by task. `cut_after` asks every head to capture that epoch
    when the round is complete.
    """

    path: Path
    contributions: tuple[tuple[TaskId, Any], ...] = ()
    cut_after: Epoch | None = None


class Data(NamedTuple):
    """One batch, numbered from 1 in its channel. A round marker is data too: `marker` is what `payload` encodes."""

    seq: int
    payload: Any
    marker: Marker | None = None


new_data: Callable[[tuple[int, Any, Marker | None]], Data] = partial(tuple[Any].__new__, Data)
"""`Data` from its fields, without running Python code as its constructor does: one is made at each end of a channel."""


class Barrier(NamedTuple):
    """Separates data sent before the capture of `epoch` from data sent after it.

    `count` and `digest` are the sender's, over all data of the channel so far. `patience_ms` is how much longer a task
    may wait for its other inputs before it captures past them; None means until all have given the barrier. `base` is
    the cut since which tasks write what changed; None: they write everything.
    """

    epoch: Epoch
    mode: Mode
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    digest: int
    patience_ms: int | None = None
    base: Epoch | None = None


class End(NamedTuple):
    """The end of a channel."""

    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    digest: int


Item = Data | Barrier | End

_MARKER_PREFIX = b"M"


def encode_marker(marker: Marker) -> bytes:
    """Encode a marker as plain values, with a prefix that no encoded batch has."""
    contributions = tuple((tuple(task), value) for task, value in marker.contributions)
    return _MARKER_PREFIX + pickle.dumps((marker.path, contributions, marker.cut_after), protocol=5)


def marker_in(payload: bytes) -> Marker | None:
    """The marker encoded in these verified bytes; None for a batch."""
    if payload[:1] != _MARKER_PREFIX:
        return None
    path, contributions, cut_after = pickle.loads(payload[1:])
    return Marker(path, tuple((TaskId(*task), value) for task, value in contributions), cut_after)


def restored_marker_in(payload: bytes) -> Marker | None:
    """The marker in logged or set-aside bytes, without its request for a cut.

    The request ends with its attempt: no coordinator knows it any more, so the heads would take a cut that no other
    task takes part in, and its barriers would be held for ever.
    """
    marker = marker_in(payload)
    return None if marker is None else marker._replace(cut_after=None)

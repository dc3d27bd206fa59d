"""A capture: the state of a task at one moment, taken at once and encoded piece by piece while the task goes on."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from engine.reading_back import check_reads_back, unreadable_class
from engine.state import Entries, GroupEncoder, StateCapture
from engine.task_errors import MisuseError, serialization_error, unreadable_error
from graphs.ids import Epoch
from recovery.cut import OperatorState, Transaction


@dataclass(slots=True)
class OperatorCapture:
    """What one operator hands over at a capture. What is bytes already is final; the rest is encoded later.

    `values` and `timers` become key groups. `pending` is either encoded, or (record, hops) pairs of records that
    nobody changes while the capture is open. `whole` is named parts of the state that belongs to this task.
    """

    values: StateCapture | None = None
    timers: Sequence[tuple[Any, int, int]] = ()
    splits: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    pending: Sequence[bytes | tuple[Any, int]] = ()
    whole: dict[str, Any] = field(default_factory=dict[str, Any])
    whole_can_move: bool = True
    transactions: tuple[Transaction, ...] = ()
    records: int = 0

    @property
    def keys(self) -> int:
        """How many entries are filed by key group."""
        values = self.values
        return len(self.timers) + (0 if values is None else len(values.entries) + len(values.gone))


class OperatorEncoding:
    """The encoding of one operator's capture, resumed as often as it takes."""

    def __init__(self, operator: str, capture: OperatorCapture) -> None:
        self._operator = operator
        self._capture = capture
        # The task's own parts are few and may be shared with live objects: they are encoded at the capture.
        self._whole = dump(operator, "state", capture.whole) if capture.whole else None
        values = capture.values
        entries, gone = (Entries({}), ()) if values is None else (values.entries, values.gone)
        self._groups = GroupEncoder(operator, entries, capture.timers, gone)
        self._groups_are_done = False
        self._pending: list[bytes] = []

    def encode_some(self, entries_max: int) -> int:
        """Encodes up to so many entries; returns how many there were. Fewer than asked for: all is encoded."""
        count = 0
        if not self._groups_are_done:
            count = self._groups.encode_some(entries_max)
            self._groups_are_done = count < entries_max
        for entry in self._capture.pending[len(self._pending) : len(self._pending) + entries_max - count]:
            count += 1
            what = "a record that waits"
            self._pending.append(entry if isinstance(entry, bytes) else dump(self._operator, what, entry))
        return count

    def state(self) -> OperatorState:
        """The encoded state, once all is encoded."""
        capture = self._capture
        return OperatorState(
            self._groups.groups(),
            dict(sorted(capture.splits.items())),
            tuple(self._pending),
            self._whole,
            capture.whole_can_move,
            capture.transactions,
            capture.records,
        )

    def release(self) -> None:
        """Nothing more will be read of what the capture shares with the live state."""
        if self._capture.values is not None:
            self._capture.values.release()


class Capture:
    """The state of all operators of a task at one moment.

    `encode_some` until it says True, then `states` is there, for any thread; or `discard`.

    base: the capture since which the keyed state is written; None if it is written whole. keys: how many entries it is.
    """

    def __init__(self, captures: Mapping[str, OperatorCapture], base: Epoch | None = None) -> None:
        self.base = base
        self.keys = sum(capture.keys for capture in captures.values())
        self._encoded: dict[str, OperatorEncoding] = {}
        self._encodings = {name: OperatorEncoding(name, capture) for name, capture in captures.items()}

    @property
    def states(self) -> dict[str, OperatorState]:
        """The encoded states of all operators."""
        return {name: encoding.state() for name, encoding in self._encoded.items()}

    @property
    def is_open(self) -> bool:
        """Whether it still shares values with the live state."""
        return bool(self._encodings)

    def encode_some(self, entries_max: int = 1000) -> bool:
        """Encodes up to so many entries. True when all is encoded."""
        left = entries_max
        for name, encoding in list(self._encodings.items()):
            count = encoding.encode_some(left)
            if count >= left:
                return False
            left -= count
            self._encoded[name] = encoding
            encoding.release()
            del self._encodings[name]
        return True

    def discard(self) -> None:
        """Forget it: nobody will ask for its states."""
        for encoding in self._encodings.values():
            encoding.release()
        self._encodings.clear()
        self._encoded.clear()


def dump(operator: str, what: str, value: Any) -> bytes:
    """The bytes of a part of an operator's state, which can be read back."""
    try:
        payload = pickle.dumps(value, 5)
    except Exception as error:
        raise serialization_error(operator, what, error) from error
    try:
        check_reads_back(payload)
    except Exception as error:
        raise unreadable_error(operator, what, unreadable_class(value), error) from error
    return payload


def load_whole(operator: str, state: OperatorState) -> dict[str, Any]:
    """The named parts of `whole`, as `OperatorCapture` holds them."""
    if state.whole is None:
        return {}
    parts: Any = pickle.loads(state.whole)
    if not isinstance(parts, dict):
        raise MisuseError(
            f"operator {operator!r} is restored with a state that no capture made: {type(parts).__name__}"
        )
    return cast("dict[str, Any]", parts)

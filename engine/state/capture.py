"""A capture: the state of a task at one moment, taken at once and encoded piece by piece while the task runs."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from backedge.engine.batches.unpickle_check import check_reads_back, unreadable_class
from backedge.engine.state.keyed_state import Entries, StateCapture, StateEncoder
from backedge.engine.state.tables.table_state import TableCapture
from backedge.graphs.ids import Epoch
from backedge.graphs.task_errors import MisuseError, former_error, serialization_error, unreadable_error
from backedge.recovery.cut.cut import OperatorState, Transaction, Version


class OperatorCapture(Struct):
    """The captured state of one operator. Parts that are bytes are final; the others are encoded later.

    `values` and `timers` are kept by key; so is `table`, whose operator has no others. `pending` holds encoded
    records, or tuples of a record that does not change while the capture is open, its hops, and, for a row of columns,
    their types (`row_types`). `whole` holds, by name, the parts of the state that belong to this task.
    """

    values: StateCapture | None = None
    table: TableCapture | None = None
    timers: Sequence[tuple[Any, float, int]] = ()
    splits: Mapping[str, bytes] = {}
    pending: Sequence[bytes | tuple[Any, ...]] = ()
    whole: dict[str, Any] = {}
    whole_can_move: bool = True
    transactions: tuple[Transaction, ...] = ()
    records: int = 0
    versions: tuple[Version, ...] = ()

    @property
    def keys(self) -> int:
        values = self.values
        if self.table is not None:
            return self.table.keys
        return len(self.timers) + (0 if values is None else len(values.entries) + len(values.gone))


class OperatorEncoding:
    """Encodes one operator's capture piece by piece."""

    def __init__(self, operator: str, capture: OperatorCapture) -> None:
        self._operator = operator
        self._capture = capture
        # The task's own parts are few and may be shared with live objects, so they are encoded at once.
        self._whole = dump(operator, "state", capture.whole) if capture.whole else None
        # Most operators keep nothing by key.
        self._keyed = _encoder_of(operator, capture) if capture.keys else None
        self._keyed_is_done = self._keyed is None
        self._pending: list[bytes] = []

    def encode_some(self, entries_max: int) -> int:
        """Encode up to `entries_max` entries; return how many. If there were fewer, everything is encoded."""
        count = 0
        if self._keyed is not None and not self._keyed_is_done:
            count = self._keyed.encode_some(entries_max)
            self._keyed_is_done = count < entries_max
        for entry in self._capture.pending[len(self._pending) : len(self._pending) + entries_max - count]:
            count += 1
            what = "a record that waits"
            self._pending.append(entry if isinstance(entry, bytes) else dump(self._operator, what, entry))
        return count

    def state(self) -> OperatorState:
        """Return the encoded state. Call it only when everything is encoded."""
        capture = self._capture
        return OperatorState(
            () if self._keyed is None else self._keyed.parts(),
            dict(sorted(capture.splits.items())),
            tuple(self._pending),
            self._whole,
            capture.whole_can_move,
            capture.transactions,
            capture.records,
            versions=capture.versions,
        )

    def release(self) -> None:
        """Stop sharing values with the live state."""
        for shared in (self._capture.values, self._capture.table):
            if shared is not None:
                shared.release()


def _encoder_of(operator: str, capture: OperatorCapture) -> StateEncoder | TableCapture:
    """What encodes the keyed state piece by piece."""
    if capture.table is not None:
        return capture.table
    values = capture.values
    entries, gone = (Entries({}), ()) if values is None else (values.entries, values.gone)
    return StateEncoder(operator, entries, capture.timers, gone)


class Capture:
    """The state of all operators of a task at one moment.

    Call `encode_some` until it returns True; then any thread may read `states`. Or call `discard`.

    - base: the capture relative to which the keyed state is a delta; None if it is complete.
    - keys: number of entries that are kept by key.
    """

    def __init__(self, captures: Mapping[str, OperatorCapture], base: Epoch | None = None) -> None:
        self.base = base
        self.keys = sum(capture.keys for capture in captures.values())
        self._encoded: dict[str, OperatorEncoding] = {}
        self._encodings = {name: OperatorEncoding(name, capture) for name, capture in captures.items()}

    @property
    def states(self) -> dict[str, OperatorState]:
        return {name: encoding.state() for name, encoding in self._encoded.items()}

    @property
    def is_open(self) -> bool:
        """Whether the capture still shares values with the live state."""
        return bool(self._encodings)

    def encode_some(self, entries_max: int = 1000) -> bool:
        """Encode up to `entries_max` entries; return whether everything is encoded."""
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
        """Release the values, and drop what is encoded."""
        for encoding in self._encodings.values():
            encoding.release()
        self._encodings.clear()
        self._encoded.clear()


def dump(operator: str, what: str, value: Any) -> bytes:
    """Pickle a part of an operator's state, and check that it can be read back."""
    try:
        payload = pickle.dumps(value, 5)
    except Exception as error:
        raise serialization_error(operator, what, error) from error
    try:
        check_reads_back(payload)
    except Exception as error:
        raise unreadable_error(operator, what, unreadable_class(value), error) from error
    return payload


def load(operator: str, what: str, payload: bytes) -> Any:
    """Unpickle what `dump` has pickled, perhaps in a run whose program was another one."""
    try:
        return pickle.loads(payload)
    except (MemoryError, OSError):
        raise  # it may be read elsewhere
    except Exception as error:
        raise former_error(operator, what, error) from error


def load_whole(operator: str, state: OperatorState) -> dict[str, Any]:
    """Decode `whole` to its named parts, as `OperatorCapture` holds them."""
    if state.whole is None:
        return {}
    parts = load(operator, "its state", state.whole)
    if not isinstance(parts, dict):
        raise MisuseError(
            f"operator {operator!r} is restored with a state that no capture made: {type(parts).__name__}"
        )
    return cast("dict[str, Any]", parts)

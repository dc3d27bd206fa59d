"""Keyed state of one operator in one task: a dict that can be captured while it changes.

A capture shares its values with the live state and is encoded later, piece by piece. User functions may change values
in place. So while a capture is open, the live state replaces a mutable value by a copy when it is first touched. One
method decides which values are copied: `must_copy`.

Encoded state is in parts whose entries have a key group each, so that groups can be moved without decoding them
(`recovery/cut/keyed_parts.py`). (key, value) is a value, (key, at_ms, hops) a timer. Plain values stay as they are, in
columns; any other entry is pickled on its own.

A capture holds the whole state, or a delta: the changes since an earlier capture, its base. The unit of change is the
key, with its value and all its timers. Every touch counts as a change, even if it only reads a mutable value. Code that
changes a state without the methods of `KeyedState` must note the key (`touched_keys.py`). In a delta, the entry (key,)
means that the key no longer has a value. An object that is stored under two keys and changed through one of them is
written for that key only.

While changes are tracked, what a batch sets waits in a dict of its own, the recent values: it is small, so it stays in
the processor's cache, and its keys are the changed ones, so nothing else notes them. It is put into the values before
anything but such a batch looks at them. A delta takes many recent values as they are, with no look at a large state;
they are put into the values some batches later, some with each batch, so that the capture delays nothing. Those that
have been set again by then are left out, so a flow that sets the same keys again and again puts none into its state.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import length_hint
from typing import Any, NamedTuple

import numpy as np

from backedge.engine.batches.batch import ATOMS, copy_value, is_immutable, separate
from backedge.engine.batches.unpickle_check import check_reads_back, unreadable_class
from backedge.engine.state.spilled_pickles import SpilledPickles
from backedge.engine.state.touched_keys import NothingTracked, TouchedKeys
from backedge.engine.state.typed_state import (
    NO_KEYS,
    NUMBERS,
    Layout,
    Packing,
    TypedEntries,
    groups_and_order,
    integers,
    numbers_at_once,
)
from backedge.graphs.ids import Epoch
from backedge.graphs.routing import NEVER_NAN, canonical_key
from backedge.graphs.task_errors import (
    RecordSerializationError,
    describe,
    former_error,
    serialization_error,
    show,
    unreadable_error,
)
from backedge.recovery.cut.cut import OperatorState, layers
from backedge.recovery.cut.keyed_parts import (
    ITEMS,
    PLAIN_KEYS,
    PLAIN_VALUES,
    Column,
    KeyedPart,
    Kind,
    Pairs,
    Pickles,
    entries_in,
    fits,
    is_plain,
)
from backedge.recovery.stores.store_errors import SnapshotCorruptError

PACKED_AT_ONCE_MAX = 200_000
"""Packing this many entries takes 3 ms; packing a million would delay the task."""

_ENCODED_ENTRIES = 2_000

_MISSING: Any = object()

LAST_STATE = Epoch(0)
"""Epoch of the capture of a task's last state, which does not belong to a single epoch."""


class KeyedState:
    """Values by key. A subclass with another `touched_class` tracks changed keys differently.

    >>> state = KeyedState("count")
    >>> state.values["a"] = [1]
    >>> capture = state.capture()
    >>> state.touch("a").append(2)
    >>> state.values["a"], capture.entries.take(9)
    ([1, 2], (['a'], [[1]]))
    """

    touched_class = TouchedKeys
    merged_at_once_max = 2_000
    """Putting this many recent values into a large state takes half a millisecond."""

    apart_batches = 5
    """For how many batches the values of a delta are not put into the others. Then most have been set again, or few."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self._values: dict[Any, Any] = {}
        # Values that are set since the newest capture, and not in `_values` yet.
        self._recent: dict[Any, Any] = {}
        # Values that the newest capture took as they were, and those of them that are not in `_values` yet. Of a key
        # that several have, the value in `_recent` counts, then that in `_older`.
        self._older: dict[Any, Any] = {}
        self._left: Iterator[tuple[Any, Any]] = iter(())
        # How many batches are left until that begins.
        self._apart_batches = 0
        self._packing = Packing()
        self._open: list[StateCapture] = []
        # Keys whose values are not shared with the newest capture.
        self._own: set[Any] = set()
        self._touched = self.touched_class()

    @property
    def values(self) -> dict[Any, Any]:
        """All values by key. Keep it no longer than a batch takes."""
        if self._older:
            self._take_in_older()
        if self._recent:
            self._take_in_recent()
        return self._values

    @values.setter
    def values(self, values: dict[Any, Any]) -> None:
        self._recent.clear()
        self._older = {}
        self._values = values

    def for_batch(self) -> tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any] | None]:
        """The values, older ones that are not among them yet, and a dict for those that a batch sets.

        Of a key that several have, the value in the last dict counts, then that in the second. No last dict: a batch
        sets values in the first. If `must_touch`, ask `touch_if_needed` instead of the first, and instead of the second
        for a value that is no atom. Call it once per batch.
        """
        touched = self._touched
        if self._apart_batches:
            self._apart_batches -= 1
            if not self._apart_batches and self._older.keys() <= self._recent.keys():
                # Nothing is left to be put into the values: found at once, in a fraction of the time.
                self._older, self._left = {}, iter(())
        elif self._older:
            self._take_in_older(self.merged_at_once_max)
        if len(self._recent) > touched.limit(len(self._values)):
            self._take_in_recent()
        if touched.noting(len(self._values)) is None:
            return self.values, {}, None
        return self._values, self._older, self._recent

    def _take_in_older(self, values_max: int | None = None) -> None:
        recent = self._recent
        self._values.update({key: value for key, value in islice(self._left, values_max) if key not in recent})
        if not length_hint(self._left):
            self._older = {}

    def _take_in_recent(self) -> None:
        self._take_in_older()
        self._values.update(self._recent)
        newest = self._touched.newest
        if newest is not None:
            newest.update(dict.fromkeys(self._recent))
        self._recent.clear()

    @property
    def must_touch(self) -> bool:
        """Whether values must be touched before they are changed, or are not in one dict."""
        return bool(self._open or self._older)

    def has_base(self, base: Epoch) -> bool:
        """Whether the changes since this capture are known and few enough to be written as a delta."""
        self._take_in_few()
        return self._touched.has(base, len(self._values), len(self._recent))

    def _take_in_few(self) -> None:
        if len(self._recent) <= self.merged_at_once_max:
            self._take_in_recent()

    def _hand_over_recent(self) -> None:
        """Have the next delta take the recent values as they are."""
        self._take_in_older()
        self._touched.add(self._recent)
        self._older, self._recent = self._recent, {}
        self._left = iter(self._older.items())
        self._apart_batches = self.apart_batches

    def capture(self, epoch: Epoch = LAST_STATE, base: Epoch | None = None) -> StateCapture:
        """Capture the values that changed since `base`, or all values if the changes are not known."""
        self._take_in_few()
        if self._recent:
            self._hand_over_recent()
        keys = self._touched.capture(epoch, base, len(self._values))
        if keys is None:
            known, self._packing = self._packing.layout, Packing()
            capture = StateCapture(self, Entries(self.values, known, self._packing))
        elif type(None) not in set(map(type, keys.values())):
            capture = StateCapture(self, Entries.of(list(keys), list(keys.values())), keys)
        else:
            values = self.values
            # Decide now, not while encoding, which keys are written and which of them are gone.
            gone: list[Any] = []
            there = list(keys)
            try:
                # Most keys still have a value, and looking them up once waits for memory once.
                changed = list(map(values.__getitem__, there))
            except KeyError:
                gone = [key for key in keys if key not in values]
                there = [key for key in keys if key in values]
                changed = list(map(values.__getitem__, there))
            capture = StateCapture(self, Entries.of(there, changed), keys, gone)
        self._open.append(capture)
        self._own.clear()
        return capture

    def supersedes(self, epoch: Epoch, base: Epoch) -> bool:
        """Whether the delta of this capture holds all keys that the delta of its base holds."""
        return self._touched.supersedes(epoch, base)

    def noting(self) -> None:
        """Stop tracking changes if there are too many. Call it once per batch."""
        self._touched.noting(len(self.values))

    def note(self, key: Any) -> None:
        """Record that the value or a timer of a key changes."""
        newest = self._touched.newest
        if newest is not None:
            newest[key] = None

    def release(self, capture: StateCapture) -> None:
        if capture in self._open:
            self._open.remove(capture)
        if not self._open:
            self._own.clear()

    def touch(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key to a caller that may change it in place."""
        return self._touch(self.values, key, default)

    def _touch(self, values: dict[Any, Any], key: Any, default: Any) -> Any:
        value = values.get(key, default)
        if type(value) not in ATOMS:
            self.note(key)
        if self._open and key not in self._own:
            if key in values and self.must_copy(value):
                value = values[key] = self.own_copy(key, value)
            self._own.add(key)
        return value

    def touch_if_needed(self, key: Any, default: Any = None) -> Any:
        """Like `touch`, but faster for a value of an immutable built-in type. No recent value has this key."""
        value = self._older.get(key, _MISSING)
        if value is _MISSING:
            value = self._values.get(key, default)
        if type(value) in ATOMS:
            return value
        self._take_in_older()
        return self._touch(self._values, key, default)

    def replace(self, key: Any, value: Any) -> None:
        self.values[key] = value
        self.note(key)
        if self._open:
            self._own.add(key)

    def remove(self, key: Any) -> None:
        if key in self.values:
            self.note(key)
            del self.values[key]
            # The keys after it move up, so packed keys no longer match their positions.
            self._packing = Packing()

    def must_copy(self, value: Any) -> bool:
        """Whether a value that a capture shares could be changed in place."""
        return not is_immutable(value)

    def restore(self, values: dict[Any, Any]) -> None:
        """Add restored values, as `keyed_entries` returned them. The dict may become that of the state."""
        if self.values:
            self.values.update(values)
        else:
            self.values = values

    def begin(self, epoch: Epoch) -> None:
        """Declare the restored values to be the whole state of this cut, so that a delta may be relative to it."""
        self._touched.begin(epoch)

    def sent(self, record: Any) -> Any:
        """Separate an outgoing record from the state: the result shares no mutable object with it.

        This is needed for each record, whatever its channel. Even a record that is encoded at the end of its batch
        would show changes that later records of the batch made to the state.
        """
        try:
            return separate(record)
        except Exception as error:
            raise RecordSerializationError(
                f"operator {self.operator!r} sends record {show(record)}, which is copied because it may share objects "
                f"with the state, and it does not pickle ({describe(error)})\n"
                "  send values that pickle; or give the operator copy_output=False, if nothing changes an object "
                "once it was sent"
            ) from error

    def own_copy(self, key: Any, value: Any) -> Any:
        """Copy a key's value, so that the live state may change it."""
        try:
            return copy_value(value)
        except Exception as error:
            raise serialization_error(self.operator, f"a value for key {show(key)}", error) from error


class WholeState(KeyedState):
    """Keyed state whose captures are never deltas."""

    touched_class = NothingTracked


class Entries:
    """Keys and values at one moment, removed piece by piece: freeing a million at once takes as long as a copy.

    `known` holds the first keys, packed by an earlier capture; their positions have not changed since. `packing` keeps
    the packed keys of this capture for the next one. If all keys are known and not too many, and all values are small
    integers, the values are `packed` at once and `take` returns nothing.

    >>> entries = Entries({"a": 1, "b": 2, "c": 3})
    >>> entries.take(2), entries.take(2), entries.take(2)
    ((['a', 'b'], [1, 2]), (['c'], [3]), ([], []))
    """

    def __init__(self, values: dict[Any, Any], known: Layout = NO_KEYS, packing: Packing | None = None) -> None:
        self.known = known
        self.packing = packing
        are_all_known = len(known.keys) == len(values) <= PACKED_AT_ONCE_MAX
        self.packed = numbers_at_once(list(values.values())) if are_all_known else None
        self._place = 0
        left = values if self.packed is None else {}
        # In reverse order, because removing entries at the end of a list moves no others.
        self._values = list(reversed(left.values()))
        self._keys = list(islice(reversed(left), max(0, len(left) - len(known.keys))))

    @classmethod
    def of(cls, keys: list[Any], values: list[Any]) -> Entries:
        """The entries of these keys with these values.

        >>> Entries.of(["a", "b"], [1, 2]).take(9)
        (['a', 'b'], [1, 2])
        """
        entries = cls({})
        entries._keys, entries._values = keys[::-1], values[::-1]
        return entries

    def __len__(self) -> int:
        """Number of entries that are left, or packed at once."""
        return len(self._values) if self.packed is None else len(self.packed)

    def take(self, entries_max: int) -> tuple[list[Any] | Column, list[Any]]:
        """Take the next entries, at most `entries_max`, in order of the mapping. Keys are packed if all are known."""
        values = _take_off(self._values, entries_max)
        known = self.known.keys[self._place : self._place + len(values)]
        self._place += len(values)
        if len(known) and len(known) == len(values):
            return known, values
        return [*known.tolist(), *_take_off(self._keys, len(values) - len(known))], values


def _take_off(entries: list[Any], count: int) -> list[Any]:
    """Remove the last entries of a list; return them, the last one first."""
    start = max(0, len(entries) - count)
    taken = entries[start:]
    del entries[start:]
    taken.reverse()
    return taken


class StateCapture:
    """The values at one moment. It must be released.

    `keys` are the changed keys of a delta, some with their values, and `gone` those that have no value. In a capture of
    the whole state `keys` is None.
    """

    def __init__(
        self, state: KeyedState, entries: Entries, keys: Mapping[Any, Any] | None = None, gone: Sequence[Any] = ()
    ) -> None:
        self._state = state
        self.entries = entries
        self.keys = keys
        self.gone = gone

    def release(self) -> None:
        self._state.release(self)


class StateEncoder:
    """Encodes values, then keys without a value, then timers, some entries at a time."""

    def __init__(
        self, operator: str, entries: Entries, timers: Iterable[tuple[Any, ...]] = (), gone: Iterable[Any] = ()
    ) -> None:
        self._operator = operator
        self._entries = entries
        self._others = chain(((key,) for key in gone), timers)
        self._typed = TypedEntries(entries.known, entries.packing)
        self._pairs: list[Pairs] = []
        self._pickles = SpilledPickles()
        if entries.packed is not None:
            self._typed.add_all(entries.packed)

    def encode_some(self, entries_max: int) -> int:
        """Encode up to `entries_max` entries; return how many. If there were fewer, everything is encoded."""
        keys, values = self._entries.take(entries_max)
        if values and not self._typed.add(keys, values):
            self._encode_values(keys if isinstance(keys, list) else keys.tolist(), values)
        others = list(islice(self._others, entries_max - len(values)))
        gone = [entry for entry in others if len(entry) == 1]
        self._pickle("gone", gone)
        self._pickle("timer", others[len(gone) :])
        return len(values) + len(others)

    def _encode_values(self, keys: list[Any], values: list[Any]) -> None:
        """Encode values that are not all numbers: plain ones by their types, and the others pickled."""
        kinds: set[type[Any]] = {*map(type, values)}
        if PLAIN_VALUES.isdisjoint(kinds):
            self._pickle("value", list(zip(keys, values, strict=True)))
            return
        if len({*map(type, keys)}) == len(kinds) == 1 and _are_plain(keys, values):
            self._add_plain(keys, values)
            return
        plain: dict[Any, list[tuple[Any, Any]]] = {}
        pickled: list[tuple[Any, Any]] = []
        for key, value in zip(keys, values, strict=True):
            if type(value) in PLAIN_VALUES and is_plain(key) and fits(value):
                types: Any = type(key), type(value)
                plain.setdefault(types, []).append((key, value))
            else:
                pickled.append((key, value))
        for entries in plain.values():
            self._add_plain(*map(list, zip(*entries, strict=True)))
        self._pickle("value", pickled)

    def _add_plain(self, keys: list[Any], values: list[Any]) -> None:
        """Add entries whose keys are of one type, and whose values are."""
        if type(values[0]) not in NUMBERS or not self._typed.add(keys, values):
            groups, order, shown = _by_group(keys)
            self._pairs.append(Pairs(groups, shown, list(map(values.__getitem__, order))))

    def _pickle(self, kind: Kind, entries: list[tuple[Any, ...]]) -> None:
        if not entries:
            return
        groups, order, keys = _by_group([entry[0] for entry in entries])
        payloads = list(map(self._payload, entries))
        starts = np.zeros(len(order) + 1, np.int64)
        np.cumsum([len(payloads[place]) for place in order], out=starts[1:])
        shown = [key if is_plain(key) else None for key in keys] if isinstance(keys, list) else keys
        times = [entries[place][1] for place in order] if kind == "timer" else []
        times = [at_ms if type(at_ms) is int and fits(at_ms) else None for at_ms in times]
        data = b"".join(map(payloads.__getitem__, order))
        self._pickles.add(Pickles(kind, groups, starts, data, shown, times))

    def _payload(self, entry: tuple[Any, ...]) -> bytes:
        try:
            # One pickle per entry: equal entries give equal bytes, even if they share objects with other entries.
            payload = pickle.dumps(entry, 5)
        except Exception as error:
            raise serialization_error(self._operator, f"a value for key {show(entry[0])}", error) from error
        try:
            check_reads_back(payload)
        except Exception as error:
            what = f"a value for key {show(entry[0])}"
            raise unreadable_error(self._operator, what, unreadable_class(entry[:2]), error) from error
        return payload

    def parts(self) -> tuple[KeyedPart, ...]:
        return (*self._typed.parts(), *self._pairs, *self._pickles.parts)


def _are_plain(keys: list[Any], values: list[Any]) -> bool:
    """Whether keys of one type and values of one type can be stored as they are."""
    return type(keys[0]) in PLAIN_KEYS and type(values[0]) in PLAIN_VALUES and _all_fit(keys) and _all_fit(values)


def _all_fit(column: list[Any]) -> bool:
    if isinstance(column[0], int):
        return integers(column) is not None
    return not isinstance(column[0], str) or all(map(str.isascii, column)) or all(map(fits, column))


def _by_group(keys: list[Any]) -> tuple[Column, list[int], Column | list[Any]]:
    """The groups of some keys, in order, the position of the key of each, and the key; integers in a column."""
    column = integers(keys)
    groups, order = groups_and_order(keys if column is None else column)
    places = order.tolist()
    return groups, places, list(map(keys.__getitem__, places)) if column is None else column[order]


def encode_entries(
    operator: str, values: dict[Any, Any], timers: Iterable[tuple[Any, ...]] = (), gone: Iterable[Any] = ()
) -> tuple[KeyedPart, ...]:
    """Encode values, timers and keys without a value at once.

    >>> from backedge.recovery.cut.keyed_parts import entries_of
    >>> entries_of(encode_entries("count", {"a": 1}, [("a", 50, 0)]))
    [('a', 1), ('a', 50, 0)]
    """
    encoder = StateEncoder(operator, Entries(values), timers, gone)
    while encoder.encode_some(_ENCODED_ENTRIES) == _ENCODED_ENTRIES:
        continue
    return encoder.parts()


class KeyedEntries(NamedTuple):
    """The values and timers of a state, and the keys without a value that its layers name, in order.

    A timer is (key, at_ms, hops).
    """

    values: dict[Any, Any]
    timers: list[tuple[Any, float, int]]
    gone: dict[Any, None]


def keyed_entries(state: OperatorState, operator: str = "") -> KeyedEntries:
    """Decode what a state keeps by key. For each key the last layer that names it counts. An error names `operator`.

    If the first layer is a delta as well, a layer below it may have a value for a key in `gone`.

    >>> older, newer = encode_entries("count", {"a": 1}, gone=["b"]), encode_entries("count", {"b": 2}, gone=["a"])
    >>> keyed_entries(OperatorState(older, deltas=(newer,)))
    KeyedEntries(values={'b': 2}, timers=[], gone={'a': None})
    """
    found = KeyedEntries({}, [], {})
    for parts in layers(state):
        # From a store, at most one file is in memory beside the entries.
        decoded: Iterable[tuple[Kind, Iterable[tuple[Any, ...]]]] = (_decoded(part, operator) for part in parts)
        if found.timers or found.gone:
            # The unit of change is the key: what a layer names replaces all that the layers below have of it.
            decoded = [(kind, list(entries)) for kind, entries in decoded]
            changed = {entry[0] for _, entries in decoded for entry in entries}
            found.timers[:] = [timer for timer in found.timers if timer[0] not in changed]
            for key in found.gone.keys() & changed:
                del found.gone[key]
        for kind, entries in decoded:
            _add(kind, entries, found)
    return found


def _decoded(part: KeyedPart, operator: str) -> tuple[Kind, Iterable[tuple[Any, ...]]]:
    """The entries of a part, which are of one kind."""
    if not isinstance(part, Pickles):
        return "value", entries_in(part)
    try:
        entries = list(entries_in(part))
    except (MemoryError, OSError):
        raise  # it may be read elsewhere
    except Exception as error:
        raise former_error(operator, f"a {part.kind} by key", error) from error
    if not {*map(len, entries)} <= {ITEMS[part.kind]}:
        raise SnapshotCorruptError(
            f"an entry of a state that is filed as {part.kind!r} has another form: its file was written by a program "
            "that is wrong, or forged; resume from an older cut"
        )
    if {type(entry[0]) for entry in entries} <= NEVER_NAN:
        return part.kind, entries
    return part.kind, [(canonical_key(entry[0]), *entry[1:]) for entry in entries]


def _add(kind: Kind, entries: Iterable[Any], found: KeyedEntries) -> None:
    match kind:
        case "value":
            found.values.update(entries)
        case "timer":
            found.timers.extend(entries)
        case "gone":
            for (key,) in entries:
                found.gone[key] = None
                found.values.pop(key, None)

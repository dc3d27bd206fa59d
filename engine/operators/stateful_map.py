"""stateful_map: a record and the state of its key give a record and the key's next state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backedge.engine.batches.batch import ATOMS, Hops, copy_records, copy_value, is_immutable
from backedge.engine.operators.base import OperatorRuntime, Place, pick, try_each
from backedge.engine.operators.sending import TakeRecords, key_failure
from backedge.graphs.kinds import StatefulMap
from backedge.graphs.plan import Edge
from backedge.graphs.routing import NEVER_NAN, canonical_key
from backedge.graphs.task_errors import (
    NO_KEY,
    USER_RAISED,
    TaskError,
    UserFunctionError,
    serialization_error,
    user_error,
    user_frames,
)

_MISSING: Any = object()
_NOT_RECENT: Any = object()


def _as_it_is(record: Any) -> Any:
    """For users who promise that nothing changes an object once it was sent."""
    return record


class StatefulMapOperator(OperatorRuntime):
    """Keeps one value a key. The user's function may change it in place, and return a part of it as the record."""

    def __init__(self, kind: StatefulMap, place: Place) -> None:
        super().__init__(place)
        self._function = kind.function
        self._send = self.send_to("out")
        self._state = self.keyed_values()
        initial = kind.initial
        # The initial value, shared by all keys if it is immutable; otherwise each key gets its own copy.
        self._default = initial if is_immutable(initial) else _MISSING
        self._initial = self._fresh_values(initial)
        self._sent: Callable[[Any], Any] = self._state.sent if kind.copy_output else _as_it_is

    def accept(self, edge: Edge) -> TakeRecords:
        key = self.by_of(edge)
        if self.sets_aside:
            return lambda records, hops: self._run_carefully(records, hops, key, edge)
        return lambda records, hops: self._run(records, hops, key, edge)

    def _run(self, records: list[Any], hops: Hops, key_of: Callable[[Any], Any], edge: Edge) -> None:
        function, default, state, sent = self._function, self._default, self._state, self._sent
        values, older, recent = state.for_batch()
        # While a capture is open, a value is touched before the user's function may change it. Chosen once a batch.
        get = state.touch_if_needed if state.must_touch else values.get
        changed = values if recent is None else recent
        # The values that the function may get without a further look.
        seen = {} if recent is None and state.must_touch else changed
        get_seen, get_older = seen.get, older.get
        results: list[Any] = []
        key: Any = NO_KEY
        # The types last seen of keys that are no NaN, and of values that share nothing: a look at them is cheaper than
        # at the sets of all such types, and in one flow they are mostly the same.
        plain_key: type[Any] | None = None
        atom: type[Any] | None = None
        try:
            # While each key has such a value, there is less to do than in the second loop. What follows the function
            # stands in both: a call for each record would take longer than the first loop saves.
            for record in records if seen else ():
                key = NO_KEY  # where `key_of` raises there is none to tell of
                key = key_of(record)
                try:
                    value = seen[key]
                except KeyError:
                    break
                value, result = function(value, record)
                changed[key] = value
                # What is sent belongs to the receiver. It can share objects only with a value that has some.
                if type(value) is not atom:
                    if type(value) in ATOMS:
                        atom = type(value)  # pyright: ignore[reportUnknownVariableType]
                    elif type(result) not in ATOMS and not is_immutable(value):
                        result = sent(result)
                results.append(result)
            for record in records[len(results) :]:
                # Not again for the record that ended the first loop: the function may have changed it.
                if key is NO_KEY:
                    key = key_of(record)
                if type(key) is not plain_key:
                    if type(key) in NEVER_NAN:
                        plain_key = type(key)  # pyright: ignore[reportUnknownVariableType]
                    else:
                        key = canonical_key(key)
                value = get_seen(key)
                # Few values are None: telling them apart by a default would cost more.
                if value is None and key not in seen:
                    value = get_older(key, _NOT_RECENT)
                    if type(value) not in ATOMS:
                        value = get(key, default)
                        if value is _MISSING:
                            value = self._initial()
                value, result = function(value, record)
                changed[key] = value
                if type(value) is not atom:
                    if type(value) in ATOMS:
                        atom = type(value)  # pyright: ignore[reportUnknownVariableType]
                    elif type(result) not in ATOMS and not is_immutable(value):
                        result = sent(result)
                results.append(result)
                key = NO_KEY
        except USER_RAISED as error:
            raise self._failure_with_key(error, records[len(results)], key, edge) from error
        self._send(results, hops)

    def _run_carefully(self, records: list[Any], hops: Hops, key_of: Callable[[Any], Any], edge: Edge) -> None:
        arrived = copy_records(records)
        self._state.noting()

        def step(record: Any) -> Any:
            key: Any = NO_KEY
            try:
                key = key_of(record)
                key = canonical_key(key)
                value = self._state.values.get(key, _MISSING)
            except USER_RAISED as error:
                # With more than one task, its sender would have failed.
                raise key_failure(edge, key, record, error) or error from error
            # A copy: what a call changes before it raises must not stay.
            if value is _MISSING:
                value = self._initial()
            elif not is_immutable(value):
                value = self._state.own_copy(key, value)
            value, result = self._function(value, record)
            self._state.replace(key, value)
            return result if is_immutable(value) else self._sent(result)

        results, passed, failed = try_each(step, records)
        if results:
            self._send(results, pick(hops, passed))
        self.send_dead(arrived, hops, failed)

    def _fresh_values(self, initial: Any) -> Callable[[], Any]:
        """A function that gives each new key a value of its own."""
        if is_immutable(initial):
            return lambda: initial
        try:
            copy_value(initial)
        except Exception as error:
            raise serialization_error(self.name, "an initial value", error) from error
        return lambda: copy_value(initial)

    def _failure_with_key(self, error: BaseException, record: Any, key: Any, edge: Edge) -> TaskError:
        if isinstance(error, TaskError):
            return error
        if (failure := key_failure(edge, key, record, error)) is not None:
            return failure
        if isinstance(error, TypeError | ValueError) and "unpack" in str(error) and not user_frames(error):
            return UserFunctionError(
                f"operator {self.name!r}: the function of a stateful_map returned no pair ({error})\n"
                "  return (state, record): the key's next state, and what is sent on",
                self.name,
            )
        return user_error(self.name, error, record, key)

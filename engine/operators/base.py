"""The runtime of an operator: where it stands, and what a task asks of it.

The built-in operators subclass `OperatorRuntime` like one from another package does; docs/extending.md shows how. An
operator takes batches through the functions that `accept` (or `door`) returns, one for each edge that leads to it, and
hands its output to the `Send` of an output. Choose the path there, per batch and not per record: most operators have a
quick one, and a careful one for on_error="dead_letter".
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import length_hint
from types import CoroutineType
from typing import Any, cast

from engine.answering import Call
from engine.batch import Hops, uniform
from engine.capture import Capture, OperatorCapture
from engine.extraction import key_function
from engine.sending import Send, TakeRecords, drop, taking_records
from engine.services import Services
from engine.state import KeyedState, keyed_entries
from engine.task_errors import USER_RAISED, MisuseError, TaskError, raise_unless_users, show, user_error
from graphs.ids import Attempt, Epoch, TaskId
from graphs.plan import Edge, Operator, Routing
from graphs.routing import NEVER_NAN, canonical_key
from recovery.cut import OperatorState


@dataclass(slots=True)
class Moment:
    """What a task knows of time: the driver's clock, and the round that it is in, if it is inside an iteration."""

    now_ms: int = 0
    round: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operator runs, and what it may use.

    - operator: the node of the plan, with its name, kind and keys. task: the operator's name and the task's index.
    - parallelism: the number of tasks. moment: the clock and the round of an iteration, kept up to date by the task.
    - seed: the run's, for random numbers that are the same in each attempt.
    - sends, captures, call_ids, services, keyed_state: for the methods of `OperatorRuntime`, which are easier to use.
    """

    operator: Operator
    task: TaskId
    parallelism: int
    sends: Mapping[str, Send]
    moment: Moment
    captures: list[Capture]
    call_ids: Iterator[int]
    services: Services
    seed: int
    keyed_state: type[KeyedState]


class OperatorRuntime:
    """One operator in one task; `OperatorKind.start` makes it. What is defined here suits one without hooks.

    Exactly once holds for what is in the values by key (`keyed_values`) and in what `capture_own` returns; every other
    attribute is lost in a restore. Methods are called one at a time. A task that has raised is not used again: a
    `TaskError` fails the run, any other exception counts as the death of the process, and the run goes on from its
    last cut.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.name = place.operator.name
        self.sets_aside = place.operator.kind.sets_aside
        self._send_dead = self.send_to("dead")
        self._values: KeyedState | None = None

    # -- records --------------------------------------------------------------------------------------------------

    def send_to(self, output: str) -> Send:
        """The `Send` of an output; one that nobody reads drops its records."""
        return self.place.sends.get(output, drop)

    def outputs(self) -> list[tuple[str, Send]]:
        """The outputs that user code sends to, each with its `Send`; those for dead letters are not among them."""
        names = [name for name in self.place.operator.outputs if name != "dead" and not name.startswith("dead:")]
        return [(name, self.send_to(name)) for name in names]

    def accept(self, edge: Edge) -> TakeRecords:
        """The function that takes the batches of an edge: a list of records, and how often they have gone round loops.

        The records belong to the operator from then on, which may change them. Hops are one int, or one for each
        record: hand on those of the records that an output comes from.
        """
        raise NotImplementedError(f"{type(self).__name__} takes no records")

    def door(self, edge: Edge) -> Send:
        """Like `accept`, for an operator that takes columns (a `Columns`) too. Here columns become records."""
        return taking_records(self.accept(edge))

    def key_of(self, edge: Edge) -> Callable[[Any], Any]:
        """The function that gives the key of a record that comes over this edge, whose input is keyed."""
        by = key_function(edge.by if edge.routing is Routing.HASH else self.place.operator.keys.get(edge.input))

        def key_of(record: Any) -> Any:
            key = by(record)
            return key if type(key) in NEVER_NAN else canonical_key(key)

        return key_of

    def send_some(self, send: Send, records: list[Any], hops: Hops, positions: list[int]) -> None:
        """Send the records at these positions, if there are any."""
        if positions:
            send([records[position] for position in positions], pick(hops, positions))

    # -- state ----------------------------------------------------------------------------------------------------

    def keyed_values(self) -> KeyedState:
        """Values by key, which are in every snapshot and move by key group to another number of tasks.

        Call `touch(key)` for a value that is to be changed in place, and `replace(key, value)`.
        """
        if self._values is None:
            self._values = self.place.keyed_state(self.name)
        return self._values

    def capture_own(self) -> Any:
        """The state of the task beside its values by key; None: it has none. It is pickled at once."""
        return None

    def restore_own(self, state: Any) -> None:
        """Take back what `capture_own` returned."""
        raise NotImplementedError(f"{type(self).__name__} has capture_own and no restore_own")

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        """Get ready, fresh or with the state of a capture, whose `whole` is decoded already."""
        if state is not None and self._values is not None:
            self._values.restore(keyed_entries(state).values)
        if "own" in whole:
            self.restore_own(whole["own"])

    @property
    def keyed_state(self) -> KeyedState | None:
        """The values by key that are written by key, if there are any."""
        return self._values

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> OperatorCapture:
        """The state at this moment; of what is kept by key only what changed since `base`, if one is named."""
        capture = OperatorCapture(values=None if self._values is None else self._values.capture(epoch, base))
        own = self.capture_own()
        if own is not None:
            capture.whole["own"] = own
            capture.whole_can_move = self.place.operator.kind.can_move
        return capture

    # -- life -----------------------------------------------------------------------------------------------------

    def on_round_end(self, path: tuple[int, ...]) -> None:
        """A round of an iteration is complete at this task."""

    def end(self) -> None:
        """Nothing will come any more; what is sent here is the last. Not called again in a restored run."""

    def close(self) -> None:
        """The task is over, well or not: close files and connections."""

    # -- errors ---------------------------------------------------------------------------------------------------

    def close_instance(self, instance: Any) -> None:
        """Call `close` of an instance of the user's class. What it raises is told, and changes nothing any more."""
        if hasattr(instance, "close"):
            try:
                instance.close()
            except USER_RAISED as error:  # the task is over, and may have failed for a reason of its own
                print(user_error(self.name, error, hook="close", can_set_aside=False), file=sys.stderr)

    def failure(self, error: BaseException, records: list[Any], iterator: Iterator[Any], hook: str = "") -> TaskError:
        """The error to raise when user code raised while `iterator` went over the records of a batch."""
        if isinstance(error, TaskError):
            return error
        failed_at = len(records) - length_hint(iterator) - 1
        return user_error(self.name, error, records[failed_at], hook=hook)

    def send_dead(self, records: list[Any], hops: Hops, positions: list[int]) -> None:
        """Sets aside the records at these positions."""
        if positions:
            self._send_dead([records[position] for position in positions], pick(hops, positions))


class TimedRuntime(OperatorRuntime, ABC):
    """An operator that does something at a time, by the clock `place.moment.now_ms`."""

    @property
    @abstractmethod
    def next_timer_ms(self) -> int | None:
        """When to call `fire_timers` next; None: not at all."""

    @abstractmethod
    def fire_timers(self, now_ms: int) -> None:
        """Do what is due by now."""

    @property
    def restored_ms(self) -> int:
        """The time of the snapshot that was restored, behind which the clock must not fall; 0: there is none."""
        return 0


class CallingRuntime(OperatorRuntime, ABC):
    """An operator that calls something outside, many at a time; the driver makes the calls and brings the answers.

    Its kind has `calls_max`. Keep the records that wait for an answer in the state, to be asked again after a restore.
    """

    waiting: dict[int, bytes]
    """The calls that have no answer yet: an id of `next(place.call_ids)`, and the pickled record."""

    @abstractmethod
    def call(self, call_id: int) -> Call:
        """The function to call, the record to call it with, and the limit in seconds."""

    @abstractmethod
    def on_answer(self, call_id: int, result: Any, error: BaseException | None) -> None:
        """A call has answered or failed: send on, set aside, or raise."""


def is_true(operator: str, record: Any, result: Any) -> bool:
    """Whether what a function returned for a record is true. Refuses a coroutine, which is always true.

    Called for results that are neither True nor False, so that most records cost no call.
    """
    if hasattr(result, "__await__"):
        if isinstance(result, CoroutineType):
            cast("CoroutineType[Any, Any, Any]", result).close()
        raise MisuseError(
            f"operator {operator!r}: the function returned {show(result)} for record {show(record)}, but nothing would "
            "await it, so every record would count as true: make such calls with map_async, then filter or split"
        )
    return bool(result)


def try_each(function: Callable[[Any], Any], records: list[Any]) -> tuple[list[Any], list[int], list[int]]:
    """What the function gives for each record, the positions of these records, and of those where it raised."""
    results: list[Any] = []
    passed: list[int] = []
    failed: list[int] = []
    for position, record in enumerate(records):
        try:
            result = function(record)
        except TaskError:
            raise
        except USER_RAISED as error:  # the user asked for it: such a record goes to the dead letters
            raise_unless_users(error)
            failed.append(position)
        else:
            results.append(result)
            passed.append(position)
    return results, passed, failed


def pick(hops: Hops, positions: list[int]) -> Hops:
    """The hops of the records at these positions, of which there is at least one."""
    return hops if isinstance(hops, int) else uniform([hops[position] for position in positions])

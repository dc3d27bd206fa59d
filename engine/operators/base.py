"""The runtime of an operator: its place in the run, and the methods that a task calls.

Built-in operators subclass `OperatorRuntime` just like those of another package; docs/extending.md shows how. An
operator gets its batches through the functions that `accept` (or `door`) returns, one for each incoming edge, and
passes its output to the `Send` of an output. Choose the path there, per batch and not per record: most operators have a
fast path, and a careful one for on_error="dead_letter".
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import length_hint
from types import CoroutineType
from typing import Any, cast

from backedge.engine.batches.batch import Hops, uniform
from backedge.engine.operators.async_calls import Call
from backedge.engine.operators.meters import Meters
from backedge.engine.operators.sending import Send, TakeRecords, drop, key_failure, key_function, taking_records
from backedge.engine.operators.services import Services
from backedge.engine.state.capture import Capture, OperatorCapture
from backedge.engine.state.keyed_state import KeyedState, keyed_entries
from backedge.engine.state.tables.table_state import TableState
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.plan import Edge, Operator, Routing
from backedge.graphs.public import public
from backedge.graphs.routing import NEVER_NAN, canonical_key
from backedge.graphs.task_errors import (
    NO_KEY,
    USER_RAISED,
    MisuseError,
    TaskError,
    raise_unless_users,
    show,
    user_error,
)
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.protocol.answers import Known, Question


@dataclass(slots=True)
class Moment:
    """A task's present: the driver's clock, and the current round if the task is inside an iteration."""

    now_ms: int = 0
    round: tuple[int, ...] | None = None


@public
@dataclass(frozen=True, slots=True)
class Place:
    """The place of an operator in a run, and the resources that it may use.

    - operator: the node of the plan, with its name, kind and keys. task: the operator's name and the task's index.
    - parallelism: the number of tasks. sizes: that of each operator.
    - moment: the clock and the round of an iteration, updated by the task.
    - seed: the seed of the run, for random numbers that are the same in each attempt.
    - sends, captures, call_ids, services, keyed_state: used by the methods of `OperatorRuntime`, which are simpler to
      use.
    """

    operator: Operator
    task: TaskId
    parallelism: int
    sizes: Mapping[str, int]
    sends: Mapping[str, Send]
    moment: Moment
    captures: list[Capture]
    call_ids: Iterator[int]
    services: Services
    seed: int
    keyed_state: type[KeyedState]


@public
class OperatorRuntime:
    """One operator in one task, created by `OperatorKind.start`. The defaults suit an operator without hooks.

    Exactly once holds for the values by key (`keyed_values`) and for what `capture_own` returns; all other attributes
    are lost in a restore. Methods are called one at a time. A task that has raised is not used again: a `TaskError`
    fails the run; any other exception counts as the death of the process, and the run resumes from its last cut.
    """

    meters: Meters | None = None
    """What the user's class counts, or the engine of an operator that calls outside."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.name = place.operator.name
        self.sets_aside = place.operator.kind.sets_aside
        self._send_dead = self.send_to("dead")
        self._values: KeyedState | None = None

    # -- records --------------------------------------------------------------------------------------------------

    def send_to(self, output: str) -> Send:
        """The `Send` of an output; if nothing reads the output, its records are dropped."""
        return self.place.sends.get(output, drop)

    def outputs(self) -> list[tuple[str, Send]]:
        """The outputs that user code sends to, each with its `Send`; outputs for dead letters are excluded."""
        names = [name for name in self.place.operator.outputs if name != "dead" and not name.startswith("dead:")]
        return [(name, self.send_to(name)) for name in names]

    def accept(self, edge: Edge) -> TakeRecords:
        """Return the function that takes the batches of an edge: a list of records, and their hops (trips round loops).

        The operator owns the records from then on and may change them. Hops are one int, or one per record; pass the
        hops of a record on to the outputs that come from it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no accept(edge): return a function that takes records")

    def door(self, edge: Edge) -> Send:
        """Like `accept`, for an operator that also takes `Columns`. The default converts columns to records."""
        return taking_records(self.accept(edge))

    def key_of(self, edge: Edge) -> Callable[[Any], Any]:
        """Return the function that extracts the key of a record from this edge, whose input is keyed.

        If there is none, it raises a `TaskError`, as the sender does if there are several tasks.
        """
        by = self.by_of(edge)

        def key_of(record: Any) -> Any:
            key: Any = NO_KEY
            try:
                key = by(record)
                return key if type(key) in NEVER_NAN else canonical_key(key)
            except USER_RAISED as error:
                raise key_failure(edge, key, record, error) or error from error

        return key_of

    def by_of(self, edge: Edge) -> Callable[[Any], Any]:
        """Return the function of the key that the user gave; `key_of` also makes every NaN the same key."""
        return key_function(edge.by if edge.routing is Routing.HASH else self.place.operator.keys.get(edge.input))

    def send_some(self, send: Send, records: list[Any], hops: Hops, positions: list[int]) -> None:
        """Send the records at these positions, if there are any."""
        if positions:
            send([records[position] for position in positions], pick(hops, positions))

    # -- state ----------------------------------------------------------------------------------------------------

    def keyed_values(self) -> KeyedState:
        """The values by key. They are part of every snapshot and move by key group to another number of tasks.

        Call `touch(key)` before changing a value in place, and `replace(key, value)` for a new one.
        """
        if self._values is None:
            self._values = self.place.keyed_state(self.name)
        return self._values

    def capture_own(self) -> Any:
        """The task's state in addition to its values by key; None if it has none. It is pickled at once."""
        return None

    def restore_own(self, state: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} has capture_own but no restore_own: add it")

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        """Prepare to run, fresh or with the state of a capture, whose `whole` is already decoded."""
        if state is not None and self._values is not None:
            self._values.restore(keyed_entries(state, self.name).values)
        if "own" in whole:
            self.restore_own(whole["own"])

    @property
    def keyed_state(self) -> KeyedState | TableState | None:
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
        """No more input will arrive; this is the last chance to send. Not called again in a restored run."""

    def close(self) -> None:
        """The task is over, whether it succeeded or failed: close files and connections."""

    # -- errors ---------------------------------------------------------------------------------------------------

    def close_instance(self, instance: Any) -> None:
        """Call `close` of an instance of the user's class. An exception is printed and has no other effect."""
        if hasattr(instance, "close"):
            try:
                instance.close()
            except USER_RAISED as error:  # the task is over, and may have failed for another reason
                print(user_error(self.name, error, hook="close", can_set_aside=False), file=sys.stderr)

    def failure(self, error: BaseException, records: list[Any], iterator: Iterator[Any], hook: str = "") -> TaskError:
        """The error to raise when user code raised while `iterator` was going through the records of a batch."""
        if isinstance(error, TaskError):
            return error
        failed_at = len(records) - length_hint(iterator) - 1
        return user_error(self.name, error, records[failed_at], hook=hook)

    def send_dead(self, records: list[Any], hops: Hops, positions: list[int]) -> None:
        """Send the records at these positions to the dead letters."""
        self.send_some(self._send_dead, records, hops, positions)


@public
class TimedRuntime(OperatorRuntime, ABC):
    """An operator that acts at certain times, on the clock `place.moment.now_ms`."""

    @property
    @abstractmethod
    def next_timer_ms(self) -> int | None:
        """When to call `fire_timers` next; None for never."""

    @abstractmethod
    def fire_timers(self, now_ms: int) -> None:
        """Do what is due."""

    @property
    def restored_ms(self) -> int:
        """The time of the restored snapshot, which the clock must not precede; 0 if there is none."""
        return 0


class ReadingRuntime(OperatorRuntime, ABC):
    """An operator that reads splits, or finds them for others.

    - sent: how many records it has read and sent.
    """

    sent = 0

    @property
    @abstractmethod
    def exhausted(self) -> bool:
        """Whether there is nothing to read; of an operator without inputs, whether there never will be."""

    @property
    def has_unread(self) -> bool:
        return not self.exhausted

    @abstractmethod
    def produce(self, records_max: int) -> None:
        """Read and send one batch, if there is anything to read."""


@public
class CallingRuntime(OperatorRuntime, ABC):
    """An operator that makes external calls, many at a time; the driver makes the calls and delivers the answers.

    Its kind has `calls_max`. Keep records that wait for an answer in the state, so that a restored run calls again.
    """

    waiting: dict[int, bytes]
    """The calls without an answer: an id from `next(place.call_ids)`, and the pickled record."""

    @abstractmethod
    def call(self, call_id: int) -> Call:
        """The function to call, the record to call it with, and the limit in seconds."""

    @abstractmethod
    def on_answer(self, call_id: int, result: Any, error: BaseException | None) -> None:
        """A call has returned or failed: send, set aside, or raise."""

    def question(self, call_id: int) -> Question | None:
        """The name of a question whose answer is kept."""
        return None

    def is_over_budget(self, call_id: int) -> bool:
        """Whether the record is set aside, because its key may not spend more."""
        return False

    def has_answer(self, call_id: int) -> bool:
        """Whether the answer is known, so that no call is made. It is sent when the journal has it."""
        return False

    def keep(self, call_id: int, result: Any, error: BaseException | None) -> Known | None:
        """What the journal must have before the answer of a call is sent; None: send it now, or drop it."""
        return None

    def keep_outlived(self, question: Question, result: Any, error: BaseException | None) -> Known | None:
        """Like `keep`, for a call of an earlier attempt."""
        return None

    def unwritten(self) -> list[Known]:
        """The answers of a restore that the journal may not have for every cut."""
        return []

    def load_answers(self, entries: Iterable[tuple[Epoch, Known]], segment: Epoch) -> None:
        """Take what the journal has since the restored cut, with its segments. New answers go into `segment`."""

    def on_durable(self, question: Question) -> int | None:
        """The journal has an answer. Returns the call that waits for it, if there is one."""
        return None

    def sendable(self, call_id: int) -> tuple[Any, BaseException | None] | None:
        """The result or the error of a call that the journal has."""
        return None

    @property
    def segment(self) -> Epoch:
        """The segment of the journal to which answers belong that arrive now."""
        return Epoch(0)


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
    """The function's result for each record, the positions of these records, and of those for which it raised."""
    results: list[Any] = []
    passed: list[int] = []
    failed: list[int] = []
    for position, record in enumerate(records):
        try:
            result = function(record)
        except TaskError:
            raise
        except USER_RAISED as error:  # as the user requested: the record goes to the dead letters
            raise_unless_users(error)
            failed.append(position)
        else:
            results.append(result)
            passed.append(position)
    return results, passed, failed


def pick(hops: Hops, positions: list[int]) -> Hops:
    """The hops of the records at these positions, of which there is at least one."""
    return hops if isinstance(hops, int) else uniform([hops[position] for position in positions])

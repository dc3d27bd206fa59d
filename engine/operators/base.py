"""What every operator is made of: where it stands, and what a task may ask of it.

An operator takes batches through the functions that `door` gives, and hands its output to the `Send` of an output.
The path is chosen here, once: each operator has a quick path, and a careful one for on_error="dead_letter".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import length_hint
from typing import Any

from engine.batch import Hops, uniform
from engine.capture import Capture, OperatorCapture
from engine.sending import Send, TakeRecords, drop, taking_records
from engine.services import Services
from engine.state import KeyedState
from engine.task_errors import USER_RAISED, TaskError, raise_unless_users, user_error
from graphs.ids import Attempt, Epoch, TaskId
from graphs.plan import Edge, Operator
from recovery.cut import OperatorState


@dataclass(slots=True)
class Moment:
    """What a task knows of time: the driver's clock, and the round that it is in, if it is inside an iteration."""

    now_ms: int = 0
    round: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operator stands, and what it may use. `captures` lists the captures of its
    task that may be open; `call_ids` numbers the calls of the task."""

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
    """One operator in one task. What is defined here suits an operator without state and without hooks."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.name = place.operator.name
        self.sets_aside = place.operator.kind.sets_aside
        self._send_dead = self.send_to("dead")

    def send_to(self, output: str) -> Send:
        """The `Send` of an output; one that nobody reads drops its records."""
        return self.place.sends.get(output, drop)

    def outputs(self) -> list[tuple[str, Send]]:
        """The outputs that user code sends to, each with its `Send`; those for dead letters are not among them."""
        names = [name for name in self.place.operator.outputs if name != "dead" and not name.startswith("dead:")]
        return [(name, self.send_to(name)) for name in names]

    def accept(self, edge: Edge) -> TakeRecords:
        """The function that takes the records that this edge brings."""
        raise NotImplementedError(f"{type(self).__name__} takes no records")

    def door(self, edge: Edge) -> Send:
        """The function that takes what this edge brings. Here columns become records, unless an operator takes both."""
        return taking_records(self.accept(edge))

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        """Get ready, fresh or with the state of a capture, whose `whole` is decoded already."""

    def capture(self, epoch: Epoch, attempt: Attempt) -> OperatorCapture:
        """The state at this moment."""
        return OperatorCapture()

    def on_round_end(self, path: tuple[int, ...]) -> None:
        """A round is complete here."""

    def end(self) -> None:
        """Nothing will come any more."""

    def close(self) -> None:
        """Let go of what user code has opened."""

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

"""The sending end of a back edge: counts hops, enforces the limit, and measures what an iteration sends back."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import itemgetter
from typing import Any

from backedge.engine.batches.batch import ATOMS, Hops, separate, uniform
from backedge.engine.batches.columns import Columns, Records, as_records, python_values
from backedge.engine.operators.sending import Send
from backedge.graphs.hops import Trip
from backedge.graphs.plan import Edge
from backedge.graphs.task_errors import USER_RAISED, LoopLimitError, MisuseError, show, user_error


class Measure:
    """The combined measure of the records sent over an iteration's back edge since the last `take`; None if none.

    >>> import operator
    >>> measure = Measure("rank", None, operator.add)
    >>> measure.add(["a", "b"])
    >>> measure.take(), measure.take()
    (2, None)
    >>> measure = Measure("rank", "change", operator.add)
    >>> measure.add([{"change": 0.5}, {"change": 0.25}])
    >>> measure.take()
    0.75
    """

    def __init__(
        self,
        iteration: str,
        measure: Callable[[Any], Any] | str | tuple[str, ...] | None,
        fold: Callable[[Any, Any], Any],
    ) -> None:
        self.iteration = iteration
        self.total: Any = None
        self._measure = measure
        self.fold = fold

    def add(self, records: Records) -> None:
        """Measure these records, of which there is at least one, and add them to the total."""
        try:
            values = self._values(records)
            if not ATOMS.issuperset(map(type, values)):
                # `reduce` may change its arguments, and the records travel on, so the total must not share objects with
                # them.
                values = [separate(value) for value in values]
            self.total = reduce(self.fold, values if self.total is None else [self.total, *values])
        except USER_RAISED as error:
            raise user_error(self.iteration, error, hook="measure or reduce", can_set_aside=False) from error
        if self.total is None:
            raise MisuseError(
                f"iteration {self.iteration!r}: measure or reduce returned None for {show(as_records(records[-1:])[0])}"
                ", but None means a round without records: return a value"
            )

    def _values(self, records: Records) -> list[Any]:
        measure = self._measure
        if measure is None:
            return [1] * len(records)
        if not callable(measure):
            names = (measure,) if isinstance(measure, str) else measure
            if isinstance(records, Columns) and set(names) <= set(records.names):
                columns = [python_values(records.batch.column(name)) for name in names]
                return columns[0] if isinstance(measure, str) else list(zip(*columns, strict=True))
            measure = itemgetter(*names)
        # Not map(): a StopIteration that `measure` raises would end it early, and the rest would not be measured.
        return [measure(record) for record in as_records(records)]

    def take(self) -> Any | None:
        """Return the total and reset it."""
        total, self.total = self.total, None
        return total


def measuring(measure: Measure, send: Send) -> Send:
    """A `Send` for an iteration's back edge that measures the records it sends."""

    def send_back(records: Records, hops: Hops) -> None:
        measure.add(records)
        send(records, hops)

    return send_back


def counting_hops(edge: Edge, trip: Trip, send: Send, send_dead: Send) -> Send:
    """A `Send` for a back edge that counts trips and passes records on to `send`, which puts them into the channels.

    Several back edges of one loop from the same output share it, so a record that exceeds the limit becomes one dead
    letter. If no loop has a limit, nothing is counted, and batches stay together.
    """
    digit, after, rounds_max = trip.digit, trip.after, edge.max_rounds
    if digit is None and not trip.within:
        return send

    def send_back(records: Records, hops: Hops) -> None:
        if not isinstance(hops, int):
            send_each(as_records(records), hops)
        elif digit is not None and digit.of(hops) == rounds_max:
            _refuse(edge, records, hops, send_dead)
        else:
            send(records, after(hops))

    def send_each(records: list[Any], each: list[int]) -> None:
        # Few distinct numbers in many records: compute each once.
        nexts = {hops: after(hops) for hops in set(each)}
        spent = set[int]() if digit is None else {hops for hops in nexts if digit.of(hops) == rounds_max}
        if spent:
            dead = [position for position, hops in enumerate(each) if hops in spent]
            kept = [position for position, hops in enumerate(each) if hops not in spent]
            _refuse(edge, [records[p] for p in dead], uniform([each[p] for p in dead]), send_dead)
            records, each = [records[p] for p in kept], [each[p] for p in kept]
        if records:
            send(records, uniform([nexts[hops] for hops in each]))

    return send_back


def _refuse(edge: Edge, records: Records, hops: Hops, send_dead: Send) -> None:
    if edge.on_limit == "fail":
        raise LoopLimitError(
            f"loop {edge.loop!r}: record {show(as_records(records[:1])[0])} has gone round {edge.max_rounds} times, "
            f"its max_rounds, but operator {edge.sender!r} sends it round again: raise max_rounds, or set such records "
            'aside with on_limit="dead_letter"'
        )
    send_dead(records, hops)

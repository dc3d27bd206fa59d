"""flat_map: one record in, none, one or many out."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import isgeneratorfunction
from sys import getrefcount
from typing import Any

from backedge.engine.batches.batch import ATOMS, Hops, copy_records, separate_record, uniform, without_repeats
from backedge.engine.operators.base import OperatorRuntime, Place, pick, try_each
from backedge.engine.operators.sending import TakeRecords
from backedge.graphs.kinds import FlatMap
from backedge.graphs.plan import Edge
from backedge.graphs.task_errors import USER_RAISED, MisuseError, show

_REFUSED = {
    **dict.fromkeys(
        (str, bytes, bytearray),
        "each letter of which would become a record: return a list with it, or list(text) for its letters",
    ),
    dict: "each key of which would become a record: return a list with it, or list(mapping) for its keys",
    type(None): "which is no list: return [] for no record",
}
"""Types that are hardly ever meant as several records, or as none."""

_CONTAINERS = frozenset({list, tuple, set, frozenset, range})
"""Types that run no function of the user while they are iterated over."""


def _references(made: Iterable[Any]) -> list[int]:
    return [getrefcount(one) for one in made]


_NOT_KEPT = _references(object() for _ in range(1))[0]
"""The references to an object that a generator has yielded and keeps none to."""


def _separately(made: Iterable[Any]) -> list[Any]:
    """What is yielded one by one, copied where the function may go on to change it."""
    return [one if type(one) in ATOMS or getrefcount(one) <= _NOT_KEPT else separate_record(one) for one in made]


class FlatMapOperator(OperatorRuntime):
    """Sends every record that the user's function yields."""

    def __init__(self, kind: FlatMap, place: Place) -> None:
        super().__init__(place)
        self._function = kind.function
        self._send = self.send_to("out")

    def accept(self, edge: Edge) -> TakeRecords:
        if self.sets_aside:
            return self._run_carefully
        return self._run_generators if isgeneratorfunction(self._function) else self._run

    def _run(self, records: list[Any], hops: Hops) -> None:
        function = self._function
        iterator = iter(records)
        try:
            if isinstance(hops, int):
                # Python compiles `for made in [...]` to an assignment.
                results = [
                    result
                    for record in iterator
                    for made in [function(record)]
                    for result in (made if type(made) in _CONTAINERS else self._drained(made, record))
                ]
                yielded: list[list[Any]] = []
            else:
                results = []
                yielded = [self._list(record) for record in iterator]
        except USER_RAISED as error:
            raise self.failure(error, records, iterator) from error
        if results:
            self._send(without_repeats(results), hops)
        elif yielded:
            self._send_yielded(yielded, hops)

    def _run_generators(self, records: list[Any], hops: Hops) -> None:
        if not isinstance(hops, int):
            self._run(records, hops)
            return
        function = self._function
        iterator = iter(records)
        try:
            # As `_separately`, in one loop.
            results = [
                one if type(one) in ATOMS or getrefcount(one) <= _NOT_KEPT else separate_record(one)
                for record in iterator
                for one in function(record)
            ]
        except USER_RAISED as error:
            raise self.failure(error, records, iterator) from error
        if results:
            self._send(results, hops)

    def _run_carefully(self, records: list[Any], hops: Hops) -> None:
        arrived = copy_records(records)
        yielded, passed, failed = try_each(self._list, records)
        if passed:
            self._send_yielded(yielded, pick(hops, passed))
        self.send_dead(arrived, hops, failed)

    def _list(self, record: Any) -> list[Any]:
        made = self._function(record)
        return list(made) if type(made) in _CONTAINERS else self._drained(made, record)

    def _drained(self, made: Any, record: Any) -> list[Any]:
        if type(made) not in _REFUSED:
            return _separately(made)
        raise MisuseError(
            f"operator {self.name!r}: the function of a flat_map returned {show(made)} for record {show(record)}, "
            f"{_REFUSED[type(made)]}"
        )

    def _send_yielded(self, yielded: list[list[Any]], hops: Hops) -> None:
        results = [result for of_record in yielded for result in of_record]
        if not results:
            return
        if not isinstance(hops, int):
            hops = uniform([hop for hop, of_record in zip(hops, yielded, strict=True) for _ in of_record])
        self._send(without_repeats(results), hops)

"""map: one record in, one record out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backedge.engine.batches.batch import Hops, copy_records
from backedge.engine.operators.base import OperatorRuntime, Place, pick, try_each
from backedge.engine.operators.sending import TakeRecords
from backedge.graphs.kinds import Map
from backedge.graphs.plan import Edge
from backedge.graphs.task_errors import USER_RAISED


class MapOperator(OperatorRuntime):
    def __init__(self, kind: Map, place: Place) -> None:
        super().__init__(place)
        self._function: Callable[[Any], Any] = kind.function
        self._send = self.send_to("out")

    def accept(self, edge: Edge) -> TakeRecords:
        return self._run_carefully if self.sets_aside else self._run

    def _run(self, records: list[Any], hops: Hops) -> None:
        function = self._function
        iterator = iter(records)
        try:
            results: list[Any] = [function(record) for record in iterator]
        except USER_RAISED as error:
            raise self.failure(error, records, iterator) from error
        self._send(results, hops)

    def _run_carefully(self, records: list[Any], hops: Hops) -> None:
        arrived = copy_records(records)
        results, passed, failed = try_each(self._function, records)
        if results:
            self._send(results, pick(hops, passed))
        self.send_dead(arrived, hops, failed)

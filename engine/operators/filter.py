"""filter: keeps the records for which a function is true."""

from __future__ import annotations

from typing import Any

from backedge.engine.batches.batch import Hops, copy_records
from backedge.engine.operators.base import OperatorRuntime, Place, is_true, try_each
from backedge.engine.operators.sending import TakeRecords
from backedge.graphs.kinds import Filter
from backedge.graphs.plan import Edge
from backedge.graphs.task_errors import USER_RAISED


class FilterOperator(OperatorRuntime):
    def __init__(self, kind: Filter, place: Place) -> None:
        super().__init__(place)
        self._function = kind.function
        self._send = self.send_to("out")

    def accept(self, edge: Edge) -> TakeRecords:
        return self._run_carefully if self.sets_aside else self._run

    def _run(self, records: list[Any], hops: Hops) -> None:
        function, name = self._function, self.name
        iterator = iter(records)
        try:
            if isinstance(hops, int):
                kept = [
                    record
                    for record in iterator
                    if (found := function(record)) is True or (found is not False and is_true(name, record, found))
                ]
                positions: list[int] = []
            else:
                kept = []
                positions = [n for n, record in enumerate(iterator) if is_true(name, record, function(record))]
        except USER_RAISED as error:
            raise self.failure(error, records, iterator) from error
        if kept:
            self._send(kept, hops)
        self.send_some(self._send, records, hops, positions)

    def _run_carefully(self, records: list[Any], hops: Hops) -> None:
        arrived = copy_records(records)
        verdicts, passed, failed = try_each(lambda record: is_true(self.name, record, self._function(record)), records)
        kept = [position for position, verdict in zip(passed, verdicts, strict=True) if verdict]
        self.send_some(self._send, records, hops, kept)
        self.send_dead(arrived, hops, failed)

"""split: each record goes to one of several outputs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from operator import not_
from typing import Any

from backedge.engine.batches.batch import Hops, copy_records, uniform
from backedge.engine.operators.base import OperatorRuntime, Place, is_true, try_each
from backedge.engine.operators.sending import TakeRecords
from backedge.graphs.kinds import Split
from backedge.graphs.plan import Edge
from backedge.graphs.task_errors import USER_RAISED, MisuseError, show


class SplitOperator(OperatorRuntime):
    """Calls the user's function to choose the output of a record: by name, or by truth between the first two."""

    def __init__(self, kind: Split, place: Place) -> None:
        super().__init__(place)
        self._kind = kind
        self._sends = self.outputs()
        outputs = [output for output, _ in self._sends]
        self._output_of = self._by_name(outputs) if kind.by_name else self._by_truth(*outputs[:2])

    def accept(self, edge: Edge) -> TakeRecords:
        if self.sets_aside:
            return self._run_carefully
        return self._run if self._kind.by_name else self._run_by_truth

    def _run_by_truth(self, records: list[Any], hops: Hops) -> None:
        (_, send_true), (_, send_false) = self._sends[:2]
        function: Callable[[Any], Any] = self._kind.function
        name, iterator = self.name, iter(records)
        try:
            lies = [
                (found := function(record)) is False or (found is not True and not is_true(name, record, found))
                for record in iterator
            ]
        except USER_RAISED as error:
            raise self.failure(error, records, iterator) from error
        lies_count = lies.count(True)
        if lies_count == len(lies):
            send_false(records, hops)
        elif not lies_count:
            send_true(records, hops)
        else:
            truths = list(map(not_, lies))
            for send, chosen in ((send_true, truths), (send_false, lies)):
                chosen_hops = hops if isinstance(hops, int) else uniform(list(compress(hops, chosen)))
                send(list(compress(records, chosen)), chosen_hops)

    def _run(self, records: list[Any], hops: Hops) -> None:
        output_of = self._output_of
        iterator = iter(records)
        try:
            outputs = [output_of(record) for record in iterator]
        except USER_RAISED as error:
            raise self.failure(error, records, iterator) from error
        for output, send in self._sends:
            count = outputs.count(output)
            if count == len(outputs):
                send(records, hops)
                return
            if count:
                self.send_some(send, records, hops, [place for place, name in enumerate(outputs) if name == output])

    def _run_carefully(self, records: list[Any], hops: Hops) -> None:
        arrived = copy_records(records)
        outputs, passed, failed = try_each(self._output_of, records)
        for output, send in self._sends:
            positions = [position for position, name in zip(passed, outputs, strict=True) if name == output]
            self.send_some(send, records, hops, positions)
        self.send_dead(arrived, hops, failed)

    def _by_truth(self, true: str, false: str) -> Callable[[Any], str]:
        function = self._kind.function
        return lambda record: true if is_true(self.name, record, function(record)) else false

    def _by_name(self, outputs: list[str]) -> Callable[[Any], str]:
        function = self._kind.function

        def output_of(record: Any) -> str:
            output = function(record)
            if output not in outputs:
                raise MisuseError(
                    f"split {self.name!r} returned {show(output)} for record {show(record)}, but its outputs are "
                    f"{', '.join(map(repr, outputs))}: return one of these, or add the name to into="
                )
            return output

        return output_of

"""map_batches: the user's function sees several records at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from backedge.engine.batches.batch import Batch, Hops, merge, own_copy, runs
from backedge.engine.batches.columns import Records, as_records
from backedge.engine.batches.formats import errors_of, from_format, prepare, to_format
from backedge.engine.batches.repeated_combining import RepeatedCombiner
from backedge.engine.operators.base import OperatorRuntime, Place
from backedge.engine.operators.sending import Send
from backedge.graphs.combining import Combiner
from backedge.graphs.graph_errors import GraphError
from backedge.graphs.kinds import MapBatches
from backedge.graphs.plan import Edge
from backedge.graphs.task_errors import USER_RAISED, MisuseError, TaskError, raise_unless_users, user_error
from backedge.recovery.cut.cut import OperatorState

SHOWN_RECORDS = 20


class MapBatchesOperator(OperatorRuntime):
    """Calls the user's function for at most `batch_size` records, without waiting. A class is made once per task.

    Records with different hop counts never share a call, because their results could not be told apart. Columns are
    passed on as they arrive and sent as they are returned, without looking at single records.
    """

    def __init__(self, kind: MapBatches, place: Place) -> None:
        super().__init__(place)
        self._send = self.send_to("out")
        self._format = kind.batch_format
        self._size = kind.batch_size
        function = kind.function
        self._function: Any = RepeatedCombiner(function) if isinstance(function, Combiner) else function

    def door(self, edge: Edge) -> Send:
        return self._run

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        """Create the instance if the user gave a class."""
        prepare(self._format)
        if isinstance(self._function, type):
            try:
                self._function = self._function()
            except USER_RAISED as error:
                raise user_error(self.name, error, hook="__init__", can_set_aside=False) from error

    def _run(self, records: Records, hops: Hops) -> None:
        results: list[Batch] = []
        for batch, hop in self._batches(records, hops):
            results += self._made_of(batch, hop)
        for result in merge(results) if len(results) > 1 else results:
            self._send(result.records, result.hops)

    def _made_of(self, batch: Records, hop: int) -> list[Batch]:
        """What the function makes of a batch. If it raises, each half is tried, and a single record is set aside.

        If all of them were set aside, it would depend on the batch which records are lost with the one at fault.
        """
        arrived = own_copy(batch) if self.sets_aside else batch
        try:
            with errors_of(self.name):
                given = to_format(batch, self._format)
            returned = self._function(given)
            with errors_of(self.name):
                made = from_format(returned)
        except TaskError:
            raise
        except USER_RAISED as error:
            if not self.sets_aside:
                if isinstance(error, GraphError):
                    # From a step of ours, such as those in front of a vertex program: there is no function to fix.
                    raise MisuseError(f"operator {self.name!r}: {error}") from error
                hook = f"a batch of {len(batch)}"
                raise user_error(self.name, error, as_records(batch[:SHOWN_RECORDS]), hook=hook) from error
            raise_unless_users(error)
        else:
            return [Batch(made, hop)] if len(made) else []
        if len(arrived) == 1:
            self._send_dead(arrived, hop)
            return []
        half = len(arrived) // 2
        return self._made_of(arrived[:half], hop) + self._made_of(arrived[half:], hop)

    def _batches(self, records: Records, hops: Hops) -> Iterator[tuple[Records, int]]:
        size = self._size or len(records)
        if isinstance(hops, int):
            for start in range(0, len(records), size):
                yield records[start : start + size], hops
            return
        for stretch, hop in runs(as_records(records), hops):
            for start in range(0, len(stretch), size):
                yield stretch[start : start + size], hop

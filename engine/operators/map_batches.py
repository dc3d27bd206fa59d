"""map_batches: the user's function sees several records at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engine.batch import Hops, copy_records, runs, uniform
from engine.errors import TaskError, user_error
from engine.formats import to_format, to_records
from engine.operators.base import OperatorRuntime, Place
from engine.sending import Send
from graphs.plan import Edge
from recovery.cut import OperatorState


class MapBatchesOperator(OperatorRuntime):
    """Calls the user's function on at most `batch_size` records; it waits for none. A class is made once a task.

    Records of different hop counts are never in one call: nobody could tell which results came from which.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        options = place.operator.options
        self._send = self.send_to("out")
        self._format: str = options.get("batch_format", "records")
        self._size: int | None = options.get("batch_size")
        self._function = place.operator.function

    def accept(self, edge: Edge) -> Send:
        """The function that takes what this edge brings."""
        return self._run

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        """Make the instance, where the user gave a class."""
        if isinstance(self._function, type):
            try:
                self._function = self._function()
            except Exception as error:
                raise user_error(self.name, error, hook="__init__", can_set_aside=False) from error

    def _run(self, records: list[Any], hops: Hops) -> None:
        results: list[Any] = []
        results_hops: list[int] = []
        for batch, hop in self._batches(records, hops):
            arrived = copy_records(batch) if self.sets_aside else batch
            try:
                made = to_records(self._function(to_format(batch, self._format)))
            except TaskError:
                raise
            except Exception as error:
                if not self.sets_aside:
                    raise user_error(self.name, error, batch, hook=f"a batch of {len(batch)}") from error
                self._send_dead(arrived, hop)
            else:
                results += made
                results_hops += [hop] * len(made)
        if results:
            self._send(results, uniform(results_hops))

    def _batches(self, records: list[Any], hops: Hops) -> Iterator[tuple[list[Any], int]]:
        for stretch, hop in runs(records, hops):
            size = self._size or len(stretch)
            for start in range(0, len(stretch), size):
                yield stretch[start : start + size], hop

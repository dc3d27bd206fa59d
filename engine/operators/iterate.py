"""The head of an iteration: sends its start into the body, gathers the results, and decides about another round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from itertools import groupby
from typing import Any

from backedge.engine.batches.arrays import from_rows, row_types
from backedge.engine.batches.batch import Batch, Hops, copy_records, merge, spread, uniform
from backedge.engine.batches.columns import Columns, Records, as_records
from backedge.engine.operators.base import OperatorRuntime, Place
from backedge.engine.operators.sending import Send
from backedge.engine.state.capture import OperatorCapture, load
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.kinds import Iterate
from backedge.graphs.plan import Edge
from backedge.graphs.task_errors import USER_RAISED, user_error
from backedge.recovery.cut.cut import OperatorState


class IterateOperator(OperatorRuntime):
    """Gathers the records of the next round, which are its state. Columns become records only in a cut."""

    def __init__(self, kind: Iterate, place: Place) -> None:
        super().__init__(place)
        self._kind = kind
        self._send_body = self.send_to("body")
        self._send_result = self.send_to("result")
        self._gathered: list[Batch] = []

    @property
    def gathered(self) -> int:
        return sum(map(len, self._gathered))

    def door(self, edge: Edge) -> Send:
        """The start goes into the body at once; records that the body returns wait for the next round."""
        return self._gather if edge.input == "returned" else self._send_body

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        pending = () if state is None else state.pending
        entries: list[Any] = [load(self.name, "a record of the next round", payload) for payload in pending]
        for form, alike in groupby(entries, key=_form):
            records, hops = map(list, list(zip(*alike, strict=True))[:2])
            self._gathered.append(Batch(from_rows(records, form[1]) if form else records, uniform(hops)))

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> OperatorCapture:
        """Capture what has been gathered so far."""
        # Merged: rows that leave in one batch do so after a restore, too, since formats show a None to a whole column.
        self._gathered = merge(self._gathered) if self._gathered else []
        return OperatorCapture(pending=[entry for batch in self._gathered for entry in _entries(batch)])

    def decide(self, path: tuple[int, ...], contributions: Mapping[TaskId, Any]) -> bool:
        """Whether there is a round after `path`. Every head decides alike, because the order of combining is fixed."""
        if not contributions:
            return False
        rounds, until = self._kind.rounds, self._kind.until
        if rounds is not None and path[-1] + 1 >= rounds:
            return False
        if until is None or (self._kind.loads_first and path[-1] == 0):
            return True
        try:
            return not until(reduce(self._kind.reduce, [contributions[task] for task in sorted(contributions)]))
        except USER_RAISED as error:
            hook = f"until or reduce of round {path[-1]}"
            raise user_error(self.name, error, hook=hook, can_set_aside=False) from error

    def release_round(self) -> None:
        self._release(self._send_body)

    def release_result(self) -> None:
        self._release(self._send_result)

    def _gather(self, records: Records, hops: Hops) -> None:
        # A restored run must find them as they were.
        stays = isinstance(records, Columns) and row_types(records) is not None
        self._gathered.append(Batch(records if stays else as_records(records), hops))

    def _release(self, send: Send) -> None:
        gathered, self._gathered = self._gathered, []
        # The captures have yet to encode these records, and their receiver may change them.
        copies = any(capture.is_open for capture in self.place.captures)
        for batch in merge(gathered) if gathered else ():
            records = batch.records
            send(copy_records(records) if copies and isinstance(records, list) else records, batch.hops)


def _form(entry: tuple[Any, ...]) -> tuple[Any, ...]:
    """What rows of one batch of columns have in common: their hops, types and names. Nothing for records."""
    return (*entry[1:], *entry[0]) if len(entry) > 2 else ()


def _entries(batch: Batch) -> Iterator[tuple[Any, ...]]:
    """The record and the hops of each row, and of columns their types."""
    types = row_types(batch.records) if isinstance(batch.records, Columns) else None
    shown = (types,) if types else ()
    for record, hops in zip(as_records(batch.records), spread(batch.hops, len(batch)), strict=True):
        yield (record, hops, *shown)

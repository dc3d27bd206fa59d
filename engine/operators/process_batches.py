"""process with batch_format: a user's class that receives and emits whole batches, as columns or as lists.

    on_batch(ctx, batch)       or on_batch(ctx, input, batch) with named inputs; a batch holds rows of any keys
    ctx.emit_batch(batch)      sends a batch in any format; what one hook emits leaves together
    ctx.table                  the rows by key, if the class declares a `Table`

The other hooks are those of `process.py`. Columns pass the operator without becoming records. The rows of one call have
the same hops. on_error="dead_letter" covers on_batch: what the call emitted is dropped, and its rows are set aside as
they arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from backedge.engine.batches.batch import own_copy
from backedge.engine.batches.columns import Records, as_records
from backedge.engine.batches.formats import errors_of, prepare, to_format
from backedge.engine.operators.base import Place
from backedge.engine.operators.context import BatchContext
from backedge.engine.operators.emission import BatchEmission
from backedge.engine.operators.map_batches import SHOWN_RECORDS
from backedge.engine.operators.process import ProcessOperator
from backedge.engine.operators.sending import Send
from backedge.engine.state.capture import OperatorCapture
from backedge.engine.state.keyed_state import KeyedState, WholeState, keyed_entries
from backedge.engine.state.tables.restored_tables import holds_rows, rows_of
from backedge.engine.state.tables.table_state import TableState
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.kinds import OfBatchClass
from backedge.graphs.plan import Edge
from backedge.graphs.routing import groups_of_task
from backedge.graphs.task_errors import USER_RAISED, MisuseError
from backedge.recovery.cut.cut import OperatorState


class ProcessBatchesOperator(ProcessOperator):
    """Calls the hooks of an instance of the user's class, `on_batch` with batches in its format."""

    emission_class = BatchEmission
    context_class = BatchContext

    def __init__(self, kind: OfBatchClass, place: Place) -> None:
        super().__init__(kind, place)
        self._format = kind.batch_format
        prepare(self._format)
        self._table: TableState | None = None
        if kind.table is not None:
            groups = groups_of_task(place.task.index, place.parallelism)
            tracks = place.keyed_state is not WholeState
            self._table = self._context.table_state = TableState(self.name, kind.table, groups, tracks=tracks)

    def door(self, edge: Edge) -> Send:
        return partial(self._run_and_send, partial(self._run, edge.input))

    # -- state ---------------------------------------------------------------------------------------------------

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> OperatorCapture:
        """Capture the table, or values and timers by key, and the state of the task."""
        capture = super().capture(epoch, attempt, base)
        if self._table is not None:
            capture.table = self._table.capture(epoch, base)
        return capture

    @property
    def keyed_state(self) -> KeyedState | TableState | None:
        """The table, if there is one: then nothing else is kept by key."""
        return super().keyed_state if self._table is None else self._table

    def _restore(self, state: OperatorState, whole: Mapping[str, Any]) -> None:
        if self._table is not None:
            if not holds_rows(state) and any(keyed_entries(state, self.name)[:2]):
                raise MisuseError(
                    f"operator {self.name!r} is restored with values or timers by key, for which its table has no "
                    f"place: restore it with the class that had them, or drop its state with drop={{{self.name!r}}}"
                )
            self._table.restore(rows_of(state))
            state = replace(state, keyed=(), deltas=())
        super()._restore(state, whole)

    # -- hooks ---------------------------------------------------------------------------------------------------

    def _run(self, name: str, records: Records, hops: int) -> None:
        self._context.current_hops = hops
        hook = self._hook("on_batch", name)
        mark = self._emission.mark() if self.sets_aside else {}
        arrived = own_copy(records) if self.sets_aside else records
        try:
            with errors_of(self.name):
                batch = to_format(records, self._format)
            if (returned := hook(batch)) is not None:
                raise self._returned("on_batch", returned)
        except USER_RAISED as error:  # reported, unless such records are set aside
            what = f"on_batch of {len(records)}"
            self._fail_or_take_back(error, as_records(arrived[:SHOWN_RECORDS]), what, mark)
            self._send_dead(arrived, hops)

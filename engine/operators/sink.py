"""A sink: writes in transactions, one per snapshot, each committed when its cut is complete."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from backedge.engine.batches.batch import Hops
from backedge.engine.batches.columns import Records
from backedge.engine.operators.base import OperatorRuntime, Place
from backedge.engine.operators.sending import Send
from backedge.engine.operators.services import close_writer, commit_all
from backedge.engine.state.capture import OperatorCapture
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.io import SinkWriter
from backedge.graphs.kinds import Write
from backedge.graphs.plan import Edge
from backedge.graphs.task_errors import describe
from backedge.recovery.cut.cut import OperatorState, Transaction


class SinkOperator(OperatorRuntime):
    """Passes records to its writer. A capture prepares a transaction, which is state until it is published.

    `open_records` were written since the last capture.

    A writer may publish the transactions of several cuts together. Those that wait are in every cut, as if they had not
    been committed: each complete cut commits them again, and so does a restore.
    """

    def __init__(self, kind: Write, place: Place) -> None:
        super().__init__(place)
        self._writer: SinkWriter | None = None
        self.transactions: dict[str, Transaction] = {}
        self._written = 0
        self.open_records = 0

    def door(self, edge: Edge) -> Send:
        """The function that takes the batches of this edge. A writer gets columns and converts them as needed."""
        return self._write

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        """Open the writer. Transactions of the state may be committed again, which has no effect."""
        self._writer = self.place.services.writer(self.place.operator, self.place.task)
        if state is not None:
            self.transactions = {transaction.name: transaction for transaction in state.transactions}
            self._written = state.records

    @property
    def writer(self) -> SinkWriter:
        if self._writer is None:
            raise RuntimeError(f"sink {self.name!r} is written to before it is open: call open() first")
        return self._writer

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> OperatorCapture:
        """Prepare what was written since the last capture; return all transactions that are not yet published."""
        name = f"{self.name}.{self.place.task.index}.attempt-{attempt}.epoch-{epoch}"
        if self.writer.prepare(name):
            self.transactions[name] = Transaction(name, epoch, attempt, self.open_records)
            self.open_records = 0
        return OperatorCapture(transactions=tuple(self.transactions.values()), records=self._written)

    def commit(self, names: set[str]) -> None:
        """Commit those of these transactions that this sink has prepared, in the order of their preparation."""
        committed = [name for name in self.transactions if name in names]
        waiting = commit_all(self.writer, committed)
        for name in committed:
            if name not in waiting:
                del self.transactions[name]

    def close(self) -> None:
        """The task is over: what was not prepared is given up. A writer of others that raises hides no other error."""
        if self._writer is not None:
            try:
                close_writer(self._writer)
            except Exception as error:  # noqa: BLE001
                print(f"backedge: closing sink {self.name!r} raised {describe(error)}", file=sys.stderr)

    def _write(self, records: Records, hops: Hops) -> None:
        self.writer.write(records)
        self._written += len(records)
        self.open_records += len(records)

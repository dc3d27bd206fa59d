"""Really writes to the sinks of a simulated run, each in its own folder, in addition to what the checker keeps."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from backedge.engine.batches.batch import copy_records
from backedge.engine.batches.columns import Columns, Records
from backedge.engine.batches.differences import differences
from backedge.engine.io.files.file_errors import OutputError
from backedge.engine.io.files.kept_output import KeptInMemory
from backedge.engine.io.files.names import path_name
from backedge.engine.io.memory import ListStore, ListWriter, MemoryServices
from backedge.engine.operators.services import commit_all
from backedge.graphs.ids import Attempt, TaskId
from backedge.graphs.io import Sink, SinkPlace, SinkWriter
from backedge.graphs.plan import Operator
from backedge.graphs.task_errors import show
from backedge.recovery.protocol.orders import Sweep

_RUN = "simulated"


class RehearsedWriter:
    """Writes to a sink, and to the list that the checker judges."""

    def __init__(self, name: str, ledger: ListWriter, writer: SinkWriter, takes_columns: bool) -> None:
        self._name = name
        self._ledger = ledger
        self._writer = writer
        self._takes_columns = takes_columns

    def write(self, records: Records) -> None:
        self._ledger.write(records)
        if isinstance(records, Columns):
            self._writer.write(records if self._takes_columns else records.to_records())
        else:
            self._writer.write(copy_records(records))

    def prepare(self, name: str) -> bool:
        is_there = self._ledger.prepare(name)
        if self._writer.prepare(name) != is_there:
            wrong = "prepared nothing, though records were written" if is_there else "prepared an empty transaction"
            raise OutputError(f"sink {self._name!r}, asked to prepare {name!r}, reports that it {wrong}")
        return is_there

    def commit(self, name: str) -> None:
        """Commit in both, even if it was done before."""
        self.commit_together([name])

    def commit_together(self, names: Sequence[str]) -> Collection[str]:
        """Commit in both. Returns those that the sink publishes later."""
        for name in names:
            self._ledger.commit(name)
        return commit_all(self._writer, names)


class SimulatedServices(MemoryServices):
    """Reads the real sources, and writes to lists as well as to each sink that can be rehearsed.

    `attempt` is the attempt that currently opens writers.
    """

    def __init__(self, inputs: Mapping[str, Sequence[Any]]) -> None:
        super().__init__(inputs)
        self.attempt = Attempt(0)
        self._folder: str | None = None
        self._rehearsed: dict[str, Sink[Any] | None] = {}
        self._kept = ListStore()

    def writer(self, operator: Operator, task: TaskId) -> SinkWriter:
        ledger = ListWriter(operator.name, self.store)
        sink = self._sink_of(operator)
        if sink is None:
            return ledger
        writer = sink.open_writer(self._place(operator.name, task.index))
        return RehearsedWriter(operator.name, ledger, writer, sink.takes_columns)

    def sweep(self, sweep: Sweep) -> None:
        super().sweep(sweep)
        for name, sink in self._rehearsed.items():
            if sink is not None:
                sink.roll_back(self._place(name), sweep)

    def wrongly_published(self) -> str | None:
        """Records that a rehearsed sink has published without a commit, or has not published despite one."""
        for name, sink in self._rehearsed.items():
            if sink is not None:
                lacking, surplus = differences(self.store.output(name), sink.published())
                lines = [f"  lacks: {show(record)}" for record in lacking[:3]]
                lines += [f"  has, and should not: {show(record)}" for record in surplus[:3]]
                if lines:
                    return "\n".join([f"sink {name!r} has published something other than what was committed", *lines])
        return None

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None

    def _sink_of(self, operator: Operator) -> Sink[Any] | None:
        name = operator.name
        if name not in self._rehearsed:
            described: Sink[Any] = operator.function
            folder = self._folder or os.path.join(tempfile.gettempdir(), f"backedge-simulate-{secrets.token_hex(8)}")
            own = os.path.join(folder, path_name(name))
            self._rehearsed[name] = sink = described.rehearse(own)
            if sink is not None:
                self._folder = folder
                os.makedirs(own)
                sink.validate_output(self._place(name), fresh=True)
                sink.claim(self._place(name))
        return self._rehearsed[name]

    def _place(self, name: str, index: int = 0) -> SinkPlace:
        kept = KeptInMemory(name, self._kept, _to_nobody)
        return SinkPlace(name, _RUN, _RUN, self.attempt, index, kept)


def _to_nobody(sink: str, transaction: str, records: list[Any]) -> None:
    """A simulated run has no driver that prints."""

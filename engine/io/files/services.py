"""The services of a real engine: readers of files and of sources in memory, and writers whose output survives."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from backedge.engine.io.files.checks import check_members, check_source
from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.kept_in_store import KeptInStore
from backedge.engine.io.files.kept_output import Deliver, KeptInMemory
from backedge.engine.io.files.names import path_name
from backedge.engine.io.files.pace import PacedReader
from backedge.engine.io.later_output import LaterOutput
from backedge.engine.io.memory import ListStore
from backedge.engine.io.reader import finder_of, positions_of, splits_in_all
from backedge.engine.operators.services import Finder, RecordsOnly, Services
from backedge.graphs.discovery import ReadSplits
from backedge.graphs.ids import Attempt, TaskId
from backedge.graphs.io import Sink, SinkPlace, SinkWriter, Source
from backedge.graphs.kinds import rate_of
from backedge.graphs.plan import Operator
from backedge.graphs.rate import Rate
from backedge.recovery.protocol.orders import Sweep
from backedge.recovery.stores.store_protocol import Store

FIRST = Attempt(1)


class FileServices(Services):
    """Opens readers and writers for the tasks of one process.

    - run: names the run; the same for every attempt and every run that resumes it. Part of the name of each file.
    - attempt: part of the name of all unpublished output.
    - kept_at: the store for the output that the run itself keeps. None: the run cannot be restored, and the output is
      kept in memory.
    - deliver: receives what sinks send to the driver.
    - clock: seconds, for the rates of sources.
    - splits: source -> its splits, as returned by `check_source`. A source that is missing here is listed by every
      task.
    - key: with a key, that output is signed, and unsigned output is never decoded. At most 64 bytes.

    >>> services = FileServices("squares", None, lambda sink, transaction, records: print(sink, records), run="5f3a")
    >>> from backedge.graphs.sources_and_sinks import Collect
    >>> from backedge.graphs.kinds import Write
    >>> writer = services.writer(Operator("out", Write(Collect())), TaskId("out", 0))
    >>> writer.write([1, 4])
    >>> writer.prepare("out.0.attempt-1.epoch-1")
    True
    >>> writer.commit("out.0.attempt-1.epoch-1")
    out [1, 4]
    """

    def __init__(
        self,
        job: str,
        kept_at: Store | None,
        deliver: Deliver,
        clock: Callable[[], float] = time.monotonic,
        *,
        run: str,
        attempt: Attempt = FIRST,
        splits: Mapping[str, tuple[str, ...]] | None = None,
        key: bytes = b"",
        disk: Disk | None = None,
    ) -> None:
        self._job = job
        self._run = run
        self._attempt = attempt
        self._kept_at = kept_at
        self._deliver = deliver
        self._clock = clock
        self._splits = dict(splits or {})
        self._key = key
        self.disk = disk or Disk()
        self._store = ListStore()
        self._rates: dict[str, Rate | None] = {}
        self._readers: list[tuple[str, PacedReader]] = []

    # -- sources -------------------------------------------------------------------------------------------------

    def reader(
        self, operator: Operator, index: int, parallelism: int, positions: Mapping[str, Any] | None
    ) -> PacedReader:
        """The reader of one source task: its share of the splits, or exactly those of `positions`."""
        source: Source[Any] = operator.function
        own = positions_of(source, index, parallelism, self._listed(operator)) if positions is None else positions

        def share() -> float:
            if isinstance(operator.kind, ReadSplits):
                return 1 / parallelism
            # A task without a split reads nothing, so the rate is divided among the splits.
            return len(own) / splits_in_all(own, self._listed(operator)) if own else 0.0

        paced = PacedReader(operator.name, source, own, share, self._clock, source.idle_s)
        paced.limit(self._rates.get(operator.name, rate_of(operator.kind)))
        self._readers.append((operator.name, paced))
        return paced

    def _listed(self, operator: Operator) -> tuple[str, ...] | None:
        listed = self._splits.get(operator.name)
        return check_source(operator) if listed is None else listed

    def limit(self, source: str, rate: Rate | None) -> None:
        """Read a source at this rate from now on, whatever the flow says."""
        self._rates[source] = rate
        for name, reader in self._readers:
            if name == source:
                reader.limit(rate)

    def finder(self, operator: Operator, readers: str) -> Finder:
        return finder_of(operator)

    # -- sinks ---------------------------------------------------------------------------------------------------

    def place(self, operator: Operator, index: int = 0) -> SinkPlace:
        return SinkPlace(operator.name, self._job, self._run, self._attempt, index, self.kept(operator.name))

    def kept(self, sink: str) -> KeptInMemory | KeptInStore:
        """The output of a sink that the run itself keeps."""
        if self._kept_at is None:
            return KeptInMemory(sink, self._store, self._deliver)
        return KeptInStore(sink, self._kept_at.below(path_name(sink)), self._deliver, self._key)

    def writer(self, operator: Operator, task: TaskId) -> SinkWriter:
        sink: Sink[Any] = operator.function
        opened: Any = sink.open_writer(self.place(operator, task.index))
        commit = "commit_together" if hasattr(opened, "commit_together") else "commit"
        check_members(f"sink {operator.name!r} opens a writer", opened, ("write", "prepare", commit))
        return opened if sink.takes_columns else RecordsOnly(opened)

    def sweep(self, operator: Operator, sweep: Sweep) -> None:
        """Remove leftovers of a sink's attempts. Raises the first `OSError` if some cannot be removed."""
        sink: Sink[Any] = operator.function
        sink.roll_back(self.place(operator), sweep)

    def withdraw(self, operator: Operator, later: LaterOutput) -> None:
        """Remove what a sink has prepared and published after a cut."""
        sink: Sink[Any] = operator.function
        sink.withdraw(self.place(operator), later)

    def release(self, operator: Operator) -> None:
        sink: Sink[Any] = operator.function
        sink.release(self.place(operator))

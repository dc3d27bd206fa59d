"""What a real engine gives its tasks: readers of files and of what a flow holds itself, and writers that survive."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine.files.checks import check_source
from engine.files.disk import Disk
from engine.files.kept_output import Deliver, KeptInRun
from engine.files.pace import Bucket, PacedReader
from engine.memory import ListStore
from engine.rolling_back import SweepOfSinks
from engine.services import RecordsOnly, Services
from engine.source_reader import SourceReader, positions_of
from graphs.ids import Attempt, TaskId
from graphs.io import Sink, SinkPlace, SinkWriter, Source, rate_of
from graphs.plan import Operator
from recovery.orders import Sweep

FIRST = Attempt(1)


class FileServices(Services):
    """Opens readers and writers for the tasks of one process.

    - run: names the run, the same for every attempt and every run that resumes it. Part of the name of each file.
    - attempt: part of the name of all that is not published yet.
    - staging: a folder for what the run itself keeps of its sinks. None: the run cannot be restored, and it is kept in
      memory.
    - deliver: gets what sinks hand to the driver.
    - clock: seconds, for the rates of sources.
    - splits: source -> its splits, as `check_source` gave them. A source that is not named is listed by every task.
    - key: with it, what is kept in staging is signed, and what is not is never decoded. 64 bytes at most.

    >>> services = FileServices("squares", None, lambda sink, transaction, records: print(sink, records), run="5f3a")
    >>> from graphs.io import Collect
    >>> from graphs.kinds import Write
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
        staging: str | None,
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
        self._folder = None if staging is None else Path(staging).absolute()
        self._deliver = deliver
        self._clock = clock
        self._splits = dict(splits or {})
        self._key = key
        self.disk = disk or Disk()
        self._store = ListStore()

    # -- sources -------------------------------------------------------------------------------------------------

    def reader(
        self, operator: Operator, index: int, parallelism: int, positions: Mapping[str, Any] | None
    ) -> PacedReader:
        """The reader of one source task: its share of the splits, or those of `positions` and no others."""
        source: Source[Any] = operator.function
        rate = rate_of(source)
        bucket = None if rate is None else Bucket(rate / parallelism, self._clock)
        if positions is None:
            listed = self._splits[operator.name] if operator.name in self._splits else check_source(operator)
            positions = positions_of(source, index, parallelism, listed)
        return PacedReader(SourceReader(operator.name, source, positions), bucket, self._clock, source.idle_s)

    # -- sinks ---------------------------------------------------------------------------------------------------

    def place(self, operator: Operator, index: int = 0) -> SinkPlace:
        """Where one task of a sink stands."""
        return SinkPlace(operator.name, self._job, self._run, self._attempt, index, self.kept(operator.name, index))

    def kept(self, sink: str, index: int = 0) -> KeptInRun:
        """What the run itself keeps of a sink."""
        return KeptInRun(
            sink,
            self._folder,
            self._store,
            self._deliver,
            attempt=self._attempt,
            task=index,
            disk=self.disk,
            key=self._key,
        )

    def writer(self, operator: Operator, task: TaskId) -> SinkWriter:
        """The writer of one sink task."""
        sink: Sink[Any] = operator.function
        opened: Any = sink.open_writer(self.place(operator, task.index))
        return opened if sink.takes_columns else RecordsOnly(opened)

    def sweep(self, operator: Operator, sweep: Sweep) -> None:
        """Remove what attempts of a sink have left behind. What cannot be removed is told by the first `OSError`."""
        sink: Sink[Any] = operator.function
        sink.roll_back(self.place(operator), SweepOfSinks(sweep))

    def release(self, operator: Operator) -> None:
        """Nothing will resume this run: give up its claim to what a sink writes to."""
        sink: Sink[Any] = operator.function
        sink.release(self.place(operator))

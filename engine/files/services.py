"""What a real engine gives its tasks: readers of files and of what a flow holds itself, and writers that survive."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from engine.files.checks import STAGING, check_source, output_folder
from engine.files.disk import Disk
from engine.files.file_errors import OutputError
from engine.files.file_formats import CSV, JsonLines, Parquet
from engine.files.names import name_of, path_name, turn_of
from engine.files.pace import Bucket, PacedReader
from engine.files.parquet_part import ParquetPart
from engine.files.parts import CsvPart, JsonPart, Part, read_pickles
from engine.files.staging import Staging
from engine.files.writers import FileWriter, KeptWriter, MemoryWriter, Receive, calling, committed_folder
from engine.memory import ListStore
from engine.services import Services, Writer
from engine.source_reader import SourceReader, positions_of
from graphs.ids import Attempt, TaskId
from graphs.io import Call, Collect, Print, Source, rate_of
from graphs.plan import Operator
from recovery.orders import Sweep

Deliver = Callable[[str, str, list[Any]], None]
"""Takes the name of a sink, the name of a transaction and its records; may be called again with the same."""

FIRST = Attempt(1)
_WRITTEN = {JsonLines: (".jsonl", JsonPart), CSV: (".csv", CsvPart), Parquet: (".parquet", ParquetPart)}


class FileServices(Services):
    """Opens readers and writers for the tasks of one process.

    - run: names the run, the same for every attempt and every run that resumes it. Part of the name of each file.
    - attempt: part of the name of all that is not published yet.
    - staging: a folder for what Collect, Print and Call have prepared and committed. None: the run cannot be restored,
      and they keep it in memory.
    - deliver: gets what Collect and Print commit.
    - clock: seconds, for the rates of sources.
    - splits: source -> its splits, as `check_source` gave them. A source that is not named is listed by every task.
    - key: with it, what is kept in staging is signed, and what is not is never decoded. 64 bytes at most.

    >>> services = FileServices("squares", None, lambda sink, transaction, records: print(sink, records), run="5f3a")
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
        self._disk = disk or Disk()
        self._store = ListStore()
        self._types: dict[TaskId, dict[str, Any]] = {}

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
        return PacedReader(SourceReader(operator.name, source, positions), bucket, self._clock)

    # -- sinks ---------------------------------------------------------------------------------------------------

    def writer(self, operator: Operator, task: TaskId) -> Writer:
        """The writer of one sink task."""
        sink: Any = operator.function
        if isinstance(sink, JsonLines | CSV | Parquet):
            return self._file_writer(operator, sink, task)
        receive = self._receiver(operator)
        keeps = isinstance(sink, Collect)
        if self._folder is None:
            return MemoryWriter(operator.name, self._store, receive, keeps)
        staging = self._staging(operator)
        return KeptWriter(operator.name, self._attempt, task.index, staging, self._disk, receive, self._key, keeps)

    def sweep(self, operator: Operator, sweep: Sweep) -> None:
        """Remove what attempts of a sink have left behind. What cannot be removed is told by the first `OSError`."""
        if self._folder is None and isinstance(operator.function, Collect | Print | Call):
            self._store.sweep(sweep, operator.name)
            return
        staging = self._staging(operator)
        has_notes = isinstance(operator.function, Print | Call)
        try:
            staging.sweep(sweep, committed_folder(staging) if has_notes else None)
        finally:
            if sweep.is_over and isinstance(operator.function, JsonLines | CSV | Parquet):
                self._disk.remove_empty(staging.folder.parent)
                self._disk.remove_empty(staging.folder.parent.parent)

    def collected(self, sink: str, read: dict[str, list[Any]] | None = None) -> list[Any]:
        """Everything that a Collect sink has committed, in the order of epochs, attempts and tasks.

        `read` has what was read before, by file: who gives the same again has only new files read.
        """
        if self._folder is None:
            kept = {name: records for name, (owner, records) in self._store.committed.items() if owner == sink}
            return [record for name in sorted(kept, key=turn_of) for record in kept[name]]
        folder = committed_folder(Staging(self._folder / path_name(sink), self._disk))
        names = sorted(self._disk.names(folder), key=lambda name: turn_of(name_of(name)))
        read = {} if read is None else read
        for name in names:
            if name not in read:
                read[name] = [record for batch in read_pickles(folder / name, self._key) for record in batch]
        return [record for name in names for record in read[name]]

    def prepared(self, sink: str) -> dict[str, list[Any]]:
        """What a Collect sink has prepared and not yet committed, by transaction."""
        if self._folder is None:
            return {name: records for name, (owner, records) in self._store.prepared.items() if owner == sink}
        staging = Staging(self._folder / path_name(sink), self._disk)
        return {
            name: [record for batch in read_pickles(staging.path_of(name), self._key) for record in batch]
            for name in staging.prepared_names()
        }

    def _file_writer(self, operator: Operator, sink: JsonLines | CSV | Parquet, task: TaskId) -> FileWriter:
        ending, form = _WRITTEN[type(sink)]
        types = self._types.setdefault(task, {})

        def new_part(path: Path) -> Part:
            if form is ParquetPart:
                return ParquetPart(self._disk, path, operator.name, types)
            return cast("type[JsonPart | CsvPart]", form)(self._disk, path, operator.name)

        folder = output_folder(operator.name, sink.path)
        staging = self._staging(operator)
        return FileWriter(
            operator.name, self._attempt, task.index, staging, self._disk, new_part, folder, self._run, ending
        )

    def _staging(self, operator: Operator) -> Staging:
        sink: Any = operator.function
        if isinstance(sink, JsonLines | CSV | Parquet):
            above = output_folder(operator.name, sink.path) / STAGING / path_name(self._job)
        elif self._folder is not None:
            above = self._folder
        else:
            raise OutputError(f"sink {operator.name!r} keeps its output in memory: give FileServices a staging folder")
        return Staging(above / path_name(operator.name), self._disk)

    def _receiver(self, operator: Operator) -> Receive:
        sink: Any = operator.function
        if isinstance(sink, Call):
            return calling(operator.name, cast("Call[Any]", sink).function)
        if not isinstance(sink, Collect | Print):
            raise OutputError(
                f"sink {operator.name!r} writes {sink!r}, which nothing here writes: give one of JsonLines, CSV, "
                "Parquet, Collect, Print, Call"
            )
        return lambda transaction, records: self._deliver(operator.name, transaction, records)

"""Sources and sinks opened as an engine opens them, for tests that look at one of them alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Sink, SinkPlace, Source
from backedge.engine.io.files.checks import claim_output
from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.file_formats import CSV, FileSink, JsonLines, Parquet
from backedge.engine.io.files.services import FileServices
from backedge.engine.io.files.splits import Position, Split
from backedge.engine.io.files.staging import Roll, Staging
from backedge.engine.io.reader import SourceReader
from backedge.engine.operators.services import commit_all
from backedge.graphs.ids import Attempt, TaskId
from backedge.graphs.kinds import Read, Write
from backedge.graphs.plan import Operator
from backedge.graphs.rate import rate_in
from backedge.recovery.protocol.orders import Sweep
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.store_protocol import Store

JOB = "job"
RUN = "5f3a"
AT_ONCE: dict[str, Any] = {"roll_bytes": None, "roll_s": None}
"""The options of a sink of files that publishes a file for each cut."""
BIG: dict[str, Any] = {"roll_bytes": 1 << 20, "roll_s": None}
"""Those of a sink whose cuts go into one file."""
SINK = "out"
KINDS: list[Any] = [JsonLines, CSV, Parquet]
slow = partial(pytest.param, marks=pytest.mark.slow)
FEWER_FAST: list[Any] = [slow(JsonLines), CSV, slow(Parquet)]


def ignore_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have rolls neither read the records of other attempts nor make their own."""

    def none(staging: Staging, first: str) -> None:
        return None

    def is_recorded(staging: Staging, roll: Roll) -> bool:
        return True

    monkeypatch.setattr(Staging, "roll_of", none)
    monkeypatch.setattr(Staging, "record", is_recorded)


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Deliveries:
    """What was delivered, a transaction at a time."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str, list[Any]]] = []

    def __call__(self, sink: str, transaction: str, records: list[Any]) -> None:
        self.all.append((sink, transaction, records))

    @property
    def names(self) -> list[str]:
        return [name for _, name, _ in self.all]


def source(description: Source[Any], name: str = "in", rate: float | str | None = None) -> Operator:
    return Operator(name, Read(description, rate_in(rate)))


def sink(description: Sink[Any], name: str = SINK) -> Operator:
    return Operator(name, Write(description))


def folder_store(folder: Path) -> FolderStore:
    """The store of a folder, which is made."""
    store = FolderStore(str(folder))
    store.prepare(is_signed=True)
    return store


def services(
    staging: Path | Store | None = None, deliver: Any = None, disk: Disk | None = None, **more: Any
) -> FileServices:
    kept_at = folder_store(staging) if isinstance(staging, Path) else staging
    return FileServices(JOB, kept_at, deliver or Deliveries(), disk=disk, **{"run": RUN, **more})


def swept(keep: Iterable[str] = (), noted: Iterable[str] = ()) -> Sweep:
    """What is removed at the end of a run: all but these transactions, and these notes."""
    return Sweep(Attempt(99), True, frozenset(), None, frozenset(keep), frozenset({*keep, *noted}))


def swept_by(attempt: int, listed: Iterable[str] = ()) -> Sweep:
    """What the supervisor of an attempt removes when it has claimed it, and cuts list only these transactions."""
    return Sweep(Attempt(attempt), False, frozenset(), None, frozenset(listed), frozenset(listed))


def reader(
    description: Source[Any], index: int = 0, parallelism: int = 1, positions: Mapping[str, Any] | None = None
) -> Any:
    return services().reader(source(description), index, parallelism, positions)


def file_reader(source: Source[Any], positions: Mapping[Split, Position]) -> SourceReader:
    return SourceReader("in", source, {split.name: position for split, position in positions.items()})


def place(name: str = SINK, job: str = JOB, run: str = RUN, staging: Path | None = None) -> SinkPlace:
    kept_at = None if staging is None else folder_store(staging)
    return FileServices(job, kept_at, Deliveries(), run=run).place(sink(Collect(), name))


def claim(*operators: Operator, job: str = JOB, run: str = RUN) -> None:
    claim_output([(operator, place(operator.name, job, run)) for operator in operators])


def collected(opened: FileServices, name: str = SINK, read: dict[str, list[Any]] | None = None) -> list[Any]:
    return opened.kept(name).committed({} if read is None else read)


def writer(description: Sink[Any], index: int = 0, opened: FileServices | None = None, name: str = SINK) -> Any:
    opened = opened or services()
    if isinstance(description, FileSink):
        object.__setattr__(description, "disk", opened.disk)
    return opened.writer(sink(description, name), TaskId(name, index))


def transaction(epoch: int, attempt: int = 1, index: int = 0, name: str = SINK) -> str:
    return f"{name}.{index}.attempt-{attempt}.epoch-{epoch}"


def stage(opened: Any, records: Any, name: str) -> None:
    """Write records and prepare them as this transaction."""
    opened.write(records)
    assert opened.prepare(name)


def publish(opened: Any, records: Any, name: str) -> None:
    """The same, and commit it."""
    stage(opened, records, name)
    opened.commit(name)


def rest(reader: Any, records_max: int = 1000) -> list[Any]:
    """Everything that a reader still has."""
    records: list[Any] = []
    while not reader.exhausted:
        records += reader.read(records_max)
    return records


def files(
    folder: Path, attempt: int = 1, kind: Any = JsonLines, limits: dict[str, Any] = BIG, disk: Disk | None = None
) -> Any:
    """The writer of an attempt to files in a folder."""
    return writer(kind(str(folder), **limits), opened=services(attempt=Attempt(attempt), disk=disk))


def finish(
    folder: Path, attempt: int, epochs: Iterable[int] = (1, 2, 3), kind: Any = JsonLines, limits: dict[str, Any] = BIG
) -> None:
    """The last attempt: it commits what its cut lists, and ends."""
    last = files(folder, attempt, kind, limits)
    commit_all(last, list(map(transaction, epochs)))
    last.close()


def at_once(folder: Path, kind: Any = JsonLines) -> Any:
    """The description of a sink that publishes a file for each cut."""
    return kind(str(folder), **AT_ONCE)


def sweep(folder: Path, order: Sweep, kind: Any = JsonLines, limits: dict[str, Any] = BIG) -> None:
    services().sweep(sink(kind(str(folder), **limits)), order)


def batch(*values: int) -> list[Any]:
    return [{"n": value} for value in values]


def numbers(folder: Path, kind: Any = JsonLines) -> list[int]:
    """The visible records, in the order of files and lines."""
    return [int(record["n"]) for record in rest(reader(kind(str(folder))))] if visible(folder) else []


def fresh(description: Any, range_bytes_max: int) -> dict[Split, Any]:
    """The splits of a source, in small ranges, each at its start."""
    return {split: split.first for split in description.list_splits(range_bytes_max)}


def write_json(path: Path, records: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name[0] not in "._") if folder.exists() else []


def everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))

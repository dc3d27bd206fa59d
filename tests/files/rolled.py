"""A sink of files whose cuts wait for one another, in a folder and in an object store in memory."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.file_formats import FileSink, JsonLines
from backedge.engine.io.files.file_output import FileOutput
from backedge.engine.io.files.objects_in_memory import ObjectsInMemory
from backedge.graphs.ids import Attempt
from backedge.graphs.io import SinkPlace
from tests.files.disks import SteppedDisk
from tests.files.opened import BIG, JOB, RUN, SINK, reader, rest, services, sink, transaction
from tests.files.stepped_objects import SteppedObjects

NOTES = f"_staging/{JOB}/{SINK}/published"


class OutputPlace(ABC):
    """A place to which several attempts of a run write. `process` gives a view of it in which something happens."""

    steps: int
    """More than the steps of an attempt."""

    kinds: frozenset[str]
    """What an attempt does."""

    @abstractmethod
    def description(self, kind: Any, process: Any = None, **limits: Any) -> FileSink:
        """A sink that writes there, in this process."""

    @abstractmethod
    def process(self, at: int, happens: Callable[[str], object] | None = None, *, is_after: bool = False) -> Any:
        """A process to which something happens at its n-th step."""

    @abstractmethod
    def names(self) -> list[str]:
        """All files."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of a file."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write a file."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file."""

    def writer(
        self, kind: Any = JsonLines, attempt: int = 1, index: int = 0, process: Any = None, **limits: Any
    ) -> Any:
        description = self.description(kind, process, **limits)
        return description.open_writer(place_of(description, attempt, index))

    def roll_back(self, attempt: int, sweep: Any, process: Any = None) -> None:
        description = self.description(JsonLines, process)
        description.roll_back(place_of(description, attempt), sweep)

    @property
    def published(self) -> list[str]:
        return sorted(name for name in self.names() if not name.startswith("_"))

    @property
    def staged(self) -> list[str]:
        """The folder of each staged file."""
        return sorted(name.split("/")[3] for name in self.names() if name.startswith("_staging/"))

    def numbers(self, folder: Path, kind: Any = JsonLines) -> list[int]:
        """The published records, in the order of files and lines."""
        found: list[int] = []
        for name in self.published:
            if kind is JsonLines:
                found += lines(self.read(name))
            else:
                (folder / name).write_bytes(self.read(name))
                found += [int(record["n"]) for record in rest(reader(kind(str(folder / name))))]
        return found


class InFolder(OutputPlace):
    steps = 50
    kinds = frozenset({"open", "sync_file", "sync_folder", "rename", "link", "remove"})

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def description(self, kind: Any, process: Any = None, **limits: Any) -> FileSink:
        description = kind(str(self._folder), **(limits or BIG))
        object.__setattr__(description, "disk", process or Disk())
        return description

    def process(self, at: int, happens: Callable[[str], object] | None = None, *, is_after: bool = False) -> Any:
        return SteppedDisk(at, happens, is_after=is_after)

    def names(self) -> list[str]:
        return [path.relative_to(self._folder).as_posix() for path in self._folder.rglob("*") if path.is_file()]

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        self._folder.mkdir(exist_ok=True)
        (self._folder / name).write_bytes(data)

    def remove(self, name: str) -> None:
        (self._folder / name).unlink()


class InStore(OutputPlace):
    steps = 30
    kinds = frozenset({"upload", "create", "copy", "write", "remove"})

    def __init__(self) -> None:
        self._store = ObjectsInMemory()

    def description(self, kind: Any, process: Any = None, **limits: Any) -> FileSink:
        description = kind("s3://bucket/out", **(limits or BIG))

        def output(place: SinkPlace) -> FileOutput:
            return FileOutput(description, place, process or self._store)

        object.__setattr__(description, "_output", output)
        return description

    def process(self, at: int, happens: Callable[[str], object] | None = None, *, is_after: bool = False) -> Any:
        return SteppedObjects(self._store, at, happens, is_after=is_after)

    def names(self) -> list[str]:
        return self._store.list()

    def read(self, name: str) -> bytes:
        return self._store.read(name)

    def write(self, name: str, data: bytes) -> None:
        self._store.write({name: data})

    def remove(self, name: str) -> None:
        self._store.remove([name])


class Task:
    """A task of a sink: its writer, and the transactions that its cuts list, as `SinkOperator` keeps them."""

    def __init__(self, opened: Any, listed: Iterable[str] = (), attempt: int = 1) -> None:
        self.opened = opened
        self.listed = list(listed)
        self.attempt = attempt
        self.commit()

    def cut(self, epoch: int, **columns: Any) -> list[str]:
        """Write a record and take a cut. Returns what that lists."""
        self.opened.write([{"n": epoch, **columns}])
        assert self.opened.prepare(transaction(epoch, self.attempt))
        self.listed.append(transaction(epoch, self.attempt))
        return list(self.listed)

    def commit(self) -> None:
        """Commit all that is listed."""
        waiting = self.opened.commit_together(self.listed)
        self.listed = [name for name in self.listed if name in waiting]

    def write(self, *epochs: int, **columns: Any) -> None:
        for epoch in epochs:
            self.cut(epoch, **columns)
            self.commit()


class Consumer:
    """Takes every published file that is noted, as the documentation allows."""

    def __init__(self, place: OutputPlace) -> None:
        self._place = place
        self.taken: list[int] = []

    def take(self) -> None:
        names = self._place.names()
        for name in self._place.published:
            if f"{NOTES}/{name.removeprefix(f'part-{RUN}.').removesuffix('.jsonl')}" in names:
                self.taken += lines(self._place.read(name))
                self._place.remove(name)

    def all(self) -> list[int]:
        self.taken += [n for name in self._place.published for n in lines(self._place.read(name))]
        return sorted(self.taken)


def place_of(description: FileSink, attempt: int, index: int = 0) -> SinkPlace:
    return services(attempt=Attempt(attempt)).place(sink(description), index)


def lines(data: bytes) -> list[int]:
    return [json.loads(line)["n"] for line in data.splitlines()]

"""Where output waits until the cut that lists it is complete: one folder for each sink, shared by its tasks.

    open/      parts that are being written, each named after its task and a random number: no two attempts share one
    prepared/  parts that are durable, under the names of their transactions: any task and any attempt may commit them

Nothing of `open` outlives its task. Nothing of `prepared` is removed but by `roll_back`, which an attempt calls before
its tasks run; what a task of a dead attempt still prepares after that is listed by no cut.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from pathlib import Path

from engine.files.disk import Disk
from engine.files.names import name_of, path_name


class Staging:
    """The staging folder of one sink.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     staging = Staging(Path(folder), Disk())
    ...     part = staging.new_part(0)
    ...     Disk().open(part).close()
    ...     staging.prepare(part, "done.0.attempt-1.epoch-1")
    ...     staging.prepared_names()
    ['done.0.attempt-1.epoch-1']
    """

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.folder = folder
        self._disk = disk
        self._open = folder / "open"
        self._prepared = folder / "prepared"

    def new_part(self, index: int) -> Path:
        """A path for a part of this task."""
        self._disk.make_folder(self._open)
        return self._open / f"{index}-{secrets.token_hex(8)}"

    def prepare(self, part: Path, name: str) -> None:
        """Make a closed part durable under this name."""
        self._disk.make_folder(self._prepared)
        self._disk.sync_file(part)
        self._disk.rename(part, self.path_of(name))
        self._disk.sync_folder(self._prepared)

    def path_of(self, name: str) -> Path:
        """Where a prepared transaction is."""
        return self._prepared / path_name(name)

    def move(self, name: str, target: Path) -> bool:
        """Move a prepared transaction to its place, durably. False when there is none."""
        self._disk.make_folder(target.parent)
        try:
            self._disk.rename(self.path_of(name), target)
        except FileNotFoundError:
            return False
        self._disk.sync_folder(target.parent)
        self._disk.sync_folder(self._prepared)
        return True

    def prepared_names(self) -> list[str]:
        """The transactions that are prepared and not committed."""
        return [name_of(name) for name in self._disk.names(self._prepared)]

    def remove_open(self, index: int) -> None:
        """Remove the parts that tasks of this index have left open."""
        for name in self._disk.names(self._open):
            if name.startswith(f"{index}-"):
                self._disk.remove(self._open / name)

    def roll_back(self, keep: Collection[str]) -> None:
        """Remove every part that is open, and what is prepared under other names than these."""
        for name in self._disk.names(self._open):
            self._disk.remove(self._open / name)
        for name in self.prepared_names():
            if name not in keep:
                self._disk.remove(self.path_of(name))
        for folder in (self._open, self._prepared, self.folder):
            self._disk.remove_empty(folder)

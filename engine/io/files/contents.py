"""Records which transactions each published file holds, in a folder of the staging.

    contents/NAME    what the file of this name holds. NAME is that of a staged part: a transaction and an ending.

- A record is durable before its file is visible. So whatever a sink has published can be found by records alone, and a
  file without a record is not the sink's.
- The record of a file of one transaction is empty. That of a joined file lists its transactions in order, each with the
  length of its part, in a unit of the format.
- A record goes when no run can go back to before its transactions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.file_errors import DamagedOutputError
from backedge.engine.io.files.names import staged_name
from backedge.graphs.io import Rollback


class Content(NamedTuple):
    """One transaction in a file, and the length of its part."""

    transaction: str
    length: int


class Contents:
    """The records of one sink, in `folder`."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.folder = folder
        self._disk = disk

    def names(self) -> list[str]:
        return self._disk.names(self.folder)

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def note_one(self, name: str) -> None:
        """Record a file of one transaction, durably."""
        path = self.folder / name
        if not self.has(name):
            self._disk.make_folder(self.folder, is_private=True)
            with suppress(FileExistsError):  # another attempt records the same
                self._disk.open(path, is_private=True).close()
        self._disk.sync_folder(self.folder)

    def note_joined(self, name: str, contents: Sequence[Content], made: Path) -> None:
        """Record a joined file, durably, unless that is done. `made` is a path that nothing else uses."""
        path = self.folder / name
        if not self.has(name):
            self._disk.make_folder(self.folder, is_private=True)
            with suppress(FileExistsError):  # another attempt records the same
                self._disk.create(path, made, partial(write_contents, self._disk, contents))
        self._disk.sync_folder(self.folder)

    def read(self, name: str) -> list[Content]:
        """What a file holds."""
        path = self.folder / name
        data = path.read_bytes()
        if not data:
            return [Content(staged_name(name).transaction, 0)]
        try:
            listed: Any = json.loads(data)
            return [Content(str(transaction), int(length)) for transaction, length in listed]
        except (ValueError, TypeError) as error:
            raise DamagedOutputError(
                f"{path} does not say what a published file holds ({error}): restore it from a backup, or resume "
                "without replace_output"
            ) from error

    def settled(self, rollback: Rollback) -> list[Path]:
        """The records that are not needed any more."""
        names = self.names() if rollback.settles else []
        return [self.folder / name for name in names if self._is_settled(name, rollback)]

    def _is_settled(self, name: str, rollback: Rollback) -> bool:
        # The first is looked at before the file is read: most records are of one transaction.
        if not rollback.is_settled(staged_name(name).transaction):
            return False
        try:
            return all(rollback.is_settled(content.transaction) for content in self.read(name))
        except (FileNotFoundError, DamagedOutputError):
            return False


def write_contents(disk: Disk, contents: Sequence[Content], path: Path) -> None:
    """Write a record into a new file."""
    stream = disk.open(path, is_private=True)
    try:
        stream.write(json.dumps(contents).encode())
    finally:
        stream.close()

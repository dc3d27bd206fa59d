"""The output of a sink in a local folder, or in one that all hosts mount.

    open/       parts that are being written, named after attempt and task; a sweep removes those of dead attempts
    replacing/  what a run that replaces output writes meanwhile (`withdrawing.py`)

A file is published by a link to its staged bytes, and its note is these bytes under another name: so a consumer may
move the published file away, and a note takes no room.
"""

from __future__ import annotations

import filecmp
from collections.abc import Collection, Iterable
from pathlib import Path

from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.file_errors import OutputError
from backedge.engine.io.files.names import new_name
from backedge.engine.io.files.output_storage import STAGING, OutputStorage
from backedge.graphs.ids import Attempt
from backedge.recovery.stores.folder_store import FolderStore, local_path

_OPEN = "open"


class FolderStorage(OutputStorage):
    """The storage of one task, in `folder`; staged files are in `staged`, a folder in its staging."""

    def __init__(self, folder: Path, staged: str, disk: Disk, attempt: Attempt, index: int) -> None:
        self.folder = folder
        self.staged = folder / STAGING / staged
        self.disk = disk
        self.location, self.staging_location = str(folder), str(self.staged)
        self.claims = FolderStore(str(folder / STAGING))
        self._attempt = attempt
        self._index = index

    def try_out(self, sink: str) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise OutputError(
                f"sink {sink!r} writes a folder of files, but {self.folder} is a file: give another path, or remove "
                "the file"
            )
        self.disk.make_folder(self.folder)
        self.disk.try_out(self.folder)

    def make_claimable(self) -> None:
        self.disk.make_folder(self.folder / STAGING)

    def published(self) -> list[str]:
        return [name for name in self.disk.names(self.folder) if name[0] not in "._"]

    # -- local files -----------------------------------------------------------------------------------------------

    def new_part(self) -> Path:
        self.disk.make_folder(self.staged / _OPEN, is_private=True)
        return self.staged / _OPEN / new_name(self._attempt, self._index)

    def stage(self, part: Path, name: str) -> int:
        path = self._at(name)
        self.disk.make_folder(path.parent, is_private=True)
        size = part.stat().st_size
        self.disk.sync_file(part)
        self.disk.rename(part, path)
        self.disk.sync_folder(path.parent)
        return size

    def unfinished(self) -> Iterable[str]:
        return [f"{_OPEN}/{name}" for name in self.list(_OPEN)]

    # -- staged files ----------------------------------------------------------------------------------------------

    def exists(self, name: str) -> bool:
        return self._at(name).exists()

    def read(self, name: str) -> bytes:
        return self._at(name).read_bytes()

    def fetch(self, name: str, to: Path) -> Path:
        """The staged file itself."""
        path = self._at(name)
        path.stat()  # raises if it is not there
        return path

    def create(self, name: str, data: bytes) -> bool:
        path = self._at(name)
        self.disk.make_folder(path.parent, is_private=True)

        def write(made: Path) -> None:
            stream = self.disk.open(made, is_private=True)
            try:
                stream.write(data)
            finally:
                stream.close()

        try:
            self.disk.create(path, self.new_part(), write)
            is_same = True
        except FileExistsError:
            is_same = path.read_bytes() == data
        # Whoever created it may have died before that was durable.
        self.disk.sync_folder(path.parent)
        return is_same

    def make_durable(self, names: Collection[str]) -> None:
        for folder in {self._at(name).parent for name in names}:
            if folder.is_dir():
                self.disk.sync_folder(folder)

    def list(self, folder: str) -> list[str]:
        return self.disk.names(self.staged / folder)

    def remove(self, names: Collection[str]) -> None:
        errors: list[OSError] = []
        for name in names:
            try:
                self.disk.remove(self._at(name))
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def remove_empty_folders(self) -> None:
        for name in self.disk.names(self.staged):
            self.disk.remove_empty(self.staged / name)
        for folder in (self.staged, self.staged.parent, self.folder / STAGING):
            self.disk.remove_empty(folder)

    # -- publishing ------------------------------------------------------------------------------------------------

    def publish(self, staged: str, target: str) -> bool:
        path, visible = self._at(staged), self.folder / target
        self.disk.make_folder(self.folder)
        try:
            self.disk.link(path, visible)
        except FileExistsError:
            try:
                if not filecmp.cmp(path, visible, shallow=False):
                    return False
            except FileNotFoundError:
                pass  # just noted by another attempt, or taken by a consumer
        self.disk.sync_folder(self.folder)
        return True

    def note(self, staged: str, note: str) -> None:
        path = self._at(note)
        self.disk.make_folder(path.parent, is_private=True)
        self.disk.rename(self._at(staged), path)
        self.disk.sync_folder(path.parent)

    def _at(self, name: str) -> Path:
        return self.staged / name


def output_folder(sink: str, path: str) -> Path:
    """The local folder of a sink of files."""
    if path.startswith("file:///"):
        path = local_path(path)
    if "://" in path:
        raise OutputError(
            f"sink {sink!r} would write to {path}, where files cannot be published in one step: give a local folder, "
            "or s3://, gs:// or az://"
        )
    return Path(path).absolute()

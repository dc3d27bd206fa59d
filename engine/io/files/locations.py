"""The location of a source's path: a file, or a folder and the files below it.

`FolderLocation` is one on this machine, or behind a URI that Arrow knows; `object_location.py` one in an object store.
Files and folders whose names begin with "." or "_" are not input, because unfinished output is kept there.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from backedge.engine.batches.arrow import filesystems
from backedge.engine.io.files.file_errors import InputChangedError, NoInputError
from backedge.graphs.wording import counted
from backedge.recovery.stores.folder_store import is_empty


class Stamp(NamedTuple):
    """Identifies the version of a file without reading it.

    `version` is a digest of what an object store calls the version of an object; 0 for other files. `time_ns` is 0 for
    a file with a version, and if the filesystem keeps no time.
    """

    size: int
    time_ns: int
    version: int = 0


LINK_TO_NOTHING = Stamp(-1, 0)


class Location(ABC):
    """The meaning of a user's path. Files are named by their path below it; a single file by its own name."""

    numbers_errors = True
    """Whether an error of the system or the network has a number; one without comes from the content of a file."""

    def __init__(self, given: str) -> None:
        self.given = given

    @abstractmethod
    def listed(self) -> dict[str, Stamp]:
        """All files that are not hidden. `FileNotFoundError` if there is no such file or folder."""

    @cached_property
    def is_folder(self) -> bool:
        """Whether the path is not that of a single file."""
        return not self.is_file()

    @abstractmethod
    def is_file(self) -> bool:
        """Whether the path is that of a single file. Asks the filesystem."""

    @abstractmethod
    def stamps(self, paths: Sequence[str]) -> Mapping[str, Stamp]:
        """File -> its current stamp. `InputChangedError` if one is missing."""

    @abstractmethod
    def open(self, path: str) -> Any:
        """Open a file for reading at any position."""

    @abstractmethod
    def open_compressed(self, path: str) -> Any:
        """Open a gzip file for reading its content from the start."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether there is a file of this name in the folder."""

    def removed(self, paths: Collection[str]) -> Collection[str]:
        """Those of these files that were removed, if none of them is there any more."""
        return paths

    def check_folder(self) -> None:
        """Raise unless files can arrive here."""
        if not self.is_folder:
            raise NoInputError(f"{self.given} is a file, and watch= looks for files in a folder: give the folder")

    def arriving(self, endings: Sequence[str]) -> dict[str, Stamp]:
        """The files of a folder with one of the endings that there are by now, sorted."""
        return self._of_endings(self.listed(), endings)

    def files(self, endings: Sequence[str]) -> dict[str, Stamp]:
        """File -> its stamp, sorted. In a folder, only files with one of the endings; a file itself may have any."""
        try:
            everything = self.listed()
            if not self.is_folder:
                return everything
        except FileNotFoundError as error:
            raise NoInputError(
                f"{self.given} does not exist: give the path of a file or a folder that exists"
            ) from error
        except OSError as error:
            raise NoInputError(f"{self.given} cannot be listed ({error}): make it readable, or give another") from error
        chosen = self._of_endings(everything, endings)
        if not chosen:
            raise NoInputError(f"{self.given} {_instead(everything, endings)}")
        return chosen

    def _of_endings(self, files: Mapping[str, Stamp], endings: Sequence[str]) -> dict[str, Stamp]:
        """The files with one of these endings, sorted."""
        wanted = tuple(endings)
        chosen = {path: files[path] for path in sorted(files) if path.lower().endswith(wanted)}
        if LINK_TO_NOTHING in chosen.values():
            broken = next(path for path, stamp in chosen.items() if stamp == LINK_TO_NOTHING)
            raise NoInputError(
                f"{self.shown(broken)} is a link to a file that does not exist: restore the file, or remove the link"
            )
        return chosen

    def shown(self, path: str) -> str:
        """The file as the user would name it."""
        return f"{self.given.rstrip('/')}/{path}" if self.is_folder else self.given

    def missing(self, path: str) -> InputChangedError:
        """The error to raise if a file that was listed is gone."""
        return InputChangedError(
            f"{self.shown(path)} no longer exists, and the run has not read all of it: put it back, "
            "or start a new run on the existing files"
        )

    def checked(self, path: str) -> str:
        if path.startswith("/") or ".." in path.split("/"):
            raise InputChangedError(f"{path!r} is not a file below {self.given}: the cut belongs to another source")
        return path


class FolderLocation(Location):
    """A local path, or a URI that Arrow knows."""

    def __init__(self, given: str) -> None:
        super().__init__(given)
        self.is_local = self.numbers_errors = "://" not in given or given.startswith("file://")
        if "://" not in given:
            self.filesystem, self._path = filesystems().LocalFileSystem(), os.path.abspath(given)
        else:
            self.filesystem, self._path = _from_uri(given)

    def check_folder(self) -> None:
        super().check_folder()
        self._check_exists()

    def arriving(self, endings: Sequence[str]) -> dict[str, Stamp]:
        # A folder that is gone for a moment is not an empty one, of which all files could be forgotten.
        self._check_exists()
        return super().arriving(endings)

    def removed(self, paths: Collection[str]) -> Collection[str]:
        # A disk that is not mounted for a while leaves an empty folder, and its files come back.
        folders = {path.rpartition("/")[0] for path in paths} if self.is_local else ()
        empty = {folder for folder in folders if is_empty(_existing(os.path.join(self._path, folder)))}
        return {path for path in paths if path.rpartition("/")[0] not in empty}

    def _check_exists(self) -> None:
        if self.filesystem.get_file_info(self._path).type != filesystems().FileType.Directory:
            raise NoInputError(f"{self.given} is no folder: create it, and put files there when they are complete")

    def listed(self) -> dict[str, Stamp]:
        kinds = filesystems().FileType
        found = self.filesystem.get_file_info(self._path)
        if found.type == kinds.NotFound:
            raise FileNotFoundError(self.given)
        return {found.base_name: _stamp(found)} if found.type == kinds.File else dict(self._below())

    def stamps(self, paths: Sequence[str]) -> Mapping[str, Stamp]:
        found = self.filesystem.get_file_info([self._full(path) for path in paths])
        for path, info in zip(paths, found, strict=True):
            if info.type != filesystems().FileType.File:
                raise self.missing(path)
        return {path: _stamp(info) for path, info in zip(paths, found, strict=True)}

    def open(self, path: str) -> Any:
        return self.filesystem.open_input_file(self._full(path))

    def open_compressed(self, path: str) -> Any:
        return self.filesystem.open_input_stream(self._full(path), compression="gzip")

    def has(self, name: str) -> bool:
        return bool(self.filesystem.get_file_info(f"{self._path}/{name}").type == filesystems().FileType.File)

    def is_file(self) -> bool:
        return bool(self.filesystem.get_file_info(self._path).type == filesystems().FileType.File)

    def _full(self, path: str) -> str:
        checked = self.checked(path)
        if not self.is_folder and PurePosixPath(self._path).name == path:
            return self._path
        return f"{self._path.rstrip('/')}/{checked}"

    def _below(self) -> Iterator[tuple[str, Stamp]]:
        if self.is_local:
            yield from _walk(self._path, "", ())
            return
        selector = filesystems().FileSelector(self._path, recursive=True)
        for info in self.filesystem.get_file_info(selector):
            path = info.path[len(self._path.rstrip("/")) + 1 :]
            if info.type == filesystems().FileType.File and not is_hidden(path):
                yield path, _stamp(info)


def _from_uri(uri: str) -> tuple[Any, str]:
    try:
        return filesystems().FileSystem.from_uri(uri)
    except (ValueError, OSError, NotImplementedError) as error:
        raise NoInputError(f"{uri} cannot be read from ({error}): give s3://, gs://, file:///, or a path") from error


def _walk(folder: str, below: str, above: tuple[str, ...]) -> Iterator[tuple[str, Stamp]]:
    """The files of a folder and those below it. Links are followed, unless they lead back to a parent folder."""
    real = os.path.realpath(folder)
    if real in above:
        return
    try:
        with os.scandir(folder) as scan:
            entries = [entry for entry in scan if not is_hidden(entry.name)]
    except FileNotFoundError:
        if above:
            return  # it was removed just now
        raise
    for entry in entries:
        name = f"{below}{entry.name}"
        try:
            if entry.is_dir():
                yield from _walk(entry.path, f"{name}/", (*above, real))
                continue
            found = entry.stat()
        except FileNotFoundError:
            if os.path.islink(entry.path):
                yield name, LINK_TO_NOTHING
            continue  # it was renamed or removed just now
        yield name, Stamp(found.st_size, found.st_mtime_ns)


def _existing(folder: str) -> str:
    """This folder, or, if there is none, the next one above it that there is."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _stamp(found: Any) -> Stamp:
    return Stamp(found.size, found.mtime_ns or 0)


def is_hidden(path: str) -> bool:
    """Whether a file, or a folder above it, has a name that begins with "." or "_"."""
    return any(name[:1] in (".", "_") for name in path.split("/"))


def _instead(everything: Mapping[str, Stamp], endings: Sequence[str]) -> str:
    # Text may be in a file with any ending, which the empty ending represents.
    wanted = "" if "" in endings else f" ending in {' or '.join(endings)}"
    if not everything:
        return f"contains no file that is not hidden: put files{wanted} there, or give another folder"
    example = min(everything)
    return (
        f"contains no file{wanted}, but {counted(len(everything), 'other')} such as {example!r}: "
        "give another folder, or name the file itself, with any ending"
    )

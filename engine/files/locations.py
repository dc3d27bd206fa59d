"""The location of a source's path: a file, or a folder and the files below it, on this machine or behind a URI.

Files and folders whose names begin with "." or "_" are not input, because unfinished output is kept there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from engine.files.arrow import filesystems
from engine.files.file_errors import InputChangedError, NoInputError
from graphs.wording import counted


class Stamp(NamedTuple):
    """Identifies the version of a file without reading it. `time_ns` is 0 if the filesystem keeps no time."""

    size: int
    time_ns: int


class Location:
    """The meaning of a user's path. Files are named by their path below it; a single file by its own name."""

    def __init__(self, given: str) -> None:
        self.given = given
        self.is_local = "://" not in given or given.startswith("file://")
        if "://" not in given:
            self.filesystem, self._path = filesystems().LocalFileSystem(), os.path.abspath(given)
        else:
            self.filesystem, self._path = _from_uri(given)

    def files(self, endings: Sequence[str]) -> dict[str, Stamp]:
        """File -> its stamp, sorted. In a folder, only files with one of the endings; a file itself may have any."""
        kinds = filesystems().FileType
        try:
            found = self.filesystem.get_file_info(self._path)
            if found.type == kinds.NotFound:
                raise NoInputError(f"{self.given} does not exist: give the path of a file or a folder that exists")
            if found.type == kinds.File:
                return {found.base_name: _stamp(found)}
            everything = dict(self._below())
        except OSError as error:
            raise NoInputError(f"{self.given} cannot be listed ({error}): make it readable, or give another") from error
        chosen = {path: everything[path] for path in sorted(everything) if path.lower().endswith(tuple(endings))}
        if not chosen:
            raise NoInputError(f"{self.given} {_instead(everything, endings)}")
        return chosen

    def stamps(self, paths: Sequence[str]) -> Mapping[str, Stamp]:
        """File -> its current stamp. `InputChangedError` if one is missing."""
        found = self.filesystem.get_file_info([self._full(path) for path in paths])
        for path, info in zip(paths, found, strict=True):
            if info.type != filesystems().FileType.File:
                raise InputChangedError(
                    f"{self.shown(path)} no longer exists, and the run has not read all of it: put it back, "
                    "or start a new run on the existing files"
                )
        return {path: _stamp(info) for path, info in zip(paths, found, strict=True)}

    def open(self, path: str) -> Any:
        """Open a file for reading at any position."""
        return self.filesystem.open_input_file(self._full(path))

    def open_compressed(self, path: str) -> Any:
        """Open a gzip file for reading its content from the start."""
        return self.filesystem.open_input_stream(self._full(path), compression="gzip")

    def shown(self, path: str) -> str:
        """The file as the user would name it."""
        return f"{self.given.rstrip('/')}/{path}" if self._is_folder else self.given

    @cached_property
    def _is_folder(self) -> bool:
        return self.filesystem.get_file_info(self._path).type != filesystems().FileType.File

    def _full(self, path: str) -> str:
        if path.startswith("/") or ".." in path.split("/"):
            raise InputChangedError(f"{path!r} is not a file below {self.given}: the cut belongs to another source")
        if not self._is_folder and PurePosixPath(self._path).name == path:
            return self._path
        return f"{self._path.rstrip('/')}/{path}"

    def _below(self) -> Iterator[tuple[str, Stamp]]:
        if self.is_local:
            yield from _walk(self._path, self._path, ())
            return
        selector = filesystems().FileSelector(self._path, recursive=True)
        for info in self.filesystem.get_file_info(selector):
            path = info.path[len(self._path.rstrip("/")) + 1 :]
            if info.type == filesystems().FileType.File and not any(map(_is_hidden, path.split("/"))):
                yield path, _stamp(info)


def _from_uri(uri: str) -> tuple[Any, str]:
    try:
        return filesystems().FileSystem.from_uri(uri)
    except (ValueError, OSError, NotImplementedError) as error:
        raise NoInputError(f"{uri} cannot be read from ({error}): give s3://, gs://, file:///, or a path") from error


def _walk(root: str, folder: str, above: tuple[str, ...]) -> Iterator[tuple[str, Stamp]]:
    """The files below a folder. Links are followed, unless they lead back to a parent folder."""
    real = os.path.realpath(folder)
    if real in above:
        return
    with os.scandir(folder) as scan:
        entries = [entry for entry in scan if not _is_hidden(entry.name)]
    for entry in entries:
        if entry.is_dir():
            yield from _walk(root, entry.path, (*above, real))
        else:
            found = entry.stat()
            yield os.path.relpath(entry.path, root), Stamp(found.st_size, found.st_mtime_ns)


def _stamp(found: Any) -> Stamp:
    return Stamp(found.size, found.mtime_ns or 0)


def _is_hidden(name: str) -> bool:
    return name[:1] in (".", "_")


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

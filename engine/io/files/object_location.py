"""The location of a source's path in an object store: an object, the objects below a path, or those of a pattern.

    s3://BUCKET/in               the objects below in/, or the object of this name
    s3://BUCKET/in/2026-*.jsonl  the objects whose path matches: * stands for any text within a part

An object is read in the version that was listed, whatever is written under its name later: the stamp of a file has a
digest of the version, and each request asks for it. Splits are listed once, before the run, so nothing else depends on
a list.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from backedge.engine.batches.arrow import arrow
from backedge.engine.io.files.file_errors import InputChangedError, NoInputError
from backedge.engine.io.files.locations import FolderLocation, Location, Stamp, is_hidden
from backedge.recovery.stores.names import parts_of
from backedge.recovery.stores.store_errors import StoreError
from backedge.recovery.stores.store_protocol import FileFacts
from backedge.recovery.stores.store_schemes import scheme_of, store_at

_SCHEMES = ("s3", "gs", "az")


def is_in_object_store(path: str) -> bool:
    """Whether a path is the URI of a place in an object store.

    >>> is_in_object_store("s3://bucket/orders"), is_in_object_store("orders")
    (True, False)
    """
    return scheme_of(path) in _SCHEMES


def location_of(given: str) -> Location:
    """The location of a path.

    >>> location_of("orders").given
    'orders'
    """
    return ObjectLocation(given) if is_in_object_store(given) else FolderLocation(given)


class ObjectLocation(Location):
    def __init__(self, given: str) -> None:
        super().__init__(given)
        scheme, _, rest = given.partition("://")
        parts = rest.split("/")
        fixed = next((number for number, part in enumerate(parts) if "*" in part), len(parts))
        path = "/".join(parts[1:fixed]).strip("/")
        self._pattern = _pattern("/".join(parts[fixed:])) if fixed < len(parts) else None
        self._base = f"{scheme}://{'/'.join(parts[:fixed])}".rstrip("/")
        # A single object is named by its last part, as a single file is.
        self._folder, _, self._last = path.rpartition("/")
        self._path = path
        try:
            self._bucket: Any = store_at(f"{scheme}://{parts[0]}")
        except StoreError as error:
            raise NoInputError(f"{given} cannot be read from: {error}") from error
        self._versions: dict[str, FileFacts] = {}

    def is_file(self) -> bool:
        return self._pattern is None and bool(self._path) and self._facts_of(self._path) is not None

    def has(self, name: str) -> bool:
        return self._facts_of(f"{self._path}/{name}".lstrip("/")) is not None

    def arriving(self, endings: Sequence[str]) -> dict[str, Stamp]:
        try:
            return super().arriving(endings)
        except FileNotFoundError:
            return {}  # a folder without objects is none

    def listed(self) -> dict[str, Stamp]:
        if not self.is_folder:
            return dict(self.stamps([self._last]))
        below = f"{self._path}/" if self._path else ""
        found = {name.removeprefix(below): facts for name, facts in self._listed()}
        if not found:
            raise FileNotFoundError(self.given)
        self._versions = {
            name: facts
            for name, facts in found.items()
            if not is_hidden(name) and (self._pattern is None or self._pattern.fullmatch(name))
        }
        return {name: _stamp(facts) for name, facts in self._versions.items()}

    def stamps(self, paths: Sequence[str]) -> Mapping[str, Stamp]:
        full = [self._full(path) for path in paths]
        with ThreadPoolExecutor(self._bucket.reads_at_once) as pool:
            found = list(pool.map(self._facts_of, full))
        for path, facts in zip(paths, found, strict=True):
            if facts is None:
                raise self.missing(path)
            self._versions[path] = facts
        return {path: _stamp(self._versions[path]) for path in paths}

    def open(self, path: str) -> Any:
        """Open the version of an object whose stamp was asked for last."""
        if path not in self._versions:
            self.stamps([path])
        return arrow().PythonFile(self._bucket.open_version(self._full(path), self._versions[path]), mode="r")

    def open_compressed(self, path: str) -> Any:
        return arrow().CompressedInputStream(self.open(path), "gzip")

    def shown(self, path: str) -> str:
        return f"{self._base}/{path}" if self.is_folder else self.given

    def _full(self, path: str) -> str:
        folder = self._path if self.is_folder else self._folder
        full = f"{folder}/{self.checked(path)}" if folder else self.checked(path)
        if parts_of(full) is None:
            raise InputChangedError(f"{self.given} has an object {path!r}, whose name has empty parts: rename it")
        return full

    def _listed(self) -> list[tuple[str, FileFacts]]:
        try:
            return list(self._bucket.facts_below(self._path))
        except StoreError as error:
            raise NoInputError(f"{self.given} cannot be read from: {error}") from error

    def _facts_of(self, path: str) -> FileFacts | None:
        try:
            return self._bucket.facts(path)
        except StoreError as error:
            raise NoInputError(f"{self.given} cannot be read from: {error}") from error


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile("[^/]*".join(map(re.escape, text.split("*"))), re.DOTALL)


def _stamp(facts: FileFacts) -> Stamp:
    if facts.version is None:
        return Stamp(facts.size, int((facts.written_s or 0) * 1e9))
    digest = hashlib.blake2b(facts.version.encode(), digest_size=7).digest()
    return Stamp(facts.size, 0, int.from_bytes(digest))

"""A store of objects in memory, in which `simulate` rehearses sinks of files in object stores."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from typing import BinaryIO

from backedge.recovery.stores.store_protocol import FileFacts, Store


class ObjectsInMemory(Store):
    """Objects by name, and the two calls of the built-in store of objects that sinks need besides those of a `Store`.

    >>> store = ObjectsInMemory()
    >>> store.below("a").write({"b": b"1"})
    >>> store.copy("a/b", "c"), store.copy("a/b", "c"), list(store.list())
    (True, True, ['a/b', 'c'])
    """

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._prefix = ""

    @property
    def location(self) -> str:
        """A name for messages: no other process can open it."""
        return f"memory://{self._prefix}".rstrip("/")

    def below(self, folder: str) -> ObjectsInMemory:
        below = copy(self)
        below._prefix = f"{self._prefix}{folder}/"
        return below

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        try:
            data = self._objects[self._prefix + name]
        except KeyError:
            raise FileNotFoundError(2, "No such object", f"{self.location}/{name}") from None
        return data[start:] if length is None else data[start : start + length]

    def facts(self, name: str) -> FileFacts | None:
        data = self._objects.get(self._prefix + name)
        return None if data is None else FileFacts(len(data))

    def write(self, files: Mapping[str, bytes]) -> None:
        self._objects |= {self._prefix + name: data for name, data in files.items()}

    def upload(self, name: str, file: BinaryIO) -> None:
        file.seek(0)
        self.write({name: file.read()})

    def create(self, name: str, data: bytes) -> bool:
        is_free = self._prefix + name not in self._objects
        self._objects.setdefault(self._prefix + name, data)
        return is_free

    def copy(self, source: str, target: str) -> bool:
        """Copy an object to a name that is free. Whether the name now holds the same bytes."""
        data = ObjectsInMemory.read(self, source)
        return self._objects.setdefault(self._prefix + target, data) == data

    def list(self, folder: str = "") -> list[str]:
        above = f"{self._prefix}{folder}/" if folder else self._prefix
        return [name.removeprefix(self._prefix) for name in list(self._objects) if name.startswith(above)]

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            self._objects.pop(self._prefix + name, None)

"""A process's view of objects that it shares with others. At one of its requests something happens: it dies or sleeps,
or the request fails, before it was carried out or after.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import BinaryIO, TypeVar

from backedge.engine.io.files.objects_in_memory import ObjectsInMemory
from backedge.recovery.stores.store_errors import OutcomeUnknownError
from backedge.recovery.stores.store_protocol import FileFacts
from tests.files.disks import Crash

T = TypeVar("T")


class SteppedObjects(ObjectsInMemory):
    """Calls `happens` with the kind of the n-th request, before or after that request is carried out.

    A removal is a request for each object, so it can stop midway.
    """

    def __init__(
        self,
        shared: ObjectsInMemory,
        at: int | None = None,
        happens: Callable[[str], object] | None = None,
        *,
        is_after: bool = False,
    ) -> None:
        super().__init__()
        self._objects = shared._objects  # pyright: ignore[reportPrivateUsage]
        self.requests: list[tuple[str, str]] = []
        self.happened: list[str] = []
        self._at = at
        self._happens = happens
        self._is_after = is_after

    def _request(self, kind: str, name: str, carry_out: Callable[[], T]) -> T:
        is_now = len(self.requests) == self._at
        self.requests.append((kind, name))
        if is_now and not self._is_after:
            self._happen(kind)
        result = carry_out()
        if is_now and self._is_after:
            self._happen(kind)
        return result

    def _happen(self, kind: str) -> None:
        self.happened.append(kind)
        if self._happens is not None:
            self._happens(kind)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        read = super().read
        return self._request("read", name, lambda: read(name, start, length))

    def facts(self, name: str) -> FileFacts | None:
        facts = super().facts
        return self._request("facts", name, lambda: facts(name))

    def write(self, files: Mapping[str, bytes]) -> None:
        write = super().write
        self._request("write", next(iter(files)), lambda: write(files))

    def upload(self, name: str, file: BinaryIO) -> None:
        write = super().write
        file.seek(0)
        self._request("upload", name, lambda: write({name: file.read()}))

    def create(self, name: str, data: bytes) -> bool:
        create = super().create
        return self._request("create", name, lambda: create(name, data))

    def copy(self, source: str, target: str) -> bool:
        copy = super().copy
        return self._request("copy", target, lambda: copy(source, target))

    def remove(self, names: Collection[str]) -> None:
        remove = super().remove
        for name in names:
            self._request("remove", name, lambda name=name: remove([name]))


def dies(kind: str) -> None:
    """The process dies."""
    raise Crash


def fails(kind: str) -> None:
    """The request has no clear answer."""
    raise OutcomeUnknownError(5, "no reply") if kind == "create" else OSError(5, "no reply")

"""The output of a sink in an object store.

Parts are written to anonymous local files, and uploaded when they are staged. Nothing is renamed or replaced, and no
list is relied upon: objects are found by name.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from backedge.engine.io.files.disk import AnonymousDisk
from backedge.engine.io.files.file_errors import OutputError
from backedge.engine.io.files.output_storage import STAGING, OutputStorage
from backedge.recovery.stores.store_calls import create_exclusively, exists
from backedge.recovery.stores.store_schemes import store_at

_COPIED_BYTES = 8 << 20


@lru_cache(maxsize=16)
def store_of(location: str) -> Any:
    """The store of a place, with its connections: each sweep asks for it.

    Typed as any, because only stores of objects copy, and their module is imported only if they are used.
    """
    return store_at(location)


class ObjectStorage(OutputStorage):
    """The storage of one task, in `store`; staged objects are below `staged`, in its staging."""

    fetched_at_once = 8

    def __init__(self, store: Any, staged: str) -> None:
        self._store = store
        self._above = f"{STAGING}/{staged}"
        self._staged = store.below(self._above)
        self.location, self.staging_location = store.location, self._staged.location
        self.claims = store.below(STAGING)
        self.disk = AnonymousDisk()

    def try_out(self, sink: str) -> None:
        """Write an object, and copy another to its name: only this shows that the store refuses that."""
        self._store.prepare(is_signed=True)
        names = [f"{STAGING}/try-{secrets.token_hex(8)}.{number}" for number in range(3)]
        try:
            self._store.write({names[0]: b"one", names[1]: b"other"})
            if not self._store.copy(names[0], names[2]) or self._store.copy(names[1], names[2]):
                raise OutputError(
                    f"sink {sink!r} cannot write to {self.location}: its store copies objects over others although it "
                    "is told not to; set AWS_COPY_IF_NOT_EXISTS to the header that this store has for it, or write "
                    "elsewhere"
                )
        finally:
            with suppress(OSError):
                self._store.remove(names)

    def published(self) -> list[str]:
        return sorted({name.split("/")[0] for name in self._store.list() if name[0] not in "._"})

    # -- local files -----------------------------------------------------------------------------------------------

    def new_part(self) -> Path:
        return Path(tempfile.gettempdir(), f"backedge-{secrets.token_hex(16)}")

    def stage(self, part: Path, name: str) -> int:
        with self.disk.read(part) as file:
            self._staged.upload(name, file)
            size = os.fstat(file.fileno()).st_size
        self.disk.remove(part)
        return size

    # -- staged objects --------------------------------------------------------------------------------------------

    def exists(self, name: str) -> bool:
        return exists(self._staged, name)

    def read(self, name: str) -> bytes:
        return self._staged.read(name)

    def fetch(self, name: str, to: Path) -> Path:
        with self._staged.open(name) as staged, to.open("wb") as file:
            shutil.copyfileobj(staged, file, _COPIED_BYTES)
        return to

    def create(self, name: str, data: bytes) -> bool:
        """Whatever a reply says, the object is read."""
        return create_exclusively(self._staged, name, data)

    def list(self, folder: str) -> list[str]:
        return sorted(name.removeprefix(f"{folder}/") for name in self._staged.list(folder))

    def remove(self, names: Collection[str]) -> None:
        self._staged.remove(names)

    # -- publishing ------------------------------------------------------------------------------------------------

    def publish(self, staged: str, target: str) -> bool:
        return self._store.copy(f"{self._above}/{staged}", target)

    def note(self, staged: str, note: str) -> None:
        """An empty object."""
        self._staged.write({note: b""})

"""A store that creates a file without anybody hearing of it."""

from __future__ import annotations

from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.store_errors import OutcomeUnknownError


class LosesAReply(FolderStore):
    """Goes away, for one read, once it has created the first file whose name begins like this."""

    def __init__(self, location: str, beginning: str) -> None:
        super().__init__(location)
        self._beginning = beginning
        self._is_away = self._has_been_away = False

    def create(self, name: str, data: bytes) -> bool:
        is_made = super().create(name, data)
        if name.startswith(self._beginning) and not self._has_been_away:
            self._is_away = self._has_been_away = True
            raise OutcomeUnknownError(5, "the reply was lost")
        return is_made

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if self._is_away:
            self._is_away = False
            raise OSError(5, "the store is away")
        return super().read(name, start, length)

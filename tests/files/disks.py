"""Disks on which things go wrong: a crash before any step, a step that fails, a full disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from backedge.engine.io.files.disk import Disk, Stream


class Crash(Exception):
    """The process has died."""


def _stepped(name: str) -> Any:
    """The method of a disk with this name, which is a step; its last path is what it makes or changes."""
    method = getattr(Disk, name)

    def stepped(disk: CrashingDisk, *paths: Path, **options: Any) -> Any:
        disk._step(name, paths[-1])
        result = method(disk, *paths, **options)
        disk._done(name)
        return result

    return stepped


class CrashingDisk(Disk):
    """Dies before the n-th step, or never. What it did before that is done."""

    def __init__(self, dies_before: int | None = None) -> None:
        super().__init__()
        self.dies_before = dies_before
        self.steps: list[tuple[str, Path]] = []

    def _step(self, what: str, path: Path) -> None:
        if len(self.steps) == self.dies_before:
            raise Crash
        self.steps.append((what, path))

    def _done(self, what: str) -> None:
        """A step is done."""

    open, sync_file, sync_folder, rename, link, remove = map(
        _stepped, ("open", "sync_file", "sync_folder", "rename", "link", "remove")
    )


class FailingDisk(CrashingDisk):
    """Has no room at the n-th step, and only then."""

    def __init__(self, fails_at: int) -> None:
        super().__init__()
        self._fails_at = fails_at

    def _step(self, what: str, path: Path) -> None:
        super()._step(what, path)
        if len(self.steps) - 1 == self._fails_at:
            raise OSError(28, "No space left on device")


class SteppedDisk(CrashingDisk):
    """Calls `happens` with the kind of the n-th step, before or after that step."""

    def __init__(
        self, at: int | None = None, happens: Callable[[str], object] | None = None, *, is_after: bool = False
    ) -> None:
        super().__init__()
        self.happened: list[str] = []
        self._at = at
        self._happens = happens
        self._is_after = is_after

    def _step(self, what: str, path: Path) -> None:
        super()._step(what, path)
        if not self._is_after:
            self._happen(what)

    def _done(self, what: str) -> None:
        if self._is_after:
            self._happen(what)

    def _happen(self, what: str) -> None:
        if len(self.steps) - 1 == self._at and not self.happened:
            self.happened.append(what)
            if self._happens is not None:
                self._happens(what)


class FullDisk(Disk):
    """Takes so many bytes, and then says that there is no room, until there is."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__()
        self.bytes_left = bytes_max

    def open(self, path: Path, *, is_private: bool = False) -> Stream:
        return _LimitedStream(self, super().open(path, is_private=is_private))


class _LimitedStream:
    def __init__(self, disk: FullDisk, stream: Stream) -> None:
        self._disk = disk
        self._stream = stream

    def write(self, data: bytes) -> object:
        written = bytes(data)[: self._disk.bytes_left]
        self._disk.bytes_left -= len(written)
        self._stream.write(written)
        if len(written) < len(bytes(data)):
            raise OSError(28, "No space left on device")
        return len(written)

    def close(self) -> None:
        self._stream.close()

    def flush(self) -> None:
        """Parquet asks for it."""

    @property
    def closed(self) -> bool:
        """Parquet asks for it."""
        return False

"""Makes the files of a large snapshot durable while the next ones are being encoded.

The disk and the processor work at the same time then. Each call of `make_durable` waits for the disk, in one thread
beside the one that writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from backedge.recovery.stores.store_protocol import Store


class Settling:
    """Writes the files of one snapshot, and makes them durable if they are more than `left_bytes_max`.

    Use it in a `with` statement. What was written last becomes durable in `finish`, so a snapshot that is written at
    once needs no second thread.
    """

    def __init__(self, store: Store, left_bytes_max: int) -> None:
        self._store = store
        self._left_bytes = left_bytes_max
        # Files that are written and not yet being made durable.
        self._waiting: list[str] = []
        self._thread: ThreadPoolExecutor | None = None
        self._begun: list[Future[None]] = []

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write files. What was written before begins to be made durable."""
        self._begin()
        self._store.write(files)
        self._waiting += files
        self._left_bytes -= sum(map(len, files.values()))

    def write_pieces(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a large file piece by piece. What was written before begins to be made durable."""
        self._begin()
        self._store.write_pieces(name, pieces)
        self._waiting.append(name)
        self._left_bytes = -1

    def finish(self) -> bool:
        """Wait until all files are durable; return whether they are. Raises what making them durable has raised."""
        if self._are_large:
            self._store.make_durable(self._waiting)
            for each in self._begun:
                each.result()
        return self._are_large

    @property
    def _are_large(self) -> bool:
        return self._left_bytes < 0

    def _begin(self) -> None:
        if self._are_large and self._waiting:
            self._thread = self._thread or ThreadPoolExecutor(1, "settling")
            self._begun.append(self._thread.submit(self._store.make_durable, self._waiting))
            self._waiting = []

    def __enter__(self) -> Settling:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

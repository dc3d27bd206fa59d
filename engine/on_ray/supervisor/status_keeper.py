"""The status of a run: kept beside its cuts for successors and commands, and passed on to those who watch the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from backedge.engine.on_ray.job_store import JobStore
from backedge.engine.on_ray.supervisor.beside import Beside
from backedge.graphs.task_errors import describe
from backedge.recovery.stores.run_status import RunStatus
from backedge.recovery.stores.store_errors import StoreError

KEPT_MS = 10_000
WATCHED_MS = 5_000


class Watcher(Protocol):
    """Passes on what is known about a run, such as its metrics."""

    def on_status(self, status: RunStatus) -> None:
        """The status now: every few seconds, and at the end."""
        ...


class StatusKeeper:
    """Keeps the status in the store, and passes it on to `watchers`.

    `say` reports what has failed, and `say_once` what may fail again and again.
    """

    def __init__(
        self, store: JobStore, beside: Beside, say: Callable[[str], None], say_once: Callable[[str], None], now_ms: int
    ) -> None:
        self.watchers: list[Watcher] = []
        self._store = store
        self._beside = beside
        self._say = say
        self._say_once = say_once
        self._kept_at_ms: int | None = None
        self._watched_at_ms = now_ms

    def kept_of(self, run: str) -> RunStatus | None:
        """What a former supervisor of this run has kept."""
        try:
            kept = self._store.kept_status()
        except (OSError, StoreError) as error:
            self._say(f"the status that was kept of the job cannot be read, and is replaced: {error}")
            return None
        return kept if kept is not None and kept.run == run else None

    def keep(self, status: RunStatus, now_ms: int) -> None:
        """Keep it, beside the loop."""
        self._kept_at_ms = now_ms

        def keep() -> None:
            try:
                self._store.keep_status(status)
            except (OSError, StoreError) as error:
                self._say_once(f"the status of the run could not be kept ({error}); it is tried again later")

        self._beside.do(keep)

    def is_old(self, now_ms: int) -> bool:
        """Whether it was never kept, or long ago."""
        return self._kept_at_ms is None or now_ms - self._kept_at_ms >= KEPT_MS

    def tell(self, status: Callable[[], RunStatus]) -> None:
        """Tell the watchers."""
        if not self.watchers:
            return
        now = status()
        for watcher in list(self.watchers):
            try:
                watcher.on_status(now)
            except Exception as error:  # noqa: BLE001  # a run does not end because it cannot be reported
                self.watchers.remove(watcher)
                self._say(f"{type(watcher).__name__} has failed, and is left out from now on: {describe(error)}")

    def tell_if_due(self, status: Callable[[], RunStatus], now_ms: int) -> None:
        """Tell the watchers every few seconds."""
        if now_ms - self._watched_at_ms >= WATCHED_MS:
            self._watched_at_ms = now_ms
            self.tell(status)

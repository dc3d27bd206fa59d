"""Work that the loop of a supervisor does not wait for: removals, and others that take requests to a store."""

from __future__ import annotations

from collections.abc import Callable
from queue import Queue
from threading import Thread

from backedge.graphs.task_errors import describe

TOLD_S = 5.0
WAITING_MAX = 64
"""If a store removes more slowly than cuts are taken, the loop waits, rather than that more and more is to be done."""


class Beside:
    """One thread, which does everything in the order in which it is given.

    `say` is told of what fails in a way that the work itself does not expect: a run does not end because of it.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._waiting: Queue[Callable[[], None] | None] = Queue(WAITING_MAX)
        self._thread: Thread | None = None

    def do(self, work: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._do_all, name="beside", daemon=True)
            self._thread.start()
        self._waiting.put(work)

    def _do_all(self) -> None:
        while (work := self._waiting.get()) is not None:
            try:
                work()
            except Exception as error:  # noqa: BLE001  # whatever it is, the loop does not depend on it
                self._say(f"a removal, or keeping the status, has failed: {describe(error)}; it is tried again later")

    def finish(self) -> None:
        """Wait until everything is done."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(TOLD_S)
            if self._thread.is_alive():
                self._say("the run waits for its store, which still removes what is not needed any more")
                self._thread.join()
            self._thread = None

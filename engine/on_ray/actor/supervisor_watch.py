"""Watches the supervisor while no attempt runs, and has Ray replace it if it is silent.

During an attempt the connection to its mailbox shows whether its process is there (`transport/mailbox.py`). Between two
attempts there is no such connection, but the process may be stopped then as well, and nothing else would notice: the
actors that are left ask it through Ray.
"""

from __future__ import annotations

from threading import Event, Thread

from engine.on_ray import cluster
from engine.on_ray.transport.control_messages import Leader

PARTS = 3
PART_S_MIN = 1.0


class SupervisorWatch:
    """Watches from the end of an actor's part in an attempt until its next one, in a thread of its own."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._is_over = Event()
        Thread(target=self._watch, name="supervisor watch", daemon=True).start()

    def end(self) -> None:
        """Stop watching."""
        self._is_over.set()

    def _watch(self) -> None:
        ask = self._leader.actor.about.remote
        part_s = max(PART_S_MIN, self._leader.silence_ms / 1000 / PARTS)
        asked, silent_parts = ask(), 0
        # In parts, because this process may have been stopped itself: that counts as one part, however long it took.
        while not self._is_over.wait(part_s):
            if cluster.is_over(asked, 0):
                asked, silent_parts = ask(), 0
                continue
            silent_parts += 1
            if silent_parts == PARTS:
                # If it wakes up later, that does no harm, because its successor has claimed the job in the chain.
                cluster.replace(self._leader.actor)
                return

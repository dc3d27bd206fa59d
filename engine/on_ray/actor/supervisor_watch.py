"""How an actor notices that its supervisor is silent or gone, beside the attempts that it takes part in.

During an attempt the connection to the supervisor's mailbox shows whether its process is there
(`transport/mailbox.py`). Between two attempts there is no such connection, but the process may be stopped then as well,
and nothing else would notice: the actors that are left ask it through Ray.

Ray ends an actor with the process that has started it. The first actors of a run outlive their supervisor, whose
successor needs them, and those of a detached run everything: they look themselves whether there is one.
"""

from __future__ import annotations

import time
from threading import Event, Thread

from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.transport.control_messages import Leader

PARTS = 3
PART_S_MIN = 1.0
ANSWER_S = 1.0
GONE_LOOK_S = 5.0
GONE_LOOKS = 3


class SupervisorWatch:
    """Watches from the end of an actor's part in an attempt until its next one, in a thread of its own."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._is_over = Event()
        Thread(target=self._watch, name="supervisor watch", daemon=True).start()

    def end(self) -> None:
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


def replace_silent(leader: Leader) -> None:
    """Have Ray end the supervisor's process and start a successor, unless Ray has noticed its death already."""
    asked = leader.actor.about.remote()
    if not cluster.is_over(asked, ANSWER_S) or cluster.succeeded(asked):
        cluster.replace(leader.actor)


def end_with(supervisor: cluster.RunSupervisor) -> None:
    """End the process of this actor when the supervisor is gone for good: it neither runs nor will be started again."""
    Thread(target=_end_with, args=(supervisor,), name="end with the supervisor", daemon=True).start()


def _end_with(supervisor: cluster.RunSupervisor) -> None:
    known: cluster.Actor | None = None
    others: list[cluster.Actor] = []
    looks_left = GONE_LOOKS
    while looks_left:
        time.sleep(GONE_LOOK_S)
        try:
            found = cluster.find_actor(*supervisor.name)
        except cluster.RayError:
            continue  # the cluster does not answer
        # The name may belong to the supervisor of a later run, even at the first look: processes may start late.
        if found is not None and known is None and found not in others:
            leads = _leads(found, supervisor.run)
            if leads is None:
                continue  # it starts, or is being replaced
            known = found if leads else None
            others += [] if leads else [found]
        is_there = found is not None and found == known
        looks_left = GONE_LOOKS if is_there else looks_left - 1
    cluster.end_own_actor()


def _leads(supervisor: cluster.Actor, run: str) -> bool | None:
    """Whether a supervisor leads this run; None if it does not answer now."""
    asked = supervisor.leads.remote(run)
    if not cluster.is_over(asked, ANSWER_S):
        return None
    try:
        return bool(cluster.get(asked))
    except cluster.RayError:
        return None

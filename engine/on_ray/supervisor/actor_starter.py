"""Starts the actors of a run.

The process that starts a run has Ray start the first actors and the supervisor at the same time. So the first actors do
not belong to the supervisor, and a successor finds those that are still alive: to start processes takes most of the
time of a recovery. Actors that the supervisor starts later, in place of dead ones, die with it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.actor.task_actor import TaskActor
from backedge.engine.on_ray.cluster import ActorName, Needs

TASKS_SHOWN = 4
LEAVE_TIMEOUT_S = 5.0
FIND_TIMEOUT_S = 120.0
"""Ray itself ends the processes of a cluster that has not answered for a minute."""

FIND_PAUSE_S = 1.0


def shown_name(name: str, tasks: Sequence[str]) -> str:
    """The name of an actor in the lists of Ray: the tasks that it is started for, or else its own.

    >>> shown_name("spare-1", ()), shown_name("slice-0", ("orders/0", "count/0"))
    ('spare-1', 'orders/0 + count/0')
    """
    if len(tasks) > TASKS_SHOWN:
        return f"{' + '.join(tasks[:TASKS_SHOWN])} + {len(tasks) - TASKS_SHOWN} more"
    return " + ".join(tasks) or name


class FirstActors(NamedTuple):
    """The actors that a run begins with. `strategy` is Ray's scheduling strategy.

    They travel to the supervisor by name: Ray keeps no references for an actor that it may have to start again.
    """

    job: str
    strategy: str
    names: Mapping[str, ActorName]

    def find(self) -> dict[str, cluster.Actor]:
        """Those that are alive. While the cluster does not answer, it is asked again: an error would end the run."""
        until_s = time.monotonic() + FIND_TIMEOUT_S
        found = {name: _found(known, until_s) for name, known in self.names.items()}
        return {name: actor for name, actor in found.items() if actor is not None}


def _found(known: ActorName, until_s: float) -> cluster.Actor | None:
    while True:
        try:
            return cluster.find_actor(*known)
        except cluster.RayError:
            if time.monotonic() > until_s:
                raise
            time.sleep(FIND_PAUSE_S)


def start_first(
    job: str, strategy: str, needs: Mapping[str, Needs], supervisor: cluster.RunSupervisor, *, is_detached: bool
) -> tuple[FirstActors, list[cluster.Actor]]:
    """Start the first actors of a run. They end when its supervisor is gone for good.

    Unless the run is detached, they also end with this process, or when there is no reference to them any more.
    """
    starter = ActorStarter(job, strategy)
    started = {
        name: starter.start_named(name, needed, supervisor, is_detached=is_detached) for name, needed in needs.items()
    }
    names = {name: known for name, (known, _) in started.items()}
    return FirstActors(job, strategy, names), [actor for _, actor in started.values()]


class Survivors:
    """The first actors that have outlived a supervisor, and leave the attempt that it led."""

    def __init__(self, first: FirstActors) -> None:
        self._actors = first.find()
        self._leaving = {name: actor.leave.remote() for name, actor in self._actors.items()}

    def wait(self) -> dict[str, cluster.Actor]:
        """Those that have left. An actor that is busy for too long, or cannot be reached, is ended instead."""
        busy = cluster.unanswered(list(self._leaving.values()), LEAVE_TIMEOUT_S)
        found: dict[str, cluster.Actor] = {}
        for name, left in self._leaving.items():
            if left not in busy and cluster.succeeded(left):
                found[name] = self._actors[name]
            else:
                cluster.kill(self._actors[name])
        return found


class ActorStarter:
    """Starts the actors of one run, in a namespace of their own.

    - started: the number of actors so far.
    - first: the actors that were started in advance.
    """

    def __init__(
        self, job: str, strategy: str = "DEFAULT", first: Mapping[str, cluster.Actor] = MappingProxyType({})
    ) -> None:
        self.job = job
        self.started = 0
        self.first = first
        self._space = f"backedge-{uuid.uuid4().hex[:8]}"
        self._strategy = strategy

    def part(self, names: Collection[str]) -> ActorStarter:
        """A starter for one pipeline, with those of the first actors that have these names."""
        first = {name: actor for name, actor in self.first.items() if name in names}
        return ActorStarter(self.job, self._strategy, first)

    def start(self, name: str, needs: Needs) -> cluster.Actor:
        """Start an actor. It cannot be called yet, but calls to it wait. It ends with this process."""
        return self.start_named(name, needs, None, is_detached=False)[1]

    def start_named(
        self, name: str, needs: Needs, supervisor: cluster.RunSupervisor | None, *, is_detached: bool
    ) -> tuple[ActorName, cluster.Actor]:
        """Start an actor that ends with this process unless it is detached, and with that supervisor, if any."""
        self.started += 1
        label = f"{self.job}/{shown_name(name, needs.tasks)}"
        options = dict[str, Any](
            space=self._space,
            needs=needs,
            strategy=self._strategy,
            threads=2,
            is_detached=is_detached,
        )
        known = label
        try:
            actor = cluster.start_actor(TaskActor, label, supervisor, name=known, **options)
        except ValueError:
            # The name of a process that has just died is not free yet.
            known = f"{label}#{self.started}"
            actor = cluster.start_actor(TaskActor, label, supervisor, name=known, **options)
        return ActorName(known, self._space), actor

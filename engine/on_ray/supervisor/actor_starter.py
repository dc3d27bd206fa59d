"""Starts the actors of a run, and loads nothing of the run itself for that.

Loading our modules and the user's takes about as long as starting a process. So a supervisor first has Ray start the
processes of the tasks, and loads its run meanwhile.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from engine.on_ray import cluster
from engine.on_ray.actor.task_actor import TaskActor
from engine.on_ray.cluster import Needs

TASKS_SHOWN = 4


def shown_name(name: str, tasks: Sequence[str]) -> str:
    """The name of an actor in the lists of Ray: the tasks that it is started for, or else its own.

    >>> shown_name("spare-1", ()), shown_name("slice-0", ("orders/0", "count/0"))
    ('spare-1', 'orders/0 + count/0')
    """
    if len(tasks) > TASKS_SHOWN:
        return f"{' + '.join(tasks[:TASKS_SHOWN])} + {len(tasks) - TASKS_SHOWN} more"
    return " + ".join(tasks) or name


class FirstActors(NamedTuple):
    """The actors that a run begins with, and the resources that each needs. `strategy` is Ray's scheduling strategy."""

    job: str
    strategy: str
    needs: Mapping[str, Needs]


class ActorStarter:
    """Starts the actors of one run, in a namespace of their own.

    - started: the number of actors so far.
    - first: the actors that were started in advance.
    """

    def __init__(self, job: str, strategy: str = "DEFAULT") -> None:
        self.job = job
        self.started = 0
        self.first: dict[str, Any] = {}
        self._space = f"backedge-{uuid.uuid4().hex[:8]}"
        self._strategy = strategy

    @staticmethod
    def with_first(actors: FirstActors) -> ActorStarter:
        """Start the first actors of a run."""
        starter = ActorStarter(actors.job, actors.strategy)
        starter.first = {name: starter.start(name, needs) for name, needs in actors.needs.items()}
        return starter

    def part(self, names: Collection[str]) -> ActorStarter:
        """A starter for one pipeline, with those of the first actors that have these names."""
        part = ActorStarter(self.job, self._strategy)
        part.first = {name: actor for name, actor in self.first.items() if name in names}
        return part

    def start(self, name: str, needs: Needs) -> Any:
        """Start an actor. It cannot be called yet, but calls to it wait."""
        self.started += 1
        label = f"{self.job}/{shown_name(name, needs.tasks)}"
        options = dict[str, Any](space=self._space, needs=needs, strategy=self._strategy, threads=2)
        try:
            return cluster.start_actor(TaskActor, label, name=label, **options)
        except ValueError:
            # The name of a process that has just died is not free yet.
            return cluster.start_actor(TaskActor, label, name=f"{label}#{self.started}", **options)

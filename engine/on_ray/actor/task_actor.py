"""The Ray actor that hosts tasks. The supervisor imports this module to start actors; only actors load their host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backedge.engine.on_ray import cluster

if TYPE_CHECKING:
    from backedge.engine.on_ray.supervisor.silence import Doing
    from backedge.engine.on_ray.transport.control_messages import Arrival, Begin, Meeting, Outcome
    from backedge.graphs.ids import Attempt


class TaskActor:
    """A process that hosts tasks, or a spare that waits to replace one. `TaskHost` does what each method says.

    `supervisor`: the one that this process ends with, if that has not started it.
    """

    def __init_subclass__(cls) -> None:
        """Ray makes a subclass of each actor class, and a worker unpickles that before it reads the arguments."""
        cluster.skip_serializers(cls)

    def __init__(self, label: str, supervisor: cluster.RunSupervisor | None) -> None:
        from backedge.engine.on_ray.actor.task_host import TaskHost

        self._label = label
        self._host = TaskHost(supervisor)

    def __repr__(self) -> str:
        """The name that Ray shows in front of its output and in lists."""
        return self._label

    def arrive(self, meeting: Meeting) -> Arrival:
        return self._host.arrive(meeting)

    def look(self) -> Doing:
        return self._host.look()

    def leave(self) -> None:
        self._host.leave()

    def offer(self, attempt: Attempt, of: str, number: int) -> Any:
        return self._host.offer(attempt, of, number)

    def take_part(self, begin: Begin) -> Outcome:
        return self._host.take_part(begin)

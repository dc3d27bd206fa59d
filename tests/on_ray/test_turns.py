"""What a task takes in a turn while loops within its actor have enough to do."""

from __future__ import annotations

from typing import Any

from engine.batch import Batch, encode
from engine.memory import MemoryServices
from engine.on_ray.control import Counts
from engine.on_ray.host import OUTSIDE_TURNS, Host
from engine.runtime import TaskRuntime
from engine.task import TaskCore
from graphs import expand
from graphs.ids import Attempt, TaskId
from recovery.messages import Data
from tests.on_ray.flows import trips

ATTEMPT = Attempt(1)


class Around:
    """Stands in for the actor."""

    now_ms = 0

    def __init__(self) -> None:
        self.counts = Counts()
        self.is_busy = False

    def is_going_round(self) -> bool:
        return self.is_busy

    def on_records(self, task: TaskId, records: int) -> None:
        assert records > 0


class Out:
    """A channel that is never full and leads nowhere."""

    is_local = True

    def send(self, item: Any) -> None:
        assert isinstance(item, Data)

    def is_full(self) -> bool:
        return False


class Body:
    """The task behind the shuffle, with batches from its own actor and from another."""

    def __init__(self) -> None:
        deployment = expand(trips(count=1).plan(), 2, "slice")
        task = deployment.tasks[TaskId("enough", 0)]
        self.around = Around()
        core = TaskCore(task, ATTEMPT, encode)
        runtime = TaskRuntime(task, deployment, MemoryServices({}))
        runtime.open(None)
        self.host = Host(core, runtime, self.around, 10**9, ())  # type: ignore[arg-type]
        self.host.connect({c.id: Out() for c in task.outputs}, {})  # type: ignore[dict-item]
        self.inside, self.outside = sorted((c for c in task.inputs), key=lambda channel: not channel.within_actor)
        assert self.inside.within_actor and not self.outside.within_actor
        core.start()

    def turn(self, inside: int, outside: int) -> tuple[int, int]:
        """One turn after so many batches have arrived; says how many of them wait behind it."""
        inboxes = self.host.core.inboxes
        for channel, count in ((self.inside.id, inside), (self.outside.id, outside)):
            for _ in range(count):
                batch = Batch([(0, 0)], 0)
                payload = batch if channel == self.inside.id else encode(batch)
                self.host.core.receive(channel, ATTEMPT, Data(inboxes[channel].received + 1, payload))
        self.host.turn(taken_max=1, read_max=1)
        return len(inboxes[self.inside.id].queue), len(inboxes[self.outside.id].queue)


def test_what_comes_from_outside_waits_while_a_loop_within_the_actor_has_enough_to_do():
    body = Body()
    body.around.is_busy = True
    waits = [body.turn(inside=1, outside=1) for _ in range(2 * OUTSIDE_TURNS)]
    assert [inside for inside, _ in waits] == [0] * len(waits)
    assert [outside for _, outside in waits] == [1, 2, 3, 3, 4, 5, 6, 6], "slowed, and never stopped"


def test_nothing_waits_when_no_loop_has_enough_to_do():
    body = Body()
    assert [body.turn(inside=1, outside=1) for _ in range(5)] == [(0, 0)] * 5

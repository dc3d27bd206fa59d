"""What a task takes in a turn: while loops within its actor have enough to do, and at the end of a round."""

from __future__ import annotations

from typing import Any

from engine.batch import Batch, encode
from engine.memory import MemoryServices
from engine.on_ray.actor.host import OUTSIDE_TURNS, Host
from engine.on_ray.actor.slices import SLICE_NS
from engine.on_ray.transport.channel_ends import SENT_RECORDS_MAX
from engine.on_ray.transport.control_messages import Counts
from engine.runtime import TaskRuntime
from engine.task import TaskCore
from graphs import Collect, Flow, Items, expand
from graphs.ids import Attempt, TaskId
from recovery.messages import Data, Marker, encode_marker
from tests.on_ray.flows import trips

ATTEMPT = Attempt(1)


class Around:
    """Stands in for the actor."""

    now_ms = 0
    steady_ms = 0
    turn_ns = 0

    def __init__(self) -> None:
        self.counts = Counts()
        self.is_busy = False
        self.time_ns = 0
        self.captured: list[int | None] = []

    def clock_ns(self) -> int:
        return self.time_ns

    def is_going_round(self) -> bool:
        return self.is_busy

    def on_captured(self, task: TaskId, epoch: int | None) -> None:
        self.captured.append(epoch)

    def on_records_due(self, task: TaskId) -> None:
        raise AssertionError(f"no fault is planned for {task}")


class Out:
    """A channel that is never full and leads nowhere."""

    records = 0
    batch_records_max = SENT_RECORDS_MAX

    def __init__(self, is_local: bool) -> None:
        self.is_local = is_local
        self.sent: list[Data] = []

    def send(self, item: Any) -> None:
        if isinstance(item, Data):
            self.sent.append(item)

    def is_full(self) -> bool:
        return False

    def room_records(self) -> int:
        return SENT_RECORDS_MAX


def first_task_of(operator: str, flow: Flow, around: Around, unit: int | None = 1) -> tuple[Host, list[Out]]:
    """The first of two tasks of an operator, and where what it sends ends up."""
    deployment = expand(flow.plan(), 2, "slice")
    task = deployment.tasks[TaskId(operator, 0)]
    core, runtime = TaskCore(task, ATTEMPT, encode), TaskRuntime(task, deployment, MemoryServices({}))
    runtime.open(None)
    host = Host(core, runtime, around, 10**9, 0, unit)  # type: ignore[arg-type]
    outputs = {channel.id: Out(channel.within_actor) for channel in task.outputs}
    host.connect(outputs, {})  # type: ignore[arg-type]
    core.start(busy=False)
    return host, list(outputs.values())


class Body:
    """The task behind the shuffle, with batches from its own actor and from another."""

    def __init__(self) -> None:
        self.around = Around()
        self.host, _ = first_task_of("enough", trips(count=1), self.around)
        inputs = self.host.core.task.inputs
        self.inside, self.outside = sorted(inputs, key=lambda channel: not channel.within_actor)
        assert self.inside.within_actor and not self.outside.within_actor

    def turn(self, inside: int, outside: int) -> tuple[int, int]:
        """One turn after so many batches have arrived; says how many of them wait behind it."""
        inboxes = self.host.core.inboxes
        for channel, count in ((self.inside.id, inside), (self.outside.id, outside)):
            for _ in range(count):
                batch = Batch([(0, 0)], 0)
                payload = batch if channel == self.inside.id else encode(batch)
                self.host.core.receive(channel, ATTEMPT, Data(inboxes[channel].received + 1, payload))
        self.host.turn(taken_max=1, read_max=1, until_ns=SLICE_NS)
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


def test_the_marker_behind_the_last_batch_of_a_round_is_taken_in_the_same_turn():
    flow = Flow("rounds")
    start = flow.read(Items([1, 2]), name="start")
    ended = flow.iterate(start, lambda s: s.route(lambda n: n).map(lambda n: n, name="step"), rounds=2, name="rounds")
    ended.write(Collect(), name="done")
    host, outputs = first_task_of("step", flow, Around())
    marker = Marker((0,))
    for channel in host.core.task.inputs:
        host.core.receive(channel.id, ATTEMPT, Data(1, encode(Batch([channel.id.sender.index], 0))))
        host.core.receive(channel.id, ATTEMPT, Data(2, encode_marker(marker), marker))
    host.turn(taken_max=8, read_max=8, until_ns=SLICE_NS)
    went_on = [item.marker.path for out in outputs for item in out.sent if item.marker is not None]
    assert went_on == [(0,)] * len(outputs), "the round is over here, and everyone is told"

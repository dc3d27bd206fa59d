"""An iteration whose rounds end when the test lets them, for cuts between rounds and in the middle of one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from backedge import Collect, Flow, Job, Range, Stream
from backedge.engine.on_ray import cluster
from tests.gates import LOOK_S, Gate, wait_for
from tests.on_ray.flows import until

COUNT, ROUNDS = 40, 20
MADE = [(number, ROUNDS) for number in range(COUNT)]


def in_rounds(gate: Gate) -> Flow:
    """Every number is in `ROUNDS` rounds. One more ends than the gate allows."""

    async def grow(record: tuple[int, int]) -> tuple[int, int]:
        while record[0] == 0 and record[1] > gate.allowed:
            await asyncio.sleep(LOOK_S)
        return record[0], record[1] + 1

    flow = Flow("in_rounds")
    begun = flow.read(Range(COUNT), name="numbers").map(lambda number: (number, 0), name="begin").rebalance()

    def body(records: Stream[tuple[int, int]]) -> Stream[tuple[int, int]]:
        return records.key_by(lambda record: record[0]).map_async(grow, name="grow").rebalance()

    flow.iterate(begun, body, rounds=ROUNDS, name="again").rebalance().write(Collect(), name="done")
    return flow


def in_the_second(job: Job) -> None:
    """Wait until the second round has begun, which does not end by itself."""
    until(job, lambda story: sum(n for task, n in story.by_task().items() if task.name == "grow") > COUNT, "round 2")


def release(job: Job, gate: Gate, asked: Sequence[Future[Any]]) -> None:
    """Let rounds end until all that was asked for has happened: a cut may wait for the end of the round after this."""
    let: set[tuple[int, int]] = set()

    def let_and_look() -> bool:
        try:
            epochs = cluster.get(job._supervisor.status.remote()).epochs
        except cluster.RayError:
            epochs = ()  # a stop has ended the run, and with it the supervisor
        waiting = {
            (each.attempt, each.epoch) for each in epochs if (each.mode, each.state) == ("between_rounds", "open")
        }
        if waiting - let:
            let.update(waiting)
            gate.let(gate.allowed + 2)
        return all(each.done() for each in asked)

    wait_for(let_and_look, "cuts between rounds")

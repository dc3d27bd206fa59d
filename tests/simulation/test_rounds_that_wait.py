"""A round of an iteration waits for the calls and timers that its records started, also if they come from a cut."""

from __future__ import annotations

from typing import Any

import pytest

from backedge import Collect, Flow, Items, Stream, simulate

ROUNDS = 4
NUMBERS = list(range(8))


async def ask(number: int) -> int:
    return number + 1


class Sleep:
    """Sends each number on, one more than it was, when a timer is due."""

    def on_record(self, ctx: Any, number: int) -> None:
        ctx.state.set([*ctx.state.get([]), number])
        ctx.set_timer(ctx.now + 5)

    def on_timer(self, ctx: Any, at_ms: int) -> None:
        for number in ctx.state.get([]):
            ctx.emit(number + 1)
        ctx.state.set([])


def asked(body: Stream[int]) -> Stream[int]:
    return body.rebalance().map_async(ask, name="ask").key_by(lambda number: number % 3).map(int, name="pass")


def slept(body: Stream[int]) -> Stream[int]:
    return body.key_by(lambda number: number % 3).process(Sleep, name="sleep")


class Adding:
    """Adds up, and sends the sum on as the round ends."""

    def on_record(self, ctx: Any, number: int) -> None:
        ctx.state.set(ctx.state.get(0) + number)

    def on_round_end(self, ctx: Any) -> None:
        keys = ctx.keys()
        for _ in keys:
            ctx.emit(ctx.state.get(0))
            ctx.state.clear()


def added_and_asked(body: Stream[int]) -> Stream[int]:
    return body.key_by(lambda number: 0).process(Adding, name="add").map_async(ask, name="ask")


def added_and_slept(body: Stream[int]) -> Stream[int]:
    return body.key_by(lambda number: 0).process(Adding, name="add").process(Sleep, name="sleep")


ALL, THE_SUM = [number + ROUNDS for number in NUMBERS], [sum(NUMBERS) + ROUNDS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "policy", "done"),
    [
        *((body, policy, ALL) for body in (asked, slept) for policy in ("aligned", "unaligned")),
        *((body, "aligned", THE_SUM) for body in (added_and_asked, added_and_slept)),
    ],
)
def test_a_round_waits_for_what_its_records_or_its_end_have_started_also_once_it_was_restored(
    body: Any, policy: Any, done: list[int]
):
    flow = Flow("waiting")
    numbers = flow.read(Items(NUMBERS), name="numbers")
    flow.iterate(numbers, body, rounds=ROUNDS, name="iterate").write(Collect(), name="done")
    result = simulate(flow, seeds=range(6), crashes=3, parallelism=(1, 2), policy=policy)
    assert sorted(result.outputs["done"]) == done

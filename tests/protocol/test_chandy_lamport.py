"""The single token of Chandy and Lamport's paper of 1985, on every schedule there is.

Two processes P and Q with a channel each way. Q's channel to P is the back edge here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from backedge.graphs.ids import TaskId
from backedge.recovery.protocol.messages import Mode
from proof.cloning import dump, load
from tests.protocol.bench_of_cores import Bench, Sends, graph

PAIR = graph("P -> Q", "Q => P")
P, Q = TaskId("P", 0), TaskId("Q", 0)
OTHER = {P: "Q", Q: "P"}

Move = tuple[Any, ...]
"""A function of the bench or the name of a method of it, and what it is called with."""


def every_state(bench: Bench, also: Callable[[Bench], list[Move]]) -> Iterator[Bench]:
    """Walk all schedules. What can happen are the moves of the bench and those that `also` lists."""
    seen: set[bytes] = set()
    waiting = [dump(bench)]
    while waiting:
        data = waiting.pop()
        if data in seen:
            continue
        seen.add(data)
        here: Bench = load(data)
        yield here
        for what, *arguments in [*here.moves(), *also(here)]:
            there: Bench = load(data)
            if isinstance(what, str):
                getattr(there, what)(*arguments)
            else:
                what(there, *arguments)
            waiting.append(dump(there))


def receive_token(state: dict[str, int], hops: int) -> Sends:
    state["tokens"] += 1
    state["hops"] = hops
    return []


def send_token(bench: Bench, holder: TaskId) -> None:
    state = bench.states[holder]
    state["tokens"] -= 1
    bench.emit(f"{holder.name}->{OTHER[holder]}", state["hops"] - 1)


def token_bench() -> Bench:
    """P has the token, which may travel three times."""
    states = {"P": {"tokens": 1, "hops": 3}, "Q": {"tokens": 0, "hops": 0}}
    return Bench(PAIR, {"P": receive_token, "Q": receive_token}, states)


def sends(bench: Bench) -> list[Move]:
    return [(send_token, id) for id, state in bench.states.items() if state["tokens"] and state["hops"]]


def starts(bench: Bench, mode: Mode, initiators: Iterable[TaskId]) -> list[Move]:
    """Each initiator may start the epoch, until it has captured it."""
    return [("trigger", id, 1, mode) for id in initiators if not bench.has_captured(1, id.name)]


def places_of_tokens(bench: Bench) -> list[str]:
    """Where the cut of epoch 1 says that there is a token."""
    held = [name for name in ("P", "Q") for _ in range(bench.state(1, name)["tokens"])]
    return held + [name for name in ("P->Q", "Q->P") for _ in bench.log(1, name)]


@pytest.mark.parametrize(
    ("mode", "initiators", "places"),
    [
        (Mode.ALIGNED, (P,), {"P", "Q", "Q->P"}),
        (Mode.UNALIGNED, (P,), {"P", "P->Q", "Q", "Q->P"}),
        (Mode.UNALIGNED, (Q,), {"P", "P->Q", "Q", "Q->P"}),
        pytest.param(Mode.UNALIGNED, (P, Q), {"P", "P->Q", "Q", "Q->P"}, marks=pytest.mark.slow),
    ],
)
def test_every_cut_of_every_schedule_holds_the_single_token_once(
    mode: Mode, initiators: tuple[TaskId, ...], places: set[str]
):
    found: set[str] = set()
    for bench in every_state(token_bench(), lambda b: [*sends(b), *starts(b, mode, initiators)]):
        if bench.is_complete(1):
            tokens = places_of_tokens(bench)
            assert len(tokens) == 1
            found.update(tokens)
    assert found == places

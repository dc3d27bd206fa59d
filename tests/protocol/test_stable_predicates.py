"""Stable predicates, read off cuts on every schedule: what a cut says holds now; what held when it began, it says.

A predicate is stable if it never becomes false again once it is true. What a cut denies may be true by now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from backedge.graphs.ids import TaskId
from backedge.recovery.messages import Mode
from tests.protocol.bench_of_cores import Bench, Sends, Step, graph
from tests.protocol.schedules import Move, every_state

P, Q = TaskId("P", 0), TaskId("Q", 0)
PAIR = graph("P -> Q", "Q => P")
OTHER = {P: "Q", Q: "P"}

State = dict[str, Any]


class Global(NamedTuple):
    """The states of P and Q, and the messages under way between them."""

    states: tuple[State, State]
    messages: tuple[Any, ...]


class Watched(Bench):
    """Remembers whether the predicate held when the epoch began."""

    held_at_start: bool | None = None


class System(NamedTuple):
    step: Step
    at_p: State
    at_q: State
    moves: Callable[[Bench], list[Move]]
    holds: Callable[[Global], bool]


def say(bench: Bench, who: TaskId, message: str, **change: Any) -> None:
    bench.states[who].update(change)
    bench.emit(f"{who.name}->{OTHER[who]}", message)


def change(bench: Bench, who: TaskId, **change: Any) -> None:
    bench.states[who].update(change)


# -- terminated: who works may give work to the other or rest, who rests is woken by work ---------------------------


def wake(state: State, message: str) -> Sends:
    state["works"] = True
    return []


def give_work(bench: Bench, who: TaskId) -> None:
    say(bench, who, "work", gifts=bench.states[who]["gifts"] - 1)


def rest(bench: Bench, who: TaskId) -> None:
    change(bench, who, works=False)


def working_moves(bench: Bench) -> list[Move]:
    working = [id for id, state in bench.states.items() if state["works"]]
    return [(rest, id) for id in working] + [(give_work, id) for id in working if bench.states[id]["gifts"]]


def is_terminated(at: Global) -> bool:
    return not at.messages and not any(state["works"] for state in at.states)


# -- all tokens gone: who has a token may send it on or lose it -----------------------------------------------------


def receive_token(state: State, message: str) -> Sends:
    state["tokens"] += 1
    return []


def send_token(bench: Bench, who: TaskId) -> None:
    state = bench.states[who]
    say(bench, who, "token", tokens=state["tokens"] - 1, sends=state["sends"] - 1)


def lose_token(bench: Bench, who: TaskId) -> None:
    change(bench, who, tokens=bench.states[who]["tokens"] - 1)


def token_moves(bench: Bench) -> list[Move]:
    holders = [id for id, state in bench.states.items() if state["tokens"]]
    return [(lose_token, id) for id in holders] + [(send_token, id) for id in holders if bench.states[id]["sends"]]


def are_tokens_gone(at: Global) -> bool:
    return not at.messages and not any(state["tokens"] for state in at.states)


# -- nothing can move: who asks waits for the answer, and while it waits it answers nobody --------------------------


def answer(state: State, message: str) -> Sends:
    if message == "answer":
        state["waits"] = False
    elif not state["waits"]:
        return [(state["other"], "answer")]
    return []


def ask(bench: Bench, who: TaskId) -> None:
    say(bench, who, "question", waits=True, questions=bench.states[who]["questions"] - 1)


def asking_moves(bench: Bench) -> list[Move]:
    return [(ask, id) for id, state in bench.states.items() if state["questions"] and not state["waits"]]


def nothing_can_move(at: Global) -> bool:
    return not at.messages and all(state["waits"] for state in at.states)


SYSTEMS = {
    "terminated": System(wake, {"works": True, "gifts": 1}, {"works": False, "gifts": 1}, working_moves, is_terminated),
    "all tokens gone": System(
        receive_token, {"tokens": 1, "sends": 1}, {"tokens": 0, "sends": 1}, token_moves, are_tokens_gone
    ),
    "nothing can move": System(
        answer,
        {"waits": False, "questions": 1, "other": "Q"},
        {"waits": False, "questions": 1, "other": "P"},
        asking_moves,
        nothing_can_move,
    ),
}


def present(bench: Bench) -> Global:
    found = [bench.queued(name) + bench.on_wire(name) for name in ("P->Q", "Q->P")]
    messages = [item for items in found for item in items if not item.startswith("barrier")]
    return Global((bench.states[P], bench.states[Q]), tuple(messages))


def recorded(bench: Bench) -> Global:
    return Global((bench.state(1, "P"), bench.state(1, "Q")), (*bench.log(1, "P->Q"), *bench.log(1, "Q->P")))


@pytest.mark.slow
@pytest.mark.parametrize("mode", [Mode.ALIGNED, Mode.UNALIGNED])
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_stable_predicate_read_off_a_cut_holds_and_one_that_held_is_read(name: str, mode: Mode):
    system = SYSTEMS[name]

    def begin(bench: Watched) -> None:
        bench.held_at_start = system.holds(present(bench))
        bench.trigger(P, 1, mode)

    def also(bench: Watched) -> list[Move]:
        return [*system.moves(bench), *([(begin,)] if bench.held_at_start is None else [])]

    seen: set[tuple[bool, bool, bool]] = set()
    start = Watched(PAIR, {"P": system.step, "Q": system.step}, {"P": system.at_p, "Q": system.at_q})
    for bench in every_state(start, also):
        if bench.is_complete(1):
            seen.add((bool(bench.held_at_start), system.holds(recorded(bench)), system.holds(present(bench))))
    # When the cut began, in the cut, now: never true before and false after, and each of the others does occur.
    assert seen == {(False, False, False), (False, False, True), (False, True, True), (True, True, True)}

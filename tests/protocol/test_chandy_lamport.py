"""The examples of Chandy and Lamport's paper of 1985, on every schedule there is.

Two processes P and Q with a channel each way. Q's channel to P is the back edge here.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from backedge.graphs.ids import TaskId
from backedge.recovery.protocol.messages import Mode
from tests.protocol.bench_of_cores import Bench, Sends, graph
from tests.protocol.schedules import Move, every_state

PAIR = graph("P -> Q", "Q => P")
P, Q = TaskId("P", 0), TaskId("Q", 0)
OTHER = {P: "Q", Q: "P"}

# -- the single token ------------------------------------------------------------------------------------------------


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


# -- the system that is not deterministic ----------------------------------------------------------------------------
# P is in state A or B: in A it may send M and goes to B; in B it may receive M' and goes to A.
# Q is in state C or D: in C it may send M' and goes to D; in D it may receive M and goes to C.

Global = tuple[str, str, tuple[str, ...], tuple[str, ...]]


def switch(state: dict[str, str], message: str) -> Sends:
    state["at"] = {"M'": "A", "M": "C"}[message]
    return []


def speak(bench: Bench, who: TaskId) -> None:
    """P sends M, or Q sends M'."""
    bench.states[who]["at"] = {P: "B", Q: "D"}[who]
    bench.emit(f"{who.name}->{OTHER[who]}", {P: "M", Q: "M'"}[who])


def next_globals(at: Global) -> list[Global]:
    """What may follow this global state, by the plain reading of the system."""
    p, q, to_q, to_p = at
    found: list[Global] = []
    if p == "A":
        found.append(("B", q, (*to_q, "M"), to_p))
    if q == "C":
        found.append((p, "D", to_q, (*to_p, "M'")))
    if p == "B" and to_p:
        found.append(("A", q, to_q, to_p[1:]))
    if q == "D" and to_q:
        found.append((p, "C", to_q[1:], to_p))
    return found


def is_reachable(start: Global, goal: Global, steps: int = 4) -> bool:
    front = {start}
    for _ in range(steps):
        if goal in front:
            return True
        front = {after for before in front for after in next_globals(before)}
    return goal in front


def global_state(bench: Bench) -> Global:
    """Where everything is now: what was received and not processed is in its channel still."""

    def under_way(channel: str) -> tuple[str, ...]:
        return tuple(item for item in bench.queued(channel) + bench.on_wire(channel) if item in ("M", "M'"))

    return bench.states[P]["at"], bench.states[Q]["at"], under_way("P->Q"), under_way("Q->P")


def test_a_recorded_state_that_never_occurred_is_reachable_and_leads_to_the_end():
    bench = Bench(PAIR, {"P": switch, "Q": switch}, {"P": {"at": "A"}, "Q": {"at": "C"}})
    occurred = [global_state(bench)]
    bench.trigger("P", 1, Mode.UNALIGNED)
    for step in (lambda: speak(bench, P), lambda: speak(bench, Q), lambda: bench.pass_over("Q->P")):
        step()
        occurred.append(global_state(bench))
    assert occurred == [("A", "C", (), ()), ("B", "C", ("M",), ()), ("B", "D", ("M",), ("M'",)), ("A", "D", ("M",), ())]
    bench.deliver("P->Q")
    bench.deliver("Q->P")
    recorded = (
        bench.state(1, "P")["at"],
        bench.state(1, "Q")["at"],
        tuple(bench.log(1, "P->Q")),
        tuple(bench.log(1, "Q->P")),
    )
    assert recorded == ("A", "D", (), ("M'",))
    assert recorded not in occurred
    assert is_reachable(occurred[0], recorded)
    assert is_reachable(recorded, occurred[-1])

"""Connects the operators of a task: which function takes which input, and where its output goes.

A chain is wired from its end: an operator is created with the functions of those after it, so processing a batch means
that one function calls the next, without lookups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from backedge.engine.operators.back_edge import Measure, counting_hops, measuring
from backedge.engine.operators.base import OperatorRuntime, Place
from backedge.engine.operators.sending import Emitted, RebalanceTurn, Send, drop, fan_out, partitioner
from backedge.graphs.deployment import Channel, Task
from backedge.graphs.kinds import Iterate
from backedge.graphs.plan import Edge, Plan

MakePlace = Callable[[str, Mapping[str, Send]], Place]


class Wiring(Struct):
    """The operators of a task in the order of its chain, and the state of their outgoing edges.

    That state is the turn of edges that distribute records, and, by iteration, what was measured of records sent back.
    """

    operators: dict[str, OperatorRuntime] = {}
    turns: dict[str, list[RebalanceTurn]] = {}
    measures: dict[str, dict[str, Measure]] = {}


def wire(task: Task, plan: Plan, out: Emitted, make_place: MakePlace) -> Wiring:
    """Create the operators of a task. Its output is appended to `out`."""
    channels: dict[str, list[Channel]] = {}
    for channel in task.outputs:
        channels.setdefault(channel.edge.name, []).append(channel)
    wiring = Wiring()
    for name in reversed(task.operators):
        sends = _sends_of(name, task, plan, channels, out, wiring)
        wiring.operators[name] = plan.operators[name].kind.start(make_place(name, sends))
    wiring.operators = {name: wiring.operators[name] for name in task.operators}
    return wiring


def _sends_of(
    name: str, task: Task, plan: Plan, channels: Mapping[str, list[Channel]], out: Emitted, wiring: Wiring
) -> dict[str, Send]:
    turns = wiring.turns.setdefault(name, [])
    measures = wiring.measures.setdefault(name, {})
    targets: dict[str, list[Send]] = {}
    looping: dict[tuple[str, str], tuple[Edge, list[Send]]] = {}
    for edge in plan.edges:
        if edge.sender != name:
            continue
        if edge.name in channels:
            turn = RebalanceTurn(edge.name)
            turns.append(turn)
            send = partitioner(edge, channels[edge.name], task.id.index, out, turn)
        else:
            send = wiring.operators[edge.receiver].door(edge)
        if edge.loop is None:
            targets.setdefault(edge.output, []).append(send)
        else:
            looping.setdefault((edge.output, edge.loop), (edge, []))[1].append(send)
    # Dead letters first, because the back edges send to them.
    sends = {output: fan_out(of_output) for output, of_output in targets.items()}
    for (output, loop), (edge, of_loop) in looping.items():
        head = plan.operators[loop].kind if loop in plan.operators else None
        if isinstance(head, Iterate) and loop not in measures:
            measures[loop] = Measure(loop, head.measure, head.reduce)
        send = fan_out(of_loop)
        if loop in plan.trips:
            send = counting_hops(edge, plan.trips[loop], send, sends.get(f"dead:{loop}", drop))
        if loop in measures:
            send = measuring(measures[loop], send)
        targets.setdefault(output, []).append(send)
    return {output: fan_out(of_output) for output, of_output in targets.items()}

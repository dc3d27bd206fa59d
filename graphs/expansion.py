"""Expands a plan to tasks and channels: how many tasks, which operators form a task, which tasks share an actor."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from backedge.graphs.cycles import Cycles, find_cycles
from backedge.graphs.deployment import Channel, Component, Deployment, Task, shared_actor
from backedge.graphs.digraph import cyclic_components
from backedge.graphs.discovery import FindSplits
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.ids import ChannelId, TaskId
from backedge.graphs.naming import numbered
from backedge.graphs.options import check_choice, check_count
from backedge.graphs.plan import Edge, Plan, Routing
from backedge.graphs.routing import KEY_GROUPS

Actors = Literal["task", "slice", "auto"]

CHANNELS_MAX = 2_000_000
"""The manifest of a cut has room for so many, whatever has passed through them."""


def expand(plan: Plan, parallelism: int = 1, actors: Actors = "task", cpus: int | None = None) -> Deployment:
    """Expand a plan. Operators without a parallelism of their own get `parallelism` tasks.

    `actors`: "task" is one actor per task; "slice" is one actor for the tasks with index i of all operators; "auto" is
    "task" if there are at least as many `cpus` (by default this machine's) as tasks, else "slice". Tasks of an operator
    with resources of its own always get their own actors.

    >>> from backedge import Collect, Flow, Items
    >>> flow = Flow()
    >>> flow.read(Items([1, 2])).key_by(lambda n: n).map(abs).write(Collect())
    >>> [str(task) for task in expand(flow.plan(), parallelism=2).tasks]
    ['read-1/0', 'read-1/1', 'map-1/0', 'map-1/1']
    """
    check_count(parallelism, "parallelism", f"flow {plan.name!r}")
    check_choice(actors, ("task", "slice", "auto"), "actors", f"flow {plan.name!r}")
    sizes = {name: operator.parallelism or parallelism for name, operator in plan.operators.items()}
    layout = _sized(plan, sizes)
    task_count = sum(sizes[name] for name in plan.operators if layout.first[name] == name)
    if actors == "auto":
        actors = "task" if (cpus or os.cpu_count() or 1) >= task_count else "slice"
    return _deployed(layout, by_slice=actors == "slice")


def _sized(plan: Plan, sizes: Mapping[str, int]) -> _Layout:
    """The layout of a plan with these numbers of tasks."""
    plan = replace(plan, edges=tuple(_routable(edge, sizes) for edge in plan.edges))
    for edge in plan.edges:
        if edge.routing is Routing.HASH and sizes[edge.receiver] > KEY_GROUPS:
            raise BadOptionError(
                f"operator {edge.receiver!r} is keyed and has parallelism={sizes[edge.receiver]}, but there are only "
                f"{KEY_GROUPS} key groups, so some tasks would be idle: give at most parallelism={KEY_GROUPS}"
            )
    for name, operator in plan.operators.items():
        if sizes[name] > 1 and operator.kind.is_sink and operator.function.one_task:
            what = f"sink {name!r} has parallelism={sizes[name]}, and one task writes all of a"
            raise BadOptionError(f"{what} {type(operator.function).__name__}: leave its parallelism out")
        if sizes[name] > 1 and isinstance(operator.kind, FindSplits):
            readers = operator.kind.readers
            raise BadOptionError(
                f"operator {name!r} is one task, which finds all splits of {readers!r}: give {readers!r} the "
                f"parallelism={sizes[name]}"
            )
        if operator.kind.needs_order:
            _check_order(plan, sizes, name)
    return _layout(plan, sizes, frozenset())


def _check_order(plan: Plan, sizes: Mapping[str, int], ordered: str) -> None:
    """Raise unless what this operator receives has passed one task after the other.

    One task that keeps values may put them in order itself, whatever it receives, unless it sends each record on.
    """
    at = ordered
    in_order = "or put them in order behind it, by a process class with parallelism=1"
    while True:
        what = f"operator {ordered!r} needs its input in order, but"
        kind = plan.operators[at].kind
        if sizes[at] > 1:
            raise BadOptionError(f"{what} operator {at!r} has {sizes[at]} tasks: give it parallelism=1")
        if kind.keeps_values and not kind.one_for_one:
            return
        if isinstance(kind, FindSplits):
            raise BadOptionError(
                f"{what} source {kind.readers!r} reads what it finds in any order: leave out watch=, or read another "
                "source"
            )
        if kind.may_wait:
            raise BadOptionError(
                f"{what} the answers of operator {at!r} leave it in any order: move it behind {ordered!r}, {in_order}"
            )
        loops = {edge.loop for edge in plan.edges if edge.receiver == at and edge.is_back}
        if loops and at != ordered:
            raise BadOptionError(
                f"{what} records of loop {' and '.join(sorted(map(repr, loops)))} return to operator {at!r} behind "
                f"later ones: leave out the loop, {in_order}"
            )
        senders = [edge.sender for edge in plan.edges if edge.receiver == at and not edge.is_back]
        if len(senders) > 1:
            raise BadOptionError(
                f"{what} operator {at!r} receives from {' and '.join(map(repr, senders))} in any order: read all of it "
                "by one source"
            )
        if not senders:
            return
        at = senders[0]


def sizes_asked(deployment: Deployment, parallelism: int | Mapping[str, int]) -> dict[str, int]:
    """The operators that are to have another number of tasks, checked. All others stay as they are.

    A number is for all operators that do not set their own, a mapping names operators.

    >>> from backedge import Collect, Flow, Items
    >>> flow = Flow()
    >>> flow.read(Items([1, 2]), name="in", parallelism=1).map(abs, name="abs").write(Collect(), name="out")
    >>> sizes_asked(expand(flow.plan(), 2), 3), sizes_asked(expand(flow.plan(), 2), {"in": 4})
    ({'abs': 3, 'out': 3}, {'in': 4})
    """
    operators, what = deployment.plan.operators, f"flow {deployment.plan.name!r}"
    if isinstance(parallelism, Mapping):
        for name, count in parallelism.items():
            if name not in operators:
                known = ", ".join(map(repr, operators))
                raise BadOptionError(f"{what} has no operator {name!r} to rescale; its operators are {known}")
            check_count(count, f"parallelism of operator {name!r}", what)
        return dict(parallelism)
    check_count(parallelism, "parallelism", what)
    return {name: parallelism for name, operator in operators.items() if operator.parallelism is None}


def resized(deployment: Deployment, sizes: Mapping[str, int]) -> Deployment:
    """The same flow with these numbers of tasks. Tasks share actors as before.

    >>> from backedge import Collect, Flow, Items
    >>> flow = Flow()
    >>> flow.read(Items([1, 2]), name="in").map(abs, name="abs").write(Collect(), name="out")
    >>> wide = resized(expand(flow.plan()), {"in": 1, "abs": 2, "out": 2})
    >>> narrow = resized(wide, {"in": 1, "abs": 1, "out": 1})
    >>> [str(task) for task in wide.tasks], [str(task) for task in narrow.tasks]
    (['in/0', 'abs/0', 'abs/1'], ['in/0'])
    """
    edges = tuple(replace(edge, routing=edge.declared or edge.routing, declared=None) for edge in deployment.plan.edges)
    return _deployed(_sized(replace(deployment.plan, edges=edges), sizes), by_slice=deployment.by_slice)


def with_channels(deployment: Deployment, edges: Collection[str]) -> Deployment:
    """The same deployment with the ends of these edges in separate tasks, even if they could be chained.

    >>> from backedge import Collect, Flow, Items
    >>> flow = Flow()
    >>> flow.read(Items([1, 2]), name="in").map(abs, name="abs").write(Collect(), name="out")
    >>> [str(task) for task in with_channels(expand(flow.plan()), ["in.out->abs.in"]).tasks]
    ['in/0', 'abs/0']
    """
    apart = frozenset(edges) | {channel.edge for channel in deployment.channels}
    return _deployed(_layout(deployment.plan, deployment.parallelism, apart), by_slice=deployment.by_slice)


def expanded_again(plan: Plan, sizes: Mapping[str, int], apart: frozenset[str], by_slice: bool) -> Deployment:
    """The deployment of a plan whose edges have their routing, and are channels where they were.

    >>> import pickle
    >>> from backedge import Collect, Flow, Range
    >>> flow = Flow()
    >>> flow.read(Range(2), name="in").map(abs, name="abs").write(Collect(), name="out")
    >>> narrow = with_channels(expand(flow.plan(), 2), ["in.out->abs.in"])
    >>> pickle.loads(pickle.dumps(narrow)) == narrow
    True
    """
    return _deployed(_layout(plan, sizes, apart), by_slice=by_slice)


def _layout(plan: Plan, sizes: Mapping[str, int], apart: frozenset[str]) -> _Layout:
    layout = _Layout(plan, find_cycles(plan), sizes, {}, apart)
    return replace(layout, first=_chains(layout))


def _deployed(layout: _Layout, *, by_slice: bool) -> Deployment:
    homes = _homes(layout, by_slice=by_slice)
    channels = _channels(layout, homes)
    tasks = _tasks(layout, homes, channels)
    components = _components(layout, tasks, channels)
    return Deployment(layout.plan, tasks, channels, components, layout.sizes, by_slice)


class _Layout(Struct, frozen=True):
    """The parts of a layout.

    - first: operator -> the first operator of its chain, after which the chain's tasks are named.
    - apart: edges whose ends must not be chained.
    """

    plan: Plan
    cycles: Cycles
    sizes: Mapping[str, int]
    first: Mapping[str, str]
    apart: frozenset[str]


def _routable(edge: Edge, sizes: Mapping[str, int]) -> Edge:
    """A forward edge between different numbers of tasks becomes a rebalance."""
    if edge.routing is Routing.FORWARD and sizes[edge.sender] != sizes[edge.receiver]:
        return replace(edge, routing=Routing.REBALANCE, declared=edge.routing)
    return edge


def _chains(layout: _Layout) -> dict[str, str]:
    entering: dict[str, list[Edge]] = {name: [] for name in layout.plan.operators}
    for edge in layout.plan.edges:
        entering[edge.receiver].append(edge)
    before = {name: edges[0].sender for name, edges in entering.items() if _is_chained(layout, edges)}
    first: dict[str, str] = {}
    for name in layout.plan.operators:
        start = name
        while start in before and start not in first:
            start = before[start]
        start = first.get(start, start)
        first[name] = start
    return first


def _is_chained(layout: _Layout, entering: list[Edge]) -> bool:
    """Whether the operator that these edges enter is chained to its predecessor."""
    if len(entering) != 1 or entering[0].is_back or entering[0].routing is not Routing.FORWARD:
        return False
    edge = entering[0]
    if edge.name in layout.apart:
        return False
    operators, paths = layout.plan.operators, layout.cycles.paths
    sender, receiver = operators[edge.sender], operators[edge.receiver]
    return (
        not (sender.kind.in_rounds or receiver.kind.in_rounds)
        and sender.resources == receiver.resources
        # Round markers go to all operators of a task, so a task is inside an iteration as a whole or not at all.
        and paths[edge.sender] == paths[edge.receiver]
        # What an operator sends as a round ends must be answered before the marker goes on. So what may wait gets it by
        # a channel, in front of the marker.
        and not (paths[edge.receiver] and receiver.kind.may_wait)
    )


def _homes(layout: _Layout, *, by_slice: bool) -> dict[TaskId, str]:
    homes: dict[TaskId, str] = {}
    for name, operator in layout.plan.operators.items():
        if layout.first[name] == name:
            own = not by_slice or operator.resources.are_given
            for index in range(layout.sizes[name]):
                task = TaskId(name, index)
                homes[task] = str(task) if own else shared_actor(layout.plan.pipeline, index)
    return homes


def _channels(layout: _Layout, homes: Mapping[TaskId, str]) -> dict[ChannelId, Channel]:
    channels: dict[ChannelId, Channel] = {}
    for edge, one_to_one in _checked_edges(layout):
        sender, receiver = layout.first[edge.sender], layout.first[edge.receiver]
        depth = layout.cycles.depth(edge)
        for index in range(layout.sizes[edge.sender]):
            for target in [index] if one_to_one else range(layout.sizes[edge.receiver]):
                ends = TaskId(sender, index), TaskId(receiver, target)
                channel = ChannelId(edge.name, *ends)
                channels[channel] = Channel(channel, edge, edge.is_back, depth, homes[ends[0]] == homes[ends[1]])
    return channels


def _checked_edges(layout: _Layout) -> list[tuple[Edge, bool]]:
    """The edges between tasks, and whether task i sends to task i only. Raises if they have too many channels."""
    sizes, counts = layout.sizes, list[int]()
    edges: list[tuple[Edge, bool]] = []
    for edge in layout.plan.edges:
        if edge.receiver != layout.first[edge.receiver]:
            continue  # an edge within a chain is a call, not a channel
        # Every task that feeds an iteration back sends round markers to every task of its head.
        one_to_one = edge.routing is Routing.FORWARD and edge.loop != edge.receiver
        edges.append((edge, one_to_one))
        counts.append(sizes[edge.sender] * (1 if one_to_one else sizes[edge.receiver]))
    if sum(counts) > CHANNELS_MAX:
        most = max(counts)
        widest = edges[counts.index(most)][0]
        raise BadOptionError(
            f"flow {layout.plan.name!r} has {sum(counts):,} channels between its tasks, and a cut has room for "
            f"{CHANNELS_MAX:,}: give its operators a lower parallelism; most channels, {most:,}, are from "
            f"{widest.sender!r} to {widest.receiver!r}"
        )
    return edges


def _tasks(layout: _Layout, homes: Mapping[TaskId, str], channels: Mapping[ChannelId, Channel]) -> dict[TaskId, Task]:
    chains: dict[str, list[str]] = {}
    for name in _upstream_first(layout):
        chains.setdefault(layout.first[name], []).append(name)
    inputs: dict[TaskId, list[Channel]] = {task: [] for task in homes}
    outputs: dict[TaskId, list[Channel]] = {task: [] for task in homes}
    for channel in channels.values():
        inputs[channel.id.receiver].append(channel)
        outputs[channel.id.sender].append(channel)
    tasks: dict[TaskId, Task] = {}
    for task, actor in homes.items():
        kind = layout.plan.operators[task.name].kind
        tasks[task] = Task(
            id=task,
            operators=tuple(chains[task.name]),
            inputs=tuple(inputs[task]),
            outputs=tuple(outputs[task]),
            actor=actor,
            depth=len(layout.cycles.paths[task.name]),
            is_source=kind.is_source,
            is_head=any(channel.is_back for channel in inputs[task]),
            iteration=task.name if kind.in_rounds else None,
        )
    return tasks


def _upstream_first(layout: _Layout) -> list[str]:
    """Operators in an order that keeps the order within each chain."""
    following: dict[str, list[str]] = {name: [] for name in layout.plan.operators}
    ahead = [name for name in layout.plan.operators if layout.first[name] == name]
    for edge in layout.plan.edges:
        if layout.first[edge.receiver] != edge.receiver:
            following[edge.sender].append(edge.receiver)
    for name in ahead:
        ahead += following[name]
    return ahead


def _components(
    layout: _Layout, tasks: Mapping[TaskId, Task], channels: Mapping[ChannelId, Channel]
) -> tuple[Component, ...]:
    graph: dict[TaskId, list[TaskId]] = {task: [] for task in tasks}
    for channel in dict.fromkeys((channel.sender, channel.receiver) for channel in channels):
        graph[channel[0]].append(channel[1])
    components = cyclic_components(graph)
    part_of = {task: number for number, members in enumerate(components) for task in members}
    backs: list[list[Channel]] = [[] for _ in components]
    for channel in channels.values():
        part = part_of.get(channel.id.sender) if channel.is_back else None
        if part is not None and part == part_of.get(channel.id.receiver):
            backs[part].append(channel)
    found: dict[str, Component] = {}
    for members, back in zip(components, backs, strict=True):
        name = numbered("+".join(sorted({str(channel.edge.loop) for channel in back})), found)
        entered = {channel.id.receiver for channel in back}
        found[name] = Component(
            name=name,
            tasks=frozenset(members),
            heads=tuple(task for task in members if task in entered),
            in_rounds=any(layout.plan.operators[task.name].kind.in_rounds for task in members),
            endless=any(channel.edge.endless for channel in back),
        )
    return tuple(found.values())

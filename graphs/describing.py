"""Describes plans and deployments as plain JSON, for readers without the user's code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

from backedge.graphs.building import hash_of_structure
from backedge.graphs.deployment import Channel, Deployment, Task
from backedge.graphs.io import Source
from backedge.graphs.plan import Edge, Operator, Plan, Routing


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Describe the operators and edges of a graph, without the user's functions.

    >>> from backedge import Collect, Flow, Items
    >>> flow = Flow("squares")
    >>> flow.read(Items([1, 2]), name="numbers").map(lambda n: n * n).write(Collect(), name="kept")
    >>> [(o["name"], o["source"], o["sink"]) for o in describe_plan(flow.plan())["operators"]]
    [('numbers', 'Items', None), ('map-1', None, None), ('kept', None, 'Collect')]
    """
    return {
        "name": plan.name,
        "operators": [_operator(operator) for operator in plan.operators.values()],
        "edges": [_edge(edge) for edge in plan.edges],
    }


def hash_of_description(description: Mapping[str, Any]) -> str:
    """The hash of the described plan.

    >>> from backedge import Collect, Flow, Items
    >>> flow = Flow("squares")
    >>> flow.read(Items([1, 2]), name="numbers").map(lambda n: n * n).write(Collect(), name="kept")
    >>> hash_of_description(describe_plan(flow.plan())) == flow.plan().hash
    True
    """
    return hash_of_structure(
        ((o["name"], o["kind"], o["inputs"], o["outputs"], o["state_version"]) for o in description["operators"]),
        ((e["name"], e["routing"], e["by"] or "", e["loop"] or "") for e in description["edges"]),
    )


def edges_in(description: Mapping[str, Any]) -> list[Edge]:
    """The edges of a described plan, without the user's functions.

    >>> from backedge import Collect, Flow, Items
    >>> flow = Flow("squares")
    >>> flow.read(Items([1, 2]), name="numbers").map(lambda n: n * n).write(Collect(), name="kept")
    >>> [edge.name for edge in edges_in(describe_plan(flow.plan()))]
    ['numbers.out->map-1.in', 'map-1.out->kept.in']
    """
    return [_edge_in(edge) for edge in description["edges"]]


def _edge_in(edge: Mapping[str, Any]) -> Edge:
    changed: dict[str, Any] = {**edge, "routing": Routing(edge["routing"])}
    return Edge(**changed)


def describe_deployment(deployment: Deployment) -> dict[str, Any]:
    """Describe the tasks and channels of a deployment. The channels of an edge are a table.

    >>> from backedge import Collect, Flow, Items
    >>> from backedge.graphs.expansion import expand
    >>> flow = Flow("squares")
    >>> flow.read(Items([1, 2]), name="numbers").rebalance().write(Collect(), name="kept")
    >>> described = describe_deployment(expand(flow.plan()))
    >>> [(task["task"], task["operators"]) for task in described["tasks"]], len(described["channels"])
    ([('numbers', ['numbers']), ('kept', ['kept'])], 1)
    """
    return {
        "tasks": [_task(task) for task in deployment.tasks.values()],
        "channels": channel_tables(map(_channel, deployment.channels.values())),
    }


_OF_EDGE = ("edge", "sender", "receiver", "is_back")


def channel_tables(channels: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Described channels as tables: a row has the indices of its ends, and `within_actor` lists rows."""
    tables: list[dict[str, Any]] = []
    for of_edge, group in groupby(channels, itemgetter(*_OF_EDGE)):
        rows = list(group)
        columns = {
            "senders": [row["sender_index"] for row in rows],
            "receivers": [row["receiver_index"] for row in rows],
            "within_actor": [place for place, row in enumerate(rows) if row["within_actor"]],
        }
        tables.append({**dict(zip(_OF_EDGE, of_edge, strict=True)), **columns})
    return tables


def channels_in(tables: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The channels of such tables, each by itself.

    >>> table = {"edge": "e", "sender": "a", "receiver": "b", "is_back": False}
    >>> tables = [{**table, "senders": [0, 1], "receivers": [0, 1], "within_actor": [1]}]
    >>> [channel["within_actor"] for channel in channels_in(tables)], channel_tables(channels_in(tables)) == tables
    ([False, True], True)
    """
    for table in tables:
        within = frozenset(table["within_actor"])
        for place, (sender, receiver) in enumerate(zip(table["senders"], table["receivers"], strict=True)):
            of_edge = {name: table[name] for name in _OF_EDGE}
            yield {**of_edge, "sender_index": sender, "receiver_index": receiver, "within_actor": place in within}


def _operator(operator: Operator) -> dict[str, Any]:
    reads_or_writes = type(operator.function).__name__
    return {
        "name": operator.name,
        "kind": operator.kind.word,
        "state_version": operator.kind.state_version,
        "inputs": list(operator.inputs),
        "outputs": list(operator.outputs),
        "numbered": operator.kind.is_source and _are_numbered(operator.function),
        "source": reads_or_writes if operator.kind.is_source else None,
        "sink": reads_or_writes if operator.kind.is_sink else None,
    }


def _are_numbered(source: Any) -> bool:
    """Whether the splits of a source are "0-of-3" to "2-of-3", because it names none."""
    named, default = cast(Any, type(source)), cast(Any, Source)
    return named.splits is default.splits


def _edge(edge: Edge) -> dict[str, Any]:
    return {
        "name": edge.name,
        "sender": edge.sender,
        "output": edge.output,
        "receiver": edge.receiver,
        "input": edge.input,
        "routing": (edge.declared or edge.routing).value,
        "by": edge.key_columns or None,
        "loop": edge.loop,
        "max_rounds": edge.max_rounds,
        "endless": edge.endless,
    }


def _task(task: Task) -> dict[str, Any]:
    return {"task": task.id.name, "index": task.id.index, "operators": list(task.operators), "actor": task.actor}


def _channel(channel: Channel) -> dict[str, Any]:
    return {
        "edge": channel.id.edge,
        "sender": channel.id.sender.name,
        "sender_index": channel.id.sender.index,
        "receiver": channel.id.receiver.name,
        "receiver_index": channel.id.receiver.index,
        "is_back": channel.is_back,
        "within_actor": channel.within_actor,
    }

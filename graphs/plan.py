"""The frozen plan of a flow: operators and edges, with stable names and a stable hash.

A plan says what is computed, not where. `deployment.py` says what runs where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from graphs.hops import Trip, trips


class Kind(Enum):
    """What an operator does; the engine has one implementation for each."""

    SOURCE = "source"
    SINK = "sink"
    MAP = "map"
    FLAT_MAP = "flat_map"
    FILTER = "filter"
    SPLIT = "split"
    MAP_BATCHES = "map_batches"
    MAP_ASYNC = "map_async"
    STATEFUL_MAP = "stateful_map"
    PROCESS = "process"
    ITERATE = "iterate"


class Routing(Enum):
    """How the records of an edge find the receiving task."""

    FORWARD = "forward"
    HASH = "hash"
    REBALANCE = "rebalance"
    BROADCAST = "broadcast"
    ROUTE = "route"


@dataclass(frozen=True)
class Operator:
    """A logical step. `function` is the user's callable or class, or a source or sink description.

    `key` is set where the input is keyed: a function of the record, or a column name.
    """

    name: str
    kind: Kind
    function: Any = None
    parallelism: int | None = None
    key: Callable[[Any], Any] | str | None = None
    inputs: tuple[str, ...] = ("in",)
    outputs: tuple[str, ...] = ("out",)
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Edge:
    """A logical connection from one output of an operator to one input of another.

    `by` is the key of a HASH edge or the function of a ROUTE edge. A back edge names its `loop`; `max_rounds`
    bounds the hops of its records, and what exceeds it follows `on_limit`. An `endless` one never runs dry.

    `declared` is the routing of the user's graph where a deployment had to replace it; the hash is that of the graph.
    """

    name: str
    sender: str
    output: str
    receiver: str
    input: str
    routing: Routing = Routing.FORWARD
    by: Callable[[Any], Any] | str | None = None
    loop: str | None = None
    max_rounds: int | None = None
    on_limit: str = "dead_letter"
    endless: bool = False
    declared: Routing | None = None

    @property
    def is_back(self) -> bool:
        return self.loop is not None


@dataclass(frozen=True)
class Plan:
    """A graph that has passed every check: no open loop, every cycle with a named back edge, unique names."""

    name: str
    operators: Mapping[str, Operator]
    edges: tuple[Edge, ...]
    hash: str
    stop_when: Callable[..., bool] | None = None

    @cached_property
    def trips(self) -> Mapping[str, Trip]:
        """What a trip round each loop does to the hops of a record, where that is anything."""
        return trips(self.edges)

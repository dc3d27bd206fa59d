"""What runs where: a plan expanded to tasks and channels. Pure data; `expansion.py` makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphs.ids import ChannelId, TaskId
from graphs.plan import Edge, Plan


@dataclass(frozen=True)
class Channel:
    """`depth` counts the iterations that both ends are inside of: markers of a path no longer than it travel here.

    `within_actor`: both tasks share an actor, so batches pass by reference and are counted, not digested.
    """

    id: ChannelId
    edge: Edge
    is_back: bool
    depth: int
    within_actor: bool


@dataclass(frozen=True)
class Task:
    """A task, its operators in the order of the chain, and its channels in a fixed order.

    `depth` counts the iterations that it is inside of. `iteration` names the one whose head it is, else None.
    """

    id: TaskId
    operators: tuple[str, ...]
    inputs: tuple[Channel, ...]
    outputs: tuple[Channel, ...]
    actor: str
    depth: int
    is_source: bool
    is_head: bool
    iteration: str | None


@dataclass(frozen=True)
class Component:
    """A strongly connected component of tasks that has a loop. `in_rounds`: an iteration, ending by its own rule."""

    name: str
    tasks: frozenset[TaskId]
    heads: tuple[TaskId, ...]
    in_rounds: bool
    endless: bool


@dataclass(frozen=True)
class Deployment:
    """Components are in topological order, upstream first."""

    plan: Plan
    tasks: Mapping[TaskId, Task]
    channels: Mapping[ChannelId, Channel]
    components: tuple[Component, ...]
    parallelism: Mapping[str, int]
    by_slice: bool = False
    """Whether tasks of one number share an actor."""

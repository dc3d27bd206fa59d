"""Tasks and channels of an expanded plan. Pure data, created by `expansion.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from backedge.graphs.ids import ChannelId, TaskId
from backedge.graphs.plan import Edge, Plan


class Channel(Struct, frozen=True):
    """A FIFO link between two tasks.

    - depth: the number of iterations that contain both ends; markers with a path of at most that length travel here.
    - within_actor: both tasks share an actor, so batches are passed by reference and counted, not digested.
    """

    id: ChannelId
    edge: Edge
    is_back: bool
    depth: int
    within_actor: bool


class Task(Struct, frozen=True):
    """A task, its operators in the order of the chain, and its channels in a fixed order.

    `depth` is the number of iterations around it. `iteration` names the iteration whose head it is, if any.
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


class Component(Struct, frozen=True):
    """A strongly connected component of tasks with a loop. `in_rounds`: an iteration, which ends by its own rule."""

    name: str
    tasks: frozenset[TaskId]
    heads: tuple[TaskId, ...]
    in_rounds: bool
    endless: bool


class Deployment(Struct, frozen=True):
    """The tasks and channels of a plan. Components are in topological order, upstream first.

    Pickled, it is what it was expanded from: each process of a run gets it, and there may be a million channels.
    """

    plan: Plan
    tasks: Mapping[TaskId, Task]
    channels: Mapping[ChannelId, Channel]
    components: tuple[Component, ...]
    parallelism: Mapping[str, int]
    by_slice: bool = False
    """Whether tasks with the same index share an actor."""

    def __reduce__(self) -> tuple[Any, ...]:
        from backedge.graphs.expansion import expanded_again

        first = {task.name for task in self.tasks}
        apart = frozenset(edge.name for edge in self.plan.edges if edge.receiver in first)
        return expanded_again, (self.plan, dict(self.parallelism), apart, self.by_slice)


def shared_actor(pipeline: str | None, index: int) -> str:
    """The name of the actor that hosts all tasks of an index, where tasks share actors.

    Pipelines fail independently, so no actor has tasks of two.

    >>> shared_actor(None, 0), shared_actor("orders", 1)
    ('slice-0', 'orders/slice-1')
    """
    return f"slice-{index}" if pipeline is None else f"{pipeline}/slice-{index}"

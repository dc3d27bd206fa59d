"""The layout of a run's graph for the live page, which draws it as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from backedge.graphs.picture_layout import Spot
from backedge.recovery.spark.report.graph_places import Corner, Size, place
from backedge.recovery.stores.run_status import RunStatus

NODE = Size(190, 74)
AROUND = 12


class _Edge(NamedTuple):
    name: str
    sender: str
    receiver: str
    loop: str | None


_Loops = tuple[tuple[str, tuple[str, ...]], ...]


def layout_of(status: RunStatus) -> dict[str, Any]:
    """The corners of the operators, the paths of edges and back edges, and the grounds of the loops, outer ones first.

    >>> from backedge.recovery.stores.run_status import OperatorStatus
    >>> layout_of(RunStatus("job", "1", "running", True, 0.0, 1.0, None, 1, None, 0, operators=(
    ...     OperatorStatus("read", ("read",), True, False, ()),)))["nodes"]
    {'read': Corner(x=0, y=0)}
    """
    edges = (_Edge(c.edge, c.sender.rpartition("/")[0], c.receiver.rpartition("/")[0], c.loop) for c in status.channels)
    chains = {operator.name: set(operator.operators) for operator in status.operators}
    loops = tuple(
        (loop.name, tuple(name for name, chain in chains.items() if chain & {*loop.operators})) for loop in status.loops
    )
    return _layout(tuple(chains), tuple(dict.fromkeys(edges)), loops)


@lru_cache(64)
def _layout(names: tuple[str, ...], edges: tuple[_Edge, ...], loops: _Loops) -> dict[str, Any]:
    depth = Counter[Spot](name for _, members in loops for name in members)
    ends, back = [edge[1:3] for edge in edges], [edge.loop is not None for edge in edges]
    at, lines, width, height = place(names, ends, back, NODE, depth)
    lanes: dict[str | None, int] = {}
    for edge, line in zip(edges, lines, strict=True):
        lanes[edge.loop] = max(lanes.get(edge.loop, 0), line.lane or 0)
    return {
        "node": NODE._asdict(),
        "nodes": {name: at[name] for name in names},
        "in_loop": [name for name in names if depth[name]],
        "edges": [line.path for line in lines if line.lane is None],
        "back": [
            {"loop": edge.loop, "path": line.path, "label": line.label}
            for edge, line in zip(edges, lines, strict=True)
            if line.lane is not None
        ],
        "around": [
            _around([at[name] for name in members], lanes[loop])
            for loop, members in sorted(loops, key=lambda loop: -len(loop[1]))
            if members and loop in lanes
        ],
        "width": width,
        "height": height,
    }


def _around(members: Sequence[Corner], lane: int) -> dict[str, int]:
    x, y = (min(corner[side] for corner in members) - AROUND for side in (0, 1))
    right = max(corner.x for corner in members) + NODE.width + AROUND
    return {"x": x, "y": y, "width": right - x, "height": lane + 23 - y}

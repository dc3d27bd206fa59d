"""Where the page of a run draws operators and edges: in the columns that other pictures of graphs have (`arrange`).

In columns beside or within a loop, what is in no loop is above all loops, and each back edge returns in a lane of its
own below everything. So the ground of a loop holds only what is in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from backedge.graphs.picture_layout import Spot, arrange
from backedge.recovery.run_status import RunStatus

WIDTH, HEIGHT, ACROSS, DOWN, LANE, ROUND, AROUND = 190, 74, 70, 26, 34, 14, 12
"""The size of an operator, the gaps, the distance of lanes, the radius of their corners, the margin of a loop."""


class _Edge(NamedTuple):
    name: str
    sender: str
    receiver: str
    loop: str | None


class _Corner(NamedTuple):
    x: int
    y: int


_Corners = Mapping[Spot, _Corner]
_Loops = tuple[tuple[str, tuple[str, ...]], ...]


def layout_of(status: RunStatus) -> dict[str, Any]:
    """The corners of the operators, the paths of edges and back edges, and the grounds of the loops, outer ones first.

    >>> from backedge.recovery.run_status import OperatorStatus
    >>> layout_of(RunStatus("job", "1", "running", True, 0.0, 1.0, None, 1, None, 0, operators=(
    ...     OperatorStatus("read", ("read",), True, False, ()),)))["nodes"]
    {'read': [0, 0]}
    """
    ends = (_Edge(c.edge, c.sender.rpartition("/")[0], c.receiver.rpartition("/")[0], c.loop) for c in status.channels)
    chains = {operator.name: set(operator.operators) for operator in status.operators}
    loops = tuple(
        (loop.name, tuple(name for name, chain in chains.items() if chain & {*loop.operators})) for loop in status.loops
    )
    return _placed(tuple(chains), tuple(dict.fromkeys(ends)), loops)


@lru_cache(64)
def _placed(names: tuple[str, ...], edges: tuple[_Edge, ...], loops: _Loops) -> dict[str, Any]:
    forward = [edge for edge in edges if edge.loop is None]
    depth = Counter[Spot](name for _, members in loops for name in members)
    arranged = arrange(names, [(edge.sender, edge.receiver) for edge in forward], depth)
    at = _corners(arranged.columns, depth)
    bottom = max((at[name].y + HEIGHT for name in names), default=0)
    back = [edge for edge in edges if edge.loop is not None]
    back.sort(key=lambda edge: at[edge.sender].x - at[edge.receiver].x)
    lanes = {edge: bottom + LANE * number for number, edge in enumerate(back, start=1)}
    lowest = {edge.loop: lane for edge, lane in lanes.items()}
    return {
        "node": {"width": WIDTH, "height": HEIGHT},
        "nodes": {name: list(at[name]) for name in names},
        "in_loop": [name for name in names if depth[name]],
        "edges": [_forward_path(at, way) for way in arranged.ways.values()],
        "back": [
            {
                "loop": edge.loop,
                "path": _back_path(at[edge.sender], at[edge.receiver], lane),
                "label": [(at[edge.sender].x + at[edge.receiver].x + WIDTH) / 2, lane + 15],
            }
            for edge, lane in lanes.items()
        ],
        "around": [
            _around([at[name] for name in members], lowest[loop])
            for loop, members in sorted(loops, key=lambda loop: -len(loop[1]))
            if members and loop in lowest
        ],
        "width": max(0, len(arranged.columns) * (WIDTH + ACROSS) - ACROSS),
        "height": bottom + LANE * (len(back) + 0.8),
    }


def _corners(columns: Sequence[Sequence[Spot]], depth: Mapping[Spot, int]) -> dict[Spot, _Corner]:
    """In each column, what is in no loop comes first; all loops begin in one row."""
    outside = [sum(not depth[spot] for spot in column) for column in columns]
    with_loops = [number for number, column in enumerate(columns) if any(depth[spot] for spot in column)]
    beside = outside[with_loops[0] : with_loops[-1] + 1] if with_loops else []
    first = max(beside, default=0)
    return {
        spot: _Corner(
            number * (WIDTH + ACROSS),
            (row + (first - outside[number] if depth[spot] else 0)) * (HEIGHT + DOWN),
        )
        for number, column in enumerate(columns)
        for row, spot in enumerate(column)
    }


def _forward_path(at: _Corners, way: Sequence[Spot]) -> str:
    """From the right side of an operator, through the places that it takes in other columns, to the left side."""
    middles = [(at[spot].x + WIDTH // 2, at[spot].y + HEIGHT // 2) for spot in way]
    points = [(middles[0][0] + WIDTH // 2, middles[0][1]), *middles[1:-1], (at[way[-1]].x - 4, middles[-1][1])]
    curves = [f" C{(x1 + x2) / 2} {y1} {(x1 + x2) / 2} {y2} {x2} {y2}" for (x1, y1), (x2, y2) in pairwise(points)]
    return f"M{points[0][0]} {points[0][1]}{''.join(curves)}"


def _back_path(sender: _Corner, receiver: _Corner, lane: int) -> str:
    """Down from its sender, back below everything, and up into the head."""
    apart = WIDTH // 2 - 20 if sender == receiver else 18
    start, end = sender.x + WIDTH // 2 + apart, receiver.x + WIDTH // 2 - apart
    return (
        f"M{start} {sender.y + HEIGHT} V{lane - ROUND} Q{start} {lane} {start - ROUND} {lane}"
        f" H{end + ROUND} Q{end} {lane} {end} {lane - ROUND} V{receiver.y + HEIGHT + 5}"
    )


def _around(members: Sequence[_Corner], lane: int) -> dict[str, int]:
    x, y = (min(corner[side] for corner in members) - AROUND for side in (0, 1))
    right = max(corner.x for corner in members) + WIDTH + AROUND
    return {"x": x, "y": y, "width": right - x, "height": lane + 23 - y}

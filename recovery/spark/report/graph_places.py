"""Where a picture has the boxes and lines of a graph: boxes in the columns of `arrange`, back edges below them.

An edge leaves a box on its right and enters one on its left. A back edge goes down from its sender, left in a lane of
its own below all boxes, and up into its receiver, so it crosses no box. Shorter back edges have higher lanes, so nested
loops do not cross. In columns beside or within a loop, what is in no loop is above all loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from backedge.graphs.picture_layout import Spot, arrange

LANE, ROUND, PARALLEL = 34, 14, 15
"""The distance of lanes, the radius of their corners, and the distance of lines between the same boxes."""


class Size(NamedTuple):
    """Of a box, and of the gaps between boxes, in pixels."""

    width: int
    height: int
    across: int = 70
    down: int = 26


class Corner(NamedTuple):
    """The upper left corner of a box."""

    x: int
    y: int


class Line(NamedTuple):
    """The path of an edge, where it ends, the middle of its label, and the lane in which it returns, if it does."""

    path: str
    end: tuple[float, float]
    label: tuple[float, float]
    lane: int | None = None


class Places(NamedTuple):
    """The boxes by name, a line for each edge, and the size of it all."""

    at: Mapping[Spot, Corner]
    lines: Sequence[Line]
    width: int
    height: int


def place(
    names: Sequence[str],
    edges: Sequence[tuple[str, str]],
    back: Sequence[bool],
    size: Size,
    depth: Mapping[Spot, int] | None = None,
) -> Places:
    """Place a graph; `back` says which edges are back edges, `depth` in how many loops a box is, 0 if not given.

    An edge that closes a cycle without being a back edge (only in a damaged graph) returns like one.

    >>> place(["a", "b"], [("a", "b"), ("b", "a")], [False, True], Size(10, 10, 10, 10)).lines[0].path
    'M10 5.0 C13.0 5.0 13.0 5.0 16 5.0'
    """
    forward = [number for number, is_back in enumerate(back) if not is_back]
    arranged = arrange(names, [edges[number] for number in forward], depth)
    ways = {forward[number]: way for number, way in arranged.ways.items()}
    at = _corners(arranged.columns, depth or {}, size)
    bottom = max((corner.y + size.height for corner in at.values()), default=0)
    returning = [number for number in range(len(edges)) if number not in ways]
    returning.sort(key=lambda number: at[edges[number][0]].x - at[edges[number][1]].x)
    lanes = {number: bottom + LANE * lane for lane, number in enumerate(returning, start=1)}
    lines = [
        _returning(at[sender], at[receiver], lanes[number], size)
        if number in lanes
        else _forward([at[spot] for spot in ways[number]], _aside(number, edges, ways, size), size)
        for number, (sender, receiver) in enumerate(edges)
    ]
    width = max(0, len(arranged.columns) * (size.width + size.across) - size.across)
    return Places(at, lines, width, bottom + LANE * len(returning) + LANE * 4 // 5)


def _corners(columns: Sequence[Sequence[Spot]], depth: Mapping[Spot, int], size: Size) -> dict[Spot, Corner]:
    """In each column, what is in no loop comes first; all loops begin in one row."""
    outside = [sum(not depth.get(spot) for spot in column) for column in columns]
    with_loops = [number for number, column in enumerate(columns) if outside[number] < len(column)]
    first = max(outside[with_loops[0] : with_loops[-1] + 1]) if with_loops else 0
    return {
        spot: Corner(
            number * (size.width + size.across),
            (row + (first - outside[number] if depth.get(spot) else 0)) * (size.height + size.down),
        )
        for number, column in enumerate(columns)
        for row, spot in enumerate(column)
    }


def _aside(number: int, edges: Sequence[tuple[str, str]], ways: Mapping[int, object], size: Size) -> float:
    """Vertical offset of a line if several edges lead from one box to another."""
    beside = [other for other in ways if edges[other] == edges[number]]
    step = min(PARALLEL, (size.height - 8) / len(beside))
    return step * (beside.index(number) - (len(beside) - 1) / 2)


def _forward(way: Sequence[Corner], aside: float, size: Size) -> Line:
    middle = [corner.y + size.height / 2 + aside for corner in way]
    xs = [way[0].x + size.width, *(corner.x + size.width / 2 for corner in way[1:-1]), way[-1].x - 4]
    points = list(zip(xs, middle, strict=True))
    curves = [f" C{(x1 + x2) / 2} {y1} {(x1 + x2) / 2} {y2} {x2} {y2}" for (x1, y1), (x2, y2) in pairwise(points)]
    (x, y), (after_x, after_y) = points[:2]
    # Left of the middle of the first curve, where the labels of crossing lines would collide.
    label = (x + 0.44 * (after_x - x), y + 0.38 * (after_y - y) - 6)
    return Line(f"M{x} {y}{''.join(curves)}", points[-1], label)


def _returning(sender: Corner, receiver: Corner, lane: int, size: Size) -> Line:
    apart = size.width // 2 - 20 if sender == receiver else 18
    start, end = sender.x + size.width // 2 + apart, receiver.x + size.width // 2 - apart
    into = receiver.y + size.height + 5
    path = (
        f"M{start} {sender.y + size.height} V{lane - ROUND} Q{start} {lane} {start - ROUND} {lane}"
        f" H{end + ROUND} Q{end} {lane} {end} {lane - ROUND} V{into}"
    )
    return Line(path, (end, into), ((start + end) / 2, lane + 15), lane)

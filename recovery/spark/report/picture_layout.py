"""Where the boxes of a graph stand: in columns from left to right, so that every edge that can goes to the right.

An edge that passes over columns has a bend in each, which takes up a place there like a box, so that no line runs
through a box. A cycle that no back edge closes (a damaged graph has such) is cut at the box that comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

SWEEPS = 4
"""How often the columns are put in the order of their neighbours; more changes next to nothing."""

Spot = str | tuple[int, int]
"""A box by its name, or the bend of an edge, given by its number, in a column."""


@dataclass(frozen=True)
class Arrangement:
    """The spots of each column from top to bottom; edge -> its spots from left to right, for edges to the right."""

    columns: tuple[tuple[Spot, ...], ...]
    ways: Mapping[int, tuple[Spot, ...]]


def arrange(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> Arrangement:
    """Put boxes in columns along these edges; back edges are not given, and so do not pull.

    >>> arrange(["read", "try", "write"], [("read", "try"), ("try", "write"), ("read", "write")]).columns
    (('read',), ('try', (2, 1)), ('write',))
    """
    column_of = _columns(names, edges)
    columns: list[list[Spot]] = [[] for _ in range(max(column_of.values(), default=-1) + 1)]
    for name in names:
        columns[column_of[name]].append(name)
    ways: dict[int, tuple[Spot, ...]] = {}
    for number, (sender, receiver) in enumerate(edges):
        if column_of[sender] >= column_of[receiver]:
            continue
        bends = [(number, column) for column in range(column_of[sender] + 1, column_of[receiver])]
        for bend in bends:
            columns[bend[1]].append(bend)
        ways[number] = (sender, *bends, receiver)
    _untangle(columns, list(ways.values()))
    return Arrangement(tuple(map(tuple, columns)), ways)


def _columns(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """As far to the right as the longest way to it is long; what has no input stands just before what it feeds."""
    column_of: dict[str, int] = {}
    left = list(names)
    while left:
        free = [name for name in left if not any(r == name and s in left and s != name for s, r in edges)]
        for name in free or left[:1]:
            before = [column_of[sender] for sender, receiver in edges if receiver == name and sender in column_of]
            column_of[name] = max(before, default=-1) + 1
            left.remove(name)
    for name in names:
        behind = [column_of[receiver] for sender, receiver in edges if sender == name and receiver != name]
        if behind and all(receiver != name for _, receiver in edges):
            column_of[name] = min(behind) - 1
    first = min(column_of.values(), default=0)
    return {name: column - first for name, column in column_of.items()}


def _untangle(columns: list[list[Spot]], ways: Sequence[Sequence[Spot]]) -> None:
    """Order each column by where its neighbours stand, from the left and from the right in turn."""
    steps = [step for way in ways for step in pairwise(way)]
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        for column in columns if forward else reversed(columns):
            height = {spot: at / len(other) for other in columns for at, spot in enumerate(other)}
            pulls = {
                spot: [
                    height[left if forward else right] for left, right in steps if (right if forward else left) == spot
                ]
                for spot in column
            }
            own = dict(height)
            column.sort(key=lambda spot, pulls=pulls, own=own: _mean(pulls[spot], own[spot]))


def _mean(heights: Sequence[float], otherwise: float) -> float:
    return sum(heights) / len(heights) if heights else otherwise

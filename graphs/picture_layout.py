"""Layout of a graph: boxes in columns, so that as many edges as possible run from left to right.

An edge that spans several columns gets a bend in each, which takes up space like a box, so no line runs through a
box. A cycle without a back edge (only in a damaged graph) is broken at its first box.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

SWEEPS = 4
"""Passes that order columns by their neighbours; more passes hardly change the result."""

Spot = str | tuple[int, int]
"""A box by its name, or the bend of an edge, given by its number, in a column."""


@dataclass(frozen=True)
class Arrangement:
    """The spots of each column from top to bottom; edge -> its spots from left to right, for edges to the right."""

    columns: tuple[tuple[Spot, ...], ...]
    ways: Mapping[int, tuple[Spot, ...]]


def arrange(
    names: Sequence[str], edges: Sequence[tuple[str, str]], depth: Mapping[Any, int] | None = None
) -> Arrangement:
    """Arrange boxes in columns along these forward edges. `depth`: the number of loops around a box, 0 if not given.

    In a column, the boxes of a loop are below those outside of it, because its back edge returns below.

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
    _untangle(columns, list(ways.values()), depth or {})
    return Arrangement(tuple(map(tuple, columns)), ways)


def _columns(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Name -> column: the length of the longest path to it; sources move next to their first receiver."""
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


def _untangle(columns: list[list[Spot]], ways: Sequence[Sequence[Spot]], depth: Mapping[Any, int]) -> None:
    """Order each column by the positions of its neighbours, alternating from the left and from the right."""
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
            means = {spot: _mean(pulls[spot], height[spot]) for spot in column}
            column.sort(key=lambda spot, means=means: (depth.get(spot, 0), means[spot]))


def _mean(heights: Sequence[float], otherwise: float) -> float:
    return sum(heights) / len(heights) if heights else otherwise

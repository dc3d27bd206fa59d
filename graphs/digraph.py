"""Algorithms on directed graphs: vertices are hashable values, a graph maps each vertex to its successors.

Nothing here recurses, so a chain of a million vertices does not exhaust the stack. The order of every result depends
only on the order of the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import TypeVar

V = TypeVar("V", bound=Hashable)


def upstream_first(successors: Mapping[V, Collection[V]]) -> list[V]:
    """Topological order, cycles aside; otherwise in the order of the graph.

    >>> upstream_first({"c": [], "a": ["b"], "b": ["c"], "d": ["c"]})
    ['a', 'b', 'd', 'c']
    """
    finished: list[V] = []
    seen: set[V] = set()
    # A search in reverse order finishes the last vertices first.
    for root in reversed(list(successors)):
        if root in seen:
            continue
        seen.add(root)
        path = [(root, iter(reversed(list(successors[root]))))]
        while path:
            vertex, rest = path[-1]
            unseen = next((following for following in rest if following not in seen), None)
            if unseen is None:
                finished.append(vertex)
                path.pop()
            else:
                seen.add(unseen)
                path.append((unseen, iter(reversed(list(successors[unseen])))))
    finished.reverse()
    return finished


def components(successors: Mapping[V, Collection[V]]) -> list[list[V]]:
    """The strongly connected components, upstream first.

    >>> components({"a": ["b"], "b": ["c"], "c": ["b", "d"], "d": []})
    [['a'], ['b', 'c'], ['d']]
    """
    # Kosaraju: starting where a search of the graph finished last, a search of the reversed graph stays in a component.
    predecessors = reverse(successors)
    place = {vertex: number for number, vertex in enumerate(successors)}
    found: list[list[V]] = []
    placed: set[V] = set()
    for root in upstream_first(successors):
        if root in placed:
            continue
        members = reachable([root], predecessors, placed)
        placed |= members
        found.append(sorted(members, key=place.__getitem__))
    return found


def cyclic_components(successors: Mapping[V, Collection[V]]) -> list[list[V]]:
    """The components with a cycle: more than one vertex, or one that is its own successor.

    >>> cyclic_components({"a": ["b"], "b": ["b"]})
    [['b']]
    """
    return [members for members in components(successors) if len(members) > 1 or members[0] in successors[members[0]]]


def reachable(starts: Iterable[V], successors: Mapping[V, Collection[V]], without: Collection[V] = ()) -> set[V]:
    """The vertices reachable from the starts, including these, on paths that avoid `without`.

    >>> sorted(reachable(["a"], {"a": ["b", "c"], "b": [], "c": ["d"], "d": []}, without=["c"]))
    ['a', 'b']
    """
    found = {start for start in starts if start not in without}
    ahead = list(found)
    while ahead:
        for following in successors[ahead.pop()]:
            if following not in found and following not in without:
                found.add(following)
                ahead.append(following)
    return found


def reverse(successors: Mapping[V, Collection[V]]) -> dict[V, list[V]]:
    """The graph with every edge reversed.

    >>> reverse({"a": ["b"], "b": []})
    {'a': [], 'b': ['a']}
    """
    turned: dict[V, list[V]] = {vertex: [] for vertex in successors}
    for vertex, following in successors.items():
        for successor in following:
            turned[successor].append(vertex)
    return turned

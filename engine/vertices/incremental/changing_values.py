"""The best values of a task's vertices on a graph that changes: what to give up, what to find again, whom to tell.

A vertex takes the best of its first value and of what arrives along its edges. With the value it keeps a level: 0 for
its first value, otherwise one more than the level that arrived. The better value counts, and of equal values the lower
level. So whatever supports a vertex has a better value or a lower level, and nothing supports itself, not even
round a cycle along which values stay the same.

What was told along an edge is kept at its target, and each vertex counts its supports: the edges along which exactly
its value and level were told, and its first value. A change of the graph is worked off in three phases, each of which
is over in all tasks before the next begins:

1. **Give up** (`change`, `give_up`). A removed edge, or one with another weight, tells nothing any more. A vertex that
   loses its last support gives up its value, and then nothing is told along its own edges either.
2. **Find again** (`find_again`, `tell`). Vertices that gave up take the best of what is still told to them, which now
   comes from vertices that kept their values, or their first values. New edges tell what their sources have. Whoever
   takes a better value tells it along its edges.
3. **Differences** (`differences`). The vertices whose values are others than after the change before.

That is right because a vertex keeps its value in phase 1 only on a support that keeps its own; levels and values lead
from each support to a first value. From there, phase 2 only improves values, until no edge carries a better one.
(Without the order of phases, a vertex could take back what another is about to give up, and a cycle that is cut off
could go on for ever.) A change costs the edges of the vertices that give up or take a value, whatever the size of the
graph.

Values are kept as ranks, of which the lowest is best: the values of programs that take the lowest value, otherwise
their opposites. Vertices and edges are arrays; what one method is given is worked off in steps, each for many vertices
at once, until what is left is for other tasks. In phase 2 the best values are told first, so that most vertices tell
only the value that they keep. After much work the rest is left for later: edges of phase 1 travel like those for other
tasks, and vertices of phase 2 are `left`. So a cut can be taken in the middle of a long phase.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from backedge.engine.state.tables.row_index import distinct_integers, index_for
from backedge.engine.vertices.adjacency import Growing, Links
from backedge.engine.vertices.edges import Along, Array, by_group, identity
from backedge.graphs.routing import KEY_GROUPS, key_groups

WORK_MAX = 100_000
"""How many edges one call follows before it leaves the rest for later: some tens of milliseconds."""

STEP_WORK = 1_000
"""What a step counts as, however few edges it follows."""

TELLERS_MIN = 128
TELLERS_SHARE = 16
"""In a step, this many vertices tell their values, or a sixteenth of those that have to."""


class Told(NamedTuple):
    """What is told along edges; without values, that nothing is told any more."""

    sources: Array
    targets: Array
    values: Array
    levels: Array


Step = tuple[Array, Array, Array, Array]
"""Of some edges the sources, the targets, the ranks and the levels."""


class ChangingValues:
    """The vertices and edges of one task.

    - first: the first values of new vertices. along: what arrives at the ends of edges, if not what was sent.
      is_weighted: whether it gets their weights.
    - own_groups: the key groups of the task.
    - dirty: the groups in which anything differs from what `filed` returned last. touched: those in which a vertex has
      something to do in a later phase.
    - left: the vertices that have a value to tell and were left for later: to be emptied, and passed to `go_on`.
    """

    def __init__(
        self,
        combine: str,
        message: np.dtype[Any],
        first: Callable[[Array], Array],
        along: Along | None,
        own_groups: range,
        *,
        is_weighted: bool,
    ) -> None:
        self._lowest_is_best = combine == "min"
        self._message = message
        self._worst = self._opposite(np.array([identity(combine, message)]))[0]
        self._first = first
        self._along = along
        self._is_weighted = is_weighted
        self._is_own = np.zeros(KEY_GROUPS, np.bool_)
        self._is_own[own_groups] = True
        self._index = index_for(["int64"])
        # shown: the rank in the last differences. marked: whether it may differ now.
        self._vertices = Growing(
            {
                "id": np.int64,
                "group": np.int64,
                "first": message,
                "rank": message,
                "level": np.int64,
                "supports": np.int64,
                "shown": message,
                "is_shown": np.bool_,
                "marked": np.bool_,
                "waits": np.bool_,
            }
        )
        # Edges by source, with their weights; and by target what has been told along them.
        self._edges = Links({"weight": np.float64, "is_new": np.bool_})
        self._told = Links({"rank": message, "level": np.int64})
        # Positions of the vertices that have given up, or are marked; and of sources of new edges.
        self._given_up: list[Array] = []
        self._marked: list[Array] = []
        self._sources: list[Array] = []
        self.dirty = np.zeros(KEY_GROUPS, np.bool_)
        self.touched = np.zeros(KEY_GROUPS, np.bool_)
        self.left: Array = np.empty(0, np.int64)

    # -- phase 1 -------------------------------------------------------------------------------------------------

    def change(self, sources: Array, targets: Array, weights: Array, added: Array) -> Told:
        """Add and remove edges of own sources, each given once. An edge that is there gets its new weight."""
        at = self._places(sources[added])
        given = weights[added]
        rows, is_new = self._edges.add(at, targets[added], weight=given, is_new=np.ones(len(at), np.bool_))
        has_changed = is_new | (self._edges["weight"][rows] != given)
        rows, given = rows[has_changed], given[has_changed]
        self._edges["weight"][rows], self._edges["is_new"][rows] = given, True
        self._sources.append(self._edges["owner"][rows])
        self._will_act(self._edges["owner"][rows])
        known = self._index.find([sources[~added]])
        removed = np.full(len(known), -1)
        removed[known >= 0] = self._edges.find(known[known >= 0], targets[~added][known >= 0])
        removed = removed[removed >= 0]
        self._edges.remove(removed)
        self._touch(self._edges["owner"][removed])
        changed = np.concatenate([rows, removed])
        return self.give_up(self._vertices["id"][self._edges["owner"][changed]], self._edges["other"][changed])

    def give_up(self, sources: Array, targets: Array) -> Told:
        """Nothing is told along these edges any more."""
        others: list[Told] = []
        work_left = WORK_MAX
        while len(sources):
            is_own = self._is_own[key_groups(targets)] & (work_left > 0)
            work_left -= STEP_WORK + len(sources)
            if not is_own.all():
                # Without values: nothing is told any more.
                none = np.empty(0, self._message), np.empty(0, np.int64)
                others.append(Told(sources[~is_own], targets[~is_own], *none))
            at = self._places(targets[is_own])
            rows = distinct_integers(self._told.find(at, sources[is_own]))
            lost = self._lose(rows[rows >= 0])
            edges = self._edges.of(lost)
            sources, targets = self._vertices["id"][self._edges["owner"][edges]], self._edges["other"][edges]
        return _all_told(others, self._message)

    def _lose(self, rows: Array) -> Array:
        """Nothing is told in these rows any more. Returns the vertices that have lost their last support."""
        vertices, owners = self._vertices, self._told["owner"][rows]
        supported = owners[self._supports(rows)]
        self._told.remove(rows)
        self._touch(owners)
        np.subtract.at(vertices["supports"], supported, 1)
        lost = distinct_integers(supported[vertices["supports"][supported] == 0])
        vertices["rank"][lost] = self._worst
        vertices["level"][lost] = 0
        self._given_up.append(lost)
        self._mark(lost)
        return lost

    def _supports(self, rows: Array) -> Array:
        """Whether exactly the value and level of its vertex were told in each of these rows."""
        owners = self._told["owner"][rows]
        is_rank = self._told["rank"][rows] == self._vertices["rank"][owners]
        return is_rank & (self._told["level"][rows] == self._vertices["level"][owners])

    # -- phase 2 -------------------------------------------------------------------------------------------------

    def find_again(self) -> Told:
        """Take what is left for the vertices that gave up, and tell along new edges."""
        lost, self._given_up = _together(self._given_up), []
        sources, self._sources = distinct_integers(_together(self._sources)), []
        vertices = self._vertices
        # Something better than nothing may have been told to them already, but what they kept may be better still.
        vertices["rank"][lost], vertices["level"][lost], vertices["supports"][lost] = self._worst, 0, 0
        self._touch(lost)
        rows = self._told.of(lost)
        owners, ranks, levels = (self._told[name][rows] for name in ("owner", "rank", "level"))
        has_first = lost[vertices["first"][lost] != self._worst]
        found = self._take(
            np.concatenate([owners, has_first]),
            np.concatenate([ranks, vertices["first"][has_first]]),
            np.concatenate([levels, np.zeros(len(has_first), np.int64)]),
        )
        edges = self._edges.of(sources)
        new = edges[self._edges["is_new"][edges]]
        self._edges["is_new"][new] = False
        self._touch(sources)
        return self._tell_all(self._step(new), found)

    def tell(self, told: Told) -> Told:
        """Take what is told along these edges, if it is better."""
        told = self._best_of_each_edge(told)
        step = told.sources, told.targets, self._opposite(told.values), told.levels
        return self._tell_all(step, np.empty(0, np.int64))

    def go_on(self, vertices: Array) -> Told:
        """Tell what vertices have that were left."""
        return self._tell_all(self._step(np.empty(0, np.int64)), self._places(distinct_integers(vertices)))

    def _tell_all(self, step: Step, waiting: Array) -> Told:
        """Have vertices take a step, then tell what they have, with those that wait, the best values first."""
        others: list[Told] = []
        waits = self._vertices["waits"]
        waits[waiting] = True
        # Whatever is left travels, so there must be as much work as there are vertices.
        work_left = max(WORK_MAX, len(waiting))
        while True:
            sources, targets, ranks, levels = step
            is_own = self._is_own[key_groups(targets)]
            if not is_own.all():
                away = ~is_own
                others.append(Told(sources[away], targets[away], self._opposite(ranks[away]), levels[away]))
            improved = self._hear(self._places(targets[is_own]), sources[is_own], ranks[is_own], levels[is_own])
            waits = self._vertices["waits"]
            waiting = np.concatenate([waiting, improved[~waits[improved]]])
            waits[improved] = True
            work_left -= (STEP_WORK + len(sources)) * bool(len(sources))
            if not len(waiting) or work_left <= 0:
                break
            tellers, waiting = self._best_of(waiting)
            waits[tellers] = False
            step = self._step(self._edges.of(tellers))
        waits[waiting] = False
        self.left = np.concatenate([self.left, self._vertices["id"][waiting]])
        return self._best_of_each_edge(_all_told(others, self._message))

    def _best_of(self, waiting: Array) -> tuple[Array, Array]:
        """Those of these vertices with the best values, and the others."""
        count = max(TELLERS_MIN, len(waiting) // TELLERS_SHARE)
        if len(waiting) <= count:
            return waiting, waiting[:0]
        ranks = self._vertices["rank"][waiting]
        is_chosen = ranks <= np.partition(ranks, count - 1)[count - 1]
        if not is_chosen.any():
            # The best are undefined numbers.
            return waiting, waiting[:0]
        return waiting[is_chosen], waiting[~is_chosen]

    def _best_of_each_edge(self, told: Told) -> Told:
        """Of what is told along an edge several times, only the best counts."""
        order = np.lexsort((told.levels, self._opposite(told.values), told.sources, told.targets))
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = (np.diff(told.targets[order]) != 0) | (np.diff(told.sources[order]) != 0)
        return Told(*(column[order[is_first]] for column in told))

    def _step(self, edges: Array) -> Step:
        owners = self._edges["owner"][edges]
        has_value = self._vertices["rank"][owners] != self._worst
        edges, owners = edges[has_value], owners[has_value]
        ranks = self._vertices["rank"][owners]
        if self._along is not None and len(edges):
            weights = self._edges["weight"][edges] if self._is_weighted else None
            carried = self._along(self._opposite(ranks), weights)
            ranks = self._opposite(carried)
        is_told = ranks != self._worst
        edges, owners, ranks = edges[is_told], owners[is_told], ranks[is_told]
        return self._vertices["id"][owners], self._edges["other"][edges], ranks, self._vertices["level"][owners] + 1

    def _hear(self, at: Array, sources: Array, ranks: Array, levels: Array) -> Array:
        """Take what is told along different edges. Returns the vertices whose value or level became better."""
        rows, is_new = self._told.add(at, sources, rank=ranks, level=levels)
        is_news = is_new | is_better(ranks, levels, self._told["rank"][rows], self._told["level"][rows])
        at, rows, ranks, levels = at[is_news], rows[is_news], ranks[is_news], levels[is_news]
        self._told["rank"][rows], self._told["level"][rows] = ranks, levels
        self._touch(at)
        return self._take(at, ranks, levels)

    def _take(self, at: Array, ranks: Array, levels: Array) -> Array:
        """Let vertices take what is better, and count what supports them. Returns those that took anything."""
        vertices = self._vertices
        better = np.flatnonzero(is_better(ranks, levels, vertices["rank"][at], vertices["level"][at]))
        better = better[np.lexsort((levels[better], ranks[better], at[better]))]
        best = better[np.diff(at[better], prepend=-1) != 0]
        took = at[best]
        vertices["rank"][took], vertices["level"][took] = ranks[best], levels[best]
        vertices["supports"][took] = 0
        is_support = (ranks == vertices["rank"][at]) & (levels == vertices["level"][at])
        np.add.at(vertices["supports"], at[is_support], 1)
        self._mark(took)
        return took

    # -- phase 3 -------------------------------------------------------------------------------------------------

    def differences(self) -> tuple[Array, Array]:
        """The vertices that are new or have other values than at the call before, and these values."""
        marked, self._marked = _together(self._marked), []
        vertices = self._vertices
        vertices["marked"][marked] = False
        shown = marked[~vertices["is_shown"][marked] | (vertices["shown"][marked] != vertices["rank"][marked])]
        vertices["shown"][shown] = vertices["rank"][shown]
        vertices["is_shown"][shown] = True
        self._touch(marked)
        return vertices["id"][shown], self._opposite(vertices["rank"][shown])

    def tidy(self) -> None:
        """Drop what removed edges have left, if that is most of all."""
        self._edges.tidy()
        self._told.tidy()

    # -- vertices ------------------------------------------------------------------------------------------------

    def _places(self, ids: Array) -> Array:
        """The positions of vertices; new ones get their first values."""
        at = self._index.find([ids])
        if (at >= 0).all():
            return at
        new = distinct_integers(ids[at < 0])
        ranks = self._opposite(self._first(new))
        has_value = (ranks != self._worst).astype(np.int64)
        places = self._vertices.add(
            id=new,
            group=key_groups(new),
            first=ranks,
            rank=ranks,
            level=0,
            supports=has_value,
            shown=ranks,
            is_shown=False,
            marked=False,
            waits=False,
        )
        self._index.add([new], places)
        self._mark(places)
        return self._index.find([ids])

    def _touch(self, at: Array) -> None:
        self.dirty[self._vertices["group"][at]] = True

    def _will_act(self, at: Array) -> None:
        self._touch(at)
        self.touched[self._vertices["group"][at]] = True

    def _mark(self, at: Array) -> None:
        self._marked.append(at[~self._vertices["marked"][at]])
        self._vertices["marked"][at] = True
        self._will_act(at)

    def _opposite(self, values: Array) -> Array:
        if self._lowest_is_best:
            return values
        return -values if self._message.kind == "f" else ~values

    # -- state ---------------------------------------------------------------------------------------------------

    def filed(self) -> dict[int, dict[str, Any]]:
        """The content of the dirty groups."""
        groups, self.dirty = self.dirty, np.zeros(KEY_GROUPS, np.bool_)
        if not groups.any():
            return {}
        vertices, group_of = self._vertices, self._vertices["group"]
        given_up = np.zeros(len(vertices), np.bool_)
        given_up[_together(self._given_up)] = True
        at = np.flatnonzero(groups[group_of])
        parts = {f"vertex {name}": vertices[name][at] for name in _FILED} | {"vertex given_up": given_up[at]}
        filed = _by_group(group_of[at], parts)
        for part, links, names in (("edge", self._edges, _EDGE), ("told", self._told, _TOLD)):
            rows = links.all()
            rows = rows[groups[group_of[links["owner"][rows]]]]
            owners = links["owner"][rows]
            columns = {f"{part} {name}": links[name][rows] for name in names}
            for group, own in _by_group(group_of[owners], {f"{part} owner": vertices["id"][owners]} | columns).items():
                filed[group] |= own
        return filed

    def restore(self, filed: Mapping[int, Mapping[str, Any]]) -> None:
        for own in filed.values():
            ids = own["vertex id"]
            columns = {name: own[f"vertex {name}"] for name in _FILED}
            has_first = (own["vertex first"] == own["vertex rank"]) & (own["vertex rank"] != self._worst)
            supports = (has_first & (own["vertex level"] == 0)).astype(np.int64)
            at = self._vertices.add(group=key_groups(ids), supports=supports, waits=False, **columns)
            self._index.add([ids], at)
            self._marked.append(at[own["vertex marked"]])
            self._given_up.append(at[own["vertex given_up"]])
            for part, links, names in (("edge", self._edges, _EDGE), ("told", self._told, _TOLD)):
                if f"{part} owner" in own:
                    owners = self._index.find([own[f"{part} owner"]])
                    columns = {name: own[f"{part} {name}"] for name in names if name != "other"}
                    rows, _ = links.add(owners, own[f"{part} other"], **columns)
                    if links is self._told:
                        np.add.at(self._vertices["supports"], owners[self._supports(rows)], 1)
                    else:
                        self._sources.append(owners[own["edge is_new"]])


_FILED = ("id", "first", "rank", "level", "shown", "is_shown", "marked")
_EDGE = ("other", "weight", "is_new")
_TOLD = ("other", "rank", "level")


def _by_group(groups: Array, columns: Mapping[str, Array]) -> dict[int, dict[str, Array]]:
    order, starts = by_group(groups)
    ordered = {name: column[order] for name, column in columns.items()}
    return {
        group: {name: column[starts[group] : starts[group + 1]] for name, column in ordered.items()}
        for group in np.unique(groups).tolist()
    }


def is_better(ranks: Array, levels: Array, than_ranks: Array, than_levels: Array) -> Array:
    """Whether these ranks, or of equal ranks the levels, are lower than the others."""
    return (ranks < than_ranks) | ((ranks == than_ranks) & (levels < than_levels))


def _together(parts: list[Array]) -> Array:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _all_told(parts: list[Told], message: np.dtype[Any]) -> Told:
    none = np.empty(0, np.int64)
    parts = [Told(none, none, np.empty(0, message), none), *parts]
    return Told(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

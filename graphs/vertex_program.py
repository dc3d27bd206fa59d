"""Vertex programs: work on a graph, in rounds or free-running, on arrays with one item for each vertex.

    start(vertices)              the values before the first round, as a dict of arrays
    send(vertices)               what each vertex sends along its outgoing edges in this round
    along(sent, weights)         what arrives at the end of an edge, if that differs from what was sent into it
    apply(vertices, received)    the new values, from what each vertex received, combined by `combine`

A program is one operator within an iteration or, free-running, in a loop. Edges arrive once, at the tasks of their
sources, and stay there. What a task sends to one vertex along several edges is combined before it travels.
`engine/vertices/rounds.py` runs it in rounds, `engine/vertices/free_running.py` without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from backedge.graphs.constant import check_own_constants, own_arguments
from backedge.graphs.draft import Draft
from backedge.graphs.graph_errors import BadOptionError, IterationError
from backedge.graphs.iterate import add_iteration
from backedge.graphs.kinds import Iterate, OfBatches
from backedge.graphs.loop import open_loop
from backedge.graphs.options import check_choice, check_count, check_function
from backedge.graphs.process_class import check_arguments
from backedge.graphs.public import public
from backedge.graphs.stream import Stream, added, check_stream

Array = npt.NDArray[Any]
Combine = Literal["sum", "min", "max", "all"]
BACKWARDS = "is_backwards"
"""The column of the edges that says whether an edge is there for what is sent backwards."""
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


@public
class Messages(NamedTuple):
    """What the vertices of a task have received if nothing is combined, in the order of vertices, then of values.

    - at: the positions of the vertices. values: what each of these has received.
    """

    at: Array
    values: Array


@public
class Vertices:
    """The vertices of one task: arrays with one item for each, in the same order in every round.

    - ids: the numbers of the vertices. degrees: how many edges lead away from each.
    - values: the arrays that `start` or `apply` returned last; `vertices["rank"]` is one of them. They are read-only.
    - active: which vertices send in this round. `start` and `apply` may set it; otherwise all do.
    - change: the task's part of the sum that `until` is called with. `apply` may set it; otherwise the number of active
      vertices.
    - round: the number of the round, counted from 1; 0 in `start` and in the `send` after it, and if there are none.
    - senders: how many vertices of the whole graph have sent in this round, if the program has `phases`. If it is 0,
      the phase has come to rest.
    - backwards: whether the next `send`, and all after it, go against the direction of edges. `start` and `apply` may
      change it if the program `reverses`. It must be the same in all tasks, so let it depend on `senders` or `round`.
    """

    def __init__(self, ids: Array, degrees: Array, find_neighbours: Callable[[], tuple[Array, Array]]) -> None:
        self.ids = ids
        self.degrees = degrees
        self._find_neighbours = find_neighbours
        self.values: Mapping[str, Array] = {}
        self.active: Array | None = None
        self.change: float | None = None
        self.round = 0
        self.senders = 0
        self.backwards = False

    @cached_property
    def neighbours(self) -> tuple[Array, Array]:
        """The ends of the outgoing edges: where those of each vertex begin, and the last ones end; and their numbers.

        Those of one vertex are in the order of their numbers.
        """
        return self._find_neighbours()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, name: str) -> Array:
        return self.values[name]


@public
class VertexProgram:
    """The base class of vertex programs. Values are the only state: attributes of the program are lost in a restore.

    - combine: how the values that a vertex receives in a round become one; "all" if they do not.
    - message: the type of these values.
    - best: the name of a value, if all that a vertex does is to take what it receives for this value if that is
      lower (min) or higher (max), and to send it on. Then the program needs no `send` and no `apply`, and a round costs
      only what changes in it. `along` must keep the order of values: the best values are sent first.
    - phases: whether the program must know when nothing is sent any more, to begin something else: `vertices.senders`.
    - reverses: whether the program may send against the direction of edges: `vertices.backwards`.

    >>> class Hops(VertexProgram):
    ...     combine, message = "min", np.float64
    ...     def __init__(self, root):
    ...         self.root = root
    ...     def start(self, vertices):
    ...         vertices.active = vertices.ids == self.root
    ...         return {"hops": np.where(vertices.active, 0, np.inf)}
    ...     def send(self, vertices):
    ...         return vertices["hops"] + 1
    ...     def apply(self, vertices, received):
    ...         vertices.active = received < vertices["hops"]
    ...         return {"hops": np.minimum(received, vertices["hops"])}
    >>> from backedge import Collect, Flow, Items
    >>> flow = Flow("hops")
    >>> edges = flow.read(Items([{"source": 1, "target": 2}, {"source": 2, "target": 3}]))
    >>> flow.vertex_program(Hops, edges, root=1).write(Collect())
    """

    combine: ClassVar[Combine] = "sum"
    message: ClassVar[type[Any]] = np.float64
    best: ClassVar[str | None] = None
    phases: ClassVar[bool] = False
    reverses: ClassVar[bool] = False

    def start(self, vertices: Vertices) -> Mapping[str, Array]:
        """The values of the vertices before the first round, by name."""
        raise NotImplementedError(
            f"vertex program {type(self).__name__} has no start(vertices): return a dict of arrays"
        )

    def send(self, vertices: Vertices) -> Array:
        """What each vertex sends along its outgoing edges."""
        if self.best is not None:
            return vertices.values[self.best]
        raise NotImplementedError(f"vertex program {type(self).__name__} has no send(vertices): return an array")

    def along(self, sent: Array, weights: Array | None) -> Array:
        """What arrives at the ends of some edges, from what was sent into them and from their weights."""
        return sent

    def apply(self, vertices: Vertices, received: Any) -> Mapping[str, Array]:
        """The new values. A vertex that received nothing finds 0 (sum), or the largest or smallest value (min, max).

        `received` is an array with one item for each vertex, or `Messages` if nothing is combined.
        """
        raise NotImplementedError(
            f"vertex program {type(self).__name__} has no apply(vertices, received): return a dict of arrays"
        )


@dataclass(frozen=True)
class OfVertexProgram(OfBatches):
    """Runs a vertex program. `edge_columns` are the names of source, target and weight; `reports_change` says whether
    each task reports its change in every round.
    """

    program: type[VertexProgram]
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    edge_columns: tuple[str, str, str | None] = ("source", "target", None)
    rounds: int | None = None
    reports_change: bool = False

    runtime = "backedge.engine.vertices.rounds:VerticesOperator"
    kind_word = "vertex_program"

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("out", "values")

    @property
    def reserved(self) -> tuple[str, ...]:
        """The columns of the result that are not values."""
        return ("vertex",)

    @property
    def subject(self) -> Any:
        return self.program

    @property
    def named_after(self) -> Any:
        return self.program

    def check(self, what: str) -> None:
        check_choice(self.program.combine, ("sum", "min", "max", "all"), "combine", what)
        if self.program.best is not None and self.program.combine not in ("min", "max"):
            raise BadOptionError(
                f"{what} has best={self.program.best!r} but combine={self.program.combine!r}: the best of several "
                'values is the lowest or the highest, so set combine to "min" or "max"'
            )
        if self.program.best in self.reserved:
            raise BadOptionError(
                f"{what} has best={self.program.best!r}, but its result has a column of this name: give the value "
                "another name"
            )
        try:
            is_number = np.dtype(self.program.message).kind in "iuf"
        except (TypeError, ValueError):
            is_number = False
        if not is_number:
            raise BadOptionError(f"{what} has message={self.program.message!r}: give a numpy type of numbers")

    def new_instance(self) -> Any:
        return self.program(**own_arguments(self.arguments))


@dataclass(frozen=True)
class OfFreeVertexProgram(OfVertexProgram):
    runtime = "backedge.engine.vertices.free_running:FreeVerticesOperator"

    @property
    def may_wait(self) -> bool:
        return True

    def check(self, what: str) -> None:
        super().check(what)
        if (why := why_not_only_best(self.program)) is not None:
            raise BadOptionError(
                f"{what} is free-running, but {self.program.__name__} {why}: without rounds, only programs give the "
                'same result whose vertices take the best of what they receive, best="...", and send it on; leave out '
                "free_running=True"
            )
        if self.rounds is not None or self.reports_change:
            raise BadOptionError(
                f"{what} is free-running, so there are no rounds to count or to decide about: leave out rounds= and "
                "until=, or free_running=True"
            )


@dataclass(frozen=True)
class PassesGraph(OfBatches):
    """Passes edges and vertices on to a free-running vertex program, and says when there are no more."""

    program: str
    edge_columns: tuple[str, str, str | None]

    runtime = "backedge.engine.vertices.free_running:GraphOperator"
    kind_word = "graph"


def checked_name(
    draft: Draft, kind: OfVertexProgram, edges: Stream[Any], name: str | None, word: str, why_outside: str
) -> str:
    """The name of the operator. Raises if the program cannot run on these edges, or here."""
    program = cast("object", kind.program)
    if not (isinstance(program, type) and issubclass(program, VertexProgram)):
        raise BadOptionError(f"{word} got {program!r}: give a subclass of VertexProgram")
    name = draft.name_for(kind, name)
    what = f"{word.replace('_', ' ')} {name!r}"
    check_stream(draft, edges, what)
    check_arguments(program, kind.arguments, {})
    check_own_constants(what, kind.arguments, draft.constants)
    if draft.enclosing:
        raise IterationError(
            f"{what} is inside the body of {draft.enclosing[-1]!r}, but {why_outside}: run it before or after the "
            "iteration"
        )
    return name


def why_not_only_best(program: type[VertexProgram]) -> str | None:
    """Why a program does more than to take the best value and send it on, if it does."""
    if program.best is None:
        return "names no best value"
    return "has phases or sends backwards" if program.phases or program.reverses else None


def add_vertex_program(
    draft: Draft,
    edges: Stream[Any],
    vertices: Stream[Any] | None,
    kind: OfVertexProgram,
    name: str | None,
    until: Callable[[float], object] | None,
    undirected: bool,
) -> Stream[Any]:
    """Add a vertex program, the iteration around it, and what tells each vertex that it exists."""
    name = checked_name(draft, kind, edges, name, "vertex_program", "its edges arrive only once")
    what = f"vertex program {name!r}"
    if kind.rounds is not None:
        check_count(kind.rounds, "rounds", what)
    source, target, _ = kind.edge_columns
    if undirected:
        edges = edges.map_batches(BothWays(source, target), batch_format="numpy", name=f"{name}_both_ways")
    if kind.program.reverses:
        edges = edges.map_batches(WithBackwards(source, target), batch_format="numpy", name=f"{name}_backwards")
    ends = edges.map_batches(EndsOf(source, target), batch_format="numpy", name=f"{name}_ends")
    if vertices is not None:
        check_stream(draft, vertices, what)
        ends = ends.merge(vertices.map_batches(named_vertices, batch_format="numpy", name=f"{name}_vertices"))
    if isinstance(kind, OfFreeVertexProgram):
        return _add_free(draft, edges, ends, kind, name)
    values: list[Stream[Any]] = []

    def body(messages: Stream[Any]) -> Stream[Any]:
        inputs = {"edges": edges.key_by(source), "messages": messages.key_by("vertex")}
        sent = added(draft, kind, inputs, {"name": name})
        values.append(sent.side("values"))
        return sent

    # Round 0 loads the graph.
    head = Iterate(None if kind.rounds is None else kind.rounds + 1, reduce=_added, loads_first=True)
    if until is not None:
        check_function(until, f"until= of {what}")
        head = replace(head, until=UntilAtRest(until), measure=("change", "active"))
    add_iteration(draft, ends, body, f"{name}_rounds", head)
    return values[0]


@dataclass(frozen=True)
class UntilAtRest:
    """Says whether the rounds are over: if no vertex is active, or if `until` says so."""

    until: Callable[[float], object]

    def __call__(self, report: tuple[float, int] | int) -> bool:
        change, active = _both(report)
        return not active or bool(self.until(change))


def _added(one: tuple[float, int] | int, other: tuple[float, int] | int) -> tuple[float, int]:
    (change, active), (more, others) = _both(one), _both(other)
    return change + more, active + others


def _both(report: tuple[float, int] | int) -> tuple[float, int]:
    """The change and the active vertices. Without `until=` rows are counted, and a cut may hold such a count."""
    return report if isinstance(report, tuple) else (float(report), report)


def _add_free(draft: Draft, edges: Stream[Any], ends: Stream[Any], kind: OfFreeVertexProgram, name: str) -> Stream[Any]:
    """Add a vertex program and the loop in which its messages circulate."""
    passes = PassesGraph(name, kind.edge_columns)
    graph = added(draft, passes, {"edges": edges, "vertices": ends}, {"name": f"{name}_graph"})
    messages = open_loop(draft, f"{name}_messages")
    sent = added(draft, kind, {"in": graph.merge(messages).key_by("vertex")}, {"name": name})
    messages.feed(sent)
    return sent.side("values")


@dataclass(frozen=True)
class EndsOf:
    """Returns the vertices that a batch of edges names, each once."""

    source: str
    target: str

    def __call__(self, edges: dict[str, Array]) -> dict[str, Array]:
        ends = [as_integers(edges, name, "edges") for name in (self.source, self.target)]
        return {"vertex": np.unique(np.concatenate(ends))}


def named_vertices(vertices: dict[str, Array]) -> dict[str, Array]:
    return {"vertex": as_integers(vertices, "vertex", "vertices")}


def as_integers(columns: Mapping[str, Array], name: str, whose: str) -> Array:
    """A column of vertices or versions as int64. Raises BadOptionError if it is missing or holds anything else.

    >>> as_integers({"vertex": np.array([7, 8], np.uint64)}, "vertex", "vertices").dtype
    dtype('int64')
    """
    if name not in columns:
        raise BadOptionError(
            f"the {whose} have the columns {', '.join(columns)} but no {name!r}: the columns of edges are named by "
            "source= and target=, that of vertices is 'vertex'"
        )
    column: Array = columns[name]
    kind, wrong = column.dtype.kind, column
    if kind == "O":
        wrong = [value for value in column.tolist() if not _is_int64(value)]
    elif kind in "iu" and column.ndim == 1:
        wrong = column[column > _INT64_MAX] if column.dtype == np.uint64 else column[:0]
    for value in wrong[:1]:
        raise BadOptionError(
            f"column {name!r} of the {whose} holds {value!s:.100} ({type(value).__name__}), but it must consist of "
            "integers of 64 bits: number vertices and versions first, from 0 on for example"
        )
    return column.astype(np.int64, copy=False)


def _is_int64(value: Any) -> bool:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_integer and bool(_INT64_MIN <= value <= _INT64_MAX)


@dataclass(frozen=True)
class BothWays:
    """Returns each edge of a batch in both directions."""

    source: str
    target: str

    def __call__(self, edges: dict[str, Array]) -> dict[str, Array]:
        both = {name: np.concatenate([column, column]) for name, column in edges.items()}
        one, other = (as_integers(edges, name, "edges") for name in (self.source, self.target))
        return both | {self.source: np.concatenate([one, other]), self.target: np.concatenate([other, one])}


@dataclass(frozen=True)
class WithBackwards:
    """Returns each edge of a batch in both directions, and which of them is against its own."""

    source: str
    target: str

    def __call__(self, edges: dict[str, Array]) -> dict[str, Array]:
        both = BothWays(self.source, self.target)(edges)
        return both | {BACKWARDS: np.repeat([False, True], len(both[self.source]) // 2)}

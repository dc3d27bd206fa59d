"""A vertex program on a graph that changes: edges are added and removed, and each version's differences are emitted.

    changes -> passes -> dealer -> vertices -> differences
                           ^        |    ^
                           +--------+    +-- vertices
                             notes           messages

One task deals the changes of a version to the tasks of the vertices, and finds out when each phase of the work is over.
`engine/vertices/incremental/changing_values.py` says what the phases are, and why the result is right.
`engine/vertices/incremental/changing_graph.py` runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from backedge.graphs.draft import Draft
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.kinds import OfBatches
from backedge.graphs.loop import open_loop
from backedge.graphs.stream import Stream, added
from backedge.graphs.vertex_program import OfVertexProgram, VertexProgram, checked_name, why_not_only_best


@dataclass(frozen=True)
class ChangeColumns:
    source: str = "source"
    target: str = "target"
    weight: str | None = None
    added: str = "added"
    version: str = "version"


@dataclass(frozen=True)
class OfChangingVertices(OfVertexProgram):
    """Runs a vertex program on a graph that changes. The weight is the third of `edge_columns`."""

    runtime = "backedge.engine.vertices.incremental.changing_graph:ChangingVerticesOperator"
    kind_word = "changing_graph"

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("out", "notes", "values")

    @property
    def reserved(self) -> tuple[str, ...]:
        return ("vertex", "version")

    def check(self, what: str) -> None:
        super().check(what)
        if (why := why_not_only_best(self.program)) is not None:
            raise BadOptionError(
                f"{what} is on a changing graph, but {self.program.__name__} {why}: only values can be kept up to date "
                'that are the best of what a vertex receives, best="...", and are sent on; run others on each graph'
            )
        for hook in ("send", "apply"):
            if getattr(self.program, hook) is not getattr(VertexProgram, hook):
                raise BadOptionError(
                    f"{what} is on a changing graph, where {hook} of {self.program.__name__} is never called: leave it "
                    "out, and let along change what is sent"
                )


@dataclass(frozen=True)
class PassesChanges(OfBatches):
    """Passes changes on to the task that deals them, and says when there are no more."""

    program: str
    columns: ChangeColumns
    undirected: bool

    runtime = "backedge.engine.vertices.incremental.changing_graph:ChangesOperator"
    kind_word = "changes"


@dataclass(frozen=True)
class DealsChanges(OfBatches):
    """Deals the changes of one version after the other, each when the work on the version before is over."""

    runtime = "backedge.engine.vertices.incremental.changing_graph:DealerOperator"
    kind_word = "dealer"

    @property
    def needs_order(self) -> bool:
        return True


def add_changing_graph(
    draft: Draft,
    changes: Stream[Any],
    kind: OfChangingVertices,
    columns: ChangeColumns,
    name: str | None,
    undirected: bool,
) -> Stream[Any]:
    """Add a vertex program on a changing graph, and the loops of its messages and notes."""
    name = checked_name(draft, kind, changes, name, "changing_graph", "its versions are no rounds")
    kind.check(f"changing graph {name!r}")

    passes = PassesChanges(name, columns, undirected)
    passed = added(draft, passes, {"in": changes}, {"name": f"{name}_changes", "parallelism": 1})
    notes, messages = open_loop(draft, f"{name}_notes"), open_loop(draft, f"{name}_messages")
    waiting = {"changes": passed, "notes": notes}
    dealt = added(draft, DealsChanges(), waiting, {"name": f"{name}_dealer", "parallelism": 1})
    told = added(draft, kind, {"in": dealt.merge(messages).key_by("vertex")}, {"name": name})
    messages.feed(told)
    notes.feed(told.side("notes"))
    return told.side("values")

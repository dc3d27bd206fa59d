"""The same flows twice: on records, which the plain interpreter can run, and on columns, which the engine runs.

So columns have a meaning that shares nothing with them. Each pair has the same sources and the same sinks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from backedge import Collect, Flow, Items, Plan, Stream, Table, VertexProgram, Vertices
from backedge.graphs.routing import tasks_of_keys

Arrays = dict[str, Any]
Item = dict[str, Any]

VERTICES = 7
ROUNDS = 4
VALUE_MAX = 997


# -- a loop, with sums by key ------------------------------------------------------------------------------------


def small(record: Item) -> Item:
    """What all columns of a type can hold."""
    return {"id": record["id"], "key": record["key"], "left": record["left"]}


def turned(record: Item) -> Item:
    """Goes on to another key."""
    return {**record, "key": (record["key"] * 2 + record["id"]) % VERTICES, "left": record["left"] - 1}


def is_done(record: Item) -> bool:
    return record["left"] <= 0


class Totals:
    """Adds up ids by key, and emits the sums at the end."""

    def on_record(self, ctx: Any, record: Item) -> None:
        ctx.state.set(ctx.state.get(0) + record["id"])

    def on_end(self, ctx: Any) -> None:
        for key in ctx.keys():  # noqa: SIM118
            ctx.emit({"key": key, "total": ctx.state.get()})


def turned_columns(batch: Arrays) -> Arrays:
    return {**batch, "key": (batch["key"] * 2 + batch["id"]) % VERTICES, "left": batch["left"] - 1}


def done_columns(batch: Arrays) -> Arrays:
    """The rows without a hop left."""
    return {name: array[batch["left"] <= 0] for name, array in batch.items()}


def other_columns(batch: Arrays) -> Arrays:
    return {name: array[batch["left"] > 0] for name, array in batch.items()}


class TotalsOfColumns:
    """`Totals`."""

    table = Table(key={"key": "int64"}, columns={"total": "int64"})

    def on_batch(self, ctx: Any, batch: Arrays) -> None:
        ctx.table.combine(np.add, ctx.table.rows(batch["key"]), total=batch["id"])

    def on_end(self, ctx: Any) -> None:
        if len(ctx.table):
            ctx.emit_batch(ctx.table.scan())


def _loop(flow: Flow) -> None:
    again = flow.loop("again", of=Item)
    entered = _read(flow).map(small, name="small").merge(again).key_by("key").map(turned, name="turn")
    done, more = entered.split(is_done, name="split")
    again.feed(more)
    _write(done.key_by("key").process(Totals, name="total"))


def _loop_of_columns(flow: Flow) -> None:
    again = flow.loop("again", of=Item)
    entered = _read(flow).map(small, name="small").merge(again).key_by("key")
    turned = entered.map_batches(turned_columns, batch_format="numpy", name="turn")
    again.feed(turned.map_batches(other_columns, batch_format="numpy", name="other"))
    done = turned.map_batches(done_columns, batch_format="numpy", name="done_rows")
    _write(done.key_by("key").process(TotalsOfColumns, batch_format="numpy", name="total"))


# -- a graph in rounds -------------------------------------------------------------------------------------------


def edge(record: Item) -> Item:
    """An edge between two of a few vertices."""
    return {"source": record["key"], "target": (record["key"] * record["left"] + record["id"]) % VERTICES}


def ends(edge: Item) -> list[Item]:
    return [{"vertex": edge["source"]}, {"vertex": edge["target"]}]


class Vertex:
    """The value of a vertex, the ends of its edges, and what it has received in this round."""

    outputs = ("messages", "values")
    rounds = ROUNDS

    def on_record(self, ctx: Any, input: str, record: Item) -> None:
        vertex: Item = ctx.state.get() or {"round": -1, "value": ctx.key + 1, "sum": 0, "ends": []}
        if input == "edges":
            vertex["ends"].append(record["target"])
        else:
            vertex["sum"] += record.get("value", 0)
        ctx.state.set(vertex)

    def on_round_end(self, ctx: Any) -> None:
        for _ in ctx.keys():  # noqa: SIM118
            vertex = ctx.state.get()
            vertex["round"] += 1
            if vertex["round"]:
                vertex["value"], vertex["sum"] = (vertex["sum"] + 1) % VALUE_MAX, 0
            if vertex["round"] < self.rounds:
                for end in vertex["ends"]:
                    ctx.emit({"vertex": end, "value": vertex["value"]}, "messages")

    def on_end(self, ctx: Any) -> None:
        for key in ctx.keys():  # noqa: SIM118
            ctx.emit({"vertex": key, "value": ctx.state.get()["value"]}, "values")


class Sums(VertexProgram):
    """`Vertex`."""

    message = np.int64

    def start(self, vertices: Vertices) -> Arrays:
        return {"value": vertices.ids + 1}

    def send(self, vertices: Vertices) -> Any:
        return vertices["value"]

    def apply(self, vertices: Vertices, received: Any) -> Arrays:
        return {"value": (received + 1) % VALUE_MAX}


def _graph(flow: Flow) -> None:
    _in_rounds(flow, Vertex, ROUNDS)


def _in_rounds(flow: Flow, vertex: Any, rounds: int, **options: Any) -> None:
    edges = _read(flow).map(edge, name="edge")
    values: list[Stream[Any]] = []

    def body(messages: Stream[Any]) -> Stream[Any]:
        inputs = {"edges": edges.key_by("source"), "messages": messages.key_by("vertex")}
        sent: Stream[Any] = flow.process(vertex, **inputs, name="vertex", **options)
        values.append(sent.side("values"))
        return sent

    flow.iterate(edges.flat_map(ends, name="ends"), body, rounds=rounds + 1, name="rounds")
    _write(values[0])


def _graph_of_columns(flow: Flow) -> None:
    edges = _read(flow).map(edge, name="edge")
    _write(flow.vertex_program(Sums, edges, rounds=ROUNDS, name="vertex"))


# -- the same graph as a process class, whose keys are the same in each round -------------------------------------

KEYS_REPEATED = 8
"""The number of rounds that have the same keys."""


class RepeatingVertex(Vertex):
    """`Vertex` for more rounds."""

    rounds = KEYS_REPEATED


class RepeatingColumns:
    """`RepeatingVertex`: the ends of its edges are emitted in each round."""

    outputs = ("messages", "values")
    table = Table(key={"vertex": "int64"}, columns={"value": "int64", "sum": "int64", "is_known": "bool"})

    def __init__(self) -> None:
        self.edges = np.zeros((2, 0), np.int64)

    def on_batch(self, ctx: Any, input: str, batch: Arrays) -> None:
        vertices = batch["source" if input == "edges" else "vertex"]
        rows = ctx.table.rows(vertices)
        is_new = ~ctx.table.get("is_known", rows)
        ctx.table.set(rows[is_new], value=vertices[is_new] + 1, is_known=True)
        if input == "edges":
            self.edges = np.concatenate([self.edges, [batch["source"], batch["target"]]], axis=1)
        elif "value" in batch:
            ctx.table.combine(np.add, rows, sum=batch["value"])

    def on_round_end(self, ctx: Any) -> None:
        vertices = ctx.table.scan()
        if ctx.round[-1]:
            value = (vertices["sum"] + 1) % VALUE_MAX
            ctx.table.set(ctx.table.find(vertices["vertex"]), value=value, sum=0)
        if ctx.round[-1] < KEYS_REPEATED:
            sources, targets = self.edges
            ctx.emit_batch({"vertex": targets, "value": ctx.table.get("value", ctx.table.find(sources))}, "messages")

    def on_end(self, ctx: Any) -> None:
        vertices = ctx.table.scan()
        ctx.emit_batch({name: vertices[name] for name in ("vertex", "value")}, "values")

    def capture(self) -> Any:
        return self.edges

    def restore(self, state: Any) -> None:
        self.edges = state

    @staticmethod
    def merge(states: Any) -> Any:
        return np.concatenate(states, axis=1)

    @staticmethod
    def split(state: Any, parts: int) -> Any:
        tasks = tasks_of_keys(state[0], parts)
        return [state[:, tasks == task] for task in range(parts)]


def _repeating(flow: Flow) -> None:
    _in_rounds(flow, RepeatingVertex, KEYS_REPEATED)


def _repeating_of_columns(flow: Flow) -> None:
    _in_rounds(flow, RepeatingColumns, KEYS_REPEATED, batch_format="numpy")


# -- the same graph in a loop --------------------------------------------------------------------------------------


class Spreading:
    """The lowest value that has reached a vertex, and the ends of its edges."""

    outputs = ("messages", "values")

    def on_record(self, ctx: Any, input: str, record: Item) -> None:
        vertex: Item = ctx.state.get() or {"value": first_value(ctx.key), "ends": []}
        ends: list[int] = []
        if input == "edges":
            vertex["ends"].append(record["target"])
            ends = [record["target"]]
        elif record.get("value", VALUE_MAX) < vertex["value"]:
            vertex["value"] = record["value"]
            ends = vertex["ends"]
        for end in ends:
            ctx.emit({"vertex": end, "value": vertex["value"] + 1}, "messages")
        ctx.state.set(vertex)

    def on_end(self, ctx: Any) -> None:
        for key in ctx.keys():  # noqa: SIM118
            ctx.emit({"vertex": key, "value": ctx.state.get()["value"]}, "values")


def first_value(vertex: Any) -> Any:
    """The value that a vertex, or each of several, begins with."""
    return (vertex * 37 + 11) % VALUE_MAX


class SpreadingOfColumns(VertexProgram):
    """`Spreading`."""

    combine, message, best = "min", np.int64, "value"

    def start(self, vertices: Vertices) -> Arrays:
        return {"value": first_value(vertices.ids)}

    def along(self, sent: Any, weights: Any) -> Any:
        return sent + 1


def _free(flow: Flow) -> None:
    edges, again = _read(flow).map(edge, name="edge"), flow.loop("again", of=Item)
    messages = edges.flat_map(ends, name="ends").merge(again)
    sent = flow.process(Spreading, edges=edges.key_by("source"), messages=messages.key_by("vertex"), name="vertex")
    again.feed(sent)
    _write(sent.side("values"))


def _free_of_columns(flow: Flow) -> None:
    edges = _read(flow).map(edge, name="edge")
    _write(flow.vertex_program(SpreadingOfColumns, edges, free_running=True, name="vertex"))


def _best_of_columns(flow: Flow) -> None:
    """The same values in rounds, of which records have none: it does not matter what has happened by which round."""
    edges = _read(flow).map(edge, name="edge")
    _write(flow.vertex_program(SpreadingOfColumns, edges, name="vertex"))


# -- a graph that changes ----------------------------------------------------------------------------------------

STAYS = 3
"""An edge is there for so many versions."""


class Changes:
    """The edges of all records in the order of their ids, a version for each; each edge goes again after a while."""

    def __init__(self) -> None:
        self.edges: dict[int, Item] = {}

    def on_record(self, ctx: Any, record: Item) -> None:
        self.edges[record["id"]] = edge(record)

    def on_end(self, ctx: Any) -> None:
        edges = [self.edges[number] for number in sorted(self.edges)]
        for version in range(len(edges) + STAYS if edges else 0):
            if version >= STAYS:
                ctx.emit({**edges[version - STAYS], "added": False, "version": version})
            if version < len(edges):
                ctx.emit({**edges[version], "added": True, "version": version})

    def capture(self) -> dict[int, Item]:
        return dict(self.edges)

    def restore(self, state: dict[int, Item]) -> None:
        self.edges = state


class Recomputed:
    """The lowest first value that reaches each vertex, computed from the beginning for each version."""

    def on_record(self, ctx: Any, record: Item) -> None:
        ctx.state.set([*ctx.state.get([]), record])

    def on_end(self, ctx: Any) -> None:
        for _ in ctx.keys():  # noqa: SIM118
            self._recompute(ctx, ctx.state.get())

    def _recompute(self, ctx: Any, changes: list[Item]) -> None:
        edges: set[tuple[int, int]] = set()
        before: dict[int, int] = {}
        for version in sorted({change["version"] for change in changes}):
            for change in changes:
                if change["version"] == version:
                    (edges.add if change["added"] else edges.discard)((change["source"], change["target"]))
            values = {vertex: first_value(vertex) for vertex in {*before, *(end for ends in edges for end in ends)}}
            for _ in values:
                for source, target in edges:
                    values[target] = min(values[target], values[source])
            for vertex, value in values.items():
                if before.get(vertex) != value:
                    ctx.emit({"vertex": vertex, "value": value, "version": version})
            before = values


class Lowest(SpreadingOfColumns):
    """`Recomputed`."""

    def along(self, sent: Any, weights: Any) -> Any:
        return sent


def _changing(flow: Flow) -> None:
    changes = _read(flow).process(Changes, name="changes", parallelism=1)
    _write(changes.key_by(lambda change: 0).process(Recomputed, name="vertex"))


def _changing_of_columns(flow: Flow) -> None:
    changes = _read(flow).process(Changes, name="changes", parallelism=1)
    _write(flow.changing_graph(Lowest, changes, name="vertex"))


# -- both --------------------------------------------------------------------------------------------------------


def _read(flow: Flow) -> Stream[Any]:
    return flow.read(Items[Any]([]), name="in")


def _write(stream: Stream[Any]) -> None:
    stream.write(Collect(), name="done")


Built = Callable[[Flow], None]
_PAIRS: dict[str, tuple[Built, Built]] = {
    "columns_loop": (_loop, _loop_of_columns),
    "columns_vertices": (_graph, _graph_of_columns),
    "columns_repeating": (_repeating, _repeating_of_columns),
    "columns_free_vertices": (_free, _free_of_columns),
    "columns_best_vertices": (_free, _best_of_columns),
    "columns_changing": (_changing, _changing_of_columns),
}
ON_COLUMNS = tuple(_PAIRS)


@cache
def on_records(name: str) -> Plan:
    return _built(name, 0).plan()


@cache
def on_columns(name: str) -> Flow:
    return _built(name, 1)


def _built(name: str, which: int) -> Flow:
    flow = Flow(name)
    _PAIRS[name][which](flow)
    return flow

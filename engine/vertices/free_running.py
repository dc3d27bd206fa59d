"""vertex_program, free-running: messages circulate in a loop, and a vertex takes the best value that has arrived.

`GraphOperator` passes the graph on to the tasks of the vertices, as rows with a column `vertex`. When it has ended, it
sends each key group a row behind all others. So a task knows that its graph is complete when each of its groups has
such a row from every task. It then starts, while others may still be loading; what reaches it earlier waits.

A vertex whose value has become better is put on a list. When the task has taken what has arrived, it sends what is best
on the list, all at once: the lowest value for each target, or the highest, and only if it is better than all that it
has sent there before. The rest of the list waits, because a value that is not the best one yet would be followed by
another, and by all that comes of it: up to a hundred times as much work. Only where the best ones have so many edges
that all edges are looked at, the whole list is sent.

A batch has a row for each key group: its address, and targets and values as the bytes of arrays. A task takes a
limited number of rows in a turn, and what has to wait for the next turn is out of date by then.

Values for a task's own vertices do not travel; they are taken at once, and what becomes better is on the next list. To
the engine the list is a timer, so a loop is not taken for dry while there is one.

State is filed by key group: the values, and which vertices are not on the list. Nothing of it names another task, so
groups go to any task. What was sent before is not state: at worst, something is sent a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from backedge.engine.batches.arrays import to_array
from backedge.engine.batches.batch import Hops
from backedge.engine.batches.columns import Columns, Records
from backedge.engine.batches.formats import from_format
from backedge.engine.operators.base import OperatorRuntime, Place, TimedRuntime
from backedge.engine.operators.sending import Send
from backedge.engine.state.capture import OperatorCapture
from backedge.engine.vertices.edges import Array, Lookup
from backedge.engine.vertices.frontier import SpreadingValues
from backedge.engine.vertices.graph import (
    KNOWN,
    VALUES,
    VertexGraphOperator,
    arrays_in,
    as_bytes,
    as_columns,
    columns_of,
    edge_parts,
    row_keys,
)
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.plan import Edge
from backedge.graphs.routing import KEY_GROUPS, key_groups, key_in_group
from backedge.graphs.vertex_program import OfVertexProgram, PassesGraph
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.protocol.protocol_errors import ChannelIntegrityError

EDGE_COLUMNS = {"sources": "vertex", "targets": "target", "weights": "weight"}
"""Part of an edge -> the column in which it travels to the task of its source."""

SENT_MIN = 64
"""A task sends the values of so many vertices at once, or of a share of its list if that is more."""


class GraphOperator(OperatorRuntime):
    """Passes on edges and vertices, and says when there are no more."""

    def __init__(self, kind: PassesGraph, place: Place) -> None:
        super().__init__(place)
        self._kind = kind
        self._send = self.send_to("out")

    def door(self, edge: Edge) -> Send:
        return self._pass_edges if edge.input == "edges" else self._pass_vertices

    def _pass_edges(self, records: Records, hops: Hops) -> None:
        parts = edge_parts(self._kind.program, records, self._kind.edge_columns)
        self._send(from_format({EDGE_COLUMNS[part]: column for part, column in parts.items()}), hops)

    def _pass_vertices(self, records: Records, hops: Hops) -> None:
        self._send(columns_of({"vertex": as_columns(records).batch.column("vertex")}), hops)

    def end(self) -> None:
        """All of the graph that this task had has been sent. It must not get more: others believe that for good."""
        tasks = {"task": self.place.task.index, "of": self.place.parallelism}
        self._send(columns_of({"vertex": row_keys()} | {name: np.full(KEY_GROUPS, n) for name, n in tasks.items()}), 0)


class FreeVerticesOperator(VertexGraphOperator, TimedRuntime):
    def __init__(self, kind: OfVertexProgram, place: Place) -> None:
        super().__init__(kind, place)
        # Which tasks, of how many, have sent all of the graph, by group.
        self._complete: dict[int, set[tuple[int, int]]] = {group: set() for group in self._groups()}
        # What has arrived before the graph was complete: vertices and values.
        self._early: list[tuple[Array, Array]] = []
        self._lookup = Lookup(np.empty(0, np.int64))

    def door(self, edge: Edge) -> Send:
        return self._take_messages if edge.is_back else self._take_graph

    # -- loading -------------------------------------------------------------------------------------------------

    def _take_graph(self, records: Records, hops: Hops) -> None:
        columns = as_columns(records)
        batch = columns.batch
        if "of" in columns.names:
            groups = key_groups(batch.column("vertex").to_numpy()).tolist()
            for group, of, task in zip(groups, *map(_numbers, (batch.column("of"), batch.column("task"))), strict=True):
                self._complete[group].add((of, task))
            self._is_changed[KNOWN] = True
            if self._vertices is None and self._is_complete:
                self._start()
            return
        if self._vertices is not None:
            raise ChannelIntegrityError(f"operator {self.name!r} has received a part of its graph behind the end of it")
        if "target" in columns.names:
            present = {part: name for part, name in EDGE_COLUMNS.items() if name in columns.names}
            self._edges.append({part: to_array(batch.column(name)) for part, name in present.items()})
        else:
            self._ids.append(to_array(batch.column("vertex")))

    @property
    def _is_complete(self) -> bool:
        """Whether the graph is complete: in a restored run, what is left of the former number of tasks may be too."""
        return all(_has_all(tasks) for tasks in self._complete.values())

    def _start(self) -> None:
        """The graph is complete: set the first values, and take what came too early."""
        ids, edges = self._in_order()
        out = self._out_edges(ids, edges)
        self._set_graph(ids, out)
        self._lookup = Lookup(ids)
        self._keep("start", self._program.start)
        self._spread_from_now_on(out, keeps_own=True)
        early, self._early = self._early, []
        for ids, values in early:
            self._note(ids, values)

    # -- messages ------------------------------------------------------------------------------------------------

    def _take_messages(self, records: Records, hops: Hops) -> None:
        batch = as_columns(records).batch
        ids, _ = arrays_in(batch.column("ids"), np.dtype(np.int64))
        values, _ = arrays_in(batch.column("values"), self._message)
        if self._vertices is None:
            self._early.append((ids, values))
            self._is_changed[VALUES] = True
        else:
            self._note(ids, values)

    def _note(self, ids: Array, values: Array) -> None:
        """Take what is better, and put its vertices on the list."""
        self._best_values.receive(self._lookup.of(ids), values)
        self._is_changed[VALUES] = True

    @property
    def next_timer_ms(self) -> int | None:
        """At once, if there is anything to send."""
        return 0 if self._spreading is not None and len(self._spreading.listed) else None

    def fire_timers(self, now_ms: int) -> None:
        """Send the values that have become better."""
        values = self._best_values
        near, reached = values.spread(self._sent(), values.take_best(SENT_MIN), self._along)
        values.put_on_list(near)
        self._is_changed[VALUES] = True
        if len(reached):
            self._send(_batch_of(values, np.sort(reached)), 0)

    # -- state ---------------------------------------------------------------------------------------------------

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> OperatorCapture:
        """File what has changed since the last capture, and capture that."""
        if self._is_changed[KNOWN]:
            for group, tasks in self._complete.items():
                self._state.replace(key_in_group(group, KNOWN), sorted(tasks))
        self._file_arrived()
        if self._is_changed[VALUES] and self._vertices is None:
            self._file_early()
        elif self._is_changed[VALUES]:
            self._file_values()
        if self._spreading is not None:
            # A replay begins with a cut, and must find the run sending the same.
            self._spreading.forget_sent()
        self._is_changed = dict.fromkeys(self._is_changed, False)
        return super().capture(epoch, attempt, base)

    def _file_early(self) -> None:
        ids, values = (np.concatenate(part) for part in zip(*self._early, strict=True))
        self._early = [(ids, values)]
        groups = key_groups(ids)
        found: list[int] = np.unique(groups).tolist()
        for group in found:
            self._file(key_in_group(group, VALUES), {"ids": ids[groups == group], "values": values[groups == group]})

    def _file_values(self) -> None:
        values, rests = self._best_values.bests.copy(), np.ones(len(self._built), np.bool_)
        rests[self._best_values.listed] = False
        for group in self._groups():
            own = slice(self._starts[group], self._starts[group + 1])
            if own.start < own.stop:
                self._file(key_in_group(group, VALUES), {"values": values[own], "rests": rests[own]})

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        """Restore the key groups of this task. Some may come from tasks that had started, some from others."""
        super().open(state, whole)
        self._count_pieces()
        values, complete = self._filed(VALUES), self._filed(KNOWN)
        graph, none = self._filed_graph(), np.empty(0, np.int64)
        ids = {group: np.unique(np.concatenate([none, *(piece["ids"] for piece in graph[group])])) for group in values}
        for group, tasks in complete.items():
            self._complete[group] = set(map(tuple, tasks))
        self._early = [
            (filed["ids"] if "ids" in filed else ids[group], filed["values"]) for group, filed in values.items()
        ]
        if self._is_complete:
            self._start()
            at_rest = [ids[group][filed["rests"]] for group, filed in values.items() if "rests" in filed]
            self._best_values.take_off(self._lookup.of(np.concatenate([np.empty(0, np.int64), *at_rest])))


def _batch_of(values: SpreadingValues, reached: Array) -> Columns:
    """A batch of the values for these vertices of other tasks, with a row for each key group."""
    starts = np.searchsorted(reached, values.starts)
    groups = np.flatnonzero(np.diff(starts))
    own_starts = np.append(starts[groups], len(reached))
    ids = as_bytes(values.ids[reached].astype(np.int64), own_starts)
    columns = {"vertex": row_keys()[groups], "ids": ids, "values": as_bytes(values.sent_to(reached), own_starts)}
    return columns_of(columns)


def _has_all(tasks: set[tuple[int, int]]) -> bool:
    return any(all((of, task) in tasks for task in range(of)) for of, _ in tasks)


def _numbers(column: Any) -> list[int]:
    return cast("list[int]", column.to_pylist())

"""vertex_program: a user's program on the vertices of a graph, in the rounds of an iteration.

In round 0 a task receives its edges, those that lead away from its vertices, and the numbers of its vertices. At the
end of each round it applies what was received, and sends one batch, with a row for each key group that it sends to:

    vertex     the address of the group, by which the row is routed
    sender     which vertices it comes from: the task, and the number of tasks (`sender_number`)
    ids        the vertices that its edges reach in this group, in order; only the first time
    at         the positions in `ids` that the values are for; empty for all of them
    values     the combined values, as the bytes of an array; if nothing is combined, one for each edge
    change     with `until=`: the task's part of the sum that decides about another round, in one of the rows
    active     with `until=`: how many vertices of the task are active, in the same row
    senders    if the program has phases: how many vertices of the sender have sent. Then there is a row for each group.

So the number of a vertex travels once from each sender. Both ends keep it as state: whether it was announced, and what
is known of each sender. A row is understood wherever its group goes. After a restore with another number of tasks, each
of which reaches other vertices, they announce them again. To cuts, logs and restores these are rows like any others.

If vertices take the best value and send it on, they are put on a list (`engine/vertices/frontier.py`). If it does not
matter what happens by which round, only the best ones on it send in a round, values for a task's own vertices do not
travel, and own vertices that they reach may send in the same round, too. A round with a list is followed by another
one, even if nothing else is sent. Few values travel as a row for each, with its position in `ids` and the `value`.

At a capture, the state is filed by key group, under keys of the group: the values; the vertices with their edges, in
pieces, so that a delta has only the pieces that are new; and what is known of the senders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from backedge.engine.batches.arrays import to_array
from backedge.engine.batches.batch import Hops
from backedge.engine.batches.columns import Columns, Records
from backedge.engine.operators.base import Place
from backedge.engine.operators.sending import Send
from backedge.engine.state.capture import OperatorCapture
from backedge.engine.vertices.edges import Array, OutEdges
from backedge.engine.vertices.graph import (
    KNOWN,
    VALUES,
    VertexGraphOperator,
    arrays_in,
    as_bytes,
    as_columns,
    columns_of,
    edge_parts,
    frozen,
    row_keys,
)
from backedge.engine.vertices.inbox import CombinedInbox, Inbox, UncombinedInbox
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.plan import Edge
from backedge.graphs.routing import KEY_GROUPS, groups_of_task, key_groups, key_in_group
from backedge.graphs.vertex_program import BACKWARDS, OfVertexProgram
from backedge.recovery.cut.cut import OperatorState

SENT_MIN = 512
"""A task sends the values of so many vertices in a round, or of a share of its list if that is more.

With fewer there are more rounds, with more an edge is followed more often (docs/performance.md).
"""

STEPS_MAX = 2
"""How often a task sends to its own vertices in a round."""

ROWS_MAX = 4_096
"""At most this many values travel as a row for each value; more travel as a row for each key group."""

OF_ALL_SENDERS = ~(1 << 31 | (1 << 30) - 1)
"""The part of their numbers that all tasks and directions of an attempt share."""

Known = dict[int, dict[int, Array]]
"""Sender -> key group -> the positions, among this group's vertices, of those that it reaches."""


@dataclass
class _Direction:
    """The edges of one direction, under which number their values travel, and whether their ends are announced.

    `ids` are the vertices to which values travel, and `starts` says where each key group begins among them.
    """

    edges: OutEdges
    sender: int
    ids: Array
    starts: Array
    is_announced: bool = False

    @cached_property
    def of_rows(self) -> tuple[Array, Array]:
        """For each of these vertices the key of its rows, and its position among those of its group."""
        groups = np.repeat(np.arange(KEY_GROUPS), np.diff(self.starts))
        return row_keys()[groups], np.arange(len(self.ids)) - self.starts[groups]


class VerticesOperator(VertexGraphOperator):
    def __init__(self, kind: OfVertexProgram, place: Place) -> None:
        super().__init__(kind, place)
        self._directions: list[_Direction] = []
        # Whether only the result counts, and not what has happened by which round.
        self._may_wait = (
            self._best is not None and kind.rounds is None and not (kind.reports_change or self._program.phases)
        )
        # Larger numbers fit into no column.
        self._sends_rows = self._may_wait and self._message.itemsize <= 8
        # What was received in this round, and how many vertices have sent it, by group.
        self._inbox = self._new_inbox(0)
        self._senders = np.zeros(KEY_GROUPS, np.int64)
        self._known: Known = {}
        self._places: dict[int, tuple[Array, Array]] = {}

    def door(self, edge: Edge) -> Send:
        """Edges, or messages; the first messages only say that a vertex exists."""
        return self._take_edges if edge.input == "edges" else self._take_messages

    # -- loading -------------------------------------------------------------------------------------------------

    def _take_edges(self, records: Records, hops: Hops) -> None:
        backwards = {"backwards": BACKWARDS} if self._program.reverses else {}
        self._edges.append(edge_parts(self.name, records, self._kind.edge_columns, **backwards))

    def _build(self) -> None:
        """Round 0 is over, or a later one is restored: all vertices and edges are here."""
        ids, edges = self._in_order()
        backwards = edges.get("backwards")
        selections = [slice(None)] if backwards is None else [~backwards, backwards]
        self._directions = [self._direction(ids, edges, rows, way) for way, rows in enumerate(selections)]
        self._set_graph(ids, self._directions[0].edges)
        self._inbox = self._new_inbox(len(ids))

    def _direction(self, ids: Array, edges: dict[str, Array], rows: Any, way: int) -> _Direction:
        out = self._out_edges(ids, edges, rows)
        sender = sender_number(self.place.task.index, self.place.parallelism, way, keeps_own=self._may_wait)
        return _Direction(out, sender, out.rows, out.starts)

    def _new_inbox(self, vertices: int) -> Inbox:
        if self._combines and self._best is None:
            return CombinedInbox(vertices, self._program.combine, self._message)
        return UncombinedInbox(self._message)

    # -- rounds --------------------------------------------------------------------------------------------------

    def _take_messages(self, records: Records, hops: Hops) -> None:
        if isinstance(records, Columns):
            self._take_columns(records)
            return
        # A restored round, in which several tasks may have sent different columns.
        for _, alike in groupby(records, key=tuple):
            self._take_columns(as_columns(list(alike)))

    def _take_columns(self, columns: Columns) -> None:
        batch = columns.batch
        if "sender" not in batch.schema.names:
            self._ids.append(to_array(batch.column("vertex")))
            return
        senders = batch.column("sender").to_numpy()
        groups = key_groups(batch.column("vertex").to_numpy())
        # Nearly always one sender.
        bounds = [0, *(np.flatnonzero(senders[1:] != senders[:-1]) + 1).tolist(), len(senders)]
        receive = self._receive_rows if "value" in batch.schema.names else self._receive
        for start, end in pairwise(bounds):
            receive(int(senders[start]), groups[start:end], batch.slice(start, end - start))
        self._is_changed[VALUES] = True

    def _receive_rows(self, sender: int, groups: npt.NDArray[np.int64], batch: Any) -> None:
        places, offsets = self._places[sender]
        places = places[batch.column("at").to_numpy() + offsets[groups]]
        self._best_values.receive(places, batch.column("value").to_numpy().astype(self._message, copy=False))

    def _receive(self, sender: int, groups: npt.NDArray[np.int64], batch: Any) -> None:
        ids, ids_starts = arrays_in(batch.column("ids"), np.dtype(np.int64))
        if len(ids):
            self._learn(sender, groups, [ids[a:b] for a, b in pairwise(ids_starts.tolist())])
        if "senders" in batch.schema.names:
            self._senders[groups] += batch.column("senders").to_numpy()
        values, starts = arrays_in(batch.column("values"), self._message)
        at, _ = arrays_in(batch.column("at"), np.dtype(np.int32))
        if not len(values):
            return
        places, offsets = self._places[sender]
        if len(at):
            places = places[at + np.repeat(offsets[groups], np.diff(starts))]
        elif len(values) < len(places):
            # The rows of some groups have arrived in another batch.
            places = np.concatenate([places[offsets[group] : offsets[group + 1]] for group in groups])
        if self._best is not None:
            self._best_values.receive(places, values)
            return
        is_range = len(at) == 0 and places[0] == 0 and places[-1] == len(places) - 1
        with self._sums_fit():
            self._inbox.add(places, values, distinct_and_ordered=is_range)

    def _learn(self, sender: int, groups: npt.NDArray[np.int64], ids: list[Array]) -> None:
        known = self._known.setdefault(sender, {})
        vertices = self._built.ids
        for group, reached in zip(groups.tolist(), ids, strict=True):
            own = vertices[self._starts[group] : self._starts[group + 1]]
            known[group] = np.searchsorted(own, reached).astype(np.int32)
        self._find_places(sender)
        self._is_changed[KNOWN] = True

    def _find_places(self, sender: int) -> None:
        """Where the values of this sender belong, in the order of groups, and where each group begins."""
        known = self._known[sender]
        counts = [len(known.get(group, ())) for group in range(KEY_GROUPS)]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        places = [known[group] + self._starts[group] for group in sorted(known)]
        self._places[sender] = np.concatenate(places), offsets

    def on_round_end(self, path: tuple[int, ...]) -> None:
        """Apply what was received, and send."""
        program, number = self._program, path[-1]
        if self._vertices is None:
            self._build()
            self._keep("start", program.start)
            self._begin_spreading()
        vertices = self._built
        if number:
            vertices.round = number
            if self._best is None:
                received = self._inbox.take()
                vertices.senders = int(self._senders[self._groups()].max(initial=0))
                self._senders[:] = 0
                self._keep("apply", lambda vertices: program.apply(vertices, received))
            self._forget_former_senders()
        self._is_changed[VALUES] = True
        if number != self._kind.rounds:
            self._send_round()

    def _begin_spreading(self) -> None:
        """Begin with the values of `start` or of a restore, if the program has a best value."""
        if self._best is None:
            return
        # Without `apply`, nothing changes the direction later.
        direction = self._directions[self._built.backwards]
        values = self._spread_from_now_on(direction.edges, keeps_own=self._may_wait)
        direction.ids, direction.starts = values.ids, values.starts

    def _send_round(self) -> None:
        vertices, program = self._built, self._program
        if self._best is not None:
            active = len(self._best_values.listed)
        else:
            active = len(vertices) if vertices.active is None else int(np.count_nonzero(vertices.active))
        change = float(active if vertices.change is None else vertices.change)
        report = {"change": change, "active": active} if self._kind.reports_change else {}
        direction = self._directions[vertices.backwards]
        edges = direction.edges
        if self._best is not None:
            reached = self._spread()
            if self._sends_rows and direction.is_announced and 0 < len(reached) <= ROWS_MAX:
                self._send(_rows_of(direction, reached, self._best_values.sent_to(reached)), 0)
                return
            reached = np.sort(reached)
            rows = None if len(reached) == len(direction.ids) else reached
            values = self._best_values.sent_to(reached)
        elif self._combines:
            sent = self._sent()
            with self._sums_fit():
                rows, values = edges.combined(sent, vertices.active, program.combine, self._along)
        else:
            rows, values = edges.each(self._sent(), vertices.active, self._along)
        values = np.ascontiguousarray(values, self._message)
        # Tasks in which nothing is sent are counted as well, until nothing has been sent in any of them.
        senders = active if program.phases and (active or vertices.senders) else None
        if len(values) or senders is not None:
            announce = not direction.is_announced and len(values) > 0
            if announce:
                direction.is_announced = self._is_changed[KNOWN] = True
            self._send(_batch_of(direction, rows, values, report, senders, announce=announce), 0)
        elif self._has_active(active) or (report and vertices.round and len(vertices)):
            # After a round in which nothing is sent there is no other one, but vertices without edges may be active.
            self._send(_only_report(direction.sender, report, self.place), 0)

    def _spread(self) -> Array:
        """Have vertices on the list send. Returns those elsewhere to which something travels, by position in `ids`."""
        spreading = self._best_values
        senders = spreading.take_best(SENT_MIN) if self._may_wait else spreading.take_all()
        parts: list[Array] = []
        for _ in range(STEPS_MAX):
            senders, reached = spreading.spread(self._sent(), senders, self._along)
            parts.append(reached)
            if not len(senders):
                break
        spreading.put_on_list(senders)
        return spreading.distinct(parts)

    def _has_active(self, active: int) -> bool:
        """Whether a vertex is active behind this round. One that takes the best value only is while it is listed."""
        return active > 0 if self._best is None else len(self._best_values.listed) > 0

    # -- state ---------------------------------------------------------------------------------------------------

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> OperatorCapture:
        """File what has changed since the last capture, and capture that."""
        if self._vertices is None:
            self._file_arrived()
        else:
            self._file_values()
            if self._best is not None:
                # A replay begins with a cut, and must find the run sending the same.
                self._best_values.forget_sent()
        self._is_changed = dict.fromkeys(self._is_changed, False)
        return super().capture(epoch, attempt, base)

    def _file_values(self) -> None:
        """Put the values, and what is known of the senders, into the keyed state, which is what a cut contains."""
        vertices, starts = self._built, self._starts
        received = self._inbox.filed(starts)
        values, waits = dict(vertices.values), None
        if self._best is not None:
            values[self._best] = self._best_values.bests.copy()
            waits = np.zeros(len(vertices), np.bool_)
            waits[self._best_values.listed] = True
        announced = [direction.sender for direction in self._directions if direction.is_announced]
        for group in self._groups():
            own = slice(starts[group], starts[group + 1])
            if starts[group] == starts[group + 1]:
                continue
            if self._is_changed[VALUES]:
                filed = {
                    "values": {name: array[own] for name, array in values.items()},
                    "active": None if vertices.active is None else vertices.active[own],
                    "received": received[group],
                    "senders": int(self._senders[group]),
                    "backwards": vertices.backwards,
                    "waits": None if waits is None else waits[own],
                }
                self._file(key_in_group(group, VALUES), filed)
            if self._is_changed[KNOWN]:
                senders = {sender: known[group] for sender, known in self._known.items() if group in known}
                self._file(key_in_group(group, KNOWN), {"announced": announced, "senders": senders})

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        super().open(state, whole)
        self._count_pieces()
        values, known_by_group = self._filed(VALUES), self._filed(KNOWN)
        if values:
            self._build()
            self._restore_values(values)
            for group, known in known_by_group.items():
                for sender, places in known["senders"].items():
                    self._known.setdefault(sender, {})[group] = places
            for sender in self._known:
                self._find_places(sender)
            told = [set(known["announced"]) for known in known_by_group.values()]
            for direction in self._directions:
                direction.is_announced = bool(told) and all(direction.sender in senders for senders in told)
            # Otherwise a later restore with the former parallelism would find what was announced long ago.
            own = {direction.sender for direction in self._directions if direction.is_announced}
            self._is_changed[KNOWN] = any(senders != own for senders in told)

    def _restore_values(self, by_group: dict[int, Any]) -> None:
        vertices, filed = self._built, list(by_group.values())
        names = list(filed[0]["values"])
        vertices.values = {name: frozen(np.concatenate([own["values"][name] for own in filed])) for name in names}
        if filed[0]["active"] is not None:
            vertices.active = np.concatenate([own["active"] for own in filed])
        vertices.backwards = filed[0]["backwards"]
        if self._best is None:
            received = ((int(self._starts[group]), own["received"]) for group, own in by_group.items())
            self._inbox.restore({first: of_group for first, of_group in received if of_group is not None})
        else:
            self._begin_spreading()
            self._best_values.take_all()
            self._best_values.put_on_list(np.flatnonzero(np.concatenate([own["waits"] for own in filed])))
        for group, own in by_group.items():
            self._senders[group] = own["senders"]

    def _forget_former_senders(self) -> None:
        """Forget tasks that count otherwise: what they sent before the restore has been received."""
        now = sender_number(0, self.place.parallelism, keeps_own=self._may_wait) & OF_ALL_SENDERS
        for sender in [sender for sender in self._known if sender & OF_ALL_SENDERS != now]:
            del self._known[sender], self._places[sender]
            self._is_changed[KNOWN] = True


def sender_number(index: int, parallelism: int, direction: int = 0, *, keeps_own: bool = False) -> int:
    """A number for one direction of the edges of one of `parallelism` tasks, and for the vertices that it announces:
    without its own ones, if values for them do not travel.
    """
    return parallelism << 32 | direction << 31 | keeps_own << 30 | index


def _rows_of(direction: _Direction, reached: Array, values: Array) -> Columns:
    """A batch with a row for each value."""
    keys, at = direction.of_rows
    columns = {
        "vertex": keys[reached],
        "sender": np.full(len(reached), direction.sender, np.int64),
        "at": at[reached],
        "value": values.astype(np.float64 if values.dtype.kind == "f" else np.int64, copy=False),
    }
    return columns_of(columns)


def _batch_of(
    direction: _Direction,
    rows: Array | None,
    values: Array,
    report: Mapping[str, float],
    senders: int | None,
    *,
    announce: bool,
) -> Columns:
    """A batch of these values, with a row for each key group that has any; for each of all if senders are counted."""
    starts = direction.starts if rows is None else np.searchsorted(rows, direction.starts)
    counts = np.diff(direction.starts if announce else starts)
    groups = np.flatnonzero(counts) if senders is None else np.arange(KEY_GROUPS)
    own_starts = np.append(starts[groups], len(values))
    nothing = np.zeros(len(groups) + 1, np.int64)
    at, at_starts = np.empty(0, np.int32), nothing
    if rows is not None:
        at = (rows - np.repeat(direction.starts[:-1], np.diff(starts))).astype(np.int32)
        at_starts = own_starts
    ids, ids_starts = np.empty(0, np.int64), nothing
    if announce:
        ids, ids_starts = direction.ids.astype(np.int64), np.append(direction.starts[groups], len(direction.ids))
    columns: dict[str, Any] = {
        "vertex": row_keys()[groups],
        "sender": np.full(len(groups), direction.sender, np.int64),
        "ids": as_bytes(ids, ids_starts),
        "at": as_bytes(at, at_starts),
        "values": as_bytes(values, own_starts),
    }
    for name, number in report.items():
        columns[name] = np.append(number, np.zeros(len(groups) - 1, type(number)))
    if senders is not None:
        columns["senders"] = np.full(len(groups), senders, np.int64)
    return columns_of(columns)


def _only_report(sender: int, report: Mapping[str, float], place: Place) -> Columns:
    """A row without values, to this task itself."""
    group = groups_of_task(place.task.index, place.parallelism)[0]
    row = {"vertex": key_in_group(group), "sender": sender, "ids": b"", "at": b"", "values": b"", **report}
    return columns_of({name: [value] for name, value in row.items()})

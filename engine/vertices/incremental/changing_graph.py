"""changing_graph: a vertex program whose values follow the changes of its graph, version by version.

Three operators. `ChangesOperator` passes on the changes, and says when there are no more. `DealerOperator`, one task,
keeps them until their version is complete, that is, until one of a later version or the end has arrived. It deals the
changes of a version to the tasks of the vertices, then tells the key groups in which a vertex has something to do to
find values again, and then to emit differences. `ChangingVerticesOperator` does what
`engine/vertices/incremental/changing_values.py` describes, and tells other tasks along edges. Each message has a share
of the phase, which comes back to the dealer with the next note (`engine/vertices/incremental/weight_throwing.py`); when
all have come back, the dealer begins the next phase.

A message is a row for a key group, so that a task takes few rows, and rows are understood wherever their group goes:

    vertex                     the address of the group, by which the row is routed
    kind                       what is to be done with it, see `Kind`
    share                      the exponent of its share
    version                    the version to emit differences of
    sources, targets           edges, as the bytes of arrays; or vertices as targets alone
    values, numbers            what is told along them, and the level; or their weights, and whether they are added

A note has rows of `exponent` and `count`, shares that come back, and in the first row `groups`, those in which a vertex
has something to do. State of vertices is filed by key group; a cut has the groups that have changed since its base. The
changes that wait and the phase are the state of the dealer.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np

from backedge.engine.batches.arrays import to_array
from backedge.engine.batches.arrow import arrow
from backedge.engine.batches.batch import Hops
from backedge.engine.batches.columns import Columns, Records
from backedge.engine.batches.formats import from_format
from backedge.engine.operators.base import OperatorRuntime, Place
from backedge.engine.operators.sending import Send
from backedge.engine.state.capture import OperatorCapture
from backedge.engine.vertices.edges import COMBINES, Along, Array, identity
from backedge.engine.vertices.graph import (
    GRAPH,
    VertexGraphOperator,
    arrays_in,
    as_bytes,
    as_columns,
    columns_of,
    edge_parts,
    frozen,
    row_keys,
)
from backedge.engine.vertices.incremental.changing_values import ChangingValues, Told
from backedge.engine.vertices.incremental.weight_throwing import Outstanding, divided
from backedge.graphs.changing_graph import ChangeColumns, DealsChanges, OfChangingVertices, PassesChanges
from backedge.graphs.exact_numbers import converted
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.plan import Edge
from backedge.graphs.routing import KEY_GROUPS, groups_of_task, key_groups, key_in_group
from backedge.graphs.task_errors import MisuseError
from backedge.graphs.vertex_program import Vertices
from backedge.recovery.cut.cut import OperatorState


class Kind(IntEnum):
    """What a row is for. The phases of the dealer have the same numbers."""

    CHANGE = 0
    GIVE_UP = 1
    FIND = 2
    TELL = 3
    SHOW = 4
    GO_ON = 5


_NEXT_PHASE = {Kind.CHANGE: Kind.FIND, Kind.FIND: Kind.SHOW}
_PARTS = ("sources", "targets", "values", "numbers")


class ChangesOperator(OperatorRuntime):
    """Passes on changes, with columns of one name and type, and says when there are no more."""

    def __init__(self, kind: PassesChanges, place: Place) -> None:
        super().__init__(place)
        self._kind = kind
        self._send = self.send_to("out")

    def door(self, edge: Edge) -> Send:
        return self._pass

    def _pass(self, records: Records, hops: Hops) -> None:
        names: ChangeColumns = self._kind.columns
        ends = names.source, names.target, names.weight
        arrays = edge_parts(self._kind.program, records, ends, added=names.added, versions=names.version)
        for part, kinds in {"added": "b", "weights": "iuf"}.items():
            if part in arrays and (arrays[part].dtype.kind not in kinds or arrays[part].ndim > 1):
                name, found = getattr(names, part.removesuffix("s")), arrays[part]
                raise MisuseError(
                    f"operator {self._kind.program!r}: column {name!r} of the changes is "
                    f"{found.dtype if found.ndim == 1 else 'of arrays'}: "
                    "added is true or false, and weights are numbers"
                )
        arrays["weights"], lost = converted(arrays.get("weights", np.zeros(len(records))), np.dtype(np.float64))
        if len(lost):
            raise MisuseError(
                f"operator {self._kind.program!r}: column {names.weight!r} of the changes holds {lost[0]}, which "
                "float64, the type of weights, cannot hold: scale the weights"
            )
        if self._kind.undirected:
            # Each edge next to its opposite, so that the changes stay in order.
            ends = np.stack([arrays["sources"], arrays["targets"]], axis=1)
            arrays = {part: np.repeat(array, 2) for part, array in arrays.items()}
            arrays["sources"], arrays["targets"] = ends.ravel(), ends[:, ::-1].ravel()
        self._send(columns_of(arrays), hops)

    def end(self) -> None:
        self._send(columns_of({"end": [True]}), 0)


class DealerOperator(OperatorRuntime):
    """Deals one version after the other."""

    def __init__(self, kind: DealsChanges, place: Place) -> None:
        super().__init__(place)
        self._send = self.send_to("out")
        # The changes that wait, by version, in the order of their arrival; and whether there will be no more.
        self._waiting: dict[int, list[dict[str, Array]]] = {}
        self._newest: int | None = None
        self._has_ended = False
        # What is being worked on: the version, the phase, the shares that are out, and the groups for the next phase.
        self._version = 0
        self._phase: Kind | None = None
        self._shares = Outstanding()
        self._touched = np.zeros(KEY_GROUPS, np.bool_)

    def door(self, edge: Edge) -> Send:
        return self._take_notes if edge.is_back else self._take_changes

    def _take_changes(self, records: Records, hops: Hops) -> None:
        columns = as_columns(records)
        if "end" in columns.names:
            self._has_ended = True
        else:
            arrays = {name: to_array(columns.batch.column(name)) for name in columns.names}
            versions = arrays.pop("versions")
            self._check_order(versions)
            starts = np.flatnonzero(np.diff(versions, prepend=versions[0] - 1))
            for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(versions)], strict=True):
                part = {name: array[start:end] for name, array in arrays.items()}
                self._waiting.setdefault(int(versions[start]), []).append(part)
        self._begin_if_complete()

    def _check_order(self, versions: Array) -> None:
        before = versions[0] if self._newest is None else self._newest
        decreases = np.flatnonzero(np.diff(versions, prepend=before) < 0)
        if len(decreases):
            first = decreases[0]
            raise MisuseError(
                f"operator {self.name!r}: a change of version {versions[first]} has arrived after one of version "
                f"{versions[first - 1] if first else before}: sort the changes by version, and let one task read them "
                "(parallelism=1)"
            )
        self._newest = int(versions[-1])

    def _begin_if_complete(self) -> None:
        if self._phase is not None or len(self._waiting) < (1 if self._has_ended else 2):
            return
        self._version = next(iter(self._waiting))
        parts = self._waiting.pop(self._version)
        changes = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        kept = last_of_each(changes["sources"], changes["targets"])
        sources, targets, weights, added = (changes[name][kept] for name in ("sources", "targets", "weights", "added"))
        rows = parts_of_groups(key_groups(sources), [sources, targets, weights, added.astype(np.int64)])
        self._deal(Kind.CHANGE, *rows)

    def _deal(self, phase: Kind, groups: Array, parts: list[Any]) -> None:
        self._phase = phase
        share, _ = divided([0], len(groups))
        self._shares.give(share, len(groups))
        self._send(messages(phase, share, self._version, groups, parts), 0)

    def _take_notes(self, records: Records, hops: Hops) -> None:
        batch = as_columns(records).batch
        groups, _ = arrays_in(batch.column("groups"), np.dtype(np.uint8))
        self._touched[groups] = True
        exponents, counts = batch.column("exponent").to_pylist(), batch.column("count").to_pylist()
        self._shares.take_back(list(zip(exponents, counts, strict=True)))
        if self._shares.are_back and self._phase is not None:
            self._go_on(self._phase)

    def _go_on(self, phase: Kind) -> None:
        groups = np.flatnonzero(self._touched)
        if phase in _NEXT_PHASE and len(groups):
            if phase is Kind.FIND:
                self._touched[:] = False
            self._deal(_NEXT_PHASE[phase], groups, [as_bytes(np.empty(0), np.zeros(len(groups) + 1))] * len(_PARTS))
            return
        self._phase = None
        self._begin_if_complete()

    def capture_own(self) -> Any:
        """What waits, and how far the version is."""
        return {
            "waiting": self._waiting,
            "newest": self._newest,
            "has_ended": self._has_ended,
            "version": self._version,
            "phase": None if self._phase is None else int(self._phase),
            "shares": (self._shares.numerator, self._shares.exponent),
            "touched": np.flatnonzero(self._touched),
        }

    def restore_own(self, state: Any) -> None:
        self._waiting, self._newest, self._has_ended = state["waiting"], state["newest"], state["has_ended"]
        self._version, self._shares = state["version"], Outstanding(*state["shares"])
        self._phase = None if state["phase"] is None else Kind(state["phase"])
        self._touched[state["touched"]] = True


class ChangingVerticesOperator(VertexGraphOperator):
    """Keeps the values of the vertices of one task."""

    def __init__(self, kind: OfChangingVertices, place: Place) -> None:
        super().__init__(kind, place)
        self._send_note = self.send_to("notes")
        self._changing = ChangingValues(
            self._program.combine,
            self._message,
            self._first,
            None if self._along is None else partial(self._carried, self._along),
            groups_of_task(place.task.index, place.parallelism),
            is_weighted=kind.edge_columns[2] is not None,
        )

    def door(self, edge: Edge) -> Send:
        return self._take

    # -- the program ---------------------------------------------------------------------------------------------

    def _first(self, ids: Array) -> Array:
        nothing = np.zeros(len(ids) + 1, np.int64)
        vertices = self._vertices = Vertices(frozen(ids), frozen(nothing[1:]), lambda: (nothing, nothing[:0]))
        self._keep("start", self._program.start)
        values = self._best_at_start(str(self._best))
        if len(vertices.values) > 1:
            others = ", ".join(repr(name) for name in vertices.values if name != self._best)
            raise MisuseError(
                f"operator {self.name!r}: start returned {others} beside {self._best!r}, but on a changing graph a "
                "vertex has one value: leave out the others"
            )
        worst = identity(self._program.combine, self._message)
        if vertices.active is not None and (values[~vertices.active] != worst).any():
            raise MisuseError(
                f"operator {self.name!r}: start set vertices.active to false for vertex "
                f"{ids[~vertices.active & (values != worst)][0]}, but on a changing graph all vertices send whose "
                f"value is not {worst}: give it that value, or do not set active"
            )
        return values

    def _carried(self, along: Along, sent: Array, weights: Array | None) -> Array:
        """What arrives at the ends of edges: never anything better than what was sent, or a cycle has no end."""
        arrived = along(sent, weights)
        wrong = COMBINES[self._program.combine](arrived, sent) != sent
        if wrong.any():
            first = np.flatnonzero(wrong)[0]
            raise MisuseError(
                f"operator {self.name!r}: along made {arrived[first]} of {sent[first]}, but on a changing graph a "
                f"value may not become better or undefined on its way ({self._program.combine!r} is best): check the "
                "weights"
            )
        return arrived

    # -- messages ------------------------------------------------------------------------------------------------

    def _take(self, records: Records, hops: Hops) -> None:
        batch = as_columns(records).batch
        kinds = batch.column("kind").to_numpy()
        sent: list[tuple[Kind, Array, list[Any]]] = []
        for kind in np.unique(kinds).tolist():
            of_kind = batch.take(arrow().array(np.flatnonzero(kinds == kind)))
            self._work(Kind(kind), of_kind, sent)
        left, self._changing.left = self._changing.left, np.empty(0, np.int64)
        if len(left):
            nothing = np.empty(0, np.int64)
            sent.append((Kind.GO_ON, *parts_of_groups(key_groups(left), [nothing, left, nothing, nothing])))
        self._changing.tidy()
        share, returned = divided(batch.column("share").to_pylist(), sum(len(groups) for _, groups, _ in sent))
        for kind, groups, parts in sent:
            self._send(messages(kind, share, 0, groups, parts), 0)
        self._note(returned)

    def _work(self, kind: Kind, batch: Any, sent: list[tuple[Kind, Array, list[Any]]]) -> None:
        changing = self._changing
        if kind is Kind.SHOW:
            ids, values = changing.differences()
            if len(ids):
                version = np.full(len(ids), batch.column("version")[0].as_py(), np.int64)
                best = str(self._best)
                self._send_values(from_format({"vertex": ids, best: values, "version": version}), 0)
            return
        kinds = np.int64, np.int64, np.float64 if kind is Kind.CHANGE else self._message, np.int64
        sources, targets, values, numbers = (
            arrays_in(batch.column(part), np.dtype(kind))[0] for part, kind in zip(_PARTS, kinds, strict=True)
        )
        if kind is Kind.CHANGE:
            told, then = changing.change(sources, targets, values, numbers.astype(np.bool_)), Kind.GIVE_UP
        elif kind is Kind.GIVE_UP:
            told, then = changing.give_up(sources, targets), Kind.GIVE_UP
        elif kind is Kind.FIND:
            told, then = changing.find_again(), Kind.TELL
        elif kind is Kind.GO_ON:
            told, then = changing.go_on(targets), Kind.TELL
        else:
            told, then = changing.tell(Told(sources, targets, values, numbers)), Kind.TELL
        if len(told.targets):
            sent.append((then, *parts_of_groups(key_groups(told.targets), list(told))))

    def _note(self, returned: list[tuple[int, int]]) -> None:
        touched = np.flatnonzero(self._changing.touched).astype(np.uint8)
        self._changing.touched[:] = False
        exponents, counts = np.array(returned, np.int64).T
        starts = np.full(len(returned) + 1, len(touched))
        starts[0] = 0
        self._send_note(
            columns_of({"exponent": exponents, "count": counts, "groups": as_bytes(touched, starts)}),
            0,
        )

    def end(self) -> None:
        """All differences have been emitted."""

    # -- state ---------------------------------------------------------------------------------------------------

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> OperatorCapture:
        """File what has changed since the last capture, and capture that."""
        for group, filed in self._changing.filed().items():
            self._state.replace(key_in_group(group, GRAPH), filed)
        return super().capture(epoch, attempt, base)

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        super().open(state, whole)
        self._changing.restore(self._filed(GRAPH))


def messages(kind: Kind, share: int, version: int, groups: Array, parts: list[Any]) -> Columns:
    """A row for each of these key groups."""
    count = len(groups)
    numbers = {"kind": int(kind), "share": share, "version": version}
    columns = {name: np.full(count, number, np.int64) for name, number in numbers.items()}
    return columns_of({"vertex": row_keys()[groups], **columns, **dict(zip(_PARTS, parts, strict=True))})


def parts_of_groups(groups: Array, arrays: list[Array]) -> tuple[Array, list[Any]]:
    """The key groups that occur, and for each array a column with the bytes of its part in each of them."""
    order = np.argsort(groups, kind="stable")
    present, counts = np.unique(groups, return_counts=True)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return present, [
        as_bytes(np.ascontiguousarray(array[order]), starts) if len(array) else as_bytes(array, 0 * starts)
        for array in arrays
    ]


def last_of_each(sources: Array, targets: Array) -> Array:
    """The positions of the last one of the edges with the same ends.

    >>> last_of_each(np.array([1, 2, 1]), np.array([3, 3, 3])).tolist()
    [1, 2]
    """
    order = np.lexsort((np.arange(len(sources)), targets, sources))
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (np.diff(sources[order]) != 0) | (np.diff(targets[order]) != 0)
    return np.sort(order[is_last])

"""The graph of one task of a vertex program, and the calls of the program: the same in rounds and free-running.

Vertices and edges arrive in any order, and are put in order when all of them are there. State is filed by key group,
under keys that address the parts of a group (`key_in_group`). Of the graph, each cut files what has arrived since the
one before, under a key of its own: what was filed once is not written again.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import numpy as np

from backedge.engine.batches.arrays import to_array
from backedge.engine.batches.arrow import arrow
from backedge.engine.batches.columns import Columns, Records
from backedge.engine.batches.constant_bytes import constant_bytes, constant_in
from backedge.engine.batches.formats import errors_of, from_format, to_format
from backedge.engine.operators.base import OperatorRuntime, Place
from backedge.engine.vertices.edges import Array, Lookup, OutEdges, by_group, in_group_order
from backedge.engine.vertices.frontier import SpreadingValues
from backedge.graphs.exact_numbers import converted
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.routing import KEY_GROUPS, groups_of_task, key_groups, key_in_group
from backedge.graphs.task_errors import USER_RAISED, MisuseError, show, user_error
from backedge.graphs.vertex_program import OfVertexProgram, VertexProgram, Vertices, as_integers

VALUES, GRAPH, KNOWN = range(3)
"""The parts of the state: values; vertices with their edges; what is known of the tasks that send."""

PIECES_MAX = 32
"""The graph of a key group is filed in at most this many pieces. Before another one is added, all become one."""

BYTES_MAX = 2**31 - 1
"""How many bytes a column of bytes holds."""

_INTEGERS = {"sources", "targets", "versions"}


class VertexGraphOperator(OperatorRuntime, ABC):
    def __init__(self, kind: OfVertexProgram, place: Place) -> None:
        super().__init__(place)
        self._kind = kind
        self._state = self.keyed_values()
        self._send = self.send_to("out")
        self._send_values = self.send_to("values")
        self._program: VertexProgram = self._call("__init__", kind.new_instance)
        of_class = type(self._program)
        self._message = np.dtype(of_class.message)
        self._best = of_class.best
        has_along = of_class.along is not VertexProgram.along
        self._along = self._arrived if has_along else None
        # What has arrived of the graph and is not filed yet, by columns; and the number of pieces that are.
        self._ids: list[Array] = []
        self._edges: list[dict[str, Array]] = []
        self._pieces = 0
        # The graph, once all of it is here; and where each key group begins among the vertices, and the last one ends.
        self._vertices: Vertices | None = None
        self._starts = np.zeros(KEY_GROUPS + 1, np.int64)
        # If a vertex takes the best value: these values, once the graph is here.
        self._spreading: SpreadingValues | None = None
        # What differs from the filed state.
        self._is_changed = {VALUES: False, KNOWN: False}

    # -- the graph -----------------------------------------------------------------------------------------------

    def _in_order(self) -> tuple[Array, dict[str, Array]]:
        """The vertices and edges that have arrived, which are filed now: the next cut need not delay a round."""
        self._file_arrived()
        pieces = [piece for of_group in self._filed_graph().values() for piece in of_group]
        ids, self._starts = in_group_order(np.concatenate([np.empty(0, np.int64), *(piece["ids"] for piece in pieces)]))
        return ids, self._together([piece for piece in pieces if len(piece["sources"])])

    def _together(self, pieces: list[dict[str, Array]]) -> dict[str, Array]:
        """The edges of several pieces."""
        if not pieces:
            none: dict[str, Array] = {"sources": np.empty(0, np.int64), "targets": np.empty(0, np.int64)}
            return none | ({"backwards": np.empty(0, np.bool_)} if self._program.reverses else {})
        return {part: np.concatenate([piece[part] for piece in pieces]) for part in pieces[0] if part != "ids"}

    def _out_edges(self, ids: Array, edges: dict[str, Array], rows: Any = slice(None)) -> OutEdges:
        positions = Lookup(ids).of(edges["sources"][rows])
        weights = edges["weights"][rows] if "weights" in edges else None
        return OutEdges(len(ids), positions, edges["targets"][rows], weights, combines=self._combines)

    def _set_graph(self, ids: Array, out: OutEdges) -> None:
        self._vertices = Vertices(frozen(ids), frozen(out.degrees), out.neighbours)

    @property
    def _built(self) -> Vertices:
        if self._vertices is None:
            raise MisuseError(f"operator {self.name!r} has received messages before its graph: this is a defect")
        return self._vertices

    @property
    def _best_values(self) -> SpreadingValues:
        if self._spreading is None:
            raise MisuseError(f"operator {self.name!r} has received values before its graph: this is a defect")
        return self._spreading

    def _groups(self) -> range:
        return groups_of_task(self.place.task.index, self.place.parallelism)

    # -- the program ---------------------------------------------------------------------------------------------

    @property
    def _combines(self) -> bool:
        return self._program.combine != "all"

    def _keep(self, hook: str, function: Callable[[Vertices], Mapping[str, Array]]) -> None:
        """Keep the values that a hook returns."""
        vertices = self._built
        vertices.active, vertices.change = None, None
        values = self._call(hook, function, vertices)
        if not (isinstance(values, Mapping) and all(isinstance(name, str) for name in cast("Any", values))):
            raise self._returned(hook, values, "a dict of arrays, whose keys are texts")
        found = cast("Mapping[str, Any]", values)
        for name in self._kind.reserved:
            if name in found:
                raise MisuseError(
                    f"operator {self.name!r}: {hook} returned a value named {name!r}, but the result has a column of "
                    "this name: give the value another name"
                )
        for array in found.values():
            if not self._fits(array):
                raise self._returned(hook, array, f"arrays with one item for each of the {len(vertices)} vertices")
        active: Any = vertices.active
        if active is not None:
            if not self._is_one_each(active) or active.dtype != np.bool_:
                raise MisuseError(
                    f"operator {self.name!r}: {hook} set vertices.active to {show(active)}: set it to an array of "
                    f"truth values, one for each of the {len(vertices)} vertices"
                )
            vertices.active = frozen(active)
        change: Any = vertices.change
        if change is not None and not isinstance(change, int | float | np.integer | np.floating):
            raise MisuseError(
                f"operator {self.name!r}: {hook} set vertices.change to a {type(change).__name__}: set it to one "
                "number for all vertices of the task, such as float(differences.sum())"
            )
        backwards: Any = vertices.backwards
        if not isinstance(backwards, bool | np.bool_) or (backwards and not self._program.reverses):
            raise MisuseError(
                f"operator {self.name!r}: {hook} set vertices.backwards to {show(backwards)}: set it to true or false, "
                f"and reverses = True in {type(self._program).__name__}"
            )
        vertices.backwards = bool(cast("Any", backwards))
        # A cut shares these arrays, so nobody may change them in place.
        vertices.values = {name: frozen(array) for name, array in found.items()}

    def _spread_from_now_on(self, out: OutEdges, *, keeps_own: bool) -> SpreadingValues:
        """From now on the best values are changed in place, so no cut shares them, and only the operator does it."""
        name, vertices = str(self._best), self._built
        values = SpreadingValues(
            out, vertices.ids, self._best_at_start(name), self._program.combine, keeps_own=keeps_own
        )
        vertices.values = {**vertices.values, name: frozen(values.bests)}
        everyone = np.arange(len(vertices))
        values.put_on_list(everyone if vertices.active is None else everyone[vertices.active])
        self._spreading = values
        return values

    def _best_at_start(self, name: str) -> Array:
        values = self._built.values
        if name not in values:
            raise MisuseError(
                f"operator {self.name!r}: start returned no value {name!r}, which is the best one of this program"
            )
        if not self._is_one_each(values[name]):
            raise self._returned(f"start as {name!r}", values[name], "an array with one number for each vertex")
        return self._as_messages("start", values[name]).copy()

    def _sent(self) -> Array:
        sent: Any = self._call("send", self._program.send, self._built)
        if not self._is_one_each(sent):
            raise self._returned("send", sent, f"an array with one item for each of the {len(self._built)} vertices")
        return self._as_messages("send", sent)

    def _arrived(self, sent: Array, weights: Array | None) -> Array:
        """What arrives at the ends of edges."""
        arrived: Any = self._call("along", self._program.along, sent, weights)
        if not isinstance(arrived, np.ndarray) or np.shape(cast("Array", arrived)) != sent.shape:
            raise self._returned("along", arrived, f"an array with one item for each of the {len(sent)} edges")
        # The sum of truth values would be a truth value, and the sum of small numbers too large for their type.
        return self._as_messages("along", cast("Array", arrived))

    def _as_messages(self, hook: str, array: Array) -> Array:
        if array.dtype.kind not in "biuf":
            raise self._returned(hook, array[:1].tolist(), "numbers")
        messages, lost = converted(array, self._message)
        if len(lost):
            raise MisuseError(
                f"operator {self.name!r}: {hook} returned {lost[0]}, but messages are {self._message}, which cannot "
                f"hold it: set message in {type(self._program).__name__} to a type that can"
            )
        return messages

    @contextmanager
    def _sums_fit(self) -> Generator[None]:
        """Reports a sum of messages that exceeds their type."""
        try:
            yield
        except OverflowError as error:
            raise MisuseError(
                f"operator {self.name!r}: {error}, which is more than {self._message} holds: set message in "
                f"{type(self._program).__name__} to a type that can hold the sum of what reaches a vertex"
            ) from error

    def _is_one_each(self, array: Any) -> bool:
        """Whether an array has one plain item for each vertex."""
        return self._fits(array) and array.ndim == 1

    def _fits(self, array: Any) -> bool:
        return isinstance(array, np.ndarray) and np.shape(cast("Array", array))[:1] == (len(self._built),)

    def _call(self, hook: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except USER_RAISED as error:
            raise user_error(self.name, error, hook=hook, can_set_aside=False) from error

    def _returned(self, hook: str, found: Any, wanted: str) -> MisuseError:
        is_array = isinstance(found, np.ndarray)
        what = f"an array of shape {np.shape(cast('Array', found))}" if is_array else show(found)
        return MisuseError(f"operator {self.name!r}: {hook} returned {what}: return {wanted}")

    def end(self) -> None:
        """Nothing is sent any more: send the values."""
        vertices = self._vertices
        if vertices is not None and len(vertices):
            shown = {name: array for name, array in vertices.values.items() if not name.startswith("_")}
            self._send_values(from_format({"vertex": vertices.ids, **shown}), 0)

    # -- state ---------------------------------------------------------------------------------------------------

    def _file_arrived(self) -> None:
        """File vertices and edges, as bytes: a cut need not look into them before they are written."""
        if not self._ids and not self._edges:
            return
        if self._pieces == PIECES_MAX:
            self._take_pieces_back()
        ids, starts = in_group_order(np.concatenate([np.empty(0, np.int64), *self._ids]))
        edges = self._together(self._edges)
        self._ids, self._edges = [], []
        order, ends = by_group(key_groups(edges["sources"]))
        ordered = {part: column[order] for part, column in edges.items()}
        for group in self._groups():
            rows = slice(ends[group], ends[group + 1])
            own = {part: column[rows] for part, column in ordered.items()}
            own["ids"] = ids[starts[group] : starts[group + 1]]
            if len(own["ids"]) or len(own["sources"]):
                self._file(key_in_group(group, _part_of_piece(self._pieces)), own)
        self._pieces += 1

    def _take_pieces_back(self) -> None:
        pieces = [piece for of_group in self._filed_graph().values() for piece in of_group]
        self._ids += [piece["ids"] for piece in pieces]
        self._edges += [piece for piece in pieces if len(piece["sources"])]
        for group in self._groups():
            for number in range(self._pieces):
                self._state.remove(key_in_group(group, _part_of_piece(number)))
        self._pieces = 0

    def _file(self, key: int, filed: dict[str, Any]) -> None:
        """File arrays as bytes, which a store writes as they are. Those of objects are pickled and read back."""
        values: Mapping[str, Array] = {} if self._vertices is None else self._vertices.values
        has_objects = any(array.dtype.hasobject for array in values.values())
        self._state.replace(key, filed if has_objects else constant_bytes(filed))

    def _filed(self, part: int) -> dict[int, Any]:
        """What the state holds of this part, by key group."""
        found = self._state.values
        keys = {group: key_in_group(group, part) for group in self._groups()}
        return {group: _arrays_of(found[key]) for group, key in keys.items() if key in found}

    def _filed_graph(self) -> dict[int, list[dict[str, Array]]]:
        """The pieces of the graph that the state holds, by key group."""
        pieces = [self._filed(_part_of_piece(number)) for number in range(PIECES_MAX)]
        return {group: [piece[group] for piece in pieces if group in piece] for group in self._groups()}

    def _count_pieces(self) -> None:
        """Count the pieces that were restored, some of which may have been filed by tasks with more."""
        filed = [number for number in range(PIECES_MAX) if self._filed(_part_of_piece(number))]
        self._pieces = max(filed, default=-1) + 1


def _part_of_piece(number: int) -> int:
    return KNOWN + number if number else GRAPH


def _arrays_of(filed: Any) -> Any:
    """What `_file` was given."""
    return constant_in(memoryview(filed)) if isinstance(filed, bytes) else filed


def as_columns(records: Records) -> Columns:
    """Records as columns. A restored round consists of records, and so may edges."""
    if isinstance(records, Columns):
        return records
    columns = from_format(to_format(records, "numpy"))
    if not isinstance(columns, Columns):
        raise MisuseError(f"rows such as {show(records[0])} are no columns of plain values: give numbers")
    return columns


def columns_of(columns: Mapping[str, Any]) -> Columns:
    return Columns(
        arrow().RecordBatch.from_arrays([arrow().array(column) for column in columns.values()], list(columns))
    )


def edge_parts(operator: str, edges: Records, columns: tuple[str, str, str | None], **more: str) -> dict[str, Array]:
    """The columns of edges, by the names that the operators use. Vertices are int64."""
    source, target, weight = columns
    names = {"sources": source, "targets": target} | ({} if weight is None else {"weights": weight}) | more
    if isinstance(edges, Columns):
        found, there = edges, edges.names
    else:
        # What else edges have may be no columns of plain values.
        wanted = frozenset(names.values())
        with errors_of(operator):
            found, there = as_columns([_of_row(row, wanted) for row in edges]), list(edges[0])
    if missing := [name for name in names.values() if name not in found.names]:
        more_options = ", weight=, added= and version=" if "added" in more else " and weight="
        raise MisuseError(
            f"operator {operator!r}: the edges have the columns {', '.join(there)} but no "
            f"{', '.join(map(repr, missing))}: name their columns with source=, target={more_options}"
        )
    arrays = {name: to_array(found.batch.column(name)) for name in names.values()}
    try:
        return {
            part: as_integers(arrays, name, "edges") if part in _INTEGERS else arrays[name]
            for part, name in names.items()
        }
    except BadOptionError as error:
        raise MisuseError(f"operator {operator!r}: {error}") from error


def _of_row(row: Any, names: Collection[str]) -> Any:
    """These columns of a row; what has none of them, or is no row, is refused later."""
    if not isinstance(row, dict):
        return row
    columns = cast("dict[Any, Any]", row)
    return {name: value for name, value in columns.items() if name in names} or columns


@cache
def row_keys() -> Array:
    """The address of each key group: rows with this key go to the task that keeps the group."""
    return np.array(list(map(key_in_group, range(KEY_GROUPS))), np.int64)


def arrays_in(column: Any, kind: np.dtype[Any]) -> tuple[Array, Array]:
    """The arrays in a column of bytes, one after the other without a copy; and where each begins, and the last ends."""
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
    first, last = int(starts[0]), int(starts[-1])
    if data is None or first == last:
        return np.empty(0, kind), np.zeros(len(column) + 1, np.int64)
    return np.frombuffer(data, kind, (last - first) // kind.itemsize, first), (starts - first) // kind.itemsize


def as_bytes(array: Array, starts: Array) -> Any:
    """A column of bytes that shares the memory of an array."""
    ends = starts * array.itemsize
    if ends[-1] > BYTES_MAX:
        raise MisuseError(
            f"a task of a vertex program sends {ends[-1]:,} bytes of one kind in a round, and a batch holds "
            f"{BYTES_MAX:,}: give the run a higher parallelism"
        )
    offsets = ends.astype(np.int32)
    buffers = [None, arrow().py_buffer(offsets), arrow().py_buffer(array)]
    return arrow().Array.from_buffers(arrow().binary(), len(starts) - 1, buffers)


def frozen(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view

"""The flow: the object on which a user builds a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from html import escape
from typing import Any, TypeVar, Unpack, overload

from backedge.graphs.building import build_draft
from backedge.graphs.changing_graph import ChangeColumns, OfChangingVertices, add_changing_graph
from backedge.graphs.constant import Constant
from backedge.graphs.discovery import add_discovered
from backedge.graphs.draft import Draft, Tail
from backedge.graphs.graph_errors import BadOptionError, GraphError, InputsError
from backedge.graphs.io import Source
from backedge.graphs.iterate import add_iteration
from backedge.graphs.kinds import Iterate, Read
from backedge.graphs.loop import Loop, OnLimit, open_loop
from backedge.graphs.naming import check_name, function_name
from backedge.graphs.operator_kind import OperatorKind, check_kind
from backedge.graphs.options import BatchFormat, OnError, Placing, check_function, is_whole
from backedge.graphs.plan import Plan
from backedge.graphs.process_class import ProcessInputs, check_inputs_are_no_arguments
from backedge.graphs.public import public
from backedge.graphs.rate import rate_in
from backedge.graphs.resource import Resource
from backedge.graphs.stream import Stream, add_process, add_step, first_output, process_options
from backedge.graphs.versions import Versions
from backedge.graphs.vertex_program import OfFreeVertexProgram, OfVertexProgram, VertexProgram, add_vertex_program

T = TypeVar("T")
U = TypeVar("U")

NOT_GIVEN: Any = object()


@public
class Flow:
    """A graph under construction. Its name is the name of the job that runs it.

    `stop_when` is called with each complete cut; the run stops when it returns true.

    >>> from backedge import Collect, Items
    >>> flow = Flow("retries")
    >>> orders = flow.read(Items([{"id": 1}, {"id": 2}]), name="orders")
    >>> again = flow.loop("again", of=dict, max_rounds=5)
    >>> def attempt(tries, order):
    ...     return tries + 1, {**order, "ok": tries >= order["id"]}
    >>> tried = orders.merge(again).key_by("id").stateful_map(attempt, initial=0, name="attempts")
    >>> done, failed = tried.split(lambda order: order["ok"])
    >>> again.feed(failed)
    >>> done.write(Collect(), name="done")
    >>> [edge.name for edge in flow.plan().edges]  # doctest: +NORMALIZE_WHITESPACE
    ['orders.out->attempts.in', 'split-1.false->attempts.in', 'attempts.out->split-1.in', 'split-1.true->done.in',
     'split-1.dead:again->again.dead_letters.in']
    """

    def __init__(self, name: str = "flow", *, stop_when: Callable[..., bool] | None = None) -> None:
        if stop_when is not None:
            check_function(stop_when, f"stop_when of flow {name!r}")
        self.draft = Draft(check_name(name, "flow"), stop_when)

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.draft.name

    def read(self, source: Source[T], *, rate: float | str | None = None, **options: Unpack[Placing]) -> Stream[T]:
        """The records of a source.

        `rate` limits what all its tasks together read: 500 or "500/s" records, or "2MB/s" bytes a second. `backedge
        rate` changes it while the run goes on.
        """
        if not isinstance(source, Source):  # pyright: ignore[reportUnnecessaryIsInstance]  # not every user checks types
            raise BadOptionError(
                f"{source!r} is not a source: read Items(records), JsonLines(path), Parquet(path) or another source"
            )
        if source.look_s is not None:
            return add_discovered(self.draft, source, rate_in(rate), options)
        return Stream(self.draft, (Tail(add_step(self.draft, Read(source, rate_in(rate)), {}, options)),))

    @overload
    def loop(
        self,
        name: str,
        of: type[T],
        *,
        max_rounds: int | None = None,
        on_limit: OnLimit = "dead_letter",
        endless: bool = False,
    ) -> Loop[T]: ...
    @overload
    def loop(
        self,
        name: str,
        of: None = None,
        *,
        max_rounds: int | None = None,
        on_limit: OnLimit = "dead_letter",
        endless: bool = False,
    ) -> Loop[Any]: ...
    def loop(
        self,
        name: str,
        of: type[Any] | None = None,
        *,
        max_rounds: int | None = None,
        on_limit: OnLimit = "dead_letter",
        endless: bool = False,
    ) -> Loop[Any]:
        """A stream with an open end, to be fed later: a free-running loop, which handles each record on its own.

        `of` tells type checkers the type of its records. A record that would go round more than `max_rounds` times goes
        to `dead_letters`, or fails the run. `endless` declares that the loop is not meant to run dry.
        """
        return open_loop(self.draft, name, max_rounds, on_limit, endless)

    def iterate(
        self,
        start: Stream[T],
        body: Callable[[Stream[T]], Stream[T]],
        *,
        rounds: int | None = None,
        until: Callable[[Any], object] | None = None,
        measure: Callable[[T], Any] | str | None = None,
        reduce: Callable[[Any, Any], Any] = operator.add,
        name: str = "iterate",
    ) -> Stream[T]:
        """Run `body` in rounds: on `start`, then on its own result, and so on. Return the result of the last round.

        `measure` gives a value for every record that the body returns (1 by default), or names the column that holds
        it; `reduce` combines the values of a round. The iteration ends when `until` returns true for the combined
        value, after `rounds` rounds, or after an empty round.

        >>> from backedge import Collect, Items
        >>> flow = Flow("halve")
        >>> start = flow.read(Items([9.0]))
        >>> small = flow.iterate(start, lambda s: s.map(lambda x: x / 2), until=lambda x: x < 1, measure=float)
        >>> small.write(Collect())
        >>> flow.plan().operators["iterate"].outputs
        ('body', 'result')
        """
        enclosing = self.draft.enclosing[-1] if self.draft.enclosing else None
        kind = Iterate(rounds, until, measure, reduce, enclosing)
        return add_iteration(self.draft, start, body, name, kind)

    @overload
    def constant(self, name: str, value: T) -> Constant[T]: ...
    @overload
    def constant(self, name: str, *, load: Callable[[], T]) -> Constant[T]: ...
    def constant(self, name: str, value: Any = NOT_GIVEN, *, load: Callable[[], Any] | None = None) -> Constant[Any]:
        """A value that functions and classes of the flow share, such as a lookup table or the parameters of a model.

        Functions use its `value`; a class that gets it as an argument gets the value. Each host has one copy of its
        arrays and Arrow tables. Cuts name the value by its digest, and their store keeps it, once.

        `load` returns the value. It is called when a job begins; a run that continues from a cut has the value of the
        cut. A `value` that differs from that of the cut is refused.

        >>> import numpy as np
        >>> from backedge import Collect, Items
        >>> flow = Flow("shop")
        >>> prices = flow.constant("prices", load=lambda: np.array([3, 5]))
        >>> flow.read(Items([1, 0])).map(lambda article: prices.value[article]).write(Collect())
        >>> flow.plan().constants
        {'prices': <constant 'prices' of flow 'shop'>}
        """
        what = f"constant {check_name(name, 'constant')!r}"
        if (value is NOT_GIVEN) == (load is None):
            has = "neither a value nor load=" if load is None else "both a value and load="
            raise BadOptionError(f"{what} has {has}: give one of them")
        self.draft.check_free(name, what)
        if load is not None:
            check_function(load, f"load= of {what}")
        made = Constant(self.name, name, load or (lambda: value), is_loaded=load is not None)
        self.draft.constants[name] = made
        return made

    def versions(self, name: str, *, keep: int = 4) -> Versions:
        """Versions of a large value that the flow makes while it runs, such as the weights of a model.

        One process class, in one task, publishes them: `ctx.publish(weights, value)` returns 1, 2, 3... Records carry
        the number, and any function of the flow reads `weights[number]`. Each host has one copy of the arrays and Arrow
        tables of a version. The last `keep` can be read; after that, `weights[number]` raises `VersionNotKeptError`.

        >>> flow = Flow("training")
        >>> flow.versions("weights", keep=4)
        <versions 'weights' of flow 'training'>
        """
        what = f"versions {check_name(name, 'versions')!r}"
        if not is_whole(keep) or keep < 1:
            raise BadOptionError(f"{what} have keep={keep!r}: give the number of versions that can be read, at least 1")
        self.draft.check_free(name, what)
        made = self.draft.versions[name] = Versions(self.name, name, keep)
        return made

    def resource(self, name: str, *, open: Callable[[], T], close: Callable[[T], object] | None = None) -> Resource[T]:
        """What functions of the flow share within a process, such as a connection to a database or a client.

        Functions, process classes, and sources and sinks of your own use its `value`. The first use in a process opens
        it, for all tasks and calls there. It is closed when the attempt ends, with the run or by a failure: the next
        attempt opens its own. A function that finds it broken calls `reopen(value)` and goes on with what that returns.

        Calls of `map_async` that block use it from several threads. Nothing that it holds is part of a cut.

        >>> import sqlite3
        >>> from backedge import Items
        >>> flow = Flow("shop")
        >>> db = flow.resource("db", open=lambda: sqlite3.connect("shop.db"), close=lambda db: db.close())
        >>> names = flow.read(Items([1])).map(lambda id: db.value.execute("select name from users where id = ?", (id,)))
        >>> db
        <resource 'db' of flow 'shop'>
        """
        what = f"resource {check_name(name, 'resource')!r}"
        self.draft.check_free(name, what)
        for word, function in (("open", open), ("close", close)):
            if function is not None:
                check_function(function, f"{word}= of {what}")
        self.draft.resources.add(name)
        return Resource(self.name, name, open, close)

    @overload
    def process(
        self,
        operator: type[ProcessInputs[Any, U]],
        /,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        batch_format: BatchFormat | None = None,
        on_error: OnError = "fail",
        copy_output: bool = True,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        resources: Mapping[str, float] | None = None,
        **arguments: Any,
    ) -> Stream[U]: ...
    @overload
    def process(
        self,
        operator: type[object],
        /,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        batch_format: BatchFormat | None = None,
        on_error: OnError = "fail",
        copy_output: bool = True,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        resources: Mapping[str, float] | None = None,
        **arguments: Any,
    ) -> Stream[Any]: ...
    def process(
        self,
        operator: type[Any],
        /,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        batch_format: BatchFormat | None = None,
        on_error: OnError = "fail",
        copy_output: bool = True,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        resources: Mapping[str, float] | None = None,
        **arguments: Any,
    ) -> Stream[Any]:
        """Apply an operator class with named inputs: `on_record(ctx, input, value)`. Otherwise like `Stream.process`.

        Keywords that are not options are inputs if the class lists them in `inputs`, and arguments of the class
        otherwise. If the class has no `inputs`, every keyword with a stream as its value is an input.

        >>> from backedge import Items
        >>> class Learner:
        ...     inputs = ("samples", "weights")
        ...     def __init__(self, rate=0.1):
        ...         self.rate = rate
        ...     def on_record(self, ctx, input, value):
        ...         ctx.emit(value)
        >>> flow = Flow("learning")
        >>> samples, weights = flow.read(Items([1, 2])), flow.read(Items([0.5]))
        >>> model = flow.process(Learner, samples=samples.rebalance(), weights=weights.broadcast(), rate=0.5)
        >>> model.tails[0].operator
        'Learner'
        """
        options = process_options(name, parallelism, batch_format, on_error, copy_output, num_cpus, num_gpus, resources)
        what = f"process class {getattr(operator, '__name__', repr(operator))}"
        declared: tuple[str, ...] | None = getattr(operator, "inputs", None)
        if not isinstance(declared, tuple | list | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputsError(f"{what} has inputs = {declared!r}: give a tuple of names")
        streams = {keyword for keyword, value in arguments.items() if isinstance(value, Stream)}
        inputs = {
            keyword: value
            for keyword, value in arguments.items()
            if keyword in streams or (declared is not None and keyword in declared)
        }
        if not inputs:
            raise InputsError(f"{what} has no input: name at least one, as in process(Learner, samples=stream)")
        if declared is not None and set(declared) != set(inputs):
            raise InputsError(
                f"{what} has the inputs {', '.join(map(repr, declared))} but got "
                f"{', '.join(map(repr, inputs))}: give each of its inputs a stream, and no others"
            )
        check_inputs_are_no_arguments(operator, inputs)
        others = {keyword: value for keyword, value in arguments.items() if keyword not in inputs}
        return add_process(self.draft, operator, inputs, options, others, named_inputs=True)

    def apply(self, kind: OperatorKind, inputs: Mapping[str, Stream[Any]], **options: Unpack[Placing]) -> Stream[Any]:
        """Apply an operator of your own that has named inputs. For a single input, use `Stream.apply`.

        >>> from backedge import Items, OperatorKind
        >>> class Join(OperatorKind):
        ...     pass
        >>> flow = Flow("join")
        >>> flow.apply(Join(), {"left": flow.read(Items([1])), "right": flow.read(Items([2]))}).tails[0].operator
        'Join'
        """
        check_kind(kind, "apply")
        if not inputs:
            raise InputsError(f"operator kind {kind.word} has no input: give apply a stream for each input, by name")
        return Stream(self.draft, (Tail(add_step(self.draft, kind, inputs, options), first_output(kind)),))

    def vertex_program(
        self,
        program: type[VertexProgram],
        edges: Stream[Any],
        *,
        name: str | None = None,
        rounds: int | None = None,
        until: Callable[[float], object] | None = None,
        vertices: Stream[Any] | None = None,
        undirected: bool = False,
        free_running: bool = False,
        source: str = "source",
        target: str = "target",
        weight: str | None = None,
        **arguments: Any,
    ) -> Stream[Any]:
        """Run a program on the vertices of a graph, in rounds; return rows of `vertex` and its last values.

        Values whose name begins with an underscore are left out of the rows.

        `source`, `target` and `weight` are columns of the edges; vertices are integers. `vertices` are rows with a
        column `vertex`, for those without edges. `undirected` sends along each edge in both directions. The rounds end
        when no vertex is active, after `rounds`, or when `until` returns true for the sum of the tasks'
        `vertices.change` in a round. `arguments` are those of the class.

        With `free_running`, there are no rounds: a value goes on as soon as it has become better, and the program ends
        when none does. The result is the same; the program has to name its best value.

        >>> import numpy as np
        >>> from backedge import Items, VertexProgram
        >>> class Lowest(VertexProgram):
        ...     combine, message = "min", np.int64
        ...     def start(self, vertices):
        ...         return {"lowest": vertices.ids}
        ...     def send(self, vertices):
        ...         return vertices["lowest"]
        ...     def apply(self, vertices, received):
        ...         vertices.active = received < vertices["lowest"]
        ...         return {"lowest": np.minimum(received, vertices["lowest"])}
        >>> flow = Flow("components")
        >>> edges = flow.read(Items([{"source": 1, "target": 2}]))
        >>> flow.vertex_program(Lowest, edges, undirected=True).tails[0].operator
        'Lowest'
        """
        of_program = OfFreeVertexProgram if free_running else OfVertexProgram
        kind = of_program(program, arguments, (source, target, weight), rounds, until is not None)
        return add_vertex_program(self.draft, edges, vertices, kind, name, until, undirected)

    def changing_graph(
        self,
        program: type[VertexProgram],
        changes: Stream[Any],
        *,
        name: str | None = None,
        undirected: bool = False,
        source: str = "source",
        target: str = "target",
        weight: str | None = None,
        added: str = "added",
        version: str = "version",
        **arguments: Any,
    ) -> Stream[Any]:
        """Run a program on a graph whose edges are added and removed; return how each version's values differ.

        `changes` are rows of an edge, whether it is `added` (otherwise removed), and the number of its `version`. These
        numbers may not decrease. For each version, the stream has rows of `vertex`, its value and `version`, for the
        vertices that are new or have other values than in the version before. The values of a version are exactly
        those of the program on the graph as it is then, and a change costs what it affects.

        The program has to name its best value; the graph begins without edges. An edge is identified by its ends: to
        add it again gives it another weight. `undirected` changes both directions.

        >>> import numpy as np
        >>> from backedge import Items, VertexProgram
        >>> class Lowest(VertexProgram):
        ...     combine, message, best = "min", np.int64, "lowest"
        ...     def start(self, vertices):
        ...         return {"lowest": vertices.ids}
        >>> flow = Flow("teams")
        >>> added = {"source": 1, "target": 2, "added": True, "version": 0}
        >>> changes = flow.read(Items([added, {**added, "added": False, "version": 1}]))
        >>> flow.changing_graph(Lowest, changes, undirected=True).tails[0].operator
        'Lowest'
        """
        kind = OfChangingVertices(program, arguments, (source, target, weight))
        columns = ChangeColumns(source, target, weight, added, version)
        return add_changing_graph(self.draft, changes, kind, columns, name, undirected)

    def _repr_html_(self) -> str:
        """The drawing that a notebook shows; what is wrong with the graph, as long as something is."""
        from backedge.graphs.drawing import draw  # which imports this module

        try:
            return draw(self.plan(), "svg")
        except GraphError as unfinished:
            return f"<pre>flow {escape(self.name)} cannot run yet: {escape(str(unfinished))}</pre>"

    def plan(self) -> Plan:
        """The finished plan; raises an error if something is wrong with the graph."""
        return build_draft(self.draft)


def checked_flow(flow: object, what: str) -> Flow:
    """Return the flow, or raise an error that says what was given instead.

    >>> checked_flow(None, "run")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    backedge.BadOptionError: run got None, ...
    """
    if isinstance(flow, Flow):
        return flow
    name = function_name(flow)
    if callable(flow) and name is not None:
        raise BadOptionError(f"{what} got {name} itself, which is not a Flow: call it, as in {what}({name}())")
    found = "None" if flow is None else f"something of type {type(flow).__name__}"
    raise BadOptionError(f"{what} got {found}, which is not a Flow: give the Flow that a function builds")

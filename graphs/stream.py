"""Streams: users apply operators to them, and operators return them.

A stream is a set of tails, each with a routing. An operator applied to a stream joins the flow's draft.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, cast, overload

from backedge.graphs.combining import Combiner, How
from backedge.graphs.constant import check_own_constants
from backedge.graphs.draft import Draft, Key, Tail
from backedge.graphs.graph_errors import BadOptionError, ForeignStreamError, UnkeyedStreamError, UnknownOutputError
from backedge.graphs.io import Sink
from backedge.graphs.kinds import (
    Answers,
    Filter,
    FlatMap,
    Map,
    MapAsync,
    MapBatches,
    OfBatchClass,
    OfClass,
    OfFunction,
    Split,
    StatefulMap,
    Write,
    check_process_class,
    declared_table,
)
from backedge.graphs.operator_kind import OperatorKind, check_kind
from backedge.graphs.options import (
    BatchFormat,
    OnError,
    Placing,
    Step,
    check_count,
    check_function,
    is_no_output,
    resources_of,
)
from backedge.graphs.plan import KeyColumns, Operator, Routing
from backedge.graphs.process_class import Process, check_arguments
from backedge.graphs.public import public
from backedge.graphs.questions import AskedAbout
from backedge.graphs.table import Table

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
K = TypeVar("K")
S = TypeVar("S")


@public
class Stream(Generic[T_co]):
    """The records that some operators emit. Applying an operator leaves the stream unchanged.

    >>> from backedge import Collect, Flow, Range
    >>> flow = Flow("squares")
    >>> flow.read(Range(10)).map(lambda n: n * n).filter(lambda n: n % 2 == 0).write(Collect(), name="even")
    >>> list(flow.plan().operators)
    ['read-1', 'map-1', 'filter-1', 'even']
    """

    def __init__(self, draft: Draft, tails: tuple[Tail, ...]) -> None:
        self.draft = draft
        self.tails = tails

    @property
    def key(self) -> Key | None:
        """The key by which records are routed. Only a `KeyedStream` has one, and a merged stream has none."""
        return None

    # One record in

    def map(self, function: Callable[[T_co], U], **options: Unpack[Step]) -> Stream[U]:
        """Emit `function(record)` for each record."""
        return self._step(Map(function, on_error=on_error_of(options)), options)

    def flat_map(self, function: Callable[[T_co], Iterable[U]], **options: Unpack[Step]) -> Stream[U]:
        """Emit each record that `function(record)` yields: none, one or many."""
        return self._step(FlatMap(function, on_error=on_error_of(options)), options)

    def filter(self, function: Callable[[T_co], object], **options: Unpack[Step]) -> Stream[T_co]:
        """Keep the records for which `function(record)` is true."""
        return self._step(Filter(function, on_error=on_error_of(options)), options)

    def map_batches(
        self,
        function: Callable[[Any], Any] | type[Any],
        *,
        batch_format: BatchFormat = "records",
        batch_size: int | None = None,
        **options: Unpack[Step],
    ) -> Stream[Any]:
        """Call `function(batch)` for batches of at most `batch_size` records. A class is instantiated once per task.

        A batch is a list of records, or the columns of records that are dicts: a dict of arrays ("numpy"), a frame
        ("pandas", "polars") or a table ("pyarrow"). The function may return any of these, with any number of rows. It
        owns its arrays and pandas frames and may write to them.

        Columns that the function returns stay columns, without a loop over records: through further functions on
        columns, `key_by("column")`, rebalance, broadcast, back edges and into Parquet, and from Parquet into the first
        function. Operators on single records get them as dicts. `engine/batches/formats.py` lists the types that
        columns can have and their form in numpy.

        >>> import numpy as np
        >>> from backedge import Flow, Parquet
        >>> def root(batch):
        ...     return {**batch, "root": np.sqrt(batch["n"])}
        >>> numbers = Flow().read(Parquet("numbers/"))
        >>> numbers.map_batches(root, batch_format="numpy").key_by("n").key
        'n'
        """
        return self._step(MapBatches(function, batch_format, batch_size, on_error=on_error_of(options)), options)

    @overload
    def map_async(
        self,
        function: Callable[[T_co], Awaitable[U]] | Callable[[], Callable[[T_co], Awaitable[U]]],
        *,
        concurrency: int = 100,
        timeout: float | None = None,
        answers: Answers = "kept",
        call_key: Callable[[T_co], Any] | str | None = None,
        call_version: int = 1,
        cost: Callable[[Any], Any] | str | None = None,
        budget: float | None = None,
        **options: Unpack[Step],
    ) -> Stream[U]: ...
    @overload
    def map_async(
        self,
        function: Callable[[T_co], U] | Callable[[], Callable[[T_co], U]],
        *,
        concurrency: int = 100,
        timeout: float | None = None,
        answers: Answers = "kept",
        call_key: Callable[[T_co], Any] | str | None = None,
        call_version: int = 1,
        cost: Callable[[Any], Any] | str | None = None,
        budget: float | None = None,
        **options: Unpack[Step],
    ) -> Stream[U]: ...
    def map_async(
        self,
        function: Callable[[T_co], Any] | Callable[[], Callable[[T_co], Any]],
        *,
        concurrency: int = 100,
        timeout: float | None = None,
        answers: Answers = "kept",
        call_key: Callable[[T_co], Any] | str | None = None,
        call_version: int = 1,
        cost: Callable[[Any], Any] | str | None = None,
        budget: float | None = None,
        **options: Unpack[Step],
    ) -> Stream[Any]:
        """Call `function(record)` for up to `concurrency` records at a time per task, each within `timeout` seconds.

        Answers leave in the order in which they arrive. Records without an answer yet are part of the state, and their
        calls are repeated after the crash of their process.

        A finished call is never made again in a run with cuts. It is finished when its answer is in a journal beside
        them, which is written before the answer leaves. The answer to an equal question is used once; `call_key`, a
        column or a function of the record, says what makes two questions equal if it is not the whole record, and
        another `call_version` makes all questions new. Unless the stream has a key, records go to the task that a
        digest of their question names. With `answers="again"` nothing of this is done, and all calls since the latest
        cut are repeated after a crash.

        `cost`, a column or a function of the answer, says what a call has cost. `budget` is how much each key of the
        stream may spend, restarts included: when it is spent, records go to the dead letters and are not asked about.

        Each task makes an instance of a class that has `__call__(self, record)`, and calls that. Its `on_start()` is
        awaited before the first call, its `close()` after the last one.

        >>> from backedge import Flow, Items
        >>> async def look_up(word: str) -> int:
        ...     return len(word)
        >>> Flow().read(Items(["a"])).map_async(look_up, concurrency=8, timeout=2.5).tails[0].operator
        'look_up'
        """
        asked_about = AskedAbout(call_key, call_version)
        kind = MapAsync(
            function, concurrency, timeout, answers, asked_about, cost, budget, on_error=on_error_of(options)
        )
        if budget is not None and self.key is None:
            raise BadOptionError(
                f"map_async {options.get('name') or function!r} has a budget for each key, but its stream has no key: "
                "call key_by(...) right before it; a key that is the same for all records makes one budget"
            )
        if not kind.keeps_answers or self.key is not None:
            return self._step(kind, options)
        for tail in self.tails:
            if tail.routing in (Routing.BROADCAST, Routing.ROUTE):
                raise BadOptionError(
                    f"map_async {options.get('name') or function!r} keeps answers, so a record goes to the task of its "
                    f"question, and {tail.routing.value} before it would do nothing: leave it out, or give "
                    "answers='again'"
                )
        # A question comes to the task that has its answer, in every attempt.
        return self.key_by(asked_about)._step(kind, options)

    @overload
    def process(
        self,
        operator: type[Process[Any, U]],
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
        """Apply an operator class, with `on_record(ctx, value)` and any other hooks. Its `outputs` name its outputs.

        Keywords that are not options are the arguments of the class. Every task makes an instance, with its own copy of
        them. They are part of the plan but not of its hash: as with code, a cut can be restored after they changed.
        If the class derives from `Process[In, Out]`, a type checker knows its hooks and what it emits.

        Emitted records are copied unless they are immutable. `copy_output=False` saves that: you promise that neither
        the class nor a function downstream changes an object after it was emitted.

        With `batch_format`, the class works on whole batches in that format: `on_batch(ctx, batch)` gets them, after
        `key_by` with all of their keys, and `ctx.emit_batch(batch)` sends them.

        >>> from backedge import Flow, Items
        >>> class Above:
        ...     outputs = ("out", "below")
        ...     def __init__(self, limit):
        ...         self.limit = limit
        ...     def on_record(self, ctx, value):
        ...         ctx.emit(value, output="below" if value < self.limit else "out")
        >>> Flow().read(Items([3, -1])).process(Above, limit=0).side("below").tails[0].operator
        'Above'
        """
        options = process_options(name, parallelism, batch_format, on_error, copy_output, num_cpus, num_gpus, resources)
        return add_process(self.draft, operator, {"in": self}, options, arguments, named_inputs=False)

    def apply(self, kind: OperatorKind, **options: Unpack[Placing]) -> Stream[Any]:
        """Apply an operator of your own, or from another package: docs/extending.md shows how to write one.

        Without `name=` the operator is named after its class. Returns the stream of its first output.
        """
        check_kind(kind, "apply")
        return added(self.draft, kind, {"in": self}, options, first_output(kind))

    # Where records go

    @overload
    def split(self, by: Callable[[T_co], object], **options: Unpack[Step]) -> tuple[Stream[T_co], Stream[T_co]]: ...
    @overload
    def split(
        self, by: Callable[[T_co], str], into: Sequence[str], **options: Unpack[Step]
    ) -> tuple[Stream[T_co], ...]: ...
    def split(
        self, by: Callable[[T_co], object], into: Sequence[str] | None = None, **options: Unpack[Step]
    ) -> tuple[Stream[T_co], ...]:
        """Split the stream in two, by whether `by(record)` is true; or into one stream for each name in `into`.

        With `into`, `by(record)` returns the name of the record's stream.

        >>> from backedge import Flow, Range
        >>> numbers = Flow().read(Range(9))
        >>> low, high = numbers.split(lambda n: n < 5)
        >>> zero, one, two = numbers.split(lambda n: f"rest {n % 3}", into=("rest 0", "rest 1", "rest 2"))
        """
        if isinstance(into, str) or not isinstance(into, Sequence | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadOptionError(f"split got into={into!r}: give a list of at least two different names")
        names = ("true", "false") if into is None else tuple(into)
        kind = Split(by, names, by_name=into is not None, on_error=on_error_of(options))
        operator = add_step(self.draft, kind, {"in": self}, without_on_error(options))
        return tuple(Stream[T_co](self.draft, (Tail(operator, name),)) for name in names)

    def merge(self, *others: Stream[U]) -> Stream[T_co | U]:
        """The records of this stream and of the others, in no particular order. Each stream keeps its routing.

        >>> from backedge import Flow, Range
        >>> flow = Flow()
        >>> len(flow.read(Range(3)).merge(flow.read(Range(5))).tails)
        2
        """
        for other in others:
            if isinstance(other, list) and any(isinstance(each, Stream) for each in cast("list[Any]", other)):
                raise BadOptionError("merge got several streams in one argument: write merge(*streams)")
            check_stream(self.draft, other, "merge")
        tails = self.tails + tuple(tail for other in others for tail in other.tails)
        return Stream(self.draft, tails)

    @overload
    def key_by(self, key: Callable[[T_co], K]) -> KeyedStream[K, T_co]: ...
    @overload
    def key_by(self, key: str | Sequence[str]) -> KeyedStream[Any, T_co]: ...
    def key_by(self, key: Callable[[T_co], Any] | str | Sequence[str]) -> KeyedStream[Any, T_co]:
        """Send all records of a key to the same task: `key(record)`, or `record[key]` if a column name is given.

        Of several column names, the key is the tuple of their values.
        """
        by: Key = KeyColumns(tuple(cast(Sequence[str], key))) if isinstance(key, list | tuple) else cast(Key, key)
        if isinstance(by, KeyColumns) and len(set(by.names)) < max(2, len(by.names)):
            raise BadOptionError(f"key_by got the columns {key!r}: give several different names, or one as a text")
        if not isinstance(by, str):
            check_function(by, "key_by")
        return KeyedStream(self.draft, self._routed(Routing.HASH, by))

    def route(self, function: Callable[[T_co], int]) -> Stream[T_co]:
        """Send each record to the task with the index `function(record)`, modulo the number of tasks."""
        check_function(function, "route")
        return Stream(self.draft, self._routed(Routing.ROUTE, function))

    def broadcast(self) -> Stream[T_co]:
        """Send each record to every task of the next operator; each task gets a copy."""
        return Stream(self.draft, self._routed(Routing.BROADCAST))

    def rebalance(self) -> Stream[T_co]:
        """Send the records to the tasks of the next operator in turn."""
        return Stream(self.draft, self._routed(Routing.REBALANCE))

    def write(self, sink: Sink[T_co], **options: Unpack[Placing]) -> None:
        """Write the records to a sink. The sink says whether each record is written exactly once."""
        if not isinstance(sink, Sink):  # pyright: ignore[reportUnnecessaryIsInstance]  # not every user checks types
            raise BadOptionError(
                f"{sink!r} is not a sink: write to Collect(), JsonLines(path), Parquet(path) or another sink"
            )
        if sink.one_task:
            options["parallelism"] = options.get("parallelism") or 1
        add_step(self.draft, Write(sink), {"in": self}, options)

    # Other outputs of the operator this stream comes from

    def side(self, output: str) -> Stream[Any]:
        """Another output of the operator that this stream comes from."""
        operators = {tail.operator for tail in self.tails}
        if len(operators) > 1 or any(tail.loop for tail in self.tails):
            raise UnknownOutputError(
                f"output {output!r} is requested from a stream that does not come from a single operator: "
                "call side() on the operator's own stream, before merge or loop"
            )
        operator = self.draft.operators[operators.pop()]
        if output not in operator.outputs:
            raise UnknownOutputError(
                f"{operator.kind.word} {operator.name!r} has no output {output!r}: it has "
                f"{', '.join(map(repr, operator.outputs))}; a process class declares more with outputs = (...)"
            )
        return Stream(self.draft, (Tail(operator.name, output),))

    @property
    def dead_letters(self) -> Stream[Any]:
        """The records whose call raised, with `on_error="dead_letter"`. If unread, they are kept and counted.

        >>> from backedge import Flow, Items
        >>> parsed = Flow().read(Items(["1", "x"])).map(int, on_error="dead_letter")
        >>> parsed.dead_letters.tails[0].output
        'dead'
        """
        for tail in self.tails:
            if tail.loop is None and "dead" not in self.draft.operators[tail.operator].outputs:
                raise UnknownOutputError(
                    f'operator {tail.operator!r} has no dead letters: give it on_error="dead_letter"'
                )
        return self.side("dead")

    def _routed(self, routing: Routing, by: Key | None = None) -> tuple[Tail, ...]:
        return tuple(tail.routed(routing, by) for tail in self.tails)

    def _step(self, kind: OfFunction, options: Step) -> Stream[Any]:
        return added(self.draft, kind, {"in": self}, without_on_error(options))

    if not TYPE_CHECKING:
        # Type checkers know that a stream is not iterable. Without this method, Python would say no more than that.
        def __iter__(self):
            raise BadOptionError(
                "a stream has no records before the flow runs: write it to Collect(), run the flow, and read "
                "result.outputs; to get several streams, use split"
            )

        # Type checkers only find stateful_map on keyed streams. Users without one get the fix, not an AttributeError.
        def stateful_map(self, function, initial=None, **options):
            """State is kept by key: see `KeyedStream.stateful_map`."""
            raise UnkeyedStreamError(
                f"stateful_map {options.get('name') or function!r} keeps state by key, but its stream has no key: "
                "call key_by(...) right before it, after any merge"
            )


@public
class KeyedStream(Stream[T_co], Generic[K, T_co]):
    """A stream whose records with the same key all go to the same task of the next operator.

    >>> from backedge import Flow, Items
    >>> Flow("words").read(Items(["a", "b"])).key_by(str.upper).key is str.upper
    True
    """

    @property
    def key(self) -> Key | None:
        """The key by which records are routed."""
        return self.tails[0].by

    def stateful_map(
        self,
        function: Callable[[S, T_co], tuple[S, U]],
        initial: S,
        *,
        copy_output: bool = True,
        state_version: int = 1,
        upgrade: Callable[[Any, int], S] | None = None,
        **options: Unpack[Step],
    ) -> Stream[U]:
        """`function(state, record)` returns the key's next state and a record; the first state is a copy of `initial`.

        The returned record is copied if it could share mutable objects with the state. `copy_output=False` saves the
        copy: you promise that nothing changes an object after it was returned as a record or part of one.

        When states take another form, raise `state_version`: a run that continues from a cut with an older version
        restores `upgrade(state, version)` for each state. A restore may repeat the call, so it must depend on nothing
        else.

        >>> from backedge import Flow, Items
        >>> def count(seen, word):
        ...     return seen + 1, (word, seen + 1)
        >>> words = Flow().read(Items(["a", "b", "a"])).key_by(str)
        >>> words.stateful_map(count, initial=0).tails[0].operator
        'count'
        """
        on_error = on_error_of(options)
        kind = StatefulMap(function, initial, copy_output, version=state_version, upgrade=upgrade, on_error=on_error)
        return self._step(kind, options)

    def combine(self, columns: Mapping[str, How], **options: Unpack[Placing]) -> KeyedStream[K, Any]:
        """Combine the rows of a key in each batch before it is sent: to one row, with the key and these columns.

        Columns are combined by "sum", "min", "max", "first", "last", or a function `f(values, starts)`: `values` are
        those of all keys, `starts` says where those of each key begin, and it returns one value for each key, as
        `np.logical_or.reduceat` does. The receiver combines again, because a key is in many batches. The key must be
        columns. It is worth its time if batches hold keys many times.

        >>> from backedge import Flow, Items
        >>> rows = Flow().read(Items([{"user": 1, "n": 2}, {"user": 1, "n": 3}]))
        >>> rows.key_by("user").combine({"n": "sum"}).key
        'user'
        """
        key = self.key
        if not isinstance(key, str | KeyColumns):
            raise BadOptionError(f"combine needs the names of the key columns, but the key is {key!r}: key_by a name")
        combiner = Combiner((key,) if isinstance(key, str) else key.names, columns)
        combiner.check("combine")
        before = Stream[T_co](self.draft, self._routed(Routing.FORWARD))
        name = add_step(self.draft, MapBatches(cast("Any", combiner), "pyarrow"), {"in": before}, options)
        return KeyedStream(self.draft, (Tail(name, routing=Routing.HASH, by=key),))


def on_error_of(options: Step) -> OnError:
    return options.get("on_error", "fail")


def without_on_error(options: Step) -> Placing:
    return cast(Placing, {option: value for option, value in options.items() if option != "on_error"})


def add_step(draft: Draft, kind: OperatorKind, inputs: Mapping[str, Stream[Any]], options: Placing) -> str:
    """Add an operator that reads these streams; return its name. If it cannot be added, raise and change nothing."""
    given: dict[str, Any] = dict(options)
    name = draft.name_for(kind, given.pop("name", None))
    what = f"{kind.word} {name!r}"
    for stream in inputs.values():
        check_stream(draft, stream, what)
        if kind.keeps_values and stream.key is None and all(tail.routing is Routing.HASH for tail in stream.tails):
            raise UnkeyedStreamError(
                f"{what} reads keyed streams that are merged, which have no key together, so its state would belong to "
                "the task: call key_by(...) after the merge"
            )
    parallelism = given.pop("parallelism", None)
    if parallelism is not None:
        check_count(parallelism, "parallelism", what)
    kind.check(what)
    resources = resources_of(given, what)
    keys = {input: stream.key for input, stream in inputs.items() if stream.key is not None}
    outputs = (*kind.outputs, "dead") if kind.sets_aside else kind.outputs
    # The order in which inputs are given means nothing, and that of an operator's is part of the plan's hash.
    operator = Operator(name, kind, parallelism, keys, tuple(sorted(inputs)), outputs, resources)
    draft.add(operator, {input: stream.tails for input, stream in inputs.items()})
    return name


def added(
    draft: Draft, kind: OperatorKind, inputs: Mapping[str, Stream[Any]], options: Placing, output: str = "out"
) -> Stream[Any]:
    return Stream(draft, (Tail(add_step(draft, kind, inputs, options), output),))


def first_output(kind: OperatorKind) -> str:
    if not kind.outputs or any(map(is_no_output, kind.outputs)) or len(set(kind.outputs)) < len(kind.outputs):
        raise BadOptionError(
            f"operator kind {kind.word} has outputs {kind.outputs!r}: give a tuple of different names, "
            "without ':', '/' or 'dead'"
        )
    return kind.outputs[0]


def process_options(
    name: str | None,
    parallelism: int | None,
    batch_format: BatchFormat | None,
    on_error: OnError,
    copy_output: bool,
    num_cpus: float | None,
    num_gpus: float | None,
    resources: Mapping[str, float] | None,
) -> dict[str, Any]:
    """The options of `process` that differ from their defaults."""
    options: dict[str, Any] = {"on_error": on_error, "copy_output": copy_output, "resources": resources}
    options |= {"name": name, "parallelism": parallelism, "num_cpus": num_cpus, "num_gpus": num_gpus}
    options["batch_format"] = batch_format
    silent = {"on_error": "fail", "copy_output": True}
    return {option: value for option, value in options.items() if value is not None and value is not silent.get(option)}


def add_process(
    draft: Draft,
    operator: type[Any],
    inputs: Mapping[str, Stream[Any]],
    options: dict[str, Any],
    arguments: Mapping[str, Any],
    *,
    named_inputs: bool,
) -> Stream[Any]:
    """Add a process operator, whose class names its outputs. Return the stream of its first output."""
    check_process_class(operator)
    check_arguments(operator, arguments, options)
    check_own_constants(f"process class {operator.__name__}", arguments, draft.constants)
    on_error, copies = options.pop("on_error", "fail"), options.pop("copy_output", True)
    batch_format: BatchFormat | None = options.pop("batch_format", None)
    if batch_format is None:
        kind = OfClass(operator, named_inputs, copies, arguments, on_error=on_error)
        if declared_table(operator):
            raise BadOptionError(
                f'process class {operator.__name__} has a table: give process batch_format="numpy", or another one'
            )
    else:
        if (table := declared_table(operator)) is not None:
            check_key_of_table(table, [stream.key for stream in inputs.values()], f"process class {operator.__name__}")
        kind = OfBatchClass(operator, named_inputs, copies, arguments, batch_format=batch_format, on_error=on_error)
    name = add_step(draft, kind, inputs, cast(Placing, options))
    return Stream(draft, (Tail(name, kind.outputs[0]),))


def check_key_of_table(table: Table, keys: Sequence[Key | None], what: str) -> None:
    """Raise unless the inputs are keyed by the columns of the table's key: a row of another key may be elsewhere.

    What a function returns is not known. Several inputs may have other names for the columns, as ends of edges do.
    """
    if None in keys:
        raise BadOptionError(f"{what} has a table: call key_by for each of its inputs")
    table.check(what)
    columns = [(key,) if isinstance(key, str) else key.names for key in keys if isinstance(key, str | KeyColumns)]
    wrong = [names for names in columns if len(names) != len(table.key)]
    if len(keys) == 1 and columns and columns != [tuple(table.key)]:
        wrong = columns
    if wrong:
        raise BadOptionError(
            f"{what} has a table with the key {', '.join(table.key)}, but its input is keyed by {', '.join(wrong[0])}: "
            "give key_by and Table the same columns in the same order"
        )


def check_stream(draft: Draft, stream: object, what: str) -> None:
    """Raise unless it is a stream of the flow under construction."""
    if not isinstance(stream, Stream):
        raise BadOptionError(f"{what} got {stream!r}, which is not a stream: give the result of an operator")
    if stream.draft is not draft:
        raise ForeignStreamError(
            f"{what} of flow {draft.name!r} got a stream of flow {stream.draft.name!r}: "
            "read the data again in this flow, or build both in one Flow"
        )

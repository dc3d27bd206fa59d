"""What a user's own code raises is told with operator, key, record and the user's frames, or its record is set aside.

Exits, cancellations and StopIteration as well.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest

from backedge import Collect, Flow, Generate, Items, OperatorKind, OperatorRuntime
from backedge.engine.batches.batch import Batch, decode, encode
from backedge.engine.io.files.services import FileServices
from backedge.engine.operators.runtime import TaskRuntime
from backedge.engine.state.split_own_state import move_whole
from backedge.graphs.expansion import expand
from backedge.graphs.ids import TaskId
from backedge.graphs.kinds import ANSWERS, Answers, Map
from backedge.graphs.plan import Operator
from backedge.graphs.task_errors import (
    MisuseError,
    RecordSerializationError,
    RoutingError,
    StateSerializationError,
    UserFunctionError,
    show,
    user_error,
)
from backedge.recovery.cut.cut import OperatorState
from tests.every import every
from tests.runtime.tasks import Tasks, by_receiver

RAISED: dict[str, Callable[[], BaseException]] = {
    "ValueError: two": lambda: ValueError("two"),
    "SystemExit: enough": lambda: SystemExit("enough"),
    "CancelledError": asyncio.CancelledError,
    "StopIteration": StopIteration,
}


def failing(raised: str) -> Callable[[Any], Any]:
    def fail(record: Any) -> Any:
        if record == 2:
            raise RAISED[raised]()
        return record

    return fail


def hooked(function: Callable[[Any], Any]) -> type[Any]:
    class Hooked:
        def on_record(self, ctx: Any, record: Any) -> None:
            ctx.emit(record)
            function(record)

    return Hooked


def batched(function: Callable[[Any], Any]) -> type[Any]:
    class Batched:
        def on_batch(self, ctx: Any, records: list[Any]) -> None:
            for record in records:
                ctx.emit(record)
                function(record)

    return Batched


STEPS: dict[str, Any] = {
    "map": lambda s, f, **o: s.map(f, name="op", **o),
    "flat_map": lambda s, f, **o: s.flat_map(lambda r: [f(r)], name="op", **o),
    "filter": lambda s, f, **o: s.filter(lambda r: f(r) is not None, name="op", **o),
    "split": lambda s, f, **o: s.split(lambda r: f(r) is not None, name="op", **o)[0],
    "split into": lambda s, f, **o: s.split(lambda r: f"{f(r) // 9}", into=("0", "1"), name="op", **o)[0],
    "map_batches": lambda s, f, **o: s.map_batches(lambda b: [f(r) for r in b], batch_size=1, name="op", **o),
    "stateful_map": lambda s, f, **o: s.key_by(abs).stateful_map(lambda n, r: (n, f(r)), initial=0, name="op", **o),
    "process": lambda s, f, **o: s.process(hooked(f), name="op", **o),
    "process keyed": lambda s, f, **o: s.key_by(abs).process(hooked(f), name="op", **o),
    "process batches": lambda s, f, **o: s.key_by(abs).process(batched(f), name="op", **o),
}


def flow_of(step: Any, *arguments: Any, **options: Any) -> Flow:
    flow = Flow("raised")
    stream = step(flow.read(Items([]), name="source").rebalance(), *arguments, **options)
    stream.rebalance().write(Collect(), name="sink")
    if options:
        stream.dead_letters.rebalance().write(Collect(), name="dead")
    return flow


def failure_of(step: Any, records: list[Any], hops: Any = 0, kind: type[Any] = UserFunctionError) -> Any:
    with pytest.raises(kind) as caught:
        Tasks(flow_of(step)).feed("op", records, hops)
    return caught.value


EACH_WITH_HOPS = [*product(RAISED, (6, [5, 6, 7]))]
"""What is raised, in a batch whose records have gone round equally often, or not."""


@every("kind", STEPS)
def test_it_is_told_with_operator_record_and_the_users_own_frames_alone(kind: str):
    for raised, hops in EACH_WITH_HOPS:
        error = failure_of(lambda s, raised=raised: STEPS[kind](s, failing(raised)), [1, 2, 3], hops)
        lines = str(error).splitlines()
        assert lines[0].startswith(f"operator 'op' raised {raised}")
        assert {"  record: 2", "  record: [2]"} & set(lines)
        assert ("  key: 2" in lines) == (kind in ("stateful_map", "process keyed", "process batches"))
        frames = [line for line in lines if line.startswith("      File ")]
        assert frames[-1].endswith(", in fail")
        assert all("test_errors.py" in frame for frame in frames)
        assert lines[-1] == '  fix the function, or give the operator on_error="dead_letter" to set such records aside'
        assert error.operator == "op"
        assert isinstance(error.__cause__, type(RAISED[raised]()))


@every("kind", STEPS)
def test_its_record_is_set_aside_where_that_is_asked_for_with_nothing_that_its_call_has_sent(kind: str):
    for raised, hops in EACH_WITH_HOPS:
        tasks = Tasks(flow_of(STEPS[kind], failing(raised), on_error="dead_letter"))
        emitted = tasks.feed("op", [1, 2, 3], hops)
        assert by_receiver(emitted) == {"sink/0": [1, 3], "dead/0": [2]}
        assert [batch.hops for channel, batch in emitted if channel.receiver.name == "dead"] == [6]


# -- keys and edges ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["key_by", "route"])
def test_a_function_of_an_edge_that_raises_it_is_told_with_its_record(route: str):
    for raised in RAISED:
        flow = Flow("raised")
        items = flow.read(Items([]), name="source").rebalance().map(lambda r: r, name="op")
        getattr(items, route)(failing(raised)).map(abs, name="next").write(Collect(), name="sink")
        told = f"^{route} between 'op' and 'next' raised {raised}(.|\n)*record: 2"
        with pytest.raises(UserFunctionError, match=told):
            Tasks(flow, 2).feed("op", [1, 2, 3])


def test_the_key_is_the_one_that_the_record_came_with():
    def rename(count: int, record: dict[str, Any]) -> tuple[int, Any]:
        del record["id"]
        return count, 1 / record["n"]

    records = [{"id": "a", "n": 1}, {"id": "b", "n": 0}]
    error = failure_of(lambda s: s.key_by("id").stateful_map(rename, initial=0, name="op"), records)
    assert "  key: 'b'" in str(error).splitlines()


class Keeps:
    def on_record(self, ctx: Any, record: Any) -> None:
        ctx.state.set(record)


class KeepsBatches:
    def on_batch(self, ctx: Any, batch: list[Any]) -> None:
        ctx.state.set(batch)


KEYED: dict[str, Any] = {
    "stateful_map": lambda s, **o: s.stateful_map(lambda n, r: (n, r), initial=0, name="op", **o),
    "process": lambda s, **o: s.process(Keeps, name="op", **o),
    "process batches": lambda s, **o: s.process(KeepsBatches, name="op", **o),
    "map_async": lambda s, **o: s.map_async(abs, name="op", **o),
}
set_aside_or_not = pytest.mark.parametrize("options", [{}, {"on_error": "dead_letter"}], ids=["plain", "set aside"])


@set_aside_or_not
@pytest.mark.parametrize("kind", KEYED)
def test_a_key_that_cannot_be_computed_is_neither_blamed_on_the_next_operator_nor_set_aside(kind: str, options: Any):
    """On a single task it is that operator that computes it."""
    for by in ("nope", failing("ValueError: two")):
        with pytest.raises(UserFunctionError, match=r"^key_by between 'source' and 'op' raised ") as caught:
            Tasks(flow_of(lambda s, by=by, **o: KEYED[kind](s.key_by(by), **o), **options)).feed("op", [2])
        assert "  record: 2" in str(caught.value).splitlines() and "  key:" not in str(caught.value)


class Echo(OperatorKind):
    """An operator of another package."""

    def start(self, place: Any) -> Any:
        return EchoRuntime(place)


class EchoRuntime(OperatorRuntime):
    def accept(self, edge: Any) -> Any:
        key_of, send = self.key_of(edge), self.send_to("out")
        return lambda records, hops: send([key_of(record) for record in records], hops)


@every(
    ("by", "error"),
    [("nope", UserFunctionError), (failing("ValueError: two"), UserFunctionError), (lambda n: [n], RoutingError)],
)
def test_a_key_that_cannot_be_computed_is_not_blamed_on_an_operator_of_others_either(by: Any, error: type[Exception]):
    with pytest.raises(error, match=r"^key_by between 'source' and 'op'"):
        Tasks(flow_of(lambda s: s.key_by(by).apply(Echo(), name="op"))).feed("op", [2])


class NotHashed:
    def __hash__(self) -> int:
        raise ValueError("no hash today")

    def __repr__(self) -> str:
        return "[7]"


@set_aside_or_not
@pytest.mark.parametrize("kind", KEYED)
def test_a_key_that_no_dict_takes_is_told_as_such_and_not_set_aside(kind: str, options: Any):
    """As it is where the key chooses one of several tasks."""
    for key in ([7], NotHashed()):
        with pytest.raises(RoutingError, match=r"'source' and 'op': the key \[7\] of record 7 cannot be hashed"):
            Tasks(flow_of(lambda s, key=key, **o: KEYED[kind](s.key_by(lambda n: key), **o), **options)).feed("op", [7])


# -- batches, chains, answers and hooks --------------------------------------------------------------------------


def test_a_batch_that_fails_is_shown_as_a_whole():
    fail = failing("ValueError: two")
    error = failure_of(lambda s: s.map_batches(lambda batch: [fail(n) for n in batch], name="op"), [1, 2])
    assert "operator 'op' raised ValueError: two in a batch of 2" in str(error)
    assert "  record: [1, 2]" in str(error)
    error = failure_of(lambda s: s.process(batched(fail), name="op"), [1, 2])
    assert "operator 'op' raised ValueError: two in on_batch of 2" in str(error)


def test_a_failed_answer_is_told_with_its_record():
    tasks = Tasks(flow_of(lambda s: s.map_async(abs, name="op")))
    tasks.feed("op", [4])
    with pytest.raises(UserFunctionError, match="operator 'op' raised TimeoutError: 3 s\n  record: 4\n"):
        tasks.home("op").on_answer(1, None, TimeoutError("3 s"))


@pytest.mark.parametrize("raised", RAISED)
def test_a_call_key_that_raises_is_told_with_its_record(raised: str):
    tasks = Tasks(flow_of(lambda s: s.key_by(abs).map_async(abs, call_key=failing(raised), name="op")))
    with pytest.raises(UserFunctionError, match=f"operator 'op' raised {raised} in call_key\n  record: 2\n"):
        tasks.feed("op", [2])


def test_a_cost_that_raises_ends_the_run_when_the_journal_has_the_answer():
    tasks = Tasks(
        flow_of(lambda s: s.key_by(abs).map_async(abs, cost="price", budget=1, on_error="dead_letter", name="op"))
    )
    tasks.feed("op", [4])
    home = tasks.home("op")
    kept = home.keep(*home.unanswered, {"cost": 1}, None)
    assert kept is not None
    with pytest.raises(UserFunctionError, match="operator 'op' raised KeyError: 'price' in cost"):
        home.on_durable(kept)


def answered(cost: Any) -> tuple[Any, Any]:
    """An operator whose answers cost that, and an answer that the journal is to keep."""
    tasks = Tasks(flow_of(lambda s: s.map_async(abs, cost=lambda _: cost, name="op")))
    tasks.feed("op", [4])
    home = tasks.home("op")
    kept = home.keep(*home.unanswered, 4, None)
    assert kept is not None
    return home, kept


@every("cost", [np.float64(0.5), np.float32(0.5), np.int64(3), 2**62])
def test_a_cost_of_any_type_of_number_can_be_written_to_the_journal(cost: Any):
    _, kept = answered(cost)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(kept.known.cost)) == cost


@every("cost", [float("inf"), 10**30, True, np.bool_(True), -1, "much"])
def test_a_cost_that_is_none_ends_the_run_when_the_journal_has_the_answer(cost: Any):
    home, kept = answered(cost)
    with pytest.raises(MisuseError, match=r"operator 'op': cost= gives .* for the answer 4"):
        home.on_durable(kept)


class Gone:
    """A class that a later program has no more."""


@pytest.mark.parametrize("answers", ANSWERS)
def test_a_record_or_an_answer_whose_class_is_gone_is_told(answers: Answers, monkeypatch: pytest.MonkeyPatch):
    tasks = Tasks(flow_of(lambda s: s.key_by(lambda _: 0).map_async(abs, call_key=str, answers=answers, name="op")))
    tasks.feed("op", [Gone(), 1])
    home = tasks.home("op")
    first, second = home.unanswered
    known = home.keep(second, Gone(), None)
    monkeypatch.delattr(f"{__name__}.Gone")
    with pytest.raises(StateSerializationError, match=r"'op' cannot read a record .*\bGone\b"):
        home.call(first)
    if known is not None:
        home.on_durable(known)
        with pytest.raises(StateSerializationError, match=r"'op' cannot read an answer .*\bGone\b"):
            home.sendable(second)


class KeepsItself(Keeps):
    """The state of its task is not that of a key."""

    def on_record(self, ctx: Any, record: Any) -> None:
        self.record = record

    def capture(self) -> Any:
        return self.record


def one_key(record: Any) -> int:
    return 0


STATEFUL: dict[str, tuple[Any, str]] = {
    "stateful_map": (lambda s: s.key_by(one_key).stateful_map(lambda _, r: (r, r), None, name="op"), "a value by key"),
    "process by key": (lambda s: s.key_by(one_key).process(Keeps, name="op"), "a value by key"),
    "process": (lambda s: s.process(Keeps, name="op"), "its state"),
    "a state of its own": (lambda s: s.process(KeepsItself, name="op"), "its state"),
}
stateful = pytest.mark.parametrize(("step", "what"), STATEFUL.values(), ids=STATEFUL)


@stateful
def test_state_whose_class_is_gone_is_told(step: Any, what: str, monkeypatch: pytest.MonkeyPatch):
    tasks = Tasks(flow_of(step))
    tasks.feed("op", [Gone()])
    states = tasks.capture()
    monkeypatch.delattr(f"{__name__}.Gone")
    with pytest.raises(StateSerializationError, match=rf"'op' cannot read {what} .*\bGone\b"):
        Tasks(flow_of(step), restored=states)


def test_a_record_on_its_way_whose_class_is_gone_is_told(monkeypatch: pytest.MonkeyPatch):
    payload = encode(Batch([Gone()]))
    monkeypatch.delattr(f"{__name__}.Gone")
    with pytest.raises(RecordSerializationError, match=r"cannot be read here: .*\bGone\b"):
        decode(payload)


class Large:
    def __init__(self) -> None:
        self.size = 1


@stateful
@pytest.mark.parametrize("error", [MemoryError, OSError])
def test_state_that_this_machine_has_no_room_for_may_be_read_elsewhere(
    step: Any, what: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
):
    def fail(self: Large, state: Any) -> None:
        raise error

    tasks = Tasks(flow_of(step))
    tasks.feed("op", [Large()])
    states = tasks.capture()
    monkeypatch.setattr(Large, "__setstate__", fail, raising=False)
    with pytest.raises(error):
        Tasks(flow_of(step), restored=states)


def test_a_record_of_a_round_a_position_and_a_moved_state_whose_class_is_gone_are_told(monkeypatch: pytest.MonkeyPatch):
    flow = Flow("rounds")
    start = flow.read(Items([]), name="source").rebalance()
    flow.iterate(start, lambda s: s.map(lambda r: r, name="body"), rounds=2, name="head").write(Collect())
    tasks = Tasks(flow)
    tasks.feed("head", [Gone()], input="returned")
    states, gone = tasks.capture(), pickle.dumps(Gone())
    read = {TaskId("source", 0): {"source": OperatorState(splits={"0-of-1": gone})}}
    monkeypatch.delattr(f"{__name__}.Gone")
    with pytest.raises(StateSerializationError, match=r"'head' cannot read a record of the next round .*\bGone\b"):
        Tasks(flow, restored=states)
    with pytest.raises(StateSerializationError, match=r"'source' cannot read the position of split '0-of-1' .*Gone"):
        Tasks(flow, restored=states | read)
    with pytest.raises(StateSerializationError, match=r"'op' cannot read its state .*\bGone\b"):
        move_whole(Operator("op", Map(abs)), [gone], 2)


def test_an_error_further_down_the_chain_is_told_with_the_operator_it_came_from():
    later = failing("ValueError: two")
    error = failure_of(lambda s: s.map(lambda n: n - 1, name="op").map(later, name="second"), [3, 1])
    assert str(error).startswith("operator 'second' raised ValueError")
    assert "  record: 2" in str(error)


@every("raised", RAISED)
@every("hook", ["__init__", "on_start", "on_timer", "on_end", "capture"])
def test_a_hook_that_raises_is_named_and_cannot_be_set_aside(hook: str, raised: str):
    def on_timer(self: Any, ctx: Any, at_ms: int) -> None: ...

    def on_record(self: Any, ctx: Any, n: int) -> None:
        ctx.set_timer(1)

    def fail(self: Any, *arguments: Any) -> None:
        raise RAISED[raised]()

    kind = type("Failing", (), {"on_record": on_record, "on_timer": on_timer, hook: fail})
    with pytest.raises(UserFunctionError) as caught:
        tasks = Tasks(flow_of(lambda s: s.process(kind, name="op")))
        tasks.feed("op", [1])
        tasks.home("op").fire_timers(5)
        tasks.capture()
        tasks.home("op").end(5)
    assert str(caught.value).splitlines()[0] == f"operator 'op' raised {raised} in {hook}"
    assert str(caught.value).splitlines()[-1] == "  fix the function"


def iterating(**rule: Any) -> Tasks:
    flow = Flow("rounds")
    start = flow.read(Items([]), name="source").rebalance()
    rule = {"until": lambda total: total > 100, **rule}
    body = flow.iterate(start, lambda s: s.rebalance().map(lambda n: n, name="body"), name="head", **rule)
    body.rebalance().write(Collect(), name="sink")
    return Tasks(flow)


@pytest.mark.parametrize("raised", RAISED)
def test_a_measure_a_reduce_or_an_until_that_raises_it_does_not_cut_its_round_short(raised: str):
    fail = failing(raised)
    for rule in ({"measure": fail}, {"reduce": lambda a, b: fail(2)}):
        with pytest.raises(UserFunctionError, match=f"operator 'head' raised {raised} in measure or reduce"):
            iterating(**rule).feed("body", [1, 2, 3])
    head = iterating(until=lambda total: fail(2)).home("head")
    with pytest.raises(UserFunctionError, match=f"operator 'head' raised {raised} in until or reduce of round 0"):
        head.decide((0,), {head.task.id: 1})


@pytest.mark.parametrize("raised", RAISED)
def test_a_generating_function_that_raises_it_is_told(raised: str):
    flow = Flow("raised")
    flow.read(Generate(failing(raised), 5), name="numbers").rebalance().write(Collect(), name="sink")
    deployment = expand(flow.plan())
    services = FileServices("raised", None, lambda sink, name, records: None, run="5f3a")
    source = next(task for task in deployment.tasks.values() if task.is_source)
    runtime = TaskRuntime(source, deployment, services)
    runtime.open(None)
    with pytest.raises(UserFunctionError, match=rf"operator 'numbers' raised {raised} in make\(2\)"):
        runtime.produce(5, now_ms=0)


def test_a_process_that_is_told_to_end_ends():
    def told(record: Any) -> Any:
        # What Ray's handler of SIGTERM raises, wherever the process is.
        error = SystemExit(1)
        error.ray_terminate_msg = "the process receives a SIGTERM"  # type: ignore[attr-defined]
        raise error

    for options in ({}, {"on_error": "dead_letter"}):
        for kind in ("map", "process", "stateful_map"):
            with pytest.raises(SystemExit):
                Tasks(flow_of(STEPS[kind], told, **options)).feed("op", [1])


# -- what a function gives back ----------------------------------------------------------------------------------


def test_a_stateful_map_that_returns_no_pair_is_told_what_to_return():
    error = failure_of(lambda s: s.key_by(abs).stateful_map(lambda t, n: n, initial=0, name="op"), [1])
    assert "operator 'op'" in str(error) and "return (state, record)" in str(error)


def test_a_split_that_names_no_output_is_told_which_there_are():
    def step(stream: Any) -> Any:
        return stream.split(lambda n: "c", into=("a", "b"), name="op", on_error="dead_letter")[0]

    error = failure_of(step, [7], kind=MisuseError)
    assert all(part in str(error) for part in ("split 'op' returned 'c' for record 7", "'a', 'b'", "into="))


@pytest.mark.parametrize(
    ("records", "options", "result", "message"),
    [
        ([1], {}, 5, "a function of map_batches returned 5, of type int: give a list of records"),
        ([1], {}, {"a": [1], "b": []}, r"returned columns of different lengths: \{'a': 1, 'b': 0\}"),
        ([1], {}, {"a": 5}, "returned 5 as column 'a', of type int: give a list or an array with a value for each row"),
        ([1], {}, {"a": "bc"}, "returned 'bc' as column 'a', of type str: give a list"),
        ([1], {}, {"a": np.array(5)}, "as column 'a', of type ndarray: give a list"),
        ([1], {"batch_format": "numpy"}, {}, "needs records with columns, but 1 is of type int: .*that are dicts"),
        ([{"a": 1}, 2], {"batch_format": "numpy"}, {}, "needs records with columns, but 2 is of type int"),
        ([{"a": 1}, {"b": 1}], {"batch_format": "numpy"}, {}, r"with different columns, \['a'\] and \['b'\]"),
    ],
)
def test_a_batch_in_no_known_format_is_refused(records: list[Any], options: Any, result: Any, message: str):
    with pytest.raises(MisuseError, match=f"^operator 'op': .*{message}"):
        Tasks(flow_of(lambda s: s.map_batches(lambda batch: result, name="op", **options))).feed("op", records)


def test_a_record_whose_repr_raises_does_not_hide_the_error():
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    assert show(Broken()) == "(a Broken whose repr raises RuntimeError)"


async def slow(n: int) -> bool:
    return n > 0


CHOICES: dict[str, Any] = {
    "filter": lambda s: s.filter(lambda n: slow(n), name="op"),
    "filter with dead letters": lambda s: s.filter(lambda n: slow(n), name="op", on_error="dead_letter"),
    "filter after a plain answer": lambda s: s.filter(lambda n: n < 2 or slow(n), name="op"),
    "split": lambda s: s.split(lambda n: slow(n), name="op")[0],
    "split with dead letters": lambda s: s.split(lambda n: slow(n), name="op", on_error="dead_letter")[0],
}


@pytest.mark.parametrize("kind", CHOICES)
def test_a_coroutine_is_not_taken_for_true(kind: str):
    for hops in (0, [1, 2]):
        with pytest.raises(MisuseError, match=r"operator 'op': .*coroutine .*slow.* record \d, .*map_async"):
            Tasks(flow_of(CHOICES[kind])).feed("op", [1, 2], hops)


def test_the_notes_of_an_error_are_told():
    """Such as the frames in another process."""
    error = ValueError("two")
    error.add_note("raised elsewhere:\n  line 3")
    assert "    raised elsewhere:\n      line 3\n" in str(user_error("op", error))

"""An exception of the user's own code is told with operator, key, record and the user's frames."""

from __future__ import annotations

from typing import Any

import pytest

from backedge import Collect, Flow, Items, Stream
from backedge.engine.task_errors import MisuseError, RoutingError, UserFunctionError, show
from tests.runtime.tasks import Tasks


def divide(n: int) -> float:
    return 10 / n


class Dividing:
    def on_record(self, ctx: Any, n: int) -> None:
        divide(n)


class DividingBatches:
    def on_batch(self, ctx: Any, batch: list[int]) -> None:
        for n in batch:
            divide(n)


STEPS: dict[str, Any] = {
    "map": lambda s: s.map(divide, name="op"),
    "flat_map": lambda s: s.flat_map(lambda n: [divide(n)], name="op"),
    "filter": lambda s: s.filter(divide, name="op"),
    "split": lambda s: s.split(divide, name="op")[0],
    "stateful_map": lambda s: s.key_by(abs).stateful_map(lambda t, n: (t, divide(n)), initial=0, name="op"),
    "process": lambda s: s.key_by(abs).process(Dividing, name="op"),
}


def failure_of(step: Any, records: list[Any], hops: Any = 0) -> UserFunctionError:
    flow = Flow("errors")
    step(flow.read(Items([]), name="source").rebalance()).rebalance().write(Collect(), name="sink")
    with pytest.raises(UserFunctionError) as caught:
        Tasks(flow).feed("op", records, hops)
    return caught.value


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("hops", [0, [1, 2, 3, 4]], ids=["uniform", "mixed"])
def test_the_message_names_operator_error_record_and_the_users_own_frames_alone(kind: str, hops: Any):
    error = failure_of(STEPS[kind], [5, 2, 0, 1], hops)
    lines = str(error).splitlines()
    assert lines[0].startswith("operator 'op' raised ZeroDivisionError: division by zero")
    assert "  record: 0" in lines
    assert ("  key: 0" in lines) == (kind in ("stateful_map", "process"))
    frames = [line for line in lines if line.startswith("      File ")]
    assert frames[-1].endswith(", in divide")
    assert all("test_errors.py" in frame for frame in frames)
    assert lines[-1] == '  fix the function, or give the operator on_error="dead_letter" to set such records aside'
    assert error.operator == "op"
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_the_key_is_the_one_that_the_record_came_with():
    def rename(count: int, record: dict[str, Any]) -> tuple[int, Any]:
        del record["id"]
        return count, divide(record["n"])

    records = [{"id": "a", "n": 1}, {"id": "b", "n": 0}]
    error = failure_of(lambda s: s.key_by("id").stateful_map(rename, initial=0, name="op"), records)
    assert "  key: 'b'" in str(error).splitlines()


def test_a_record_whose_key_cannot_be_computed_is_told_without_a_key():
    error = failure_of(lambda s: s.key_by(divide).stateful_map(lambda t, n: (t, n), initial=0, name="op"), [5, 0])
    assert "  record: 0" in str(error).splitlines()
    assert "  key:" not in str(error)


@pytest.mark.parametrize("by", ["nope", divide], ids=["column", "function"])
def test_a_key_that_cannot_be_computed_is_not_blamed_on_the_next_operator(by: Any):
    """On a single task it is that operator that computes it."""
    error = failure_of(lambda s: s.key_by(by).stateful_map(lambda t, n: (t, n), initial=0, name="op"), [{"n": 1}])
    assert str(error).startswith("key_by between 'source' and 'op' raised ")
    for kind in (Counting, CountingBatches):
        error = failure_of(lambda s, kind=kind: s.key_by(by).process(kind, name="op"), [{"n": 1}])
        assert str(error).startswith("key_by between 'source' and 'op' raised ")


class Counting:
    def on_record(self, ctx: Any, n: int) -> None:
        ctx.state.set(ctx.state.get(0) + 1)


class CountingBatches:
    def on_batch(self, ctx: Any, batch: list[int]) -> None:
        ctx.state.set(ctx.state.get(0) + len(batch))


class NotHashed:
    def __hash__(self) -> int:
        raise ValueError("no hash today")

    def __repr__(self) -> str:
        return "[7]"


@pytest.mark.parametrize("key", [[7], NotHashed()], ids=["a list", "raises"])
@pytest.mark.parametrize("kind", [None, Counting, CountingBatches])
def test_a_key_that_no_dict_takes_is_told_as_such(key: Any, kind: type | None):
    flow = Flow("errors")
    keyed = flow.read(Items([]), name="source").rebalance().key_by(lambda n: key)
    if kind is None:
        stream = keyed.stateful_map(lambda t, n: (t, n), initial=0, name="op")
    else:
        stream = keyed.process(kind, name="op")
    stream.rebalance().write(Collect(), name="sink")
    told = r"key_by between 'source' and 'op': the key \[7\] of record 7 cannot be hashed"
    with pytest.raises(RoutingError, match=told):
        Tasks(flow).feed("op", [7])


def test_a_batch_that_fails_is_shown_as_a_whole():
    error = failure_of(lambda s: s.map_batches(lambda batch: [divide(n) for n in batch], name="op"), [1, 0])
    assert "operator 'op' raised ZeroDivisionError: division by zero in a batch of 2" in str(error)
    assert "  record: [1, 0]" in str(error)
    error = failure_of(lambda s: s.process(DividingBatches, name="op"), [1, 0])
    assert "operator 'op' raised ZeroDivisionError: division by zero in on_batch of 2" in str(error)


def test_a_failed_answer_is_told_with_its_record():
    flow = Flow("errors")
    flow.read(Items([]), name="source").rebalance().map_async(divide, name="op").write(Collect(), name="sink")
    tasks = Tasks(flow)
    tasks.feed("op", [4])
    with pytest.raises(UserFunctionError, match="operator 'op' raised TimeoutError: 3 s\n  record: 4\n"):
        tasks.home("op").on_answer(1, None, TimeoutError("3 s"))


def test_an_error_further_down_the_chain_is_told_with_the_operator_it_came_from():
    error = failure_of(lambda s: s.map(lambda n: n - 1, name="op").map(divide, name="second"), [3, 1])
    assert str(error).startswith("operator 'second' raised ZeroDivisionError")
    assert "  record: 0" in str(error)


@pytest.mark.parametrize("hook", ["__init__", "on_start", "on_timer", "on_end", "capture"])
def test_a_hook_that_raises_is_named_and_cannot_be_set_aside(hook: str):
    def fail(self: Any, *arguments: Any) -> None:
        raise RuntimeError("no")

    def on_record(self: Any, ctx: Any, n: int) -> None:
        ctx.set_timer(1)

    def on_timer(self: Any, ctx: Any, at_ms: int) -> None:
        ctx.emit(at_ms)

    kind = type("Failing", (), {"on_record": on_record, "on_timer": on_timer, hook: fail})
    flow = Flow("errors")
    flow.read(Items([]), name="source").rebalance().process(kind, name="op").rebalance().write(Collect(), name="sink")
    with pytest.raises(UserFunctionError) as caught:
        tasks = Tasks(flow)
        tasks.feed("op", [1])
        tasks.home("op").fire_timers(5)
        tasks.capture()
        tasks.home("op").end(5)
    assert str(caught.value).splitlines()[0] == f"operator 'op' raised RuntimeError: no in {hook}"
    assert str(caught.value).splitlines()[-1] == "  fix the function"


def test_a_stateful_map_that_returns_no_pair_is_told_what_to_return():
    error = failure_of(lambda s: s.key_by(abs).stateful_map(lambda t, n: n, initial=0, name="op"), [1])
    assert str(error) == (
        "operator 'op': the function of a stateful_map returned no pair (cannot unpack non-iterable int object)\n"
        "  return (state, record): the key's next state, and what is sent on"
    )


def test_a_split_that_names_no_output_is_told_which_there_are():
    def step(stream: Stream[Any]) -> Stream[Any]:
        return stream.split(lambda n: "c", into=("a", "b"), name="op", on_error="dead_letter")[0]

    flow = Flow("errors")
    step(flow.read(Items([]), name="source").rebalance()).rebalance().write(Collect(), name="sink")
    with pytest.raises(MisuseError) as caught:
        Tasks(flow).feed("op", [7])
    assert str(caught.value) == (
        "split 'op' returned 'c' for record 7, but its outputs are 'a', 'b': return one of these, or add the name to "
        "into="
    )


@pytest.mark.parametrize(
    ("records", "result", "message"),
    [
        ([1], 5, "a function of map_batches returned 5, of type int: give a list of records"),
        ([1], {"a": [1], "b": []}, r"returned columns of different lengths: \{'a': 1, 'b': 0\}"),
    ],
)
def test_a_batch_in_no_known_format_is_refused(records: list[Any], result: Any, message: str):
    flow = Flow("errors")
    source = flow.read(Items([]), name="source").rebalance()
    source.map_batches(lambda batch: result, name="op").write(Collect(), name="sink")
    with pytest.raises(MisuseError, match=message):
        Tasks(flow).feed("op", records)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([1], "batch_format needs records with columns, but 1 is of type int: give it records that are dicts"),
        ([{"a": 1}, {"b": 1}], r"records with different columns, \['a'\] and \['b'\]"),
    ],
)
def test_records_without_columns_are_refused_by_a_column_format(records: list[Any], message: str):
    flow = Flow("errors")
    source = flow.read(Items([]), name="source").rebalance()
    source.map_batches(lambda batch: batch, batch_format="numpy", name="op").write(Collect(), name="sink")
    with pytest.raises(MisuseError, match=message):
        Tasks(flow).feed("op", records)


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
@pytest.mark.parametrize("hops", [0, [1, 2]], ids=["uniform", "mixed"])
def test_a_coroutine_is_not_taken_for_true(kind: str, hops: Any):
    flow = Flow("errors")
    CHOICES[kind](flow.read(Items([]), name="source").rebalance()).rebalance().write(Collect(), name="sink")
    with pytest.raises(
        MisuseError, match=r"operator 'op': .*coroutine .*slow.* record \d, .*: make such calls with map_async"
    ):
        Tasks(flow).feed("op", [1, 2], hops)

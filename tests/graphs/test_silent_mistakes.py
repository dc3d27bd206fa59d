"""What would lose records, or do nothing, without a word: refused where it is written down, with the fix."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from backedge import (
    BadOptionError,
    Call,
    Collect,
    Flow,
    Generate,
    Items,
    Poll,
    Stream,
    TaskError,
    UnreadOutputWarning,
    UserFunctionError,
    simulate,
)
from backedge.engine.on_ray.run_options import RunOptions
from tests.every import every


def numbers() -> Stream[int]:
    return Flow("silent").read(Items([1, 2]), name="numbers")


async def asks(n: Any, *more: Any) -> Any:
    return n


def yields(n: Any, *more: Any) -> Iterator[Any]:
    yield n


async def asks_and_yields(n: Any) -> AsyncIterator[Any]:
    yield n


class Asks:
    async def __call__(self, n: Any) -> Any:
        return n


class Yields:
    def __call__(self, n: Any) -> Iterator[Any]:
        yield n


def keep(state: Any, n: Any) -> Any:
    return state, n


# -- functions whose result nobody would wait for ------------------------------------------------------------------

STEPS: dict[str, Any] = {
    "map": lambda f: numbers().map(f),
    "filter": lambda f: numbers().filter(f),
    "split": lambda f: numbers().split(f),
    "map_batches": lambda f: numbers().map_batches(f),
    "stateful_map": lambda f: numbers().key_by(abs).stateful_map(f, initial=0, name="op"),
    "key_by": lambda f: numbers().key_by(f),
    "route": lambda f: numbers().route(f),
    "Generate": lambda f: Generate(f, 3),
    "Call": lambda f: Call(f),
    "measure": lambda f: Flow().iterate(numbers(), lambda s: s, until=abs, measure=f),
    "until": lambda f: Flow().iterate(numbers(), lambda s: s, until=f),
    "reduce": lambda f: Flow().iterate(numbers(), lambda s: s, until=abs, reduce=f),
    "stop_when": lambda f: Flow("silent", stop_when=f),
}


ASYNC, YIELDS = r"\basync\b.*\bawait", r"yields|async generator"


@every("step", STEPS)
@every(
    ("function", "named"),
    [*((f, ASYNC) for f in (asks, Asks(), partial(asks))), *((f, YIELDS) for f in (yields, Yields(), asks_and_yields))],
)
def test_a_function_is_refused_where_nothing_awaits_or_iterates_over_its_result(step: str, function: Any, named: str):
    with pytest.raises(BadOptionError, match=named):
        STEPS[step](function)


def test_map_async_may_await_and_flat_map_may_yield_and_neither_does_the_other():
    for function in (asks, Asks(), abs):
        numbers().map_async(function, name="op")
    for function in (yields, Yields(), list):
        numbers().flat_map(function)
    for refused in (yields, asks_and_yields):
        with pytest.raises(BadOptionError, match=r"yields|async generator"):
            numbers().map_async(refused, name="op")
    for refused in (asks, Asks(), asks_and_yields):
        with pytest.raises(BadOptionError, match=r"\basync\b"):
            numbers().flat_map(refused)


@every("routed", [lambda s: s.broadcast(), lambda s: s.route(abs), lambda s: s.merge(s.broadcast())])
def test_a_routing_that_questions_would_not_follow_is_refused(routed: Callable[[Stream[int]], Stream[int]]):
    with pytest.raises(BadOptionError, match=r"map_async 'ask' .*\b(broadcast|route)\b.*answers=.again"):
        routed(numbers()).map_async(asks, name="ask")
    routed(numbers()).map_async(asks, name="ask", answers="again")
    numbers().rebalance().map_async(asks, name="ask")


# -- hooks -----------------------------------------------------------------------------------------------------------

HOOKS = ["on_start", "on_record", "on_batch", "on_timer", "on_round_end", "on_end", "capture", "restore", "close"]


@every("hook", [*HOOKS, "split", "merge"])
@every(("function", "found"), [(yields, "yields"), (asks, "async"), (asks_and_yields, "yields")])
def test_a_hook_that_would_not_run_when_it_is_called_is_refused(hook: str, function: Any, found: str):
    made = staticmethod(function) if hook in ("split", "merge") else function
    operator = type("Hooked", (), {"on_record": lambda self, ctx, record: None, hook: made})
    for process in (numbers().process, lambda op: Flow().process(op, left=numbers())):
        with pytest.raises(BadOptionError, match=rf"Hooked.*\b{hook}\b.*{found}"):
            process(operator)


# -- initial ---------------------------------------------------------------------------------------------------------


@every("initial", [list, dict[str, int], lambda: [], partial(dict), [].copy, dict.fromkeys])
def test_what_makes_a_state_is_no_first_state(initial: Any):
    named = r"list\(\)" if initial is list else "state"
    with pytest.raises(BadOptionError, match=rf"stateful_map.* initial=.*{named}"):
        numbers().key_by(abs).stateful_map(keep, initial=initial, name="op")


@every("initial", [0, None, [], {}, "", Asks(), ()])
def test_any_value_is_a_first_state(initial: Any):
    numbers().key_by(abs).stateful_map(keep, initial=initial, name="op")


# -- outputs that nobody reads ---------------------------------------------------------------------------------------


class Sort:
    outputs = ("out", "late")

    def on_record(self, ctx: Any, n: int) -> None:
        ctx.emit(n, "late" if n > 1 else "out")


def sorting(*read: str) -> Flow:
    flow = Flow("sorting")
    stream = flow.read(Items([1, 2]), name="numbers").process(Sort, name="sort")
    flow.read(Items([1]), name="others").write(Collect(), name="kept")
    for output in read:
        stream.side(output).write(Collect(), name=f"sink-{output}")
    return flow


@pytest.mark.parametrize(("read", "unread"), [(["out"], "late"), (["late"], "out")])
def test_an_output_that_nobody_reads_is_warned_of_once_with_the_fix(read: list[str], unread: str):
    flow = sorting(*read)
    with pytest.warns(UnreadOutputWarning) as caught:
        flow.plan()
        flow.plan()
    (warning,) = caught
    text = str(warning.message)
    for named in ("'sort'", "'sorting'", f"output '{unread}'", f".side('{unread}')", "outputs of Sort"):
        assert named in text
    assert warning.filename == __file__, "it points to the user's code"


def test_outputs_that_are_read_are_not_warned_of_nor_is_an_operator_that_declares_none():
    class Ends:
        def on_record(self, ctx: Any, n: int) -> None: ...

    flow = sorting("out", "late")
    flow.read(Items([1]), name="more").process(Ends, name="ends")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flow.plan()


# -- a run with nothing to resume from -------------------------------------------------------------------------------


@every(
    ("name", "value"),
    [
        *(("resume", "latest"), ("resume", 3), ("every", 2.0), ("every", None), ("keep", 9)),
        *(("cut_pause", 1), ("cuts_in_progress", 2), ("log_bytes", 5)),
    ],
)
def test_an_option_about_cuts_is_refused_where_none_are_kept(name: str, value: Any):
    given: Any = {name: value}
    with pytest.raises(BadOptionError, match=rf"'rank'.*{name}={value!r}.*snapshots="):
        RunOptions(**given).check_snapshots("flow 'rank'")
    RunOptions(**given, snapshots="cuts").check_snapshots("flow 'rank'")
    RunOptions(resume="never").check_snapshots("flow 'rank'")


# -- what a newcomer tries first -------------------------------------------------------------------------------------


def test_a_stream_has_no_records_before_the_run():
    with pytest.raises(BadOptionError, match=r"Collect\(\).*result\.outputs.*split"):
        for _ in numbers():
            pass


def test_several_streams_are_merged_as_several_arguments():
    with pytest.raises(BadOptionError, match=r"merge\(\*streams\)"):
        numbers().merge([numbers(), numbers()])


@pytest.mark.parametrize("text", ["orders.jsonl", b"orders.jsonl"])
def test_a_text_is_no_list_of_records(text: Any):
    with pytest.raises(BadOptionError, match=r"orders\.jsonl.*letter.*TextLines"):
        Items(text)


def told_of(step: Callable[[Stream[int]], Stream[Any]]) -> str:
    """The error of a run with this step."""
    flow = Flow("silent")
    step(flow.read(Items([1, 2]), name="numbers")).write(Collect(), name="done")
    with pytest.raises(TaskError) as caught:
        simulate(flow, seeds=range(1))
    return str(caught.value)


@every("records", ["one", b"one", {"id": 1}])
def test_one_record_is_no_list_of_what_a_poll_has_found(records: Any):
    flow = Flow("polled")
    flow.read(Poll(lambda _: (records, 1), ends=True), name="in").write(Collect(), name="out")
    with pytest.raises(UserFunctionError, match="as its records: return a list with it"):
        simulate(flow, seeds=[])


def test_a_flat_map_that_returns_nothing_gets_the_fix():
    assert "return [] for no record" in told_of(lambda s: s.flat_map(lambda n: None, name="op"))


class Assigning:
    def on_record(self, ctx: Any, n: int) -> None:
        ctx.state["seen"] = n


class Reading:
    def on_record(self, ctx: Any, n: int) -> None:
        ctx.emit(ctx.state["seen"])


@pytest.mark.parametrize("operator", [Assigning, Reading])
def test_state_is_one_value_and_no_dict(operator: type[Any]):
    told = told_of(lambda s: s.key_by(abs).process(operator, name="op"))
    assert "ctx.state.get(default)" in told and "ctx.state.set(value)" in told

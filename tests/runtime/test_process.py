"""The hooks of a process class, and what its context offers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import to_builtins

from backedge import Collect, Flow, Items
from backedge.engine.batches.batch import spread
from backedge.engine.operators import meters
from backedge.graphs.task_errors import MisuseError
from tests.every import every
from tests.runtime.tasks import Tasks, by_receiver, flow_of, records_of


def processing(kind: type[Any], key: Any = None, parallelism: int = 1) -> Tasks:
    return Tasks(flow_of(lambda s: (s if key is None else s.key_by(key)).process(kind, name="op")), parallelism)


def hooks(**of_name: Callable[..., Any]) -> type[Any]:
    """A class with these hooks, given without `self`."""

    def method(hook: Callable[..., Any]) -> Callable[..., None]:
        def call(self: Any, *arguments: Any) -> None:
            hook(*arguments)

        return call

    members = {"on_record": lambda ctx, record: None, **of_name}
    return type("Hooks", (), {name: method(hook) for name, hook in members.items()})


def test_hooks_run_in_their_order():
    told: list[Any] = []
    kind = hooks(
        on_start=lambda ctx: told.append("start"),
        on_record=lambda ctx, n: (told.append(n), ctx.set_timer(n)),
        on_timer=lambda ctx, at_ms: told.append(("timer", at_ms, ctx.now)),
        on_end=lambda ctx: told.append("end"),
    )
    tasks = processing(kind)
    tasks.feed("op", [5, 3])
    home = tasks.home("op")
    assert home.next_timer_ms == 3
    home.fire_timers(now_ms=4)
    home.fire_timers(now_ms=9)
    assert home.next_timer_ms is None
    home.end(now_ms=10)
    assert told == ["start", 5, 3, ("timer", 3, 4), ("timer", 5, 9), "end"]


@every(
    ("given", "kind", "due_ms"),
    [
        (np.int64(7), int, 7),
        (7.0, int, 7),
        (6.2, float, 7),
        (np.float32(6.2), float, 7),
        (Fraction(31, 5), float, 7),
        (-5, int, -5),
    ],
)
def test_a_timer_fires_with_the_time_that_it_was_set_for(given: Any, kind: type, due_ms: int):
    """A class may compare the time with the one that it set last."""
    told: list[Any] = []
    tasks = processing(
        hooks(on_record=lambda ctx, n: ctx.set_timer(given), on_timer=lambda ctx, at_ms: told.append(at_ms))
    )
    tasks.feed("op", [1])
    assert tasks.home("op").next_timer_ms == due_ms
    tasks.home("op").fire_timers(due_ms - 1)
    assert told == []
    tasks.home("op").fire_timers(due_ms)
    assert told == [float(given)] and type(told[0]) is kind


NOW_MS = 1_800_000_000_000


@every(
    ("call", "given", "told"),
    [
        ("set_timer", "soon", "'soon': give a time in milliseconds, such as ctx.now"),
        ("set_timer", None, "None: give a time"),
        ("set_timer", True, "True: give a time"),
        ("set_timer", float("nan"), "nan: give a time"),
        ("set_timer", np.timedelta64(5, "ms"), ""),
        ("set_timer", float("-inf"), "-inf, which is more than ten years before ctx.now"),
        ("set_timer", float("inf"), f"inf, which is more than a hundred years after ctx.now, {NOW_MS}: give a time"),
        ("set_timer", 10**400, "1000"),
        ("set_timer", 10**15 * 1_800, "1800000000000000000, which is more than a hundred years after ctx.now"),
        # A duration, or in seconds: no run can be of such a time.
        *(("set_timer", given, ".*before ctx.now, .*set_timer_in") for given in (200, 1_800_000_000.0, -5)),
        *(("set_timer_in", given, "") for given in (-1, float("nan"), "soon", None, True, float("inf"))),
    ],
)
def test_a_timer_that_would_never_fire_or_at_once_is_refused(call: str, given: Any, told: str):
    kind = hooks(on_record=lambda ctx, n: getattr(ctx, call)(given), on_timer=lambda ctx, at_ms: None)
    with pytest.raises(MisuseError, match=f"operator 'op': ctx.{call} got {told}"):
        processing(kind).feed("op", [1], now_ms=NOW_MS)


class Cleared:
    """Sets three timers for each record: one is cleared at once, and one when the first of them fires."""

    def on_record(self, ctx: Any, n: int) -> None:
        ctx.set_timer_in(30)
        ctx.set_timer_in(10)
        ctx.clear_timer(ctx.set_timer_in(0.5))

    def on_timer(self, ctx: Any, at_ms: float) -> None:
        ctx.emit((ctx.key, at_ms))
        ctx.clear_timer()


@pytest.mark.parametrize("first_ms", [10, 30])
def test_a_timer_that_was_cleared_does_not_fire_nor_keep_the_task_waiting(first_ms: int):
    tasks = processing(Cleared, key=lambda n: n)
    tasks.feed("op", [1, 2])
    home = tasks.home("op")
    assert home.next_timer_ms == 10
    assert sorted(records_of(home.fire_timers(now_ms=first_ms))) == [(1, 10), (2, 10)]
    assert home.next_timer_ms is None


def test_a_timer_that_is_set_again_after_it_was_cleared_fires_once():
    class Again:
        def on_record(self, ctx: Any, n: int) -> None:
            for _ in range(5):
                ctx.clear_timer(ctx.set_timer_in(10))
            ctx.set_timer_in(10)

        def on_timer(self, ctx: Any, at_ms: float) -> None:
            ctx.emit(at_ms)

    tasks = processing(Again, key=lambda n: n)
    tasks.feed("op", [1])
    assert records_of(tasks.home("op").fire_timers(now_ms=50)) == [10]
    assert tasks.home("op").next_timer_ms is None


def test_a_cut_has_no_timers_that_were_cleared():
    tasks = processing(Cleared, key=lambda n: n)
    tasks.feed("op", [1])
    restored = Tasks(tasks.flow, restored=tasks.capture()).home("op")
    assert restored.next_timer_ms == 10
    assert records_of(restored.fire_timers(now_ms=50)) == [(1, 10)]


@pytest.mark.parametrize("call", ["set_timer", "set_timer_in"])
def test_a_timer_of_on_end_is_refused_since_it_would_never_fire(call: str):
    tasks = processing(hooks(on_end=lambda ctx: getattr(ctx, call)(50), on_timer=lambda ctx, at_ms: None))
    with pytest.raises(MisuseError, match=rf"ctx\.{call} in on_end"):
        tasks.home("op").end(now_ms=0)


def test_what_hooks_emit_goes_through_the_rest_of_the_chain_upstream_first():
    last = hooks(on_record=lambda ctx, n: ctx.emit(n), on_end=lambda ctx: ctx.emit(100))
    flow = Flow("chain")
    first = flow.read(Items([]), name="source").rebalance().process(last, name="op")
    first.map(lambda n: n + 1).process(last, name="second").rebalance().write(Collect(), name="sink")
    assert records_of(Tasks(flow).home("op").end(now_ms=0)) == [101, 100]


def test_keyed_state_is_the_value_of_the_current_key():
    class Count:
        def on_record(self, ctx: Any, word: str) -> None:
            ctx.state.set(ctx.state.get(0) + 1)
            if word.endswith("!"):
                ctx.state.clear()
            ctx.emit((ctx.key, ctx.state.get()))

    tasks = processing(Count, key=lambda word: word[0])
    found = records_of(tasks.feed("op", ["a", "b", "a", "a!", "a"]))
    assert found == [("a", 1), ("b", 1), ("a", 2), ("a", None), ("a", 1)]


def test_keys_goes_over_the_keys_that_have_a_value():
    class Totals:
        def on_record(self, ctx: Any, n: int) -> None:
            ctx.state.set(ctx.state.get(0) + n)

        def on_end(self, ctx: Any) -> None:
            for key in ctx.keys():  # noqa: SIM118  # ctx is no dict
                ctx.emit((key, ctx.key, ctx.state.get()))
                ctx.state.clear()
            ctx.emit(list(ctx.keys()))

    tasks = processing(Totals, key=lambda n: n % 2)
    tasks.feed("op", [1, 2, 3])
    assert records_of(tasks.home("op").end(0)) == [(1, 1, 4), (0, 0, 2), []]


def test_named_inputs_are_told_apart_and_keyed_each_in_its_own_way():
    join = hooks(on_record=lambda ctx, input, value: ctx.emit((input, ctx.key, value)))
    flow = Flow("join")
    orders = flow.read(Items([]), name="orders").key_by("id")
    users = flow.read(Items([]), name="users").key_by(lambda user: user[0])
    rates = flow.read(Items([]), name="rates").broadcast()
    joined = flow.process(join, orders=orders, users=users, rates=rates, name="op")
    joined.rebalance().write(Collect(), name="sink")
    tasks = Tasks(flow)
    assert records_of(tasks.feed("op", [{"id": 7}], input="orders")) == [("orders", 7, {"id": 7})]
    assert records_of(tasks.feed("op", [("ann", 7)], input="users")) == [("users", "ann", ("ann", 7))]
    assert records_of(tasks.feed("op", [0.5], input="rates")) == [("rates", None, 0.5)]


def test_side_outputs_go_their_own_way():
    class Late:
        outputs = ("good", "late")

        def on_record(self, ctx: Any, n: int) -> None:
            if n < 0:
                ctx.emit(n, output="late")
            else:
                ctx.emit(n)

    def both(stream: Any) -> dict[str, Any]:
        good = stream.process(Late, name="op")
        return {"kept": good, "late": good.side("late")}

    assert by_receiver(Tasks(flow_of(both)).feed("op", [1, -2, 3])) == {"kept/0": [1, 3], "late/0": [-2]}


def test_on_batch_sees_a_batch_and_where_it_is_keyed_the_records_of_one_key():
    class Sizes:
        def on_batch(self, ctx: Any, batch: list[int]) -> None:
            ctx.emit((ctx.key, batch))

    assert records_of(processing(Sizes).feed("op", [1, 2, 3])) == [(None, [1, 2, 3])]
    keyed = processing(Sizes, key=lambda n: n % 2)
    assert records_of(keyed.feed("op", [1, 2, 3])) == [(1, [1, 3]), (0, [2])]


def test_what_is_emitted_has_the_hops_of_the_record_it_came_from():
    twice = hooks(on_record=lambda ctx, n: [ctx.emit(n) for _ in range(n)])
    [(_, batch)] = processing(twice).feed("op", [2, 0, 1], hops=[4, 5, 6])
    assert (batch.records, batch.hops) == ([2, 2, 1], [4, 4, 6])


def test_what_a_class_counts_is_told_by_operator_and_begins_again_after_a_restore():
    def count(ctx: Any, n: int) -> None:
        ctx.counter("seen").add()
        ctx.counter("sum").add(np.float64(n))
        ctx.histogram("size").observe(n)

    tasks = processing(hooks(on_record=count))
    assert tasks.home("op").counted() == {}
    tasks.feed("op", [0, 2, 3, 70_000])
    found = tasks.home("op").counted()
    assert list(found) == ["op"] and json.loads(json.dumps(to_builtins(found["op"]))) == {
        "counters": {"seen": 4, "sum": 70_005.0},
        "histograms": {"size": {"count": 4, "sum": 70_005.0, "buckets": {"0.001": 1, "2.0": 1, "5.0": 1, "inf": 1}}},
    }
    restored = Tasks(tasks.flow, restored=tasks.capture())
    assert restored.home("op").counted() == {}


@every("kind", [np.uint8, np.int8, np.float16, np.float32])
def test_small_numbers_of_numpy_add_up_to_a_large_one(kind: Any):
    def count(ctx: Any, n: int) -> None:
        ctx.counter("sum").add(kind(n))
        ctx.histogram("size").observe(kind(n))

    tasks = processing(hooks(on_record=count))
    tasks.feed("op", [100] * 1_000)
    found = tasks.home("op").counted()["op"]
    assert (found.counters["sum"], found.histograms["size"].sum) == (100_000, 100_000)


@every("amount", [1e308, 10**400])
def test_a_sum_that_grows_beyond_a_float_stays_a_figure_of_a_status(amount: float):
    def count(ctx: Any, n: int) -> None:
        ctx.counter("sum").add(amount)
        ctx.histogram("size").observe(amount)

    tasks = processing(hooks(on_record=count))
    tasks.feed("op", [1, 2])
    found = tasks.home("op").counted()["op"]
    together = meters.added([found, found])
    assert msgspec.json.decode(msgspec.json.encode(together), type=type(together)) == together
    assert together.counters["sum"] == together.histograms["size"].sum == sys.float_info.max


@every(
    ("use", "complaint"),
    [
        (lambda ctx: ctx.counter("bad name"), r"operator 'op': ctx.counter\('bad name'\) has no usable name"),
        (lambda ctx: ctx.histogram(7), "no usable name"),
        (lambda ctx: ctx.counter("n").add(-1), "add got -1, but a counter only grows"),
        (lambda ctx: ctx.histogram("n").observe(float("nan")), "observe got nan"),
        (lambda ctx: ctx.counter("n").add(float("inf")), "add got inf"),
        (lambda ctx: [ctx.counter(f"n{number}") for number in range(60)], "one more than the 50"),
    ],
)
def test_what_cannot_be_counted_is_refused(use: Callable[[Any], Any], complaint: str):
    tasks = processing(hooks(on_record=lambda ctx, n: (use(ctx), None)[1]))
    with pytest.raises(MisuseError, match=complaint):
        tasks.feed("op", [1])


def test_a_record_that_has_waited_is_emitted_with_its_own_hops():
    waiting: list[Any] = []

    def swap(ctx: Any, n: int) -> None:
        waiting.append((n, ctx.hops))
        ctx.emit(-n)
        if n == 2:
            for record, hops in waiting:
                ctx.emit(record, hops=hops)

    tasks = processing(hooks(on_record=swap))
    tasks.feed("op", [7, 8], hops=[4, 9])
    [(_, batch)] = tasks.feed("op", [2, 3], hops=5)
    assert (batch.records, batch.hops) == ([-2, 7, 8, 2, -3], [5, 4, 9, 5, 5])


def test_hops_that_a_class_kept_in_an_array_are_hops_and_others_are_refused():
    tasks = processing(hooks(on_record=lambda ctx, n: ctx.emit(n, hops=np.int64(3))))
    [(_, batch)] = tasks.feed("op", [1, 2], hops=5)
    assert (batch.records, batch.hops, type(batch.hops)) == ([1, 2], 3, int)
    for hops in (1.5, "2", -1):
        tasks = processing(hooks(on_record=lambda ctx, n, hops=hops: ctx.emit(n, hops=hops)))
        with pytest.raises(MisuseError, match=rf"operator 'op': ctx.emit got hops={hops!r}.*ctx.hops"):
            tasks.feed("op", [1])


def test_a_record_whose_call_raised_takes_back_what_it_emitted_with_other_hops():
    def fail(ctx: Any, n: int) -> None:
        ctx.emit(n, hops=7 + n)
        1 // n

    tasks = Tasks(flow_of(lambda s: s.process(hooks(on_record=fail), name="op", on_error="dead_letter")))
    [(_, batch)] = tasks.feed("op", [0, 3], hops=1)
    assert (batch.records, batch.hops) == ([3], 10)


def test_what_a_timer_emits_has_the_hops_of_the_record_that_set_it_and_the_end_the_highest_of_all():
    tasks = processing(
        hooks(
            on_record=lambda ctx, n: ctx.set_timer(n),
            on_timer=lambda ctx, at_ms: ctx.emit(at_ms),
            on_end=lambda ctx: ctx.emit("end"),
        )
    )
    tasks.feed("op", [20, 10, 20], hops=[1, 3, 2])
    [(_, batch)] = tasks.home("op").fire_timers(now_ms=30)
    assert (batch.records, batch.hops) == ([10, 20, 20], [3, 1, 2])
    [(_, batch)] = tasks.home("op").end(now_ms=30)
    assert batch.hops == 3


def test_a_timer_set_twice_fires_once_and_one_set_when_firing_waits_for_the_next_time():
    again = hooks(
        on_record=lambda ctx, n: [ctx.set_timer(10) for _ in range(2)],
        on_timer=lambda ctx, at_ms: (ctx.emit((ctx.key, at_ms)), ctx.set_timer(at_ms)),
    )
    tasks = processing(again, key=lambda n: n)
    tasks.feed("op", [1])
    for _ in range(2):
        assert tasks.home("op").next_timer_ms == 10
        assert records_of(tasks.home("op").fire_timers(now_ms=10)) == [(1, 10)]


def test_timers_of_a_key_at_one_time_stay_distinct_if_their_records_went_round_differently_often():
    def fired(tasks: Tasks) -> list[int]:
        batches = [batch for _, batch in tasks.home("op").fire_timers(now_ms=10)]
        return [hops for batch in batches for hops in spread(batch.hops, len(batch))]

    delay = hooks(on_record=lambda ctx, n: ctx.set_timer(10), on_timer=lambda ctx, at_ms: ctx.emit(at_ms))
    tasks = processing(delay, key=lambda n: 0)
    tasks.feed("op", [7, 8, 9], hops=[0, 4, 0])
    states = tasks.capture()
    assert fired(tasks) == [0, 4]
    assert fired(tasks) == []
    assert fired(Tasks(tasks.flow, restored=states)) == [0, 4], "so it is after a restore"


def test_no_record_is_taken_for_one_that_went_round_more_often_since_another_woke_in_the_same_millisecond():
    class Wait:
        def on_record(self, ctx: Any, n: int) -> None:
            rounds = ctx.state.get({})
            ctx.state.set({**rounds, n: rounds.get(n, 0) + 1})
            ctx.set_timer(50)

        def on_timer(self, ctx: Any, at_ms: int) -> None:
            ctx.emit(at_ms)

    flow = Flow("delay")
    again = flow.loop("again", max_rounds=3)
    numbers = flow.read(Items([]), name="source").rebalance()
    waited = numbers.merge(again).key_by(lambda n: 0).process(Wait, name="op")
    again.feed(waited)
    waited.write(Collect(), name="sink")
    tasks = Tasks(flow)
    tasks.feed("op", [1, 2], hops=[0, 3])
    sent = [(c.edge, list(spread(b.hops, len(b)))) for c, b in tasks.home("op").fire_timers(now_ms=50)]
    assert [hops for edge, hops in sent if "again" not in edge and "sink" not in edge] == [[1]]


def test_the_context_knows_where_it_runs():
    where = hooks(on_record=lambda ctx, n: ctx.emit((ctx.task_index, ctx.parallelism, ctx.now, ctx.key, ctx.round)))
    tasks = processing(where, parallelism=2)
    assert records_of(tasks.feed("op", [1], index=1, now_ms=77)) == [(1, 2, 77, None, None)]


# -- misuse -------------------------------------------------------------------------------------------------------


IN_ON_START = {
    "ctx.emit": lambda ctx: ctx.emit(1),
    "ctx.set_timer": lambda ctx: ctx.set_timer(1),
    "ctx.now": lambda ctx: ctx.now,
}


@every(
    ("kind", "key", "told"),
    [
        (hooks(on_end=lambda ctx: ctx.state.get()), abs, r"uses ctx\.state where there is no key.*ctx\.keys\(\)"),
        (hooks(on_record=lambda ctx, record: list(ctx.keys())), None, "has no keys: call key_by"),
        (hooks(on_record=lambda ctx, record: ctx.emit(1, output="late")), None, r"'late' but has 'out'.*outputs = "),
        (hooks(on_record=lambda ctx, record: ctx.set_timer(1)), None, r"no on_timer\(ctx, at_ms\): add it"),
        (hooks(capture=lambda: 1), None, r"capture\(\) in its class but no restore\(state\): add it"),
        *((hooks(on_start=uses), None, f"uses {what} in on_start.*on_record") for what, uses in IN_ON_START.items()),
    ],
)
def test_misuse_of_the_context_or_of_hooks_is_refused_with_the_fix(kind: type[Any], key: Any, told: str):
    with pytest.raises(MisuseError, match=f"operator 'op'.*{told}"):
        tasks = processing(kind, key)
        tasks.feed("op", [1])
        Tasks(tasks.flow, restored=tasks.capture())
        tasks.home("op").fire_timers(now_ms=10)
        tasks.home("op").end(now_ms=10)


def test_what_an_instance_has_opened_is_closed_with_its_task(capsys: pytest.CaptureFixture[str]):
    closed: list[str] = []

    class Opened:
        def on_record(self, ctx: Any, value: Any) -> None:
            ctx.emit(value)

        def close(self) -> None:
            closed.append("connection")
            raise OSError("the other side was faster")

    tasks = processing(Opened)
    tasks.feed("op", [1])
    tasks.home("op").close()
    assert closed == ["connection"]
    assert "OSError: the other side was faster in close" in capsys.readouterr().err

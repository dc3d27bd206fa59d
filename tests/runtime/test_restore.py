"""Whatever an operator holds comes back: a run that is restored goes on exactly as the one that was captured."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from backedge import Collect, Flow, Items, Stream
from backedge.engine.state.keyed_state import keyed_entries
from backedge.engine.state.split_own_state import move_whole
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.kinds import Answers
from backedge.graphs.routing import key_group
from backedge.graphs.task_errors import MisuseError
from backedge.recovery.cut.cut import OperatorState
from tests.runtime.tasks import Tasks, encoded, flow_of, records_of


class Windows:
    """Sums per key, sent by a timer; a random number is drawn for each record."""

    def on_record(self, ctx: Any, n: int) -> None:
        ctx.state.set(ctx.state.get(0) + n)
        ctx.set_timer(10 * n)
        ctx.emit((ctx.key, ctx.random.random()))

    def on_timer(self, ctx: Any, at_ms: int) -> None:
        ctx.emit((ctx.key, at_ms, ctx.state.get()))


class Unkeyed:
    """The same without a key: value and timers belong to the task."""

    def on_record(self, ctx: Any, n: int) -> None:
        ctx.state.set(ctx.state.get(0) + n)
        ctx.set_timer(10 * n)

    def on_timer(self, ctx: Any, at_ms: int) -> None:
        ctx.emit((at_ms, ctx.state.get()))


class Median:
    """Keeps its state in an attribute, and hands it over itself."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_record(self, ctx: Any, n: int) -> None:
        self.seen.append(n)
        ctx.emit(sorted(self.seen)[len(self.seen) // 2])

    def capture(self) -> list[int]:
        return self.seen

    def restore(self, state: list[int]) -> None:
        self.seen = state

    @staticmethod
    def merge(states: list[list[int]]) -> list[int]:
        return [n for state in states for n in state]

    @staticmethod
    def split(state: list[int], parts: int) -> list[list[int]]:
        return [state[part::parts] for part in range(parts)]


STEPS: dict[str, Callable[[Stream[int]], Stream[Any]]] = {
    "stateful_map": lambda s: s.key_by(lambda n: n % 3).stateful_map(lambda t, n: (t + n, t), initial=0, name="op"),
    "keyed process": lambda s: s.key_by(lambda n: n % 3).process(Windows, name="op"),
    "process without key": lambda s: s.process(Unkeyed, name="op"),
    "process with a capture of its own": lambda s: s.process(Median, name="op"),
}


@pytest.mark.parametrize("kind", STEPS)
def test_an_operator_with_state_goes_on_identically(kind: str):
    def go_on(tasks: Tasks) -> list[Any]:
        emitted = tasks.feed("op", [7, 2, 5, 1], now_ms=5) + tasks.home("op").fire_timers(now_ms=1000)
        return [(channel, batch.records, batch.hops) for channel, batch in emitted]

    flow = flow_of(STEPS[kind])
    tasks = Tasks(flow)
    tasks.feed("op", [9, 8, 9, 8])
    states = tasks.capture()
    expected = go_on(tasks)
    assert go_on(Tasks(flow, restored=states)) == expected
    assert go_on(Tasks(flow)) != expected


def test_timers_of_one_time_fire_in_the_same_order_after_a_restore():
    class Tick:
        def on_record(self, ctx: Any, n: int) -> None:
            ctx.set_timer(100)

        def on_timer(self, ctx: Any, at_ms: int) -> None:
            ctx.emit(ctx.key)

    flow = flow_of(lambda s: s.key_by(lambda n: n).process(Tick, name="op"))
    tasks = Tasks(flow)
    tasks.feed("op", list(range(50)))
    states = tasks.capture()
    assert Tasks(flow, restored=states).home("op").next_timer_ms == 100
    fired = records_of(tasks.home("op").fire_timers(100))
    assert sorted(fired) == list(range(50))
    assert records_of(Tasks(flow, restored=states).home("op").fire_timers(100)) == fired


def test_random_numbers_go_on_where_they_were_and_differ_between_tasks_and_seeds():
    class Draw:
        def on_record(self, ctx: Any, n: int) -> None:
            ctx.emit(ctx.random.random())

    flow = flow_of(lambda s: s.process(Draw, name="op"))
    tasks = Tasks(flow, parallelism=2)
    first = records_of(tasks.feed("op", [1]))
    states = tasks.capture()
    second = records_of(tasks.feed("op", [1]))
    assert records_of(Tasks(flow, parallelism=2, restored=states).feed("op", [1])) == second
    assert len({*first, *second, *records_of(tasks.feed("op", [1], index=1))}) == 3
    assert records_of(Tasks(flow, parallelism=2).feed("op", [1])) == first
    assert records_of(Tasks(flow, parallelism=2, seed=1).feed("op", [1])) != first


def test_calls_not_yet_answered_are_made_again_with_the_record_as_it_arrived():
    def spoil(record: dict[str, int]) -> dict[str, int]:
        record["a"] += 1
        return record

    flow = flow_of(lambda s: s.map_async(spoil, answers="again", name="op"))
    tasks = Tasks(flow)
    tasks.feed("op", [{"a": 1}, {"a": 2}, {"a": 3}], hops=[0, 1, 2])
    home = tasks.home("op")
    home.on_answer(1, "answered")
    function, record, *_ = home.call(2)
    function(record)
    states = tasks.capture()
    home = Tasks(flow, restored=states).home("op")
    assert [home.call(id).record for id in home.unanswered] == [{"a": 2}, {"a": 3}]
    assert [(b.records, b.hops) for _, b in home.on_answer(home.unanswered[1], "x")] == [(["x"], 2)]


def test_calls_of_a_run_that_kept_no_answers_wait_in_the_key_groups_of_their_records():
    def asking(answers: Answers) -> Flow:
        return flow_of(lambda s: s.key_by("a").map_async(dict, answers=answers, name="op"))

    tasks = Tasks(asking("again"))
    tasks.feed("op", records := [{"a": 1}, {"a": 2}, {"a": 3}])
    runtime = Tasks(asking("kept"), restored=tasks.capture()).home("op")
    asked = [runtime.question(call_id) for call_id in runtime.unanswered]
    groups = [key_group(of[1].key) for of in asked if of is not None]
    assert groups == [key_group(record["a"]) for record in records]


def test_calls_of_a_run_that_kept_answers_are_made_again_by_one_that_does_not():
    def asking(answers: Answers) -> Flow:
        return flow_of(lambda s: s.key_by("a").map_async(dict, answers=answers, name="op"))

    tasks = Tasks(asking("kept"))
    tasks.feed("op", [{"a": 1}, {"a": 2}], hops=[0, 3])
    restored = Tasks(asking("again"), restored=tasks.capture())
    home = restored.home("op")
    calls = {home.call(id).record["a"]: id for id in home.unanswered}
    assert calls.keys() == {1, 2}
    assert [batch.hops for _, batch in home.on_answer(calls[2], "x")] == [3]
    # A cut of what has changed says that nothing is kept by key any more.
    state: Any = home._wiring.operators["op"].keyed_state  # pyright: ignore[reportPrivateUsage]
    state.begin(Epoch(1))
    changes = encoded(home.capture(Epoch(2), Attempt(2), Epoch(1)))["op"]
    found = keyed_entries(changes)
    assert (found.values, len(found.gone), len(changes.pending)) == ({}, 2, 1)


def test_a_source_reads_on_where_it_was():
    flow = written(Items([1, 2, 3, 4, 5, 6, 7]))
    tasks = Tasks(flow, parallelism=2)
    tasks.home("source", 0).produce(3, now_ms=0)
    tasks.home("source", 1).produce(1, now_ms=0)
    restored = Tasks(flow, parallelism=2, restored=tasks.capture())
    read = [sorted(records_of(restored.home("source", index).produce(10, now_ms=0))) for index in (0, 1)]
    assert read == [[7], [4, 6]]
    assert all(restored.home("source", index).exhausted for index in (0, 1))


def test_a_source_restored_without_splits_reads_nothing():
    flow = written(Items([1, 2]))
    states = {id: dict.fromkeys(of_task, OperatorState()) for id, of_task in Tasks(flow).capture().items()}
    home = Tasks(flow, restored=states).home("source")
    assert home.exhausted
    assert home.produce(10, now_ms=0) == []


def test_a_rebalance_deals_on_where_it_was():
    flow = Flow("deal")
    stream = flow.read(Items([]), name="source").rebalance().map(abs, name="op", parallelism=1)
    stream.rebalance().write(Collect(), name="sink", parallelism=3)
    tasks = Tasks(flow)
    tasks.feed("op", [1, 2])
    restored = Tasks(flow, restored=tasks.capture())
    assert [(c.receiver.index, b.records) for c, b in restored.feed("op", [3, 4])] == [(0, [4]), (2, [3])]


def test_what_an_iteration_has_gathered_comes_back_with_its_hops_and_measure():
    flow = Flow("rounds")
    start = flow.read(Items([]), name="source").rebalance()
    flow.iterate(
        start, lambda s: s.map(lambda n: n + 1, name="body"), until=lambda total: total > 100, measure=abs, name="head"
    ).write(Collect(), name="sink")
    tasks = Tasks(flow)
    tasks.feed("body", [1, 2], hops=[4, 5])
    tasks.feed("head", [2, 3], hops=[5, 6], input="returned")
    restored = Tasks(flow, restored=tasks.capture())
    assert [(b.records, b.hops) for _, b in restored.home("head").release_round()] == [([2, 3], [5, 6])]
    assert restored.home("body").take_contributions("head") == 5
    assert restored.home("body").take_contributions("head") is None


def test_the_round_comes_back():
    class Rounds:
        def on_record(self, ctx: Any, n: int) -> None:
            ctx.emit(ctx.round)

    flow = Flow("rounds")
    start = flow.read(Items([]), name="source")
    flow.iterate(start, lambda s: s.process(Rounds, name="op"), rounds=9, name="head").write(Collect())
    tasks = Tasks(flow)
    assert records_of(tasks.feed("op", [1])) == [(0,)]
    tasks.home("op").on_round_end((0,), now_ms=0)
    tasks.home("op").on_round_end((1,), now_ms=0)
    restored = Tasks(flow, restored=tasks.capture())
    assert records_of(restored.feed("op", [1])) == [(2,)]


def written(source: Any) -> Flow:
    flow = Flow("written")
    flow.read(source, name="source").rebalance().write(Collect(), name="sink")
    return flow


def test_a_sink_has_back_what_it_prepared_and_may_commit_it_again():
    flow = written(Items([]))
    tasks = Tasks(flow)
    tasks.feed("sink", ["a"])
    states = tasks.capture(epoch=1)
    [transaction] = tasks.home("sink").transactions
    assert (transaction.epoch, transaction.attempt) == (1, 1)
    tasks.home("sink").commit([transaction.name])
    assert tasks.home("sink").transactions == ()
    restored = Tasks(flow, restored=states, services=tasks.services)
    assert restored.home("sink").transactions == (transaction,)
    restored.home("sink").commit([transaction.name])
    restored.home("sink").commit([transaction.name])
    assert tasks.services.store.output("sink") == ["a"]


def test_what_was_prepared_stays_state_until_it_is_committed():
    tasks = Tasks(written(Items([])))
    home = tasks.home("sink")
    tasks.feed("sink", ["a"])
    tasks.capture(epoch=1)
    tasks.feed("sink", ["b"])
    [state] = encoded(home.capture(Epoch(2), Attempt(1))).values()
    assert [transaction.epoch for transaction in state.transactions] == [1, 2]
    assert [t.epoch for t in encoded(home.capture(Epoch(3), Attempt(1)))["sink"].transactions] == [1, 2]


def test_a_capture_restored_and_captured_again_is_the_same():
    flow = flow_of(STEPS["keyed process"])
    tasks = Tasks(flow)
    tasks.feed("op", list(range(100)))
    states = tasks.capture()
    # As text, because arrays do not compare as a whole.
    assert repr(Tasks(flow, restored=states).capture()) == repr(states)


def states_of(tasks: Tasks) -> list[OperatorState]:
    return [of_task["op"] for of_task in tasks.capture().values() if "op" in of_task]


def test_own_state_moves_to_another_number_of_tasks_by_split_and_merge():
    tasks = Tasks(flow_of(STEPS["process with a capture of its own"]), parallelism=2)
    tasks.feed("op", [1, 2], hops=3)
    tasks.feed("op", [3], index=1)
    states = states_of(tasks)
    assert all(state.whole_can_move for state in states)
    operator = tasks.deployment.plan.operators["op"]
    moved = move_whole(operator, [state.whole for state in states], 3)
    wholes = [pickle.loads(whole) for whole in moved if whole is not None]
    assert [whole["own"] for whole in wholes] == [[1], [2], [3]]
    assert [whole["hops_max"] for whole in wholes] == [3, 3, 3]


def test_what_tasks_have_paid_for_answers_is_added_up_for_another_number_of_tasks():
    operator = Tasks(flow_of(lambda s: s.map_async(abs, name="op"))).deployment.plan.operators["op"]
    wholes = [pickle.dumps({"paid": {"answers": number, "cost": 0.5}}) for number in (1, 2)]
    assert move_whole(operator, wholes, 3)[1:] == [None, None]
    (first, *_) = move_whole(operator, wholes, 3)
    assert pickle.loads(first or b"") == {"paid": {"answers": 3, "cost": 1.0}}


def test_a_split_that_gives_the_wrong_number_of_states_is_refused():
    class Halved(Median):
        @staticmethod
        def split(state: list[int], parts: int) -> list[list[int]]:
            return [state]

    tasks = Tasks(flow_of(lambda s: s.process(Halved, name="op")))
    [state] = states_of(tasks)
    with pytest.raises(MisuseError, match=r"operator 'op': split returned \[\[\]\] for 3 tasks: return a list of 3"):
        move_whole(tasks.deployment.plan.operators["op"], [state.whole], 3)


@pytest.mark.parametrize(
    ("kind", "can_move"),
    [("keyed process", True), ("process without key", False), ("process with a capture of its own", True)],
)
def test_a_state_says_whether_it_can_move(kind: str, can_move: bool):
    tasks = Tasks(flow_of(STEPS[kind]))
    tasks.feed("op", [1])
    [state] = states_of(tasks)
    assert state.whole_can_move is can_move

"""The plain interpreter, against results that one can work out by hand."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from backedge import Collect, Flow, Items, Stream
from backedge.engine.simulation import plain
from backedge.engine.simulation.plain import Result, reference
from backedge.engine.simulation.plain_operator import Wires, frozen
from backedge.engine.simulation.plain_rounds import PlainRounds
from backedge.engine.simulation.plain_task import ANY_TARGET, PlainTask
from backedge.engine.simulation.record import Ran
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, ChannelId, TaskId
from backedge.graphs.routing import key_group, task_of_group
from backedge.recovery.cut import OperatorState
from backedge.recovery.messages import Marker, encode_marker
from backedge.recovery.rounds import Phase, RoundsSnapshot
from tests.simulation.handmade import Down, batch, counting_down

FIRST = Attempt(1)


def read(flow: Flow, name: str = "in") -> Stream[Any]:
    return flow.read(Items[Any]([]), name=name)


def write(stream: Stream[Any], name: str = "out") -> None:
    stream.write(Collect(), name=name)


def result_of(flow: Flow, **inputs: Sequence[Any]) -> Result:
    return reference(flow.plan(), inputs)


def add(total: int, number: int) -> tuple[int, int]:
    return total + number, total + number


class Hold:
    """Keeps what comes until a timer, a round's end or the end."""

    def on_record(self, ctx: Any, number: int) -> None:
        held = ctx.state.get()
        if held is None:
            held = []
            ctx.state.set(held)
        held.append(number)

    def on_round_end(self, ctx: Any) -> None:
        self.let_go(ctx)

    def on_end(self, ctx: Any) -> None:
        self.let_go(ctx)

    def let_go(self, ctx: Any) -> None:
        keys = ctx.keys()
        for _ in keys:
            for number in ctx.state.get():
                ctx.emit(number)
            ctx.state.set([])


class Wake(Hold):
    def on_record(self, ctx: Any, number: int) -> None:
        super().on_record(ctx, number)
        ctx.set_timer(ctx.now + number)

    def on_timer(self, ctx: Any, at_ms: int) -> None:
        for number in ctx.state.get([]):
            ctx.emit((at_ms, number))
        ctx.state.clear()


class Rounds:
    """Passes on what comes, and tells at the end of each round which one it was."""

    outputs = ("out", "told")

    def on_record(self, ctx: Any, number: Any) -> None:
        ctx.emit(number)

    def on_round_end(self, ctx: Any) -> None:
        ctx.emit(ctx.round, "told")


# -- flows -------------------------------------------------------------------------------------------------------


def test_steps_one_after_the_other() -> None:
    flow = Flow()
    numbers = read(flow).map(lambda n: n + 1).flat_map(lambda n: [n] * n).filter(lambda n: n != 2)
    small, large = numbers.split(lambda n: n < 4)
    write(small.key_by(lambda n: n % 2).stateful_map(add, initial=0, name="sum"), "small")
    write(large.map_batches(lambda records: [-n for n in records]).map_async(abs, name="ask"), "large")
    result = result_of(flow, **{"in": [0, 1, 2, 3]})
    assert result.sinks == {"small": Counter({1: 1, 4: 1, 7: 1, 10: 1}), "large": Counter({4: 4})}
    assert result.states == {"sum": {1: 10}}


def test_records_and_values_are_never_shared() -> None:
    def grow(record: list[int]) -> list[int]:
        record.append(9)
        return record

    def keep(kept: list[int], record: list[int]) -> tuple[list[int], list[int]]:
        kept += record
        return kept, kept

    flow = Flow()
    lists = read(flow)
    write(lists.map(grow), "grown")
    write(lists, "as_it_was")
    write(lists.key_by(lambda record: 0).stateful_map(keep, initial=[0], name="keep").map(grow), "kept")
    given = [[1], [2]]
    result = result_of(flow, **{"in": given})
    assert given == [[1], [2]]
    assert result.sinks["grown"] == Counter({(1, 9): 1, (2, 9): 1})
    assert result.sinks["as_it_was"] == Counter({(1,): 1, (2,): 1})
    assert result.sinks["kept"] == Counter({(0, 1, 9): 1, (0, 1, 2, 9): 1})
    assert result.states["keep"] == {0: [0, 1, 2]}


def test_a_loop_goes_round_until_it_is_dry() -> None:
    result = reference(counting_down().plan(), {"in": [3, 1]})
    assert result.sinks == {"out": Counter({0: 2})}
    assert result.states == {"down": {"all": 7}}


def test_what_goes_round_too_often_is_a_dead_letter() -> None:
    flow = Flow()
    again = flow.loop("again", of=int, max_rounds=2)
    counted = read(flow).merge(again).key_by(lambda n: 0).process(Down, name="down")
    again.feed(counted)
    write(counted.side("done"))
    assert result_of(flow, **{"in": [3, 5]}).sinks == {"out": Counter({0: 1}), "again.dead_letters": Counter({2: 1})}


def test_a_call_that_raises_goes_to_the_dead_letters_with_what_it_was_called_with() -> None:
    def careless(record: list[int]) -> int:
        record.append(0)
        return 1 // record[0]

    flow = Flow()
    inverted = read(flow).map(careless, on_error="dead_letter", name="invert")
    write(inverted)
    write(inverted.dead_letters, "dead")
    assert result_of(flow, **{"in": [[1], [0]]}).sinks == {"out": Counter({1: 1}), "dead": Counter({(0,): 1})}


def test_timers_fire_and_end_hooks_run_after_everything_upstream() -> None:
    flow = Flow()
    write(
        read(flow).key_by(lambda n: 0).process(Wake, name="wake").key_by(lambda n: n[1] % 2).process(Hold, name="hold")
    )
    result = result_of(flow, **{"in": [4, 7, 6]})
    assert sum(result.sinks["out"].values()) == 3
    assert {number for _, number in result.sinks["out"]} == {4, 6, 7}
    assert result.states == {"wake": {}, "hold": {0: [], 1: []}}


def test_an_iteration_ends_by_its_count_by_its_measure_or_when_it_is_empty() -> None:
    def halved(**rule: Any) -> Counter[Any]:
        flow = Flow()
        write(flow.iterate(read(flow), lambda s: s.map(lambda n: n // 2).filter(bool), **rule))
        return result_of(flow, **{"in": [8, 9]}).sinks["out"]

    assert halved(rounds=2) == Counter({2: 2})
    assert halved(until=lambda total: total < 5, measure=int) == Counter({2: 2})
    assert halved(until=lambda most: most < 5, measure=int, reduce=max) == Counter({4: 2})
    assert halved() == Counter()


def test_an_inner_iteration_runs_in_every_round_and_hooks_see_the_path() -> None:
    flow = Flow()

    def hooked(stream: Stream[Any], name: str) -> Stream[Any]:
        told = stream.process(Rounds, name=f"{name}_hook")
        write(told.side("told"), name)
        return told

    def outer(stream: Stream[Any]) -> Stream[Any]:
        return flow.iterate(
            hooked(stream, "outer"), lambda s: hooked(s.map(lambda n: n + 1), "inner"), rounds=2, name="inside"
        )

    write(flow.iterate(read(flow), outer, rounds=2, name="outside"))
    result = result_of(flow, **{"in": [0]})
    assert result.sinks["out"] == Counter({4: 1})
    assert result.sinks["outer"] == Counter([(0,), (1,)])
    assert result.sinks["inner"] == Counter([(0, 0), (0, 1), (0,), (1, 0), (1, 1), (1,)])


def test_what_enters_an_iteration_beside_its_head_is_there_before_the_first_round() -> None:
    class Add:
        def on_record(self, ctx: Any, input: str, number: int) -> None:
            known = ctx.state.get(0)
            if input == "side":
                ctx.state.set(known + number)
            else:
                ctx.emit(number + known)

    flow = Flow()
    side = read(flow, "side")

    def body(stream: Stream[Any]) -> Stream[Any]:
        return flow.process(Add, main=stream.key_by(lambda n: 0), side=side.key_by(lambda n: 0), name="add")

    write(flow.iterate(read(flow), body, rounds=3))
    assert result_of(flow, **{"in": [1], "side": [10, 20]}).sinks["out"] == Counter({91: 1})


def test_a_flow_that_never_runs_dry_has_no_plain_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "STEPS_MAX", 100)
    flow = Flow()
    again = flow.loop("again", of=int, endless=True)
    looping = read(flow).merge(again).map(lambda n: n + 1)
    again.feed(looping)
    write(looping)
    with pytest.raises(RuntimeError, match="still runs after 100 steps"):
        result_of(flow, **{"in": [0]})


def test_frozen_records_are_equal_when_the_records_are() -> None:
    assert frozen({"a": [1, {2}], "b": 0}) == frozen({"b": 0, "a": [1, {2}]})
    assert frozen([1, [2]]) != frozen([1, [3]])


# -- one task ----------------------------------------------------------------------------------------------------


def task_of(flow: Flow, name: str, parallelism: int = 1, **inputs: Sequence[Any]) -> PlainTask:
    deployment = expand(flow.plan(), parallelism)
    return PlainTask(deployment.tasks[TaskId(name, 0)], deployment, inputs, Wires(deployment.plan))


def test_a_task_reads_its_split_and_sends_by_key_in_turn_and_to_all() -> None:
    flow = Flow()
    numbers = read(flow)
    write(numbers.key_by(lambda n: n).map(lambda n: n, name="keyed"), "a")
    write(numbers.rebalance().map(lambda n: n, name="dealt"), "b")
    write(numbers.broadcast().map(lambda n: n, name="all"), "c")
    source = task_of(flow, "in", 2, **{"in": [5, 6, 7, 8]})
    sent = source.run(Ran(FIRST, TaskId("in", 0), "produce", detail=1))
    keyed = "in.out->keyed.in", task_of_group(key_group(5), 2), 5, 0
    assert sent == Counter(
        [keyed, ("in.out->dealt.in", ANY_TARGET, 5, 0), ("in.out->all.in", 0, 5, 0), ("in.out->all.in", 1, 5, 0)]
    )
    assert source.state("in").positions == {"0-of-2": 1}
    sent = source.run(Ran(FIRST, TaskId("in", 0), "produce", detail=5))
    assert {record for _, _, record, _ in sent} == {7}


def test_a_task_takes_its_state_back_and_goes_on() -> None:
    task = task_of(counting_down(), "down")
    task.restore({"down": OperatorState(groups={key_group("all"): pickle.dumps(("all", 10), 5)})})
    channel = ChannelId("down.again->down.in", TaskId("down", 0), TaskId("down", 0))
    sent = task.run(Ran(FIRST, TaskId("down", 0), "batch", channel, batch(2, 1, hops=4)))
    assert sent == Counter([("down.again->down.in", 0, 1, 4)])
    assert task.state("down").values == {"all": 13}
    assert task.take_written() == {"out": [0]}
    assert task.take_written() == {}


def test_a_task_answers_fires_and_measures() -> None:
    flow = Flow()
    write(read(flow).rebalance().map_async(abs, name="ask").key_by(lambda n: 0).process(Wake, name="wake"))
    asking = task_of(flow, "ask")
    asking.restore({"ask": OperatorState(pending=(pickle.dumps((-3, 1), 5),))})
    with pytest.raises(LookupError, match="asked nobody about 7"):
        asking.run(Ran(FIRST, TaskId("ask", 0), "answer", payload=pickle.dumps(7)))
    sent = asking.run(Ran(FIRST, TaskId("ask", 0), "answer", payload=pickle.dumps(-3)))
    assert sent == Counter([("ask.out->wake.in", 0, 3, 1)])
    assert not asking.state("ask").waiting
    waking = task_of(flow, "wake")
    waking.run(
        Ran(FIRST, TaskId("wake", 0), "batch", ChannelId("ask.out->wake.in", *2 * [TaskId("", 0)]), batch(3), None, 40)
    )
    assert waking.state("wake").timers == Counter([(43, 0, 0)])
    waking.run(Ran(FIRST, TaskId("wake", 0), "timer", now_ms=42))
    assert waking.take_written() == {}
    waking.run(Ran(FIRST, TaskId("wake", 0), "timer", now_ms=43))
    assert waking.take_written() == {"out": [(43, 3)]}


def test_a_head_gathers_and_releases_and_what_is_sent_back_is_measured() -> None:
    flow = Flow()
    write(flow.iterate(read(flow), lambda s: s.map(lambda n: n + 1, name="more"), rounds=2, name="head"))
    head, more = task_of(flow, "head"), task_of(flow, "more")
    back = ChannelId("more.out->head.returned", TaskId("more", 0), TaskId("head", 0))
    body = ChannelId("head.body->more.in", TaskId("head", 0), TaskId("more", 0))
    assert more.run(Ran(FIRST, TaskId("more", 0), "batch", body, batch(1, 2))) == Counter(
        [("more.out->head.returned", 0, 2, 0), ("more.out->head.returned", 0, 3, 0)]
    )
    assert (more.take_measured("head"), more.take_measured("head")) == (2, None)
    assert not head.run(Ran(FIRST, TaskId("head", 0), "batch", back, batch(2, 3, hops=1)))
    assert head.state("head").waiting == Counter({(2, 1): 1, (3, 1): 1})
    sent = head.run(Ran(FIRST, TaskId("head", 0), "release_result"))
    assert {edge for edge, _, _, _ in sent} == {"head.result->out.in"}


# -- the rounds of a task ----------------------------------------------------------------------------------------


def rounds_of_body() -> tuple[PlainRounds, ChannelId]:
    flow = Flow()
    write(flow.iterate(read(flow), lambda s: s.map(lambda n: n, name="more"), rounds=2, name="head"))
    task = expand(flow.plan(), 1).tasks[TaskId("more", 0)]
    return PlainRounds(task, None), task.inputs[0].id


def snapshot(current: int, given: dict[ChannelId, Any], aside: dict[ChannelId, Any]) -> RoundsSnapshot:
    return RoundsSnapshot((current,), Phase.ROUND, (), given, aside, {}, {}, False)


def test_what_is_set_aside_is_the_end_of_what_was_taken() -> None:
    rounds, channel = rounds_of_body()
    marker, later = encode_marker(Marker((0,))), batch(1)
    rounds.took(channel, marker)
    rounds.took(channel, later)
    assert list(rounds.differences(snapshot(0, {channel: (0,)}, {channel: (later,)}))) == []
    assert list(rounds.differences(snapshot(0, {}, {channel: (marker, later)}))) == []
    lost = list(rounds.differences(snapshot(0, {channel: (0,)}, {})))
    assert lost == [f"channel {channel}: a batch was taken, and is neither processed nor set aside"]
    other = list(rounds.differences(snapshot(0, {channel: (0,)}, {channel: (batch(2),)})))
    assert "which are not the last" in other[0]


def test_a_marker_that_was_taken_counts_until_its_round_is_over() -> None:
    rounds, channel = rounds_of_body()
    rounds.took(channel, encode_marker(Marker((0,))))
    assert "neither given nor set aside" in next(rounds.differences(snapshot(0, {}, {})))
    rounds.round_ended((0,))
    assert list(rounds.differences(snapshot(1, {}, {}))) == []
    assert "where the trace is in (1,)" in next(rounds.differences(snapshot(0, {}, {})))
    assert "the trace says" in next(rounds.differences(snapshot(1, {channel: (1,)}, {})))


def test_contributions_are_those_of_the_markers_that_were_given() -> None:
    rounds, channel = rounds_of_body()
    contributions = ((TaskId("more", 0), 3),)
    rounds.took(channel, encode_marker(Marker((0,), contributions)))
    given = snapshot(0, {channel: (0,)}, {})
    assert "contributions {}" in next(rounds.differences(given))
    united = RoundsSnapshot((0,), Phase.ROUND, (), {channel: (0,)}, {}, dict(contributions), {}, False)
    assert list(rounds.differences(united)) == []

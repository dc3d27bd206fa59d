"""The plain interpreter, against results that one can work out by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from backedge import Collect, Flow, Items, Stream
from backedge.engine.simulation.checker.payloads import frozen
from backedge.graphs.expansion import expand
from backedge.graphs.ids import ChannelId, TaskId
from backedge.recovery.protocol.messages import Marker, encode_marker
from backedge.recovery.protocol.rounds import Phase, RoundsSnapshot
from proof.plain import interpreter
from proof.plain.interpreter import Result, reference
from proof.plain.plain_rounds import PlainRounds
from tests.simulation.handmade import Down, batch


def read(flow: Flow, name: str = "in") -> Stream[Any]:
    return flow.read(Items[Any]([]), name=name)


def write(stream: Stream[Any], name: str = "out") -> None:
    stream.write(Collect(), name=name)


def result_of(flow: Flow, **inputs: Sequence[Any]) -> Result:
    return reference(flow.plan(), inputs)


def add(total: int, number: int) -> tuple[int, int]:
    return total + number, total + number


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


def test_a_flow_that_never_runs_dry_has_no_plain_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "STEPS_MAX", 100)
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

"""Each loop counts its own rounds; those within another begin at zero with each round of the outer one."""

from __future__ import annotations

import pytest

from backedge import Collect, Flow, Items, simulate
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.hops import HOPS_MAX, Digit, Trip

Step = tuple[int, ...]


def count(record: Step, place: int) -> Step:
    return (*record[:place], record[place] + 1, *record[place + 1 :])


def is_done(place: int, rounds: int):
    return lambda record: record[place] > rounds


def loop_of(flow: Flow, records, name: str, place: int, *, needs: int, limit: int):
    """Counts up at `place` until a record has gone round `needs` times."""
    again = flow.loop(name, of=tuple, max_rounds=limit)
    stepped = records.merge(again).map(lambda record: count(record, place), name=f"{name}_step")
    done, rest = stepped.split(is_done(place, needs), name=f"{name}_done")
    again.feed(rest)
    again.dead_letters.write(Collect(), name=f"{name}_dead")
    return done


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first_limit", "second_limit", "done", "dead"), [(4, 3, [(5, 4)], []), (9, 2, [], [(5, 3)])], ids=["all", "dead"]
)
def test_loops_one_behind_the_other_count_apart_and_have_their_own_dead_letters(
    first_limit: int, second_limit: int, done: list[Step], dead: list[Step]
):
    flow = Flow("in_a_row")
    first = loop_of(flow, flow.read(Items([(0, 0)]), name="start"), "first", 0, needs=4, limit=first_limit)
    loop_of(flow, first, "second", 1, needs=3, limit=second_limit).write(Collect(), name="done")
    assert simulate(flow, seeds=range(6)).outputs == {"done": done, "first_dead": [], "second_dead": dead}


@pytest.mark.slow
def test_a_loop_within_another_begins_at_zero_each_time():
    flow = Flow("nested")
    outer = flow.loop("outer", of=tuple, max_rounds=3)
    entered = flow.read(Items([(0, 0)]), name="start").merge(outer).map(lambda record: (record[0], 0), name="enter")
    counted = loop_of(flow, entered, "inner", 1, needs=2, limit=2).map(lambda record: count(record, 0), name="count")
    done, rest = counted.split(is_done(0, 3), name="enough")
    outer.feed(rest)
    done.write(Collect(), name="done")
    found = simulate(flow, seeds=range(6)).outputs
    assert found["done"] == [(4, 3)], "4 passes of the outer loop, each with 2 rounds of the inner one"
    assert found["inner_dead"] == found["outer.dead_letters"] == []


@pytest.mark.slow
def test_a_loop_counts_apart_from_an_iteration_in_front_of_it():
    flow = Flow("behind_an_iteration")
    rounds = flow.iterate(flow.read(Items([(0,)]), name="start"), lambda s: s.map(lambda r: r), rounds=9, name="rounds")
    loop_of(flow, rounds, "loop", 0, needs=2, limit=2).write(Collect(), name="done")
    assert simulate(flow, seeds=range(6)).outputs == {"done": [(3,)], "loop_dead": []}


def test_what_a_record_is_made_into_has_made_as_many_rounds():
    flow = Flow("doubling")
    again = flow.loop("again", of=int, max_rounds=3)
    both = flow.read(Items([1]), name="one").merge(again).flat_map(lambda n: [2 * n, 2 * n + 1], name="two_of_each")
    again.feed(both)
    again.dead_letters.write(Collect(), name="leaves")
    assert simulate(flow, seeds=range(10)).outputs["leaves"] == list(range(16, 32))


@pytest.mark.slow
def test_loops_with_a_common_head_count_all_of_their_own_trips():
    flow = Flow("common_head")
    odd, even = flow.loop("odd", of=int, max_rounds=5), flow.loop("even", of=int, max_rounds=5)
    stepped = flow.read(Items([0]), name="zero").merge(odd).merge(even).map(lambda n: n + 1, name="step")
    done, rest = stepped.split(lambda n: n > 10, name="is_done")
    of_odd, of_even = rest.split(lambda n: n % 2 == 1, name="is_odd")
    odd.feed(of_odd)
    even.feed(of_even)
    done.write(Collect(), name="done")
    assert simulate(flow, seeds=range(6)).outputs["done"] == [11]


def test_a_trip_adds_to_its_own_digit_and_clears_those_within():
    outer, inner = Digit(1, 4), Digit(4, 3)
    hops = Trip(inner, ()).after(Trip(inner, ()).after(0))
    assert (outer.of(hops), inner.of(hops)) == (0, 2)
    hops = Trip(outer, (inner,)).after(hops)
    assert (outer.of(hops), inner.of(hops)) == (1, 0)


def test_limits_that_multiply_to_more_than_can_be_counted_are_refused():
    flow = Flow("boundless")
    flow.loop("first", of=int, max_rounds=2**40)
    with pytest.raises(BadOptionError, match=r"loop 'second'.* 2 loops .*max_rounds"):
        flow.loop("second", of=int, max_rounds=2**40)
    flow.loop("third", of=int, max_rounds=HOPS_MAX // 2**41)

"""A loop that could not run, not end, or not mean what it says is refused; loop, edge and fix are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from graphs import (
    BadOptionError,
    Collect,
    DuplicateNameError,
    Edge,
    FedTwiceError,
    Flow,
    Generate,
    GraphError,
    Items,
    IterationError,
    Kind,
    Loop,
    LoopError,
    NoCycleError,
    NothingEntersError,
    NoWayOutError,
    OpenLoopError,
    Operator,
    Plan,
    Stream,
    UnknownOutputError,
    UnnamedCycleError,
    UnreadLoopError,
    check,
)


def message(error: type[GraphError], action: Callable[[], object]) -> str:
    with pytest.raises(error) as caught:
        action()
    return str(caught.value)


def flow_of_numbers() -> tuple[Flow, Stream[Any]]:
    flow = Flow("flow")
    return flow, flow.read(Items([1, 2, 3]), name="numbers")


def start(**options: Any) -> tuple[Flow, Stream[Any], Loop[Any]]:
    """A flow with a source and a loop that is still open."""
    flow, numbers = flow_of_numbers()
    return flow, numbers, flow.loop("again", **options)


def plain_plan(*names: str) -> Plan:
    """A plan of filters, its edges given as "a>b", and those of the loop again as "b>>a"."""
    edges: list[Edge] = []
    for name in names:
        sender, _, receiver = name.partition(">")
        loop = "again" if receiver.startswith(">") else None
        edges.append(Edge(name, sender, "out", receiver.lstrip(">"), "in", loop=loop))
    ends = {end for edge in edges for end in (edge.sender, edge.receiver)}
    return Plan("flow", {end: Operator(end, Kind.FILTER) for end in sorted(ends)}, tuple(edges), "")


def test_loop_that_is_never_fed():
    flow, numbers, again = start()
    numbers.merge(again).write(Collect())
    assert message(OpenLoopError, flow.plan) == (
        "loop 'again' is never fed: call feed(stream) on it, with the stream that comes round"
    )


def test_loop_that_is_fed_twice_keeps_its_first_stream():
    flow, numbers, again = start()
    first = numbers.merge(again).filter(bool, name="f")
    again.feed(first)
    assert message(FedTwiceError, lambda: again.feed(first.map(abs))) == (
        "loop 'again' is fed twice: merge the two streams and feed the merged one"
    )
    first.write(Collect())
    assert [edge.sender for edge in flow.plan().edges if edge.is_back] == ["f"]


def test_loop_that_nobody_reads():
    flow, numbers, again = start()
    again.feed(numbers.filter(bool))
    numbers.write(Collect())
    assert message(UnreadLoopError, flow.plan) == (
        "loop 'again' is fed and nobody reads it: merge it into the stream that its records come back to"
    )


def test_loop_that_is_fed_with_an_open_end():
    flow, _, again = start()
    assert "loop 'again' is fed with the open end of a loop" in message(LoopError, lambda: again.feed(again))
    assert "put an operator in between" in message(LoopError, lambda: again.feed(flow.loop("other")))


def test_loop_that_is_fed_from_outside():
    flow, numbers, again = start()
    numbers.merge(again).filter(bool, name="f").write(Collect())
    again.feed(numbers)
    assert message(NoCycleError, flow.plan) == (
        "loop 'again' closes no cycle by edge 'numbers.out->f.in#2': nothing comes back from 'f' to 'numbers': "
        "read the stream that is fed instead of the loop, or feed what comes from the loop"
    )


def test_loop_that_is_read_where_nothing_leads_back():
    flow, numbers, again = start()
    passed = numbers.merge(again).filter(bool, name="f")
    again.feed(passed)
    again.write(Collect(), name="seen")
    assert "closes no cycle by edge 'f.out->seen.in'" in message(NoCycleError, flow.plan)


def test_cycle_without_a_back_edge_in_a_plan_made_by_hand():
    assert message(UnnamedCycleError, lambda: check(plain_plan("s>a", "a>b", "b>a", "b>z"))) == (
        "operators 'a', 'b' form a cycle without a back edge, whose channels could wait for each other for good: "
        "close it through flow.loop(name) and feed"
    )


def test_cycle_through_dead_letters_needs_a_loop_of_its_own():
    flow, numbers, again = start(max_rounds=2)
    passed = numbers.merge(again, again.dead_letters).filter(bool, name="f")
    again.feed(passed)
    passed.write(Collect())
    assert "operators 'f' form a cycle without a back edge" in message(UnnamedCycleError, flow.plan)


def test_loop_that_nothing_enters():
    flow, numbers, again = start()
    numbers.write(Collect())
    circle = again.filter(bool, name="f")
    again.feed(circle)
    circle.write(Collect())
    assert message(NothingEntersError, flow.plan) == (
        "loop 'again' is entered by no record, so nothing would ever go round: "
        "merge a stream that comes from a source into one of 'f'"
    )


def test_loop_that_nothing_can_leave():
    flow, numbers, again = start()
    again.feed(numbers.merge(again).filter(bool))
    numbers.write(Collect())
    assert message(NoWayOutError, flow.plan) == (
        "loop 'again' has no way out: give it max_rounds=, or let a stream leave it, "
        "or declare it endless=True if it shall never run dry"
    )


def test_dead_letters_of_failed_calls_are_no_way_out():
    flow, numbers, again = start()
    circle = numbers.merge(again).filter(bool, on_error="dead_letter")
    again.feed(circle)
    circle.dead_letters.write(Collect())
    assert "loop 'again' has no way out" in message(NoWayOutError, flow.plan)


def test_copies_that_leave_are_no_way_out_for_what_goes_round_for_good():
    flow, numbers, again = start()
    circle = numbers.merge(again).map(abs, name="a").map(abs, name="b")
    again.feed(circle)
    circle.write(Collect())
    assert message(NoWayOutError, flow.plan) == (
        "loop 'again' has no way out: its records pass 'a', 'b', one comes back for each, and so on: "
        "give it max_rounds=, declare it endless=True, or split or filter the stream that is fed"
    )


@pytest.mark.parametrize("options", [{"max_rounds": 3}, {"max_rounds": 3, "on_limit": "fail"}, {"endless": True}])
def test_limit_is_a_way_out_and_an_endless_loop_needs_none(options: dict[str, Any]):
    flow, numbers, again = start(**options)
    again.feed(numbers.merge(again).map(abs))
    numbers.write(Collect())
    assert flow.plan().edges


def test_way_out_of_the_outer_loop_is_none_for_the_inner_one():
    flow = Flow("flow")
    outer, inner = flow.loop("outer", max_rounds=2), flow.loop("inner")
    circle = flow.read(Items([1])).merge(outer, inner).map(abs, name="a")
    inner.feed(circle)
    outer.feed(circle)
    circle.write(Collect())
    assert "loop 'inner' has no way out" in message(NoWayOutError, flow.plan)


def test_endless_loop_with_a_limit_contradicts_itself():
    assert message(BadOptionError, lambda: start(endless=True, max_rounds=3)) == (
        "loop 'again' is endless and has max_rounds=3, which ends it: leave out one of them"
    )


def test_limits_are_checked():
    assert "loop 'again' has max_rounds=0: give an integer of at least 1" in message(
        BadOptionError, lambda: start(max_rounds=0)
    )
    assert "loop 'again' has on_limit=\"fail\" and no limit: give it max_rounds=" in message(
        BadOptionError, lambda: start(on_limit="fail")
    )
    assert "on_limit='drop': give one of 'dead_letter', 'fail'" in message(
        BadOptionError, lambda: start(max_rounds=1, on_limit="drop")
    )


def test_two_loops_of_one_name():
    flow, _, _ = start()
    assert "already has a loop of that name" in message(DuplicateNameError, lambda: flow.loop("again"))


@pytest.mark.parametrize("options", [{}, {"max_rounds": 2, "on_limit": "fail"}])
def test_dead_letters_of_a_loop_without_any(options: dict[str, Any]):
    _, _, again = start(**options)
    assert message(UnknownOutputError, lambda: again.dead_letters) == (
        "loop 'again' has no dead letters: give it max_rounds= and on_limit=\"dead_letter\""
    )


def test_iteration_over_an_unbounded_source():
    flow = Flow("flow")
    flow.iterate(flow.read(Generate(abs), name="ticks"), lambda s: s.filter(bool)).write(Collect())
    assert message(IterationError, flow.plan) == (
        "iteration 'iterate' never has all of its input, for source 'ticks' is unbounded: "
        "iterate over a bounded source, or use flow.loop"
    )


def test_iteration_behind_an_endless_loop():
    flow, numbers, again = start(endless=True)
    circle = numbers.merge(again).map(abs)
    again.feed(circle)
    flow.iterate(circle, lambda s: s.filter(bool)).write(Collect())
    assert "for loop 'again' is endless" in message(IterationError, flow.plan)


def test_unbounded_source_beside_the_start_of_an_iteration():
    flow, numbers = flow_of_numbers()
    ticks = flow.read(Generate(abs), name="ticks")
    flow.iterate(numbers, lambda s: s.merge(ticks).filter(bool), name="i").write(Collect())
    assert "iteration 'i' never has all of its input, for source 'ticks' is unbounded" in message(
        IterationError, flow.plan
    )


def test_free_loop_inside_the_body_of_an_iteration():
    flow = Flow("flow")

    def body(stream: Stream[int]) -> Stream[int]:
        again = flow.loop("again")
        done, more = stream.merge(again).split(lambda n: n > 0)
        again.feed(more)
        return done

    flow.iterate(flow.read(Items([1])), body, rounds=2, name="i").write(Collect())
    assert message(IterationError, flow.plan) == (
        "the free-running loop 'again' is inside the body of iteration 'i', whose rounds would not know when it has "
        "run dry: make it an iteration inside the body, with flow.iterate"
    )


def test_iteration_inside_a_free_loop():
    flow, numbers, again = start()
    result = flow.iterate(numbers.merge(again), lambda s: s.filter(bool), name="i")
    done, more = result.split(lambda n: n > 0)
    again.feed(more)
    done.write(Collect())
    assert message(IterationError, flow.plan) == (
        "iteration 'i' runs inside the free-running loop 'again', where its start is never complete: "
        "make the outer loop an iteration too, or do the inner rounds with a loop and max_rounds="
    )


def test_inner_iteration_that_starts_from_outside():
    flow, numbers = flow_of_numbers()

    def body(stream: Stream[int]) -> Stream[int]:
        inner = flow.iterate(numbers, lambda s: s.filter(bool), name="inner")
        return stream.merge(inner).filter(bool)

    flow.iterate(numbers, body, name="outer").write(Collect())
    assert message(IterationError, flow.plan) == (
        "iteration 'inner' is written inside the body of 'outer' and starts with a stream of 'numbers', from outside, "
        "so that it would run once and not once a round: start it with a stream that comes from the body's argument, "
        "or write it before the outer iteration"
    )


def test_inner_iteration_that_starts_from_outside_and_runs_inside():
    flow, numbers = flow_of_numbers()

    def body(stream: Stream[int]) -> Stream[int]:
        return flow.iterate(numbers, lambda s: s.merge(stream).filter(bool), name="inner")

    flow.iterate(numbers, body, name="outer").write(Collect())
    assert message(IterationError, flow.plan) == (
        "iterations 'outer' and 'inner' run inside of each other, and not exactly one of them starts from outside: "
        "start the inner one with a stream that comes from the enclosing body's argument"
    )


def test_body_that_returns_a_stream_from_outside():
    flow, numbers = flow_of_numbers()
    flow.iterate(numbers, lambda s: numbers.filter(bool, name="f"), name="i").write(Collect())
    assert message(NoCycleError, flow.plan) == (
        "the body of iteration 'i' returns a stream of 'f', which does not come from the body's argument: "
        "apply operators to the argument, and merge other streams in before one of them"
    )


def test_body_that_returns_nothing_or_an_open_end():
    flow, numbers, again = start()
    nothing: Any = lambda s: None  # noqa: E731
    assert "what the body of iteration 'i' returns is given None, which is no stream" in message(
        BadOptionError, lambda: flow.iterate(numbers, nothing, name="i")
    )
    assert "the body of iteration 'j' returns the open end of a loop: return the stream that feeds it" in message(
        IterationError, lambda: flow.iterate(numbers, lambda s: again, name="j")
    )


def test_iteration_without_a_rule_whose_rounds_are_never_empty():
    flow, numbers = flow_of_numbers()
    flow.iterate(numbers, lambda s: s.map(abs, name="a"), name="i").write(Collect())
    assert message(NoWayOutError, flow.plan) == (
        "loop 'i' has no way out: its records pass 'i', 'a', one comes back for each, and so on: "
        "give it rounds= or until=, or split or filter the stream that is fed"
    )


def test_rules_of_an_iteration_are_checked():
    flow, numbers = flow_of_numbers()
    assert "iteration 'i' has rounds=0: give an integer of at least 1" in message(
        BadOptionError, lambda: flow.iterate(numbers, lambda s: s, rounds=0, name="i")
    )
    assert "iteration 'i' measures records and asks nobody: give it until=" in message(
        BadOptionError, lambda: flow.iterate(numbers, lambda s: s, measure=abs, name="i")
    )


def test_two_iterations_of_the_default_name():
    flow, numbers = flow_of_numbers()
    flow.iterate(numbers, lambda s: s.filter(bool))
    assert "already has an operator of that name (iterate)" in message(
        DuplicateNameError, lambda: flow.iterate(numbers, lambda s: s.filter(bool))
    )


def test_plan_made_by_hand_with_a_named_cycle_passes():
    assert [loops.name for loops in check(plain_plan("s>a", "a>b", "b>>a", "b>z")).loops] == ["again"]
    assert "closes no cycle" in message(NoCycleError, lambda: check(plain_plan("s>a", "s>b", "b>>a", "b>z")))

"""A loop that could not run, not end, or not mean what it says is refused; loop, edge and fix are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from backedge import (
    BadOptionError,
    Collect,
    DuplicateNameError,
    Edge,
    FedTwiceError,
    Flow,
    Generate,
    Items,
    IterationError,
    JsonLines,
    Loop,
    LoopError,
    NoCycleError,
    NothingEntersError,
    NoWayOutError,
    OpenLoopError,
    Plan,
    Stream,
    UnknownOutputError,
    UnnamedCycleError,
    UnreadLoopError,
)
from backedge.graphs.checks import check
from backedge.graphs.kinds import Filter
from backedge.graphs.plan import Operator
from tests.graphs.refusals import refuses


def flow_of_numbers() -> tuple[Flow, Stream[Any]]:
    flow = Flow("flow")
    return flow, flow.read(Items([1, 2, 3]), name="numbers")


def start(**options: Any) -> tuple[Flow, Stream[Any], Loop[Any]]:
    """A flow with a source and a loop that is still open."""
    flow, numbers = flow_of_numbers()
    return flow, numbers, flow.loop("again", **options)


def in_circle(step: Callable[[Stream[Any]], Stream[Any]], *, read_by: Any = "circle", **options: Any) -> Flow:
    """A flow whose loop feeds all that the step makes back; a sink reads what goes round, or the numbers."""
    flow, numbers, again = start(**options)
    circle = step(numbers.merge(again))
    again.feed(circle)
    (circle if read_by == "circle" else numbers).write(Collect())
    return flow


def iterating(body: Callable[[Flow, Stream[Any], Stream[Any]], Stream[Any]], **options: Any) -> Flow:
    """A flow with an iteration over its numbers; the body gets the flow, the numbers, and what comes into it."""
    flow, numbers = flow_of_numbers()
    flow.iterate(numbers, lambda stream: body(flow, numbers, stream), **options).write(Collect())
    return flow


def plain_plan(*names: str) -> Plan:
    """A plan of filters, its edges given as "a>b", and those of the loop again as "b>>a"."""
    edges: list[Edge] = []
    for name in names:
        sender, _, receiver = name.partition(">")
        loop = "again" if receiver.startswith(">") else None
        edges.append(Edge(name, sender, "out", receiver.lstrip(">"), "in", loop=loop))
    ends = {end for edge in edges for end in (edge.sender, edge.receiver)}
    return Plan("flow", {end: Operator(end, Filter(bool)) for end in sorted(ends)}, tuple(edges), "")


def test_loop_that_is_never_fed():
    flow, numbers, again = start()
    numbers.merge(again).write(Collect())
    refuses(OpenLoopError, flow.plan, "loop 'again'", "feed(")


def test_loop_that_is_fed_twice_keeps_its_first_stream():
    flow, numbers, again = start()
    first = numbers.merge(again).filter(bool, name="f")
    again.feed(first)
    refuses(FedTwiceError, lambda: again.feed(first.map(abs)), "loop 'again'", "merge")
    first.write(Collect())
    assert [edge.sender for edge in flow.plan().edges if edge.is_back] == ["f"]


def test_loop_that_nobody_reads():
    flow, numbers, again = start()
    again.feed(numbers.filter(bool))
    numbers.write(Collect())
    refuses(UnreadLoopError, flow.plan, "loop 'again'", "merge")


def test_loop_that_is_fed_with_an_open_end():
    flow, _, again = start()
    refuses(LoopError, lambda: again.feed(again), "loop 'again'", "open end", "operator")
    refuses(LoopError, lambda: again.feed(flow.loop("other")), "loop 'again'", "open end", "operator")


def test_loop_that_is_fed_from_outside():
    flow, numbers, again = start()
    numbers.merge(again).filter(bool, name="f").write(Collect())
    again.feed(numbers)
    refuses(NoCycleError, flow.plan, "loop 'again'", "'numbers.out->f.in#2'", "from 'f' to 'numbers'")


def test_loop_that_is_read_where_nothing_leads_back():
    flow, numbers, again = start()
    passed = numbers.merge(again).filter(bool, name="f")
    again.feed(passed)
    again.write(Collect(), name="seen")
    refuses(NoCycleError, flow.plan, "loop 'again'", "'f.out->seen.in'")


def test_cycle_without_a_back_edge_in_a_plan_made_by_hand():
    plan = plain_plan("s>a", "a>b", "b>a", "b>z")
    refuses(UnnamedCycleError, lambda: check(plan), "'a', 'b'", "back edge", "flow.loop(", "feed")


def test_cycle_through_dead_letters_needs_a_loop_of_its_own():
    flow, numbers, again = start(max_rounds=2)
    passed = numbers.merge(again, again.dead_letters).filter(bool, name="f")
    again.feed(passed)
    passed.write(Collect())
    refuses(UnnamedCycleError, flow.plan, "'f'", "back edge")


def test_loop_that_nothing_enters():
    flow, numbers, again = start()
    numbers.write(Collect())
    circle = again.filter(bool, name="f")
    again.feed(circle)
    circle.write(Collect())
    refuses(NothingEntersError, flow.plan, "loop 'again'", "source", "'f'")


def test_loop_that_nothing_can_leave():
    flow = in_circle(lambda s: s.filter(bool), read_by="numbers")
    refuses(NoWayOutError, flow.plan, "loop 'again'", "max_rounds=", "endless=True")


def test_dead_letters_of_failed_calls_are_no_way_out():
    flow, numbers, again = start()
    circle = numbers.merge(again).filter(bool, on_error="dead_letter")
    again.feed(circle)
    circle.dead_letters.write(Collect())
    refuses(NoWayOutError, flow.plan, "loop 'again'", "max_rounds=")


def test_copies_that_leave_are_no_way_out_for_what_goes_round_for_good():
    flow = in_circle(lambda s: s.map(abs, name="a").map(abs, name="b"))
    refuses(NoWayOutError, flow.plan, "loop 'again'", "'a', 'b'", "max_rounds=", "endless=True", "split or filter")


@pytest.mark.parametrize("options", [{"max_rounds": 3}, {"max_rounds": 3, "on_limit": "fail"}, {"endless": True}])
def test_limit_is_a_way_out_and_an_endless_loop_needs_none(options: dict[str, Any]):
    assert in_circle(lambda s: s.map(abs), read_by="numbers", **options).plan().edges


def test_way_out_of_the_outer_loop_is_none_for_the_inner_one():
    flow = Flow("flow")
    outer, inner = flow.loop("outer", max_rounds=2), flow.loop("inner")
    circle = flow.read(Items([1])).merge(outer, inner).map(abs, name="a")
    inner.feed(circle)
    outer.feed(circle)
    circle.write(Collect())
    refuses(NoWayOutError, flow.plan, "loop 'inner'")


def test_endless_loop_with_a_limit_contradicts_itself():
    refuses(BadOptionError, lambda: start(endless=True, max_rounds=3), "loop 'again'", "endless", "max_rounds=3")


def test_limits_are_checked():
    refuses(BadOptionError, lambda: start(max_rounds=0), "loop 'again'", "max_rounds=0", "at least 1")
    refuses(BadOptionError, lambda: start(on_limit="fail"), "loop 'again'", 'on_limit="fail"', "max_rounds=")
    refuses(BadOptionError, lambda: start(max_rounds=1, on_limit="drop"), "on_limit='drop'", "'dead_letter', 'fail'")


def test_two_loops_of_one_name():
    flow, _, _ = start()
    refuses(DuplicateNameError, lambda: flow.loop("again"), "'again'", "'flow'", "a loop")


@pytest.mark.parametrize("options", [{}, {"max_rounds": 2, "on_limit": "fail"}])
def test_dead_letters_of_a_loop_without_any(options: dict[str, Any]):
    _, _, again = start(**options)
    refuses(UnknownOutputError, lambda: again.dead_letters, "loop 'again'", "max_rounds=", 'on_limit="dead_letter"')


def test_iteration_over_an_unbounded_source():
    flow = Flow("flow")
    flow.iterate(flow.read(Generate(abs), name="ticks"), lambda s: s.filter(bool)).write(Collect())
    refuses(IterationError, flow.plan, "iteration 'iterate'", "source 'ticks'", "unbounded", "flow.loop")


def test_iteration_over_files_that_arrive_for_ever():
    flow = Flow("flow")
    flow.iterate(flow.read(JsonLines("in", watch=1), name="rows"), lambda s: s.filter(bool)).write(Collect())
    refuses(IterationError, flow.plan, "iteration 'iterate'", "source 'rows' is unbounded")


def test_iteration_behind_an_endless_loop():
    flow, numbers, again = start(endless=True)
    circle = numbers.merge(again).map(abs)
    again.feed(circle)
    flow.iterate(circle, lambda s: s.filter(bool)).write(Collect())
    refuses(IterationError, flow.plan, "iteration 'iterate'", "loop 'again'", "endless")


def test_unbounded_source_beside_the_start_of_an_iteration():
    flow = iterating(lambda flow, _, s: s.merge(flow.read(Generate(abs), name="ticks")).filter(bool), name="i")
    refuses(IterationError, flow.plan, "iteration 'i'", "source 'ticks'", "unbounded")


def test_free_loop_inside_the_body_of_an_iteration():
    def body(flow: Flow, _: Stream[Any], stream: Stream[Any]) -> Stream[Any]:
        again = flow.loop("again")
        done, more = stream.merge(again).split(bool)
        again.feed(more)
        return done

    flow = iterating(body, rounds=2, name="i")
    refuses(IterationError, flow.plan, "loop 'again'", "inside the body", "iteration 'i'", "flow.iterate")


def test_iteration_inside_a_free_loop():
    flow, numbers, again = start()
    result = flow.iterate(numbers.merge(again), lambda s: s.filter(bool), name="i")
    done, more = result.split(lambda n: n > 0)
    again.feed(more)
    done.write(Collect())
    refuses(IterationError, flow.plan, "iteration 'i'", "inside", "loop 'again'", "max_rounds=")


def test_inner_iteration_that_starts_from_outside():
    flow = iterating(
        lambda flow, numbers, s: s.merge(flow.iterate(numbers, lambda s: s.filter(bool), name="inner")).filter(bool),
        name="outer",
    )
    refuses(IterationError, flow.plan, "iteration 'inner'", "'outer'", "'numbers'", "body's argument")


def test_inner_iteration_that_starts_from_outside_and_runs_inside():
    flow = iterating(
        lambda flow, numbers, s: flow.iterate(numbers, lambda inner: inner.merge(s).filter(bool), name="inner"),
        name="outer",
    )
    refuses(IterationError, flow.plan, "iterations 'outer' and 'inner'", "body's argument")


def test_body_that_returns_a_stream_from_outside():
    flow = iterating(lambda flow, numbers, s: numbers.filter(bool, name="f"), name="i")
    refuses(NoCycleError, flow.plan, "iteration 'i'", "'f'", "body's argument")


def test_body_that_returns_nothing_or_an_open_end():
    flow, numbers, again = start()
    nothing: Any = lambda s: None  # noqa: E731
    refuses(BadOptionError, lambda: flow.iterate(numbers, nothing, name="i"), "body", "iteration 'i'", "None", "stream")
    refuses(IterationError, lambda: flow.iterate(numbers, lambda s: again, name="j"), "iteration 'j'", "open end")


def test_iteration_without_a_rule_whose_rounds_are_never_empty():
    flow = iterating(lambda flow, numbers, s: s.map(abs, name="a"), name="i")
    refuses(NoWayOutError, flow.plan, "loop 'i'", "'i', 'a'", "rounds=", "until=", "split or filter")


def test_rules_of_an_iteration_are_checked():
    flow, numbers = flow_of_numbers()
    none, unasked = ({"rounds": 0}, {"measure": abs})
    refuses(BadOptionError, lambda: flow.iterate(numbers, lambda s: s, name="i", **none), "iteration 'i'", "rounds=0")
    refuses(BadOptionError, lambda: flow.iterate(numbers, lambda s: s, name="i", **unasked), "iteration 'i'", "until=")


def test_two_iterations_of_the_default_name():
    flow, numbers = flow_of_numbers()
    flow.iterate(numbers, lambda s: s.filter(bool))
    refuses(DuplicateNameError, lambda: flow.iterate(numbers, lambda s: s.filter(bool)), "'iterate'", "(iterate)")


def test_plan_made_by_hand_with_a_named_cycle_passes():
    assert [loops.name for loops in check(plain_plan("s>a", "a>b", "b>>a", "b>z")).loops] == ["again"]
    refuses(NoCycleError, lambda: check(plain_plan("s>a", "s>b", "b>>a", "b>z")), "loop 'again'")

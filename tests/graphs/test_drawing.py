"""Drawings, word for word: loops are boxes, heads are marked, back edges stand out."""

from __future__ import annotations

from typing import Any

import pytest

from backedge import BadOptionError, Collect, Edge, Flow, Items, Plan, Stream, draw
from backedge.graphs.kinds import Read, Write
from backedge.graphs.plan import Operator


class Learner:
    inputs = ("samples", "weights")

    def on_record(self, ctx: Any, input: str, value: Any) -> None: ...


def retries() -> Plan:
    flow = Flow("retries")
    orders = flow.read(Items([{"id": 1}]), name="orders")
    again = flow.loop("again", max_rounds=5)
    tried = orders.merge(again).key_by("id").map(dict, name="attempt")
    done, failed = tried.split(bool, name="done")
    again.feed(failed)
    done.write(Collect(), name="kept")
    return flow.plan()


def nested() -> Plan:
    flow = Flow("nested")

    def body(stream: Stream[int]) -> Stream[int]:
        inner = flow.iterate(stream.map(abs, name="before"), lambda s: s.map(abs, name="step"), rounds=2, name="inner")
        return inner.rebalance().map(abs, name="after")

    result = flow.iterate(flow.read(Items([1]), name="start"), body, rounds=3, name="outer")
    result.write(Collect(), name="end")
    return flow.plan()


def test_a_flow_is_drawn_as_its_plan_is():
    flow = Flow("one")
    flow.read(Items([1])).write(Collect(), name="kept")
    assert draw(flow) == draw(flow.plan())


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (None, r"draw.* None\b.* Flow\b"),
        (7, r"draw.* type int\b.* Flow\b"),
        (retries, r"draw.* retries\b.* Flow\b.*draw\(retries\(\)\)"),
    ],
)
def test_what_is_no_flow_is_not_drawn(given: Any, named: str):
    with pytest.raises(BadOptionError, match=named):
        draw(given)


DRAWN: dict[str, tuple[Plan, Any, str]] = {
    "loop in text": (retries(), "text", """\
flow retries
  orders (source)
    -> attempt, by key id
  loop again
  | attempt (map), a head
  |   -> done
  | done (split)
  |   false ==> attempt, by key id, the back edge of again, at most 5 rounds
  |   true -> kept
  |   dead:again -> again.dead_letters
  kept (sink)
  again.dead_letters (sink)"""),
    "nested iterations in text": (nested(), "text", """\
flow nested
  start (source)
    -> outer as start
  iteration outer
  | outer (iterate), a head
  |   body -> before
  |   result -> end
  | before (map)
  |   -> inner as start
  | iteration inner
  | | inner (iterate), a head
  | |   body -> step
  | |   result -> after, rebalance
  | | step (map)
  | |   ==> inner as returned, the back edge of inner
  | after (map)
  |   ==> outer as returned, the back edge of outer
  end (sink)"""),
    "loop in Mermaid": (retries(), "mermaid", """\
flowchart LR
    o0(["orders"])
    subgraph box1["loop again"]
        o1{{"attempt"}}
        o2{"done"}
    end
    o3[("kept")]
    o4[("again.dead_letters")]
    o0 -->|"by key id"| o1
    o2 ==>|"false, by key id, the back edge of again, at most 5 rounds"| o1
    o1 --> o2
    o2 -->|"true"| o3
    o2 -->|"dead:again"| o4"""),
    "nested iterations in DOT": (nested(), "dot", """\
digraph "nested" {
    rankdir=LR; node [shape=box];
    "start" [shape=ellipse];
    subgraph cluster_1 {
        label="iteration outer"; style=dashed;
        "outer" [shape=hexagon];
        "before";
        subgraph cluster_2 {
            label="iteration inner"; style=dashed;
            "inner" [shape=hexagon];
            "step";
        }
        "after";
    }
    "end" [shape=cylinder];
    "start" -> "outer" [label="as start"];
    "outer" -> "before" [label="body"];
    "before" -> "inner" [label="as start"];
    "inner" -> "step" [label="body"];
    "step" -> "inner" [label="as returned, the back edge of inner", penwidth=3, constraint=false];
    "inner" -> "after" [label="result, rebalance"];
    "after" -> "outer" [label="as returned, the back edge of outer", penwidth=3, constraint=false];
    "outer" -> "end" [label="result"];
}"""),
}  # fmt: skip


@pytest.mark.parametrize(("plan", "format", "drawing"), DRAWN.values(), ids=DRAWN)
def test_loops_and_iterations_are_boxes_with_marked_heads_and_back_edges(plan: Plan, format: Any, drawing: str):
    assert draw(plan, format=format) == drawing


def test_routings_and_named_inputs_are_said():
    flow = Flow("learning")
    samples, weights = flow.read(Items([1]), name="samples"), flow.read(Items([1]), name="weights")
    again = flow.loop("again", endless=True)
    merged = samples.merge(again).route(lambda n: 0)
    learned = flow.process(Learner, samples=merged, weights=weights.broadcast())
    again.feed(learned)
    learned.write(Collect(), name="end")
    assert (
        draw(flow.plan())
        == """\
flow learning
  samples (source)
    -> Learner as samples, routed by a function
  weights (source)
    -> Learner as weights, broadcast
  loop again
  | Learner (process), a head
  |   ==> Learner as samples, routed by a function, the back edge of again, endless
  |   -> end
  end (sink)"""
    )


def test_quotes_in_a_plan_made_by_hand_do_not_break_a_drawing():
    operators = {name: Operator(name, kind) for name, kind in (('a"', Read(Items([]))), ("b", Write(Collect())))}
    plan = Plan('say "hi"', operators, (Edge("e", 'a"', "out", "b", "in"),), "")
    assert 'o0(["a#quot;"])' in draw(plan, "mermaid")
    assert 'digraph "say \\"hi\\"" {' in draw(plan, "dot")
    assert '"a\\"" -> "b";' in draw(plan, "dot")


def test_unknown_format_is_refused():
    wrong: Any = "png"
    with pytest.raises(BadOptionError, match=r"'retries'.*format='png'.*'svg'"):
        draw(retries(), format=wrong)

"""What a flow becomes when it is frozen: operators, edges and their routing, dead letters that are kept, a hash."""

from __future__ import annotations

from typing import Any

from backedge import Collect, Edge, Flow, Generate, Items, Plan, Print, Range
from backedge.engine.io.files.file_formats import JsonLines, Parquet
from backedge.graphs.kinds import Iterate, MapAsync, MapBatches, OfClass
from backedge.graphs.plan import Resources, Routing


def attempt(tries: int, order: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return tries + 1, {**order, "ok": tries >= 2}


def retries(max_rounds: int | None = 5, key: Any = "id", name: str = "attempts", parallelism: int = 1) -> Flow:
    flow = Flow("retries")
    orders = flow.read(JsonLines("orders/"))
    again = flow.loop("again", of=dict, max_rounds=max_rounds)
    tried = orders.merge(again).key_by(key).stateful_map(attempt, initial=0, name=name, parallelism=parallelism)
    done, failed = tried.split(lambda order: order["ok"])
    again.feed(failed)
    done.write(Parquet("done/"))
    return flow


def edges(plan: Plan) -> dict[str, Edge]:
    return {edge.name: edge for edge in plan.edges}


class Learner:
    inputs = ("samples", "weights")
    outputs = ("model", "loss")

    def on_record(self, ctx: Any, input: str, value: Any) -> None: ...


def test_flow_of_retries_becomes_this_plan():
    plan = retries().plan()
    assert {name: operator.kind.word for name, operator in plan.operators.items()} == {
        "orders": "source",
        "attempts": "stateful_map",
        "split-1": "split",
        "done": "sink",
        "again.dead_letters": "sink",
    }
    assert plan.operators["attempts"].keys == {"in": "id"}
    assert plan.operators["split-1"].outputs == ("true", "false", "dead:again")
    assert list(edges(plan)) == [
        "orders.out->attempts.in",
        "split-1.false->attempts.in",
        "attempts.out->split-1.in",
        "split-1.true->done.in",
        "split-1.dead:again->again.dead_letters.in",
    ]


def test_routing_of_the_consumer_holds_on_the_back_edge():
    back = edges(retries().plan())["split-1.false->attempts.in"]
    assert (back.loop, back.is_back, back.routing, back.by, back.max_rounds) == ("again", True, Routing.HASH, "id", 5)


def test_routing_of_the_fed_stream_holds_where_the_consumer_says_nothing():
    flow = Flow()
    again = flow.loop("again")
    odd, even = flow.read(Range(9)).merge(again).split(lambda n: n % 2, name="parity")
    again.feed(even.map(lambda n: n // 2, name="half").rebalance())
    odd.write(Print())
    assert edges(flow.plan())["half.out->parity.in"].routing is Routing.REBALANCE


def test_each_merged_stream_keeps_its_own_routing():
    flow = Flow()
    left, right = flow.read(Range(1), name="left"), flow.read(Range(1), name="right")
    left.broadcast().merge(right.route(abs)).write(Collect(), name="end")
    plan = edges(flow.plan())
    assert plan["left.out->end.in"].routing is Routing.BROADCAST
    assert (plan["right.out->end.in"].routing, plan["right.out->end.in"].by) == (Routing.ROUTE, abs)


def test_routing_of_a_stream_does_not_change_the_stream():
    flow = Flow()
    stream = flow.read(Range(1), name="a")
    stream.key_by(abs).map(abs, name="keyed").write(Print())
    stream.map(abs, name="plain").write(Print())
    plan = flow.plan()
    assert plan.operators["keyed"].keys == {"in": abs}
    assert plan.operators["plain"].keys == {}
    assert edges(plan)["a.out->plain.in"].routing is Routing.FORWARD


def test_stream_that_is_merged_with_itself_makes_two_edges():
    flow = Flow()
    stream = flow.read(Range(1), name="a")
    stream.merge(stream).write(Collect(), name="z")
    assert list(edges(flow.plan())) == ["a.out->z.in", "a.out->z.in#2"]


def test_named_inputs_have_keys_of_their_own():
    flow = Flow()
    samples, weights = flow.read(Range(1), name="s"), flow.read(Range(1), name="w")
    model = flow.process(Learner, samples=samples.key_by(abs), weights=weights.broadcast(), name="learn", num_gpus=1)
    model.write(Collect(), name="models")
    model.side("loss").write(Collect(), name="losses")
    plan = flow.plan()
    learn = plan.operators["learn"]
    assert (learn.inputs, learn.outputs) == (("samples", "weights"), ("model", "loss"))
    assert learn.kind == OfClass(Learner, named_inputs=True, copy_output=True, on_error="fail")
    assert (learn.keys, learn.resources) == ({"samples": abs}, Resources(num_gpus=1))
    assert {"s.out->learn.samples", "w.out->learn.weights", "learn.model->models.in", "learn.loss->losses.in"} == set(
        edges(plan)
    )


def test_options_reach_the_plan():
    flow = Flow()
    stream = flow.read(Items([1]), name="a", parallelism=3)
    stream = stream.map_batches(list, batch_format="numpy", batch_size=64, name="b", num_cpus=2, resources={"tpu": 1})
    stream = stream.map_async(abs, concurrency=8, timeout=2.5, name="c", on_error="dead_letter")
    stream.write(Collect())
    operators = flow.plan().operators
    assert operators["a"].parallelism == 3
    assert operators["b"].kind == MapBatches(list, batch_format="numpy", batch_size=64, on_error="fail")
    assert operators["b"].resources == Resources(num_cpus=2, custom={"tpu": 1})
    assert operators["c"].kind == MapAsync(abs, concurrency=8, timeout=2.5, on_error="dead_letter")
    assert operators["c"].outputs == ("out", "dead")


def test_dead_letters_that_nobody_reads_are_kept():
    flow = Flow()
    flow.read(Range(1)).map(abs, name="m", on_error="dead_letter").write(Collect())
    plan = flow.plan()
    assert isinstance(plan.operators["m.dead_letters"].function, Collect)
    assert "m.dead->m.dead_letters.in" in edges(plan)


def test_dead_letters_that_are_read_are_not_kept_twice():
    flow = Flow()
    again = flow.loop("again", max_rounds=2)
    circle = flow.read(Range(1)).merge(again).map(abs, name="m", on_error="dead_letter")
    again.feed(circle)
    circle.dead_letters.merge(again.dead_letters).write(Collect(), name="dead")
    plan = flow.plan()
    assert {edge.name for edge in plan.edges if edge.receiver == "dead"} == {"m.dead->dead.in", "m.dead:again->dead.in"}
    assert not any(name.endswith(".dead_letters") for name in plan.operators)


def test_loop_that_several_operators_feed_has_a_back_edge_from_each():
    flow = Flow()
    again = flow.loop("again", max_rounds=2)
    low, high = flow.read(Range(9)).merge(again).split(lambda n: n < 5, name="s")
    again.feed(low.map(abs, name="a").merge(high, low))
    high.write(Collect())
    back = [edge.name for edge in flow.plan().edges if edge.is_back]
    assert back == ["a.out->s.in", "s.false->s.in", "s.true->s.in"]
    dead = [edge.name for edge in flow.plan().edges if edge.receiver == "again.dead_letters"]
    assert dead == ["a.dead:again->again.dead_letters.in", "s.dead:again->again.dead_letters.in"]


def test_loop_that_fails_at_its_limit_has_no_dead_letters():
    flow = Flow()
    again = flow.loop("again", max_rounds=2, on_limit="fail")
    circle = flow.read(Range(1)).merge(again).map(abs, name="m")
    again.feed(circle)
    circle.write(Collect())
    plan = flow.plan()
    assert plan.operators["m"].outputs == ("out",)
    assert [edge.on_limit for edge in plan.edges if edge.is_back] == ["fail"]


def test_iteration_becomes_a_head_with_two_inputs_and_two_outputs():
    flow = Flow()
    start = flow.read(Range(9), name="start")
    flow.iterate(start, lambda s: s.map(abs, name="step"), rounds=3, until=bool, measure=abs, reduce=max).write(
        Collect()
    )
    plan = flow.plan()
    head = plan.operators["iterate"]
    assert (head.inputs, head.outputs) == (("start", "returned"), ("body", "result"))
    assert head.kind == Iterate(rounds=3, until=bool, measure=abs, reduce=max, enclosing=None)
    assert edges(plan)["step.out->iterate.returned"].loop == "iterate"


def test_sources_and_sinks_without_a_name_are_called_after_their_files():
    flow = Flow()
    flow.read(JsonLines("in/orders.jsonl")).write(Parquet("out/orders/"))
    flow.read(Items([1])).write(Print())
    flow.read(JsonLines("in/*.jsonl")).write(JsonLines("/"))
    assert list(flow.plan().operators) == ["orders", "orders-1", "read-1", "write-1", "in", "write-2"]


def test_plan_can_be_made_again_after_the_flow_has_grown():
    flow = retries()
    first = flow.plan()
    flow.read(Range(1), name="more").write(Collect())
    second = flow.plan()
    assert set(second.operators) - set(first.operators) == {"more", "write-1"}
    assert flow.plan() == second


def test_stop_when_and_name_reach_the_plan():
    flow = Flow("until-done", stop_when=bool)
    flow.read(Generate(abs)).write(Collect())
    assert (flow.plan().name, flow.plan().stop_when) == ("until-done", bool)


def test_hash_does_not_depend_on_code_limits_or_parallelism():
    same = retries().plan().hash
    assert retries(parallelism=7).plan().hash == same
    assert retries(max_rounds=50).plan().hash == same
    assert retries(key=lambda order: order["id"]).plan().hash == retries(key=lambda order: order["name"]).plan().hash


def test_hash_does_not_depend_on_the_order_of_declaration():
    def flow(names: list[str]) -> Flow:
        flow = Flow("f")
        for name in names:
            flow.read(Range(1), name=f"{name}-in").map(abs, name=name).write(Collect(), name=f"{name}-out")
        return flow

    assert flow(["a", "b", "c"]).plan().hash == flow(["c", "a", "b"]).plan().hash


def test_hash_does_not_depend_on_the_order_of_inputs_and_of_dead_letters():
    class Both:
        inputs = ("left", "right")

        def on_record(self, ctx: Any, input: str, value: int) -> None: ...

    def flow(loops: str, inputs: tuple[str, str]) -> Flow:
        flow = Flow("f")
        first, second = flow.loop("a", max_rounds=2), flow.loop("b", max_rounds=2)
        sums = flow.read(Range(1), name="in").merge(first, second).map(abs, name="sums")
        first.feed(sums)
        second.feed(sums)
        for loop in loops:
            {"a": first, "b": second}[loop].dead_letters.write(Collect(), name=f"dead {loop}")
        flow.process(Both, **dict.fromkeys(inputs, sums)).write(Collect(), name="out")
        return flow

    same = flow("ab", ("left", "right")).plan().hash
    assert flow("ba", ("left", "right")).plan().hash == same
    assert flow("ab", ("right", "left")).plan().hash == same


def test_hash_changes_with_the_structure():
    def flow(routed: bool = False, filtered: bool = False, name: str = "m", extra: bool = False) -> str:
        flow = Flow("f")
        stream = flow.read(Range(1), name="a")
        stream = stream.rebalance() if routed else stream
        stream = stream.filter(abs, name=name) if filtered else stream.map(abs, name=name)
        stream.write(Collect(), name="z")
        if extra:
            stream.write(Collect(), name="y")
        return flow.plan().hash

    hashes = {flow(), flow(routed=True), flow(filtered=True), flow(name="n"), flow(extra=True)}
    assert len(hashes) == 5
    assert retries(name="other").plan().hash != retries().plan().hash
    assert retries(key="name").plan().hash != retries().plan().hash
    assert retries(max_rounds=None).plan().hash != retries().plan().hash


def test_the_hash_is_the_one_that_was_written_down():
    """In every process, whatever its hash seed. With another one, no cut that was ever taken could be restored."""
    assert retries().plan().hash == "16ac387d79609695"

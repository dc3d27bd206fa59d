"""Loops of columns under every schedule: nothing lost, nothing doubled, and the logs understood."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backedge import Collect, CutView, Flow, Items, Stream, simulate
from backedge.engine.batches.arrow import arrow
from backedge.engine.batches.batch import Batch, encode
from backedge.engine.simulation.checker.payloads import hops_in
from backedge.engine.simulation.checker.record import Started
from backedge.engine.simulation.checker.trail import same_payload
from backedge.engine.simulation.simulation import Simulation
from tests.columns.given import columns

Arrays = dict[str, Any]
ORDERS = [{"id": id, "needs": needs, "name": f"order {id}"} for id, needs in enumerate((1, 3, 2, 6, 1, 4))]


def turn(arrays: Arrays) -> Arrays:
    return {**arrays, "needs": arrays["needs"] - 1}


def chosen(arrays: Arrays, mask: Any) -> Arrays:
    return {name: array[mask] for name, array in arrays.items()}


def done(arrays: Arrays) -> Arrays:
    return chosen(arrays, arrays["needs"] == 0)


def undone(arrays: Arrays) -> Arrays:
    return chosen(arrays, arrays["needs"] > 0)


def retries(max_rounds: int = 10) -> Flow:
    """Columns go round until nothing is needed; by key, so that the loop is shuffled."""
    flow = Flow("retries")
    again = flow.loop("again", of=dict, max_rounds=max_rounds, on_limit="dead_letter")
    turned = (
        flow.read(Items(ORDERS), name="orders")
        .merge(again)
        .key_by("id")
        .map_batches(turn, batch_format="numpy", name="turn")
    )
    again.feed(turned.map_batches(undone, batch_format="numpy", name="undone"))
    turned.map_batches(done, batch_format="numpy", name="done").write(Collect(), name="out")
    return flow


def every_order_is_in_one_place(view: CutView) -> bool:
    somewhere = [order["id"] for order in view.in_loop("again") + view.output("out")]
    return len(set(somewhere)) == len(somewhere)


@pytest.mark.slow
@pytest.mark.parametrize("schedules", [8, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("policy", ["aligned", "unaligned"])
def test_a_loop_of_columns_loses_nothing_and_doubles_nothing(policy: Any, schedules: int):
    result = simulate(
        retries(), seeds=range(schedules), policy=policy, parallelism=(1, 2, 3), invariant=every_order_is_in_one_place
    )
    assert sorted(order["id"] for order in result.outputs["out"]) == [0, 1, 2, 3, 4, 5]
    assert {order["needs"] for order in result.outputs["out"]} == {0}
    assert result.crashes > schedules / 3
    assert result.rescaled
    assert result.restores_with_log


@pytest.mark.slow
def test_a_log_in_a_loop_of_columns_holds_columns_and_is_replayed():
    simulation = Simulation(retries(), None, 3, (1, 2), "aligned")
    assert simulation.faithful.drive() is None
    logged: list[bytes] = []
    for seed in range(12):
        run = simulation.run_seed(seed)
        assert run.drive() is None
        record = run.world.record
        restored = {event.restored for event in record.trace if isinstance(event, Started)} - {None}
        cuts = [record.cuts[epoch] for epoch in restored if epoch is not None]
        inputs = [received for cut in cuts for snapshot in cut.snapshots.values() for received in snapshot.inputs]
        logged += [entry.payload for received in inputs for entry in received.log]
    assert len(logged) > 3
    assert {payload[:1] for payload in logged} == {b"A"}


@pytest.mark.slow
def test_columns_over_the_limit_are_dead_letters():
    result = simulate(retries(max_rounds=2), seeds=range(8))
    assert sorted(order["id"] for order in result.outputs["out"]) == [0, 1, 2, 4]
    assert sorted(order["id"] for order in result.outputs["again.dead_letters"]) == [3, 5]


@pytest.mark.slow
def test_operators_of_records_and_of_columns_share_a_loop():
    def count(seen: int, order: Any) -> tuple[int, Any]:
        return seen + 1, {**order, "seen": seen + 1}

    flow = Flow("mixed")
    again = flow.loop("again", of=dict, max_rounds=10)
    counted = flow.read(Items(ORDERS), name="orders").merge(again).key_by("id").stateful_map(count, 0, name="count")
    turned = counted.map_batches(turn, batch_format="numpy", name="turn")
    over, more = turned.split(lambda order: order["needs"] == 0, name="over")
    again.feed(more.map_batches(lambda arrays: arrays, batch_format="numpy", name="same"))
    over.write(Collect(), name="out")
    result = simulate(flow, seeds=range(10))
    assert sorted((order["id"], order["seen"]) for order in result.outputs["out"]) == [
        (order["id"], order["needs"]) for order in ORDERS
    ]
    assert result.restores_with_log > 1


def of_many_types() -> Any:
    """A table with columns whose records would look otherwise as columns again."""
    kinds = ["float", "int32", "uint8", "uint64", "halffloat", "large_string", "timestamp[ms]"]
    numbers = {kind: arrow().array([1, 2, None, 4, 5, 6, 7, 8]).cast(kind) for kind in kinds}
    vectors = arrow().FixedShapeTensorArray.from_numpy_ndarray(np.arange(16, dtype=np.float32).reshape(8, 2))
    return arrow().table(numbers | {"id": range(8), "vector": vectors, "none": [None] * 8, "n": [1, None] * 4})


@pytest.mark.slow
def test_columns_of_an_iteration_keep_their_types_in_every_round_also_behind_a_restore():
    table = of_many_types()

    def same(batch: Any) -> Any:
        if batch.schema.remove_metadata() != table.schema:
            raise ValueError(f"the columns are now {batch.schema}")
        return batch

    def body(stream: Stream[Any]) -> Stream[Any]:
        return stream.key_by("id").map_batches(same, batch_format="pyarrow", name="same").rebalance()

    flow = Flow("rounds")
    flow.iterate(flow.read(Items(table), name="rows"), body, rounds=4, name="again").write(Collect(), name="out")
    result = simulate(flow, seeds=range(10), parallelism=(1, 2))
    assert sorted(row["id"] for row in result.outputs["out"]) == list(range(8))
    assert result.crashes > 5 and result.rescaled


def test_the_checker_reads_columns_without_us():
    vectors = np.array([[1.0, 2.0], [3.0, 4.0]])
    tensors = arrow().FixedShapeTensorArray.from_numpy_ndarray(vectors)
    payload = encode(Batch(columns(n=[1, 2], v=tensors), 3))
    (first, hops), second = hops_in(payload)
    assert (first["n"], first["v"].tolist(), hops) == (1, [1.0, 2.0], 3)
    assert second.record["v"].tolist() == [3.0, 4.0]


def test_two_payloads_say_the_same_when_their_rows_do():
    one = encode(Batch(columns(n=[1, 2]), 1))
    assert same_payload(one, encode(Batch([{"n": 1}, {"n": 2}], 1)))
    assert not same_payload(one, encode(Batch(columns(n=[1, 2]), 2)))
    assert not same_payload(encode(Batch([{"n": 1}, {"n": 3}], 1)), one)

"""Where columns go: by key as records would, in turn, to several targets; with their hops; and into logs and back."""

from __future__ import annotations

import math
import operator
from datetime import time
from pickle import UnpicklingError
from typing import Any

import numpy as np
import pytest

from backedge import Collect, Flow, Items, Stream
from backedge.engine.batches.arrow import arrow
from backedge.engine.batches.batch import Batch, decode, encode, merge
from backedge.engine.batches.columns import Columns, as_records
from backedge.engine.batches.division import FEW_TARGETS, Division
from backedge.engine.operators.back_edge import Measure
from backedge.engine.operators.rerouting import reroute
from backedge.graphs.task_errors import LoopLimitError, RoutingError, UserFunctionError
from backedge.recovery.cut.cut import LogEntry
from backedge.recovery.stores.record_tables import records_in_batch
from tests.columns.given import batch_of, columns, flow_of, sent
from tests.every import every
from tests.runtime.tasks import Tasks

KEYS: dict[str, list[Any]] = {
    "whole numbers": [*range(-300, 300), 2**63 - 1, -(2**63)],
    "floats": [0.5, -0.0, 0.0, 1.0, 7.0, 1e300, -2.5, math.nan, math.inf],
    "truth values": [True, False, True],
    "text": [f"key {n}" for n in range(300)] + ["", "\u00e9", "key 1"],
    "bytes": [b"", b"a", b"b", b"a"],
    "whole numbers and None": [1, None, 2, 1],
    "text and None": ["a", None, "b", "a"],
    "truth values and None": [True, None],
    "floats and None": [0.5, None, 7.0, math.nan],
}


def keyed(key: Any, on_columns: bool) -> Flow:
    """Columns or records that are sent by key to five tasks."""
    flow = Flow("keyed")
    same: Any = (lambda batch: arrow().Table.from_pylist(batch)) if on_columns else lambda batch: batch
    made = flow.read(Items[Any]([]), name="source").rebalance().map_batches(same, name="op")
    made.key_by(key).map_batches(list, name="sink", parallelism=5).write(Collect(), name="end")
    return flow


def routed(key: Any, records: list[Any], on_columns: bool) -> dict[str, list[Any]]:
    tasks = Tasks(keyed(key, on_columns), parallelism=1)
    return {receiver: list(part) for receiver, part, _ in sent(tasks, records)}


@every("keys", KEYS.values())
def test_columns_are_routed_as_records_of_the_same_keys_are(keys: list[Any]):
    records = [{"k": key, "n": n} for n, key in enumerate(keys)]
    by_record = routed("k", records, on_columns=False)
    by_column = routed("k", records, on_columns=True)
    assert {r: [one["n"] for one in part] for r, part in by_record.items()} == {
        r: [one["n"] for one in part] for r, part in by_column.items()
    }
    assert sum(map(len, by_column.values())) == len(records)


def test_rows_in_the_order_of_their_targets_are_cut_without_a_copy_and_others_alike():
    table = columns(n=[10, 11, 12, 13])
    ordered = list(Division.among(np.array([0, 2, 2, 4]), 5).parts(table))
    assert ordered == [(0, columns(n=[10])), (2, columns(n=[11, 12])), (4, columns(n=[13]))]
    address = table.batch.column(0).buffers()[1].address
    assert {part.batch.column(0).buffers()[1].address for _, part in ordered} == {address}
    mixed = list(Division.among(np.array([4, 0, 4, 0]), 5).parts(table))
    assert mixed == [(0, columns(n=[11, 13])), (4, columns(n=[10, 12]))]


@pytest.mark.parametrize("count", [2, FEW_TARGETS, FEW_TARGETS + 1, 300])
def test_rows_keep_their_order_at_each_of_few_or_many_targets(count: int):
    targets = np.random.default_rng(count).integers(0, count, 1_000)
    divided = Division.among(targets, count).parts(columns(n=range(1_000)))
    parts = {target: part.batch.column(0).to_pylist() for target, part in divided}
    assert parts == {target: np.flatnonzero(targets == target).tolist() for target in sorted(set(targets.tolist()))}


def test_columns_stay_columns_by_the_name_of_a_column_and_become_records_by_a_function():
    records = [{"k": n} for n in range(50)]
    tasks = {key: Tasks(keyed(key, on_columns=True), 1) for key in ("k", len)}
    assert all(isinstance(part, Columns) for _, part, _ in sent(tasks["k"], records))
    assert all(isinstance(part, list) for _, part, _ in sent(tasks[len], records))
    assert routed(lambda record: record["k"], records, on_columns=True) == routed("k", records, on_columns=False)


@pytest.mark.parametrize(
    ("key", "record", "error", "said"),
    [
        ("no", {"k": 1}, UserFunctionError, "^key_by between 'op' and 'sink' raised KeyError: 'no'"),
        ("k", {"k": [1]}, RoutingError, r"the key \[1\] of record .* cannot be hashed"),
        ("k", {"k": time(1)}, RoutingError, "'sink': .*a key of type time has no hash"),
    ],
)
def test_a_column_that_is_no_key_is_told_as_for_records(key: str, record: Any, error: Any, said: str):
    for on_columns in (False, True):
        with pytest.raises(error, match=said):
            routed(key, [record], on_columns)


def dealt(stream: Stream[Any]) -> Stream[Any]:
    return stream.map_batches(lambda table: table, batch_format="pyarrow", name="op")


def to_tasks(route: Any, count: int = 3) -> Tasks:
    """Tasks of "op", whose columns go to some of "sink" by this routing."""
    flow = Flow("routed")
    made = route(dealt(flow.read(Items[Any]([]), name="source").rebalance()))
    made.map_batches(list, name="sink", parallelism=count).write(Collect(), name="end")
    return Tasks(flow)


def test_rebalance_deals_rows_out_in_turn_and_goes_on_where_it_was():
    tasks = to_tasks(lambda made: made.rebalance())
    assert sent(tasks, columns(n=[0, 1, 2, 3])) == [
        ("sink/0", columns(n=[0, 3]), 0),
        ("sink/1", columns(n=[1]), 0),
        ("sink/2", columns(n=[2]), 0),
    ]
    assert sorted(sent(tasks, columns(n=[4, 5]))) == [("sink/1", columns(n=[4]), 0), ("sink/2", columns(n=[5]), 0)]


def test_broadcast_gives_columns_to_every_task():
    tasks = to_tasks(lambda made: made.broadcast())
    assert sent(tasks, given := columns(n=[1, 2])) == [(f"sink/{n}", given, 0) for n in range(3)]


def test_route_sees_each_row_as_a_record():
    tasks = to_tasks(lambda made: made.route(lambda record: record["n"]), 2)
    assert sent(tasks, columns(n=[0, 1, 2])) == [("sink/0", [{"n": 0}, {"n": 2}], 0), ("sink/1", [{"n": 1}], 0)]


# -- hops --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [4, 20, 60, -1])
def test_columns_that_were_damaged_on_their_way_are_no_batch(kept: int):
    payload = encode(Batch(Columns(arrow().record_batch({"n": list(range(100))})), 3))
    with pytest.raises(UnpicklingError):
        decode(payload[:kept])


@pytest.mark.parametrize("hops", [0, 3, 2**40])
def test_hops_travel_with_columns(hops: int):
    batch = Batch(columns(n=[1, 2], s=["a", None]), hops)
    payload = encode(batch)
    assert decode(payload) == batch
    assert payload[:1] == b"A"


def test_columns_whose_rows_went_round_differently_often_travel_as_records():
    assert decode(encode(Batch(columns(n=[1, 2]), [1, 2]))) == Batch([{"n": 1}, {"n": 2}], [1, 2])


def test_records_of_several_hops_leave_a_function_as_columns_of_one_hop_each():
    tasks = Tasks(flow_of(dealt))
    assert sent(tasks, [{"n": 1}, {"n": 2}, {"n": 3}], [0, 0, 2]) == [
        ("sink/0", columns(n=[1, 2]), 0),
        ("sink/0", columns(n=[3]), 2),
    ]
    assert sent(tasks, columns(n=[1, 2]), 5) == [("sink/0", columns(n=[1, 2]), 5)]


def test_batches_are_merged_with_their_like_alone():
    one, two, three = columns(n=[1]), columns(n=[2]), columns(n=[3.5])
    batches = [Batch(one), Batch(two), Batch(["a"]), Batch(["b"], 1), Batch(one, 1), Batch(two, 2), Batch(three, 2)]
    assert merge(batches) == [
        Batch(columns(n=[1, 2])),
        Batch(["a", "b"], [0, 1]),
        Batch(one, 1),
        Batch(two, 2),
        Batch(three, 2),
    ]
    assert len(one) == 1


def test_batches_with_more_text_than_one_array_of_arrow_holds_are_merged(monkeypatch: pytest.MonkeyPatch):
    def concat_batches(parts: Any) -> Any:
        if arrow().string() in parts[0].schema.types:
            raise arrow().ArrowInvalid("offset overflow while concatenating arrays")
        return former(parts)

    former = arrow().concat_batches
    monkeypatch.setattr(arrow(), "concat_batches", concat_batches)
    points = arrow().FixedShapeTensorArray.from_numpy_ndarray(np.zeros((2, 2)))
    [merged] = merge([Batch(columns(s=["a", None], n=[1, 2], points=points)) for _ in range(2)])
    assert [(row["s"], row["n"], row["points"].tolist()) for row in merged.records] == [
        ("a", 1, [0.0, 0.0]),
        (None, 2, [0.0, 0.0]),
    ] * 2


def loop(max_rounds: int, on_limit: Any = "dead_letter") -> Flow:
    flow = Flow("loop")
    again = flow.loop("again", of=Any, max_rounds=max_rounds, on_limit=on_limit)
    merged = flow.read(Items[Any]([]), name="source").rebalance().merge(again.rebalance())
    turned = merged.map_batches(lambda columns: columns, batch_format="numpy", name="op")
    again.feed(turned)
    if on_limit == "dead_letter":
        again.dead_letters.rebalance().write(Collect(), name="dead")
    turned.rebalance().write(Collect(), name="sink")
    return flow


def test_a_back_edge_counts_the_hops_of_columns_and_sets_aside_what_exceeds_the_limit():
    tasks = Tasks(loop(max_rounds=2))
    given = columns(n=[1, 2])
    assert sorted((to, hops) for to, _, hops in sent(tasks, given, 1)) == [("op/0", 2), ("sink/0", 1)]
    over = sent(tasks, given, 2)
    assert sorted((to, hops) for to, _, hops in over) == [("dead/0", 2), ("sink/0", 2)]
    assert all(part == given for _, part, _ in over)


def test_the_first_row_over_the_limit_is_told():
    with pytest.raises(LoopLimitError, match=r"'again'.*\{'n': 1\}.*2"):
        sent(Tasks(loop(max_rounds=2, on_limit="fail")), columns(n=[1, 2]), 2)


# -- copies ------------------------------------------------------------------------------------------------------


def test_a_column_that_measures_a_round_has_the_values_that_its_records_have():
    points = columns(point=arrow().FixedShapeTensorArray.from_numpy_ndarray(np.arange(4.0).reshape(2, 2)))
    for records in (points, points.to_records()):
        measure = Measure("rounds", "point", operator.add)
        measure.add(records)
        assert np.array_equal(measure.take(), [2.0, 4.0])


def test_two_targets_of_one_batch_never_see_each_others_changes():
    def double(arrays: dict[str, Any]) -> dict[str, Any]:
        arrays["n"] *= 2
        return arrays

    def shout(record: dict[str, Any]) -> dict[str, Any]:
        record["n"] = "changed"
        return record

    def step(stream: Stream[Any]) -> dict[str, Stream[Any]]:
        same = stream.map_batches(lambda table: table, batch_format="pyarrow", name="op")
        return {
            "twice": same.map_batches(double, batch_format="numpy", name="double"),
            "thrice": same.map_batches(double, batch_format="numpy", name="also double"),
            "loud": same.map(shout, name="shout"),
            "same": same,
        }

    found = {to.split("/")[0]: list(part) for to, part, _ in sent(Tasks(flow_of(step)), columns(n=[1, 2]))}
    assert found["twice"] == found["thrice"] == [{"n": 2}, {"n": 4}]
    assert found["loud"] == [{"n": "changed"}] * 2
    assert found["same"] == [{"n": 1}, {"n": 2}]


# -- logs --------------------------------------------------------------------------------------------------------


def test_what_a_log_holds_of_columns_is_counted_without_us():
    assert records_in_batch(encode(Batch(columns(n=[1, 2, 3])))) == 3
    assert records_in_batch(b"A" + b"\0" * 40) is None


def logged(*payloads: bytes) -> tuple[LogEntry, ...]:
    """A log of these batches."""
    return tuple(LogEntry(seq, payload, 0, 0) for seq, payload in enumerate(payloads, 1))


def test_logged_columns_are_routed_anew_for_another_parallelism():
    flow = Flow("loop")
    again = flow.loop("again", of=Any, max_rounds=3)
    keyed = flow.read(Items[Any]([]), name="source").merge(again).key_by("k")
    turned = keyed.map_batches(lambda table: table, batch_format="pyarrow", name="op")
    again.feed(turned)
    turned.rebalance().write(Collect(), name="sink")
    edge = next(edge for edge in flow.plan().edges if edge.is_back)
    records = [{"k": n, "s": str(n)} for n in range(40)]
    payloads = (
        encode(Batch(columns(k=list(range(20)), s=[str(n) for n in range(20)]), 1)),
        encode(Batch(records[20:], 2)),
    )
    lists = logged(encode(Batch(records[:20], 1)), encode(Batch(records[20:], 2)))
    routed = {to: [decode(payload) for payload in reroute(edge, logged(*payloads), 3, to)] for to in range(3)}
    assert sum(len(batch) for batches in routed.values() for batch in batches) == 40
    for to, batches in routed.items():
        expected = [decode(payload) for payload in reroute(edge, lists, 3, to)]
        assert [(as_records(b.records), b.hops) for b in batches] == [(b.records, b.hops) for b in expected]
    assert {isinstance(b.records, Columns) for batches in routed.values() for b in batches} == {True, False}


def test_a_slice_travels_without_the_rest():
    whole = columns(n=list(range(10_000)), b=[n % 3 == 0 for n in range(10_000)], s=[str(n) for n in range(10_000)])
    part = batch_of(whole[4_999:5_003])
    assert list(part.records) == [{"n": n, "b": n % 3 == 0, "s": str(n)} for n in range(4_999, 5_003)]
    assert len(encode(Batch(whole[4_999:5_003]))) < 1_000
    assert list(whole[:9:4]) == list(whole)[:9:4]
    assert list(whole[7:3]) == []

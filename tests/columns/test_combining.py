"""Rows of a key that are combined before they are sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backedge import BadOptionError, Collect, Flow, Items, simulate
from backedge.engine.batches.arrow import arrow
from backedge.engine.batches.repeated_combining import RepeatedCombiner
from backedge.engine.batches.repeated_combining import combined as combined_once
from backedge.graphs.combining import Combiner
from backedge.graphs.routing import key_group, task_of_group
from backedge.graphs.task_errors import MisuseError
from tests.columns.given import columns, count_found, flow_of, sent
from tests.every import every
from tests.runtime.tasks import Tasks

ROWS = columns(key=["b", "a", "b", "a", "b"], n=[5, 1, 3, 2, 4])


def passed(stream: Any) -> Any:
    """The stream behind an operator in a task of its own, in which the rows are combined."""
    return stream.map_batches(lambda batch: batch, batch_format="pyarrow", name="op")


def combined(how: Any, rows: Any = ROWS, key: Any = "key") -> list[tuple[str, Any]]:
    """Where rows went, as records."""
    found = sent(Tasks(flow_of(lambda s: passed(s).key_by(key).combine(how))), rows)
    return [(target, records.to_records()) for target, records, _ in found]


@every(
    ("how", "of_b", "of_a"),
    [
        ("sum", 12, 3),
        ("min", 3, 1),
        ("max", 5, 2),
        ("first", 5, 1),
        ("last", 4, 2),
        (np.multiply.reduceat, 60, 2),
        (lambda values, starts: values[starts] * 10, 50, 10),
    ],
)
def test_the_rows_of_a_key_become_one(how: Any, of_b: int, of_a: int):
    for rows in (ROWS, ROWS.to_records()):
        assert combined({"n": how}, rows) == [("sink/0", [{"key": "b", "n": of_b}, {"key": "a", "n": of_a}])]


def test_a_function_combines_the_values_that_records_have():
    rows = [{"key": 1, "n": 2**60 + 1}, {"key": 1, "n": None}, {"key": 2, "n": None}]
    (target, found), *others = combined({"n": lambda values, starts: values[starts]}, rows)
    assert (target, others) == ("sink/0", [])
    assert found == [{"key": 1, "n": 2**60 + 1}, {"key": 2, "n": None}]


def test_several_columns_are_combined_each_in_its_way_and_others_are_left_out():
    rows = columns(key=[1, 1], n=[2, 3], low=[0.5, 0.25], other=[0, 0])
    assert combined({"n": "sum", "low": "min"}, rows) == [("sink/0", [{"key": 1, "n": 5, "low": 0.25}])]


def test_a_key_may_have_the_name_of_a_column_and_how_it_is_combined():
    rows = columns(n_sum=[1, 1, 2], x_list=[0, 0, 0], n=[2, 3, 4], x=[1, 2, 3])
    how = {"n": "sum", "x": np.maximum.reduceat}
    expected = [{"n_sum": 1, "x_list": 0, "n": 5, "x": 2}, {"n_sum": 2, "x_list": 0, "n": 4, "x": 3}]
    assert combined(how, rows, ("n_sum", "x_list")) == [("sink/0", expected)]


def test_keys_of_several_columns_are_combined_and_routed_like_the_tuples_of_records():
    rows = columns(key=[1, 1, 2, 1], day=["x", "y", "x", "x"], n=[1, 2, 3, 4])
    ((_, found),) = combined({"n": "sum"}, rows, ("key", "day"))
    assert found == [{"key": 1, "day": "x", "n": 5}, {"key": 1, "day": "y", "n": 2}, {"key": 2, "day": "x", "n": 3}]


@pytest.mark.parametrize("values", [[7, 8, 9, -1], [7.5, 8.0, float("nan"), 1.0], ["a", "b", "ü", None]])
def test_columns_are_routed_by_several_columns_as_records_are(values: list[Any]):
    rows = columns(key=values, day=["x", "y", "z", "x"])
    flow = Flow("routed")
    read = (
        flow.read(Items[Any]([]), name="source").rebalance().map_batches(lambda b: b, batch_format="numpy", name="op")
    )
    read.key_by(["key", "day"]).filter(bool, name="sink", parallelism=3).write(Collect())
    found = {
        (str(row["key"]), row["day"]): target
        for target, records, _ in sent(Tasks(flow), rows)
        for row in records.to_records()
    }
    assert found == {
        (str(key), day): f"sink/{task_of_group(key_group((key, day)), 3)}"
        for key, day in zip(values, ["x", "y", "z", "x"], strict=True)
    }


MANY = 2_000


@pytest.mark.parametrize(
    "keys",
    [
        [n * n % 97 for n in range(MANY)],
        [float("nan") if n % 7 == 0 else n % 5 / 4 for n in range(MANY)],
        [None if n % 7 == 0 else f"key {n % 31}" for n in range(MANY)],
    ],
    ids=["whole numbers", "floats", "missing texts"],
)
@pytest.mark.parametrize("by", [("k",), ("k", "row")], ids=str)
def test_rows_of_keys_that_come_again_are_combined_to_the_same_bits(
    keys: list[Any], by: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    found = count_found(monkeypatch)
    random = np.random.default_rng(1)
    combiner = Combiner(by, {"n": "sum", "x": "sum"})
    combine = RepeatedCombiner(combiner)
    for _ in range(5):
        values = random.standard_normal(MANY) * 10.0 ** random.integers(-9, 9, MANY)
        numbers = random.integers(-(2**50), 2**50, MANY)
        rows = arrow().table({"x": values, "row": np.arange(MANY) % 3, "k": keys, "n": numbers, "other": values})
        expected, got = combined_once(combiner, rows), combine(rows)
        assert got.schema == expected.schema
        assert [str(column.to_pylist()) for column in got.columns] == [str(c.to_pylist()) for c in expected.columns]
    assert found.total() == 3


@pytest.mark.parametrize(
    ("how", "values"),
    [("sum", [1, None, 3]), ("sum", [True, True, False]), ("min", [3.0, 1.0, 2.0]), (np.add.reduceat, [1, 2, 3])],
)
def test_other_combinations_are_made_as_if_the_keys_came_for_the_first_time(
    how: Any, values: list[Any], monkeypatch: pytest.MonkeyPatch
):
    found = count_found(monkeypatch)
    combine = RepeatedCombiner(Combiner(("k",), {"n": how}))
    rows = arrow().table({"k": [1, 2, 1], "n": values})
    assert [combine(rows).to_pydict() for _ in range(4)] == [
        combined_once(Combiner(("k",), {"n": how}), rows).to_pydict()
    ] * 4
    assert not found


def test_the_combiner_of_a_stream_finds_keys_that_come_again(monkeypatch: pytest.MonkeyPatch):
    found = count_found(monkeypatch)
    tasks = Tasks(flow_of(lambda s: passed(s).key_by("key").combine({"n": "sum"})))
    for turn in range(5):
        rows = columns(key=["b", "a", "b"], n=[turn, 1, 2])
        ((_, combined, _),) = sent(tasks, rows)
        assert combined.to_records() == [{"key": "b", "n": turn + 2}, {"key": "a", "n": 1}]
    assert found.total() == 3


@pytest.mark.parametrize("n", [[np.inf, -np.inf], [1e308, 1e308], [np.nan, np.inf]], ids=str)
def test_sums_that_are_no_finite_numbers_come_without_a_warning_each_time(n: list[float]):
    """Warnings are errors in these tests, as they may be in a user's process."""
    combine = RepeatedCombiner(Combiner(("k",), {"n": "sum"}))
    first, *others = [combine(arrow().table({"k": [1, 1], "n": n}))["n"].to_pylist() for _ in range(4)]
    assert not np.isfinite(first).any()
    assert list(map(str, others)) == [str(first)] * 3


@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_sums_of_integers_beyond_64_bits_are_refused_and_up_to_there_exact(kind: str):
    combine, most = RepeatedCombiner(Combiner(("k",), {"n": "sum"})), np.iinfo(kind).max
    fits = arrow().table({"k": [1, 2, 1], "n": np.array([most - 3, 7, 3], kind)})
    exceeds = arrow().table({"k": [1, 2, 1], "n": np.array([most - 3, 7, 4], kind)})
    for _ in range(4):
        assert combine(fits)["n"].to_pylist() == [most, 7]
        with pytest.raises(BadOptionError, match=rf"'n'.*{kind}"):
            combine(exceeds)


@every(
    ("key", "how", "fault"),
    [
        (len, {"n": "sum"}, "names of the key columns"),
        ("key", {}, "no column"),
        ("key", ["n"], r"got \['n'\]: give combine\({column: .sum.}\)"),
        ("key", {"n": "mean"}, "'n' by 'mean'.* sum, min, max, first, last"),
        ("key", {"key": "sum"}, "'key'.* part of the key"),
        (["a"], {"n": "sum"}, "different names"),
        (["a", "a"], {"n": "sum"}, "different names"),
        ([], {"n": "sum"}, "different names"),
    ],
)
def test_a_combiner_that_cannot_be_is_refused_when_the_flow_is_built(key: Any, how: Any, fault: str):
    with pytest.raises(BadOptionError, match=fault):
        Flow().read(Items([{}])).key_by(key).combine(how)


@pytest.mark.parametrize(
    ("how", "fault"),
    [
        ({"amount": "sum"}, "needs the column 'amount', and the rows have key, name"),
        ({"name": lambda values, starts: starts[1:]}, r"'name' returned an array of shape \(0,\) for 1 keys"),
        ({"name": lambda values, starts: [object()]}, "'name' returned .* which no column can hold"),
        ({"name": "sum"}, "'name' of type string by sum"),
    ],
)
def test_columns_that_cannot_be_combined_are_named(how: Any, fault: str):
    flow = Flow("refused")
    flow.read(Items([{"key": 1, "name": "a"}]), name="rows").key_by("key").combine(how, name="op").write(Collect())
    with pytest.raises(MisuseError, match=rf"'op': .*{fault}"):
        simulate(flow, seeds=range(1))

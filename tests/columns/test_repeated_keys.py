"""Keys that come again: what was derived from them is found by their content, and by nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from backedge import Collect, Flow, Items, Table
from backedge.engine.batches.arrow import arrow
from backedge.engine.batches.batch import Batch
from backedge.engine.batches.columns import Columns
from backedge.engine.batches.division import Division
from backedge.engine.batches.repeated_keys import SEEN_MAX, Content, RepeatedKeys
from backedge.engine.state.tables.restored_tables import rows_of
from backedge.engine.state.tables.table_state import TableState
from backedge.recovery.cut.cut import OperatorState
from tests.columns.given import columns, count_found, sent
from tests.runtime.tasks import Tasks

Parts = list[tuple[str, Any, Any]]
NUMBERS = list(range(40))


def content(*keys: Any) -> Content:
    return Content.of_arrays([np.array(key) for key in keys])


class Derived:
    """Derives its number of calls, and keeps that."""

    def __init__(self, bytes_max: int = 1_000) -> None:
        self.known = RepeatedKeys[int](bytes_max)
        self.calls = 0

    def of(self, *keys: Any, size: int = 0) -> int:
        if (found := self.known.find(content(*keys))) is not None:
            return found
        self.calls += 1
        call = self.calls
        self.known.note(content(*keys), size, lambda: call)
        return call


def keyed(by: Any = "k", parallelism: int = 3) -> Tasks:
    """A task that passes columns on, by key."""
    flow = Flow("keyed")
    made = flow.read(Items[Any]([]), name="source").rebalance()
    same = made.map_batches(lambda batch: batch, batch_format="pyarrow", name="op")
    same.key_by(by).map_batches(list, name="sink", parallelism=parallelism).write(Collect(), name="end")
    return Tasks(flow, parallelism=1)


def passed(tasks: Tasks, batch: Columns) -> Parts:
    """Where the rows of a batch go, without the copy that a channel would make of them."""
    runtime = tasks.home("op")
    emitted = runtime.process(runtime.task.inputs[0], Batch(batch), 0)
    return [(str(channel.receiver), each.records, each.hops) for channel, each in emitted]


# -- what is kept ------------------------------------------------------------------------------------------------


def test_the_second_time_keys_are_kept_and_the_third_time_they_are_found():
    derived = Derived()
    assert [derived.of([1, 2]) for _ in range(4)] == [1, 2, 2, 2]
    assert derived.of([1, 3]) == 3


@pytest.mark.parametrize(
    "other",
    [
        [np.array([1, 3])],
        [np.array([1, 2, 0])],
        [np.array([1, 2]).astype(np.uint64)],
        [np.array([1, 2]).view(np.float64)],
        [np.array([1]), np.array([2])],
    ],
)
def test_other_values_lengths_types_or_columns_are_other_keys(other: Sequence[Any]):
    derived = Derived()
    for _ in range(3):
        derived.of([1, 2])
    assert derived.of(*other) == 3


def test_keys_that_differ_between_their_ends_are_told_apart():
    derived = Derived(1_000_000)
    one, other = (np.arange(1_000), np.arange(1_000))
    other[500] = -1
    assert content(one).sample == content(other).sample
    assert [derived.of(keys) for keys in (one, one, one, other, other, one, one)] == [1, 2, 2, 3, 4, 5, 6]


def test_nan_is_found_and_zeros_of_another_sign_are_not():
    derived = Derived()
    assert [derived.of([np.nan, 0.0]) for _ in range(3)] == [1, 2, 2]
    assert derived.of([np.nan, -0.0]) == 3


@pytest.mark.parametrize(
    "values", [[1, None, 3, 4], ["a", None, "ü", "b"], [True, False, True, None], [b"", b"x", b"", b"y"]]
)
def test_missing_values_texts_and_truth_values_are_compared_wherever_they_are_in_memory(values: list[Any]):
    column = arrow().array([*values, *values])
    assert Content.of_columns([column[4:]]).equals(Content.of_columns([arrow().array(values)]))
    assert not Content.of_columns([column[3:7]]).equals(Content.of_columns([arrow().array(values)]))


def test_keys_for_which_there_is_no_room_are_not_kept():
    derived = Derived(bytes_max=100)
    assert [derived.of([1, 2], size=85) for _ in range(4)] == [1, 2, 3, 4]
    assert [derived.of([1, 2], size=84) for _ in range(3)] == [5, 5, 5]


def test_keys_in_use_stay_and_those_that_come_no_more_give_way():
    derived = Derived(bytes_max=100)
    for _ in range(3):
        found = [derived.of([n], size=40) for n in range(3)]
    # There is room for two of three. The third does not take the place of one that will come again.
    assert found == [4, 5, 7]
    assert [derived.of([2], size=40) for _ in range(2)] == [8, 8]
    assert [derived.of([1], size=40), derived.of([0], size=40)] == [5, 9]


def test_keys_that_do_not_come_for_long_are_given_up():
    derived = Derived()
    for _ in range(3):
        derived.of([1])
    for n in range(SEEN_MAX + 1):
        derived.of([-n])
    calls = derived.calls
    derived.of([1])
    assert derived.calls == calls + 1


# -- where rows go -----------------------------------------------------------------------------------------------

KEYS: dict[str, list[Any]] = {
    "whole numbers": NUMBERS,
    "floats": [n / 4 for n in NUMBERS[:-2]] + [float("nan"), -0.0],
    "texts": [f"key {n}" for n in NUMBERS],
    "truth values": [n % 3 == 0 for n in NUMBERS],
    "missing values": [None if n % 5 == 0 else n for n in NUMBERS],
    "one target": [7] * 40,
}


@pytest.mark.parametrize("parallelism", [2, 7])
@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("by", ["k", ("k", "day")], ids=str)
def test_rows_of_kept_keys_go_where_they_would_go_otherwise(
    keys: list[Any], by: Any, parallelism: int, monkeypatch: pytest.MonkeyPatch
):
    found = count_found(monkeypatch)
    tasks = keyed(by, parallelism)
    for turn in range(5):
        rows = columns(n=[turn * n for n in NUMBERS], k=keys, day=[n % 4 for n in NUMBERS])
        # Compared as text, in which NaN is equal to itself.
        assert str(told(sent(tasks, rows))) == str(told(sent(keyed(by, parallelism), rows)))
    assert found[Division] == 3


def told(parts: Parts) -> Any:
    return [(target, records.to_records(), hops) for target, records, hops in parts]


def test_other_columns_beside_the_same_keys_travel_as_they_are():
    tasks = keyed()
    for rows in [columns(k=NUMBERS, n=NUMBERS)] * 3 + [
        columns(k=NUMBERS, s=[f"{n}" for n in NUMBERS]),
        columns(n=NUMBERS, more=NUMBERS, k=NUMBERS),
        columns(k=NUMBERS),
    ]:
        assert sent(tasks, rows) == sent(keyed(), rows)


def test_keys_that_their_owner_changes_in_place_are_other_keys(monkeypatch: pytest.MonkeyPatch):
    found = count_found(monkeypatch)
    tasks = keyed()
    keys = np.arange(1_000)
    rows = columns(k=keys, n=keys.copy())
    assert rows.batch.column(0).buffers()[1].address == keys.ctypes.data
    for _ in range(3):
        passed(tasks, rows)
    assert found[Division] == 1
    # Between the ends, which the sample does not cover.
    keys[400:600] += 5_000
    assert passed(tasks, rows) == passed(keyed(), columns(k=keys.copy(), n=np.arange(1_000)))


def test_what_was_sent_of_kept_keys_does_not_change_when_their_owner_changes_them():
    tasks = keyed()
    keys = np.arange(40)
    for _ in range(2):
        passed(tasks, columns(k=keys, n=NUMBERS))
    before = keys.copy()
    kept = passed(tasks, columns(k=keys, n=NUMBERS))
    keys += 100
    assert kept == passed(keyed(), columns(k=before, n=NUMBERS))


# -- rows of a table ---------------------------------------------------------------------------------------------

PAIRS = Table(key={"a": "int64", "b": "int64"}, columns={"sum": "int64"})
SUMS = Table(key={"id": "int64"}, columns={"sum": "int64"})


@pytest.mark.parametrize("key", [{"a": "int64"}, {"a": "int64", "b": "int64"}, {"a": "string"}])
def test_rows_of_kept_keys_are_those_of_their_keys(key: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    found = count_found(monkeypatch)
    table = TableState("t", Table(key=key, columns={"sum": "int64"}))
    kinds = [
        np.array(NUMBERS) if kind == "int64" else np.array(list(map(str, NUMBERS)), object) for kind in key.values()
    ]
    for _ in range(5):
        rows = table.rows(*kinds)
        table.combine(np.add, rows, sum=1)
        rows[:] = -7
    assert table.scan()["sum"].tolist() == [5] * 40
    # Texts are not kept.
    assert found[np.ndarray] == (0 if "string" in key.values() else 3)


def test_a_key_that_is_looked_for_before_it_has_a_row_is_found_once_it_has_one(monkeypatch: pytest.MonkeyPatch):
    table = TableState("t", SUMS)
    table.rows([1])
    for _ in range(3):
        assert (table.find([1, 2]) >= 0).tolist() == [True, False]
    table.rows([2])
    found = count_found(monkeypatch)
    assert [(table.find([1, 2]) >= 0).all() for _ in range(4)] == [True] * 4
    assert found[np.ndarray] == 2


def test_rows_stay_those_of_their_keys_while_the_table_grows():
    table = TableState("t", SUMS)
    for turn in range(5):
        table.combine(np.add, table.rows([3, 1]), sum=[30, 10])
        table.combine(np.add, table.rows(np.arange(turn * 9_000, turn * 9_000 + 9_000)), sum=0)
    known = dict(zip(*(column.tolist() for column in table.scan().values()), strict=True))
    assert (known[3], known[1]) == (150, 50)


def test_keys_of_a_table_that_change_in_place_are_other_keys():
    table, ids = TableState("t", SUMS), np.arange(1_000)
    for _ in range(3):
        table.rows(ids)
    ids[400:600] += 5_000
    table.set(table.rows(ids), sum=ids)
    assert table.get("sum", table.find(np.arange(400, 600))).tolist() == [0] * 200
    assert table.get("sum", table.find(ids)).tolist() == ids.tolist()


def test_a_restored_table_finds_its_own_rows():
    table = TableState("t", SUMS)
    for _ in range(3):
        table.set(table.rows([5, 4]), sum=[5, 4])
    restored = TableState("t", SUMS)
    restored.rows([4])
    restored.restore(rows_of(OperatorState(table.capture().parts())))
    assert restored.get("sum", restored.rows([5, 4])).tolist() == [5, 4]

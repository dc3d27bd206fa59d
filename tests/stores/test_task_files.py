"""A snapshot comes back from its files as it went in."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow.parquet as parquet
import pytest
from msgspec.structs import replace
from pyarrow.dataset import dataset

from backedge import Flow, Items, Print
from backedge.engine.on_ray.job_store import TasksInFolder
from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.recovery.cut.cut import InputRecord, OperatorState, TaskSnapshot
from backedge.recovery.cut.keyed_parts import KeyedPart, Numbers, entries_of, in_groups
from backedge.recovery.protocol.orders import AttemptStart
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.names import Table
from backedge.recovery.stores.state_table import parts_of, state_parts
from backedge.recovery.stores.store_errors import StoreError
from tests.stores import snapshots as made
from tests.stores.snapshots import RANK, SOURCE, complete, decoded, held, meaning, snapshots_of

ROOT = Path(__file__).resolve().parents[2]


def rows_of(store: CutStore, name: str) -> list[dict[str, Any]]:
    return parquet.ParquetFile(Path(store.path) / name).read().to_pylist()


def test_a_cut_comes_back_in_meaning(store: CutStore):
    complete(store, 7)
    cut = store.cut(Epoch(7))
    written = snapshots_of(7)
    assert {task: meaning(part) for task, part in cut.snapshots.items()} == {t: meaning(p) for t, p in written.items()}
    assert (cut.epoch, cut.attempt, cut.graph_hash, cut.policy) == (7, 1, "abc", "aligned")
    assert (cut.between_rounds, cut.parallelism) == (False, {"rank": 1})
    rounds: Any = cut.snapshots[RANK].rounds
    assert [type(id) for id in (*rounds.given, *rounds.contributions)] == [ChannelId, TaskId]


def test_a_cut_that_could_not_be_read_back_is_not_completed(store: CutStore):
    split: Any = 0
    orders = OperatorState(splits={split: pickle.dumps(3)})
    parts = snapshots_of(7)
    parts[SOURCE] = replace(parts[SOURCE], operators={**parts[SOURCE].operators, "orders": orders})
    files = made.write(store, parts)
    before = store.chain()
    with pytest.raises(StoreError, match=r"splits\[0\]\[0\] .*`int`"):
        made.append(store, made.manifest_for(files, 7), files)
    assert store.chain() == before and not list(Path(store.path).glob("epoch=7/**/manifest*.json"))


def test_what_has_a_type_is_in_typed_columns_and_only_the_rest_is_pickled(store: CutStore):
    complete(store, 7)
    rows = rows_of(store, "epoch=7/attempt=1/table=state/operator=rank/rank.0.parquet")
    typed = {
        (r["key_int"], r["key_str"], r["value_int"], r["value_float"], r["value_str"]) for r in rows if not r["data"]
    }
    assert typed == {(None, "a", 1, None, None), (None, "b", None, 2.5, None), (None, "c", None, None, "text")} | {
        (7, None, None, None, "seven")
    }
    pickled = [row for row in rows if row["data"] is not None]
    assert [row["kind"] for row in pickled].count("timer") == 3
    assert [row["key_str"] for row in pickled if row["kind"] == "value" and row["key_str"]] == ["ä"]
    assert {(r["key_str"], r["value_int"]) for r in rows if r["kind"] == "timer"} == {("a", 90), ("a", 100), (None, 50)}
    of_the_task = rows_of(store, "epoch=7/attempt=1/table=state/operator=rank/rank.0-1.parquet")
    assert [row["kind"] for row in of_the_task] == ["pending", "pending", "whole"]


def test_each_row_of_a_log_carries_the_digest_before_and_after_it(store: CutStore):
    complete(store, 7)
    rows = rows_of(store, "epoch=7/attempt=1/table=log/loop=again/rank.0.parquet")
    assert [row["position"] for row in rows] == [0, 1, 2, 3]
    assert [row["seq"] for row in rows] == [1, 4, 5, 6]
    assert [row["restored"] for row in rows] == [True, False, False, False]
    assert all(first["digest_after"] == then["digest_before"] for first, then in pairwise(rows[1:]))


def test_tables_hold_plain_types_alone_and_a_column_can_be_null_only_where_something_is(store: CutStore):
    complete(store, 7)
    files = list(Path(store.path).rglob("*.parquet"))
    tables = {part for file in files for part in file.parts if part.startswith("table=")}
    assert tables == {f"table={table}" for table in get_args(Table)} - {"table=rows"}  # of process classes alone
    kinds: set[str] = set()
    for table in (parquet.ParquetFile(file).read() for file in files):
        kinds |= {str(field.type) for field in table.schema}
        assert {f.name for f in table.schema if f.nullable} == {n for n in table.column_names if table[n].null_count}
    assert kinds == {"int32", "int64", "double", "bool", "string", "binary"}


def test_a_reader_of_partition_folders_finds_operators_and_loops_as_columns(store: CutStore):
    complete(store, 7)
    for table, column, names in (("state", "operator", {"rank", "counts"}), ("log", "loop", {"again"})):
        found = dataset(f"{store.path}/epoch=7/attempt=1/table={table}", partitioning="hive").to_table()
        assert set(found.column(column).to_pylist()) == names


def test_empty_tables_make_no_file(tmp_path: Path):
    store = CutStore(str(tmp_path), "job")
    bare = TaskSnapshot(RANK, Epoch(1), Attempt(1), {"map": OperatorState(), "filter": OperatorState()}, (), ())
    files = store.write_task(Attempt(1), Epoch(1), bare)
    assert files.files == ()
    store.create(1, AttemptStart(Attempt(1), None))
    assert store.create(2, made.manifest_for({RANK: files}, 1), {RANK: files}, made.DEPLOYMENT)
    assert {task: meaning(part) for task, part in store.cut(Epoch(1)).snapshots.items()} == {RANK: meaning(bare)}


def test_what_an_auditor_needs_is_told_without_decoding_anything(store: CutStore):
    complete(store, 7)
    folder = "epoch=7/attempt=1"
    manifest = json.loads((Path(store.path) / folder / "manifest-00000002.json").read_bytes())
    operators = [facts for task in manifest["tasks"] for facts in task["operators"]]
    kinds = {facts["name"]: (facts["kind"], facts["records"]) for facts in operators}
    assert kinds.pop("counts") == ("stateful_map", 0) and kinds.pop("rank") == ("process", 0)
    assert kinds == {"orders": ("source", 10), "cleaned": ("map", 0), "done": ("sink", 7)}
    assert manifest["deployment"] == {"tasks": [], "channels": []}
    rank = next(task for task in manifest["tasks"] if task["task"] == "rank")
    columns = ("direction", "edge", "restored", "others", "counts", "logged")
    assert [tuple(table[column] for column in columns) for table in rank["channels"]] == [
        ("in", "orders.out->rank.in", False, [0], [3], []),
        ("in", made.AGAIN, True, [0], [0], [[0, 1]]),
        ("in", made.AGAIN, False, [0], [3], [[0, 3]]),
        ("out", made.AGAIN, False, [0], [6], []),
        ("out", "rank.done->done.in", False, [0], [1], []),
    ]
    transactions = rows_of(store, f"{folder}/table=transactions/operator=done/done.0.parquet")
    assert [(row["name"], row["records"]) for row in transactions] == [("done.0.late", 4), ("done.0.early", 3)]
    assert store.cut(Epoch(7)).snapshots[made.SOURCE].operators["orders"].records == 10


def test_what_is_told_of_the_files_travels_between_processes(store: CutStore):
    files = made.write(store, snapshots_of(7))[RANK]
    assert pickle.loads(pickle.dumps(files)) == files
    assert (files.logs[0].batches, files.logs[0].records) == (4, 4)
    assert files.log_bytes == sum(len(e.payload) for record in snapshots_of(7)[RANK].inputs for e in record.log)
    assert files.state_rows == 14 + 1000


def test_records_of_an_unknown_encoding_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = CutStore(str(tmp_path), "job")
    inputs = (InputRecord(made.BACK, True, 0, 0, made.log_of(b"\xff\xff\xff\xff arrow", made.batch_of(1))),)
    odd = TaskSnapshot(RANK, Epoch(1), Attempt(1), {}, inputs, ())
    assert store.write_task(Attempt(1), Epoch(1), odd).logs[0].records is None
    monkeypatch.setattr("backedge.recovery.stores.record_tables.records_in_batch", len)
    assert store.write_task(Attempt(1), Epoch(1), odd).logs[0].records is not None


# -- keyed state -------------------------------------------------------------------------------------------------


def back(parts: Iterable[KeyedPart]) -> list[KeyedPart]:
    return [found for part in state_parts(OperatorState(parts)) for found in parts_of(part.rows)]


INTS = {0: 1, -1: 2, (1 << 63) - 1: -(1 << 63), -(1 << 63): 0}
FLOATS = {1: 0.5, 2: -0.0, 3: float("inf"), 4: float("nan"), 5: 1.0}


@pytest.mark.parametrize(
    "values",
    [
        INTS,
        FLOATS,
        {1: True, 2: None, "\ud800": 1, "a": "\udfff", "": "", b"k": b"v", 1.5: 1, 1 << 63: 1, 9: 1 << 63},
        {"k": object, ("a", 1): pytest.approx},
        {},
    ],
    ids=["ints", "floats", "edges of types", "classes and functions", "nothing"],
)
def test_state_means_the_same_when_it_comes_back(values: dict[Any, Any]):
    assert repr(decoded(back(held(values)))) == repr(decoded(held(values)))


@pytest.mark.slow
@pytest.mark.parametrize("make", [int, float, str, lambda n: [n], lambda n: n if n % 2 else float(n)])
def test_state_as_operators_encode_it_means_the_same_to_them(make: Callable[[int], Any]):
    values = {**{n: make(n) for n in range(3000)}, **{str(n): make(n) for n in range(3000)}}
    found = entries_of(back(held(values)))
    assert dict(found) == values and len(found) == 6000


def test_numbers_are_columns_before_and_after_they_were_in_a_file():
    values = {n: n if n < 1000 else n / 2 for n in range(2000)}
    for parts in (held(values), back(held(values))):
        assert [part.code for part in parts if isinstance(part, Numbers)] == ["i", "f"] and len([*parts]) == 2
        assert dict(entries_of(parts)) == values


@pytest.mark.parametrize("form", [np.int32, np.uint8])
def test_the_entries_of_a_group_are_found_without_a_copy_of_all_groups(form: type):
    column = np.repeat(np.arange(128, dtype=form), 10_000)
    part = Numbers("i", column, np.zeros(len(column), np.int64), np.zeros(len(column), np.int64))
    tracemalloc.start()
    try:
        found = [len(of.groups) for first, last in ((3, 4), (127, 127)) for of in in_groups([part], first, last)]
        assert found == [20_000, 10_000]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < len(column) / 10


class Loud:
    """A value of the user's that says when it is made."""

    made = 0

    def __reduce__(self) -> Any:
        return _make_loud, ()


def _make_loud() -> Loud:
    Loud.made += 1
    return Loud()


def test_no_code_of_the_users_runs_when_state_is_written_or_read():
    parts = held({"a": Loud(), "b": {"deep": [Loud()]}})
    made_before = Loud.made
    parts = back(parts)
    assert Loud.made == made_before
    assert len(decoded(parts)) == 2
    assert Loud.made == made_before + 2


def test_a_snapshot_with_deltas_is_refused(tmp_path: Path):
    state = OperatorState(deltas=(held({"a": 1}),))
    snapshot = TaskSnapshot(TaskId("rank", 0), Epoch(2), Attempt(1), {"rank": state}, (), ())
    with pytest.raises(ValueError, match="task rank/0 has deltas"):
        CutStore(str(tmp_path), "job").write_task(Attempt(1), Epoch(2), snapshot)
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.slow
def test_a_process_writes_and_restores_records_without_loading_pandas(tmp_path: Path):
    """To load it takes longer than all of our modules, and pyarrow does so by itself where it is installed."""
    written = f"""
import sys
from pathlib import Path
from backedge.recovery.stores.cut_store import CutStore
from tests.stores.snapshots import begin, complete, meaning, snapshots_of
store = CutStore({str(tmp_path)!r}, "job")
begin(store)
complete(store, 7)
same = all(meaning(part) == meaning(snapshots_of(7)[task]) for task, part in store.cut(7).snapshots.items())
print(same, "pandas" in sys.modules, "pyarrow" in sys.modules)
"""
    told = subprocess.run([sys.executable, "-c", written], capture_output=True, text=True, cwd=ROOT)
    assert (told.stdout, told.stderr) == ("True False True\n", "")


def test_logs_of_the_other_edges_of_a_loop_count_for_it_as_those_of_its_back_edge_do(tmp_path: Path):
    flow = Flow("again and again")
    again = flow.loop("again")
    done, rest = (
        flow.read(Items([1])).merge(again).rebalance().map(abs, name="head").rebalance().split(bool, name="body")
    )
    again.feed(rest)
    done.write(Print(), name="shown")
    plan = flow.plan()
    entering, onward, back = [edge.name for edge in plan.edges if edge.receiver in ("head", "body")]
    body = TaskId("body", 0)
    inputs = tuple(
        InputRecord(ChannelId(edge, TaskId("any", 0), body), edge == back, 0, 0, made.log_of(made.batch_of("x", "y")))
        for edge in (entering, onward, back)
    )
    snapshot = TaskSnapshot(body, Epoch(1), Attempt(1), {}, inputs, ())
    written = TasksInFolder(CutStore(str(tmp_path), "job"), plan, is_beside=False).write_task(
        Attempt(1), Epoch(1), snapshot
    )
    assert {log.loop: (log.batches, log.records) for log in written.logs} == {entering: (1, 2), "again": (2, 4)}

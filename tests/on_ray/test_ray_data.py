"""A dataset is pinned before the run: a restart reads the same rows, whatever the blocks are, or is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from backedge import BadOptionError, Collect, Flow, InputChangedError, RunOptions, from_ray_data
from backedge.engine.batches.columns import as_records
from backedge.engine.io.reader import SourceReader
from backedge.engine.on_ray import cluster, ray_data
from backedge.engine.on_ray.api.detached_runs import check_detached
from backedge.engine.on_ray.ray_data import DatasetRows, Piece, common_schema, digest_of, to_ray_data
from tests.on_ray.flows import begin

ROWS = [{"id": number, "name": f"order {number}" if number % 3 else None} for number in range(50)]


class Dataset:
    """A dataset of Ray Data: its rows in blocks of these sizes."""

    def __init__(self, rows: list[dict[str, Any]], *blocks: int) -> None:
        self.rows = rows
        self.blocks = blocks
        self.context = SimpleNamespace(execution_options=SimpleNamespace(preserve_order=False))

    def to_arrow_refs(self) -> Iterator[Any]:
        assert self.context.execution_options.preserve_order, "else the block that is ready first is the first one"
        start = 0
        for size in (*self.blocks, len(self.rows) - sum(self.blocks)):
            yield cluster.ray.put(pa.Table.from_pylist(self.rows[start : start + size]))
            start += size


def batch(values: list[Any], **options: Any) -> Any:
    return pa.record_batch({"n": pa.array(values, **options)})


def test_a_digest_is_that_of_the_values_and_not_of_their_buffers():
    same = {digest_of(batch([1, 2])), digest_of(batch([0, 1, 2, None]).slice(1, 2))}
    assert len(same) == 1
    others = [batch([1, 3]), batch([2, 1]), batch([1, 2], type=pa.int32()), batch([1, None]), batch([1, 2, 3])]
    assert len({*map(digest_of, others), *same}) == 6
    assert digest_of(batch([1, 2]).rename_columns(["m"])) not in same


def test_every_value_of_a_tensor_counts():
    def tensor(last: float) -> Any:
        values = np.zeros((2, 2_000))
        values[1, -1] = last
        return pa.record_batch([pa.FixedShapeTensorArray.from_numpy_ndarray(values)], names=["t"])

    assert digest_of(tensor(0.0)) != digest_of(tensor(1.0))


def rows_of(**digests: str) -> DatasetRows:
    return DatasetRows({name.strip("_"): Piece(10, digest, None) for name, digest in digests.items()})


class UncombinedArrow:
    """Arrow with tables whose columns stay in several chunks, as those do that hold more than 2 GiB of text."""

    def __getattr__(self, name: str) -> Any:
        return getattr(pa, name)

    def concat_tables(self, tables: list[Any], **options: Any) -> Any:
        table = pa.concat_tables([each for each in tables if each.num_rows], **options)
        return SimpleNamespace(combine_chunks=lambda: table)


def test_rows_that_arrow_leaves_in_several_chunks_are_all_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ray_data, "arrow", UncombinedArrow)
    monkeypatch.setattr(cluster, "connect", lambda: None)
    monkeypatch.setattr(cluster, "task", lambda work, returns=1: work)
    monkeypatch.setattr(cluster, "get", lambda found, timeout_s=None: found)
    blocks = [pa.Table.from_pylist(ROWS[:30]), pa.Table.from_pylist(ROWS[30:])]
    source = from_ray_data(SimpleNamespace(to_arrow_refs=lambda: blocks, context=Dataset([]).context))
    at = source.first_position("0")
    assert rows_read(SourceReader("orders", source, {"0": at}), 20) == ROWS
    assert rows_read(SourceReader("orders", source, {"0": (29, at[1])}), 20) == ROWS[29:]


def rows_read(reader: SourceReader, records_max: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while not reader.exhausted:
        rows += as_records(reader.read(records_max))
    return rows


def test_a_restart_with_other_rows_is_refused_and_one_with_the_same_goes_on():
    source = rows_of(_0="aa", _10="bb")
    source.check_unchanged({"0": (7, "aa"), "10": source.first_position("10")})
    assert source.is_read("0", (10, "aa")) and not source.is_read("0", (9, "aa"))
    for begun in ({"0": (7, "cc")}, {"20": (0, "aa")}):
        with pytest.raises(InputChangedError, match=r"other rows from row (0|20) on.*same dataset"):
            source.check_unchanged(begun)


def test_blocks_agree_on_the_types_of_columns_or_are_refused():
    ids, names = pa.schema({"id": pa.int64(), "name": pa.null()}), pa.schema({"name": pa.string()})
    assert common_schema([]) == pa.schema([])
    assert common_schema([ids, names]) == pa.schema({"id": pa.int64(), "name": pa.string()})
    with pytest.raises(BadOptionError, match=r"differ in the type.*\bid\b.*convert it"):
        common_schema([ids, pa.schema({"id": pa.string()})])


def test_only_datasets_are_taken_and_not_for_detached_runs():
    with pytest.raises(BadOptionError, match=r"type list.*Items"):
        from_ray_data([1])
    flow = Flow("detached")
    flow.read(rows_of(_0="aa"), name="orders").write(Collect(), name="done")
    with pytest.raises(BadOptionError, match=r"detached=True.*dataset.*Parquet"):
        check_detached(flow.plan(), RunOptions(detached=True, snapshots="cuts"), "flow 'detached'")


def test_without_ray_data_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(BadOptionError, match=r"pip install 'backedge\[data\]'"):
        to_ray_data([1])


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_a_killed_run_reads_each_row_once_and_its_result_becomes_a_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ray_data, "PIECE_ROWS", 20)
    source = from_ray_data(Dataset(ROWS, 1, 6, 0, 30))  # the first has only a null for the name
    assert {name: piece.rows for name, piece in source.pieces.items()} == {"0": 20, "20": 20, "40": 10}
    assert from_ray_data(Dataset(ROWS)) == source, "the blocks do not count"
    assert from_ray_data(Dataset([*ROWS[:-1], {"id": 50, "name": None}])) != source
    flow = Flow("dataset")
    flow.read(source, name="orders").rebalance().map(dict, name="kept").write(Collect(), name="done")
    job = begin(flow, snapshots=tmp_path, actors="task", every=0.1, kills=["kept@records=30"])
    result = job.wait()
    assert len(result.kills) == 1
    assert sorted(result.outputs["done"], key=lambda row: row["id"]) == ROWS
    made = SimpleNamespace(from_items=lambda rows: ("dataset", rows))
    monkeypatch.setitem(sys.modules, "ray.data", made)
    assert result.dataset("done") == ("dataset", result.outputs["done"])
    with pytest.raises(BadOptionError, match=r"'gone'.*'done'"):
        result.dataset("gone")

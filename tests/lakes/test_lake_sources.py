"""A table as a source: the files of one version are its splits, whatever is committed meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from backedge import BadOptionError, DeltaTable, IcebergTable, InputChangedError, NoInputError
from backedge.engine.io.lakes.file_rows import READ
from backedge.engine.io.reader import SourceReader
from backedge.testing import check_source
from tests.files.opened import reader, rest
from tests.lakes.lakes_by_hand import Delta, Iceberg, Lake, by_hand, lake, records

__all__ = ["lake"]


def filled(lake: Lake, *versions: range) -> Any:
    lake.create(by_hand(1).schema)
    for ids in versions:
        lake.append(by_hand(*ids))
    return lake.described()


def ids(found: list[Any]) -> list[int]:
    return sorted(row["id"] for row in found)


def test_files_of_the_version_are_splits_and_are_read_once(lake: Lake):
    source = filled(lake, range(3), range(3, 5))
    source.validate_input()
    assert len(source.splits()) == 2
    opened = reader(source)
    assert ids(rest(opened, 2)) == list(range(5))
    assert set(opened.positions().values()) == {READ}
    halves = [reader(source, index, 2) for index in range(2)]
    assert ids([row for half in halves for row in rest(half)]) == list(range(5))


@pytest.mark.slow
def test_every_position_is_one_to_go_on_from(lake: Lake):
    check_source(filled(lake, range(6), range(6, 11)), records(*range(11)), seeds=range(3))


def test_a_restored_task_reads_the_same_version_from_its_position(lake: Lake):
    source = filled(lake, range(5))
    first = reader(source)
    assert len(first.read(2)) == 2
    positions = json.loads(json.dumps(first.positions()))
    lake.append(by_hand(9))
    remaining = rest(SourceReader("in", source, positions))
    assert ids([*remaining, *records(0, 1)]) == list(range(5))
    assert ids(rest(reader(source))) == [*range(5), 9], "a run that begins now reads the version of now"


def test_a_read_file_is_not_opened_again(lake: Lake):
    source = filled(lake, range(3))
    (split,) = source.splits()
    for file in (lake.folder / "lake").rglob("*.parquet"):
        file.unlink()
    assert SourceReader("in", source, {split: READ}).exhausted


def test_a_file_that_was_cleaned_up_is_named(lake: Lake):
    source = filled(lake, range(3))
    opened = reader(source)
    for file in (lake.folder / "lake").rglob("*.parquet"):
        file.unlink()
    with pytest.raises(InputChangedError, match=r"parquet of table .* has gone"):
        opened.read(1)


def test_another_table_at_the_place_is_noticed(lake: Lake):
    source = filled(lake, range(3))
    (split,) = source.splits()
    with pytest.raises(InputChangedError, match="has no file other"):
        SourceReader("in", source, {f"{split.split('/')[0]}/other.parquet": 0}).read(1)
    with pytest.raises(InputChangedError, match="has 3 rows, and 7 were read"):
        SourceReader("in", source, {split: 7}).read(1)


def test_an_earlier_version_can_be_asked_for(tmp_path: Path):
    delta = Delta(tmp_path)
    filled(delta, range(2), range(2, 4))
    assert ids(rest(reader(delta.described(version=1)))) == [0, 1]
    with pytest.raises(NoInputError, match="version 7 of"):
        delta.described(version=7).validate_input()


def test_a_table_whose_files_do_not_say_all_is_refused(tmp_path: Path):
    delta = Delta(tmp_path)
    filled(delta, range(2))
    deltalake.DeltaTable(delta.path).alter.add_feature(
        deltalake.TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    with pytest.raises(NoInputError, match="deletionVectors"):
        delta.described().validate_input()


def test_an_earlier_snapshot_can_be_asked_for(tmp_path: Path):
    iceberg = Iceberg(tmp_path)
    filled(iceberg, range(2), range(2, 4))
    first = iceberg.load().history()[0].snapshot_id
    assert ids(rest(reader(iceberg.described(snapshot=first)))) == [0, 1]
    with pytest.raises(NoInputError, match="no snapshot 7"):
        iceberg.described(snapshot=7).validate_input()


def test_values_of_partitions_are_read_as_well(tmp_path: Path):
    delta = Delta(tmp_path)
    deltalake.write_deltalake(delta.path, by_hand(1, 2), partition_by=["name"])
    found = sorted(rest(reader(delta.described())), key=lambda row: row["id"])
    assert found == records(1, 2)


def test_rows_that_were_deleted_are_not_read(lake: Lake):
    filled(lake, range(5))
    if isinstance(lake, Iceberg):
        with lake.described().connected() as catalog:
            catalog.load_table("shop.rows").delete("id < 3")
    else:
        deltalake.DeltaTable(Delta(lake.folder).path).delete("id < 3")
    assert ids(rest(reader(lake.described()))) == [3, 4]


def test_an_empty_table_has_no_splits_and_no_table_is_refused(lake: Lake):
    with pytest.raises(NoInputError, match="correct"):
        lake.described().validate_input()
    lake.create(by_hand(1).schema)
    lake.described().validate_input()
    assert lake.described().splits() == []


def test_what_is_no_table_is_refused_when_it_is_described():
    wrong: list[Any] = [
        lambda: DeltaTable(""),
        lambda: DeltaTable("x", schema="merge"),
        lambda: IcebergTable("x", "rows"),
        lambda: IcebergTable("", "shop.rows"),
        lambda: IcebergTable("x", "shop..rows"),
        lambda: IcebergTable("x", "shop.a/b"),
        lambda: IcebergTable("x", "shop.%2e%2e%2fb"),
        *(lambda place=place: DeltaTable(place) for place in ("a%20b", "a\\b", "a\nb")),
        *(lambda place=place: IcebergTable(place, "shop.rows") for place in ("a%20b", "a#b", "a?b", "a\nb")),
    ]
    for describe in wrong:
        with pytest.raises(BadOptionError):
            describe()


def test_a_relative_place_becomes_absolute_and_a_uri_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert DeltaTable("rows").relative_path == "rows" and DeltaTable("rows").absolute().path == str(tmp_path / "rows")
    assert (
        DeltaTable("s3://b/rows").relative_path is None and DeltaTable("s3://b/rows").absolute().path == "s3://b/rows"
    )
    table = IcebergTable("lake", "shop.rows")
    assert table.relative_path == "lake" and table.absolute().catalog == str(tmp_path / "lake")
    other = IcebergTable({"type": "rest", "uri": "http://x", "token": "secret"}, "shop.rows")
    assert other.relative_path is None and other.absolute() == other and "secret" not in f"{other!r} {other.title}"


def test_columns_travel_as_columns(lake: Lake):
    source = filled(lake, range(3))
    found = reader(source).read(10)
    assert isinstance(found.batch, pa.RecordBatch)

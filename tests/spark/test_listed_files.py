"""Files in stores that Spark cannot read: each is fetched, verified and decoded, in this order, by one of its tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.cut_tables.listed_files import Listed, ListedFiles
from backedge.recovery.spark.cut_tables.manifest_tables import rows_of
from backedge.recovery.spark.cut_tables.table_schemas import FILES, columns_of
from backedge.recovery.spark.spark_errors import UnreadableError
from backedge.recovery.stores.parquet_tables import parquet
from backedge.recovery.stores.store_schemes import store_at
from tests.spark.cuts import job_of_cuts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return job_of_cuts(tmp_path_factory.mktemp("snapshots"))


@pytest.fixture
def database(folder: Path, tmp_path: Path) -> str:
    """A copy of the job in a store that is no folder."""
    location = f"sqlite://{tmp_path}/cuts.db/job"
    files = (file for file in folder.rglob("*") if file.is_file())
    store_at(location).write({file.relative_to(folder).as_posix(): file.read_bytes() for file in files})
    return location


def listed(location: str, table: str) -> list[Listed]:
    """The files of a table, in all cuts."""
    job = JobFolder.open(location)
    rows = rows_of("files", job, {epoch: job.manifest(epoch) for epoch in job.cuts()})
    return sorted({(location, name, size, digest) for *_, kind, _, name, size, digest, _ in rows if kind == table})


def batches(table: str, files: list[Listed]) -> Iterator[list[Any]]:
    """The batches that each partition reads."""
    source: Any = ListedFiles({"table": table, "files": json.dumps(files)})
    reader = source.reader(None)
    for partition in reader.partitions():
        yield list(reader.read(partition))


def row_of_state(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a process class's table, as a row of `state`."""
    key, value = row["key"]["id"], json.dumps(row["value"], separators=(",", ":"))
    columns = {"kind": "value", "key_group": row["key_group"], "key_int": key, "key_str": None}
    return {**columns, "key": str(key), "value": value}


@pytest.mark.parametrize(
    "table", sorted(FILES.keys() - {"answers"})
)  # they are in the journal, which no manifest lists
def test_rows_are_those_of_the_same_files_in_a_folder(table: str, folder: Path, database: str):
    files = listed(database, table)
    found = [batch for share in batches(table, files) for batch in share]
    assert all(batch.schema.names == [*columns_of(FILES[table]), "_place"] for batch in found)
    expected = [
        {**(row_of_state(row) if table == "rows" else row), "_place": f"{database}/{name}"}
        for _, name, _, _ in files
        for row in parquet.ParquetFile(folder / name).read().to_pylist()
    ]
    # Some values are NaN, which equals nothing.
    assert expected and repr([row for batch in found for row in batch.to_pylist()]) == repr(expected)


@pytest.mark.slow
def test_many_files_are_shared_out_to_tasks_and_each_is_read_once(database: str):
    files = listed(database, "log")
    once = sum(batch.num_rows for share in batches("log", files) for batch in share)
    shares = list(batches("log", files * 17))
    assert len(shares) > 1
    assert sum(batch.num_rows for share in shares for batch in share) == 17 * once


def test_no_file_makes_no_row():
    assert list(batches("log", [])) == [[]]


@pytest.mark.parametrize("ending", [b"?", b""], ids=["changed", "torn"])
def test_what_is_not_as_listed_is_refused_before_it_is_decoded(database: str, ending: bytes):
    files = listed(database, "log")
    name = files[0][1]
    store = store_at(database)
    store.write({name: store.read(name)[:-1] + ending})
    with pytest.raises(UnreadableError, match=f"{database}/{name}"):
        list(batches("log", files))


def test_a_missing_file_is_named(database: str):
    (folder, _, size, digest), *_ = listed(database, "log")
    with pytest.raises(UnreadableError, match=f"{database}/gone"):
        list(batches("log", [(folder, "gone", size, digest)]))

"""Sources of files read objects: exactly, from a position, and only the version that was listed."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backedge import CSV, JsonLines, Parquet, TextLines
from backedge.engine.batches.columns import as_records
from backedge.engine.io.files.checks import check_source
from backedge.engine.io.files.file_errors import InputChangedError, NoInputError
from backedge.engine.io.reader import finder_of
from backedge.recovery.stores.object_client import Repeats
from backedge.recovery.stores.object_store import PIECE_BYTES
from tests.files.opened import reader, rest, source
from tests.objects.conftest import Place

# They start servers.
pytestmark = pytest.mark.slow


def lines(*values: Any) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def parquet_of(rows: int, group: int) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"n": list(range(rows))}), file, row_group_size=group)
    return file.getvalue()


@pytest.mark.parametrize(
    ("kind", "name", "data", "records"),
    [
        (JsonLines, "a.jsonl", lines({"n": 1}, {"n": 2}), [{"n": 1}, {"n": 2}]),
        (JsonLines, "a.jsonl.gz", gzip.compress(lines({"n": 1}, {"n": 2}), mtime=0), [{"n": 1}, {"n": 2}]),
        (CSV, "a.csv", b"n\n1\n2\n", [{"n": "1"}, {"n": "2"}]),
        (TextLines, "a.log", b"one\ntwo", ["one", "two"]),
    ],
)
def test_each_format_reads_an_object_and_resumes_at_a_position(
    place: Place, kind: Any, name: str, data: bytes, records: list[Any]
):
    place.open().write({f"in/{name}": data, "in/_staging/x": b"not input", "in/.hidden": b"not input"})
    for path in (f"{place.location}/in", f"{place.location}/in/{name}", f"{place.location}/in/{name[:1]}*"):
        first = reader(kind(path))
        assert first.read(1) == records[:1]
        restored = reader(kind(path), positions=first.positions())
        assert rest(restored) == records[1:]


def test_row_groups_of_an_object_are_splits(place: Place):
    place.open().write({"in/a.parquet": parquet_of(10, 4), "in/b.parquet": parquet_of(3, 4)})
    described = Parquet(f"{place.location}/in")
    assert len(described.splits()) == 4
    opened = reader(described)
    rows = as_records(opened.read(3))
    restored = reader(described, positions=opened.positions())
    while not restored.exhausted:
        rows += as_records(restored.read(100))
    assert sorted(row["n"] for row in rows) == sorted([*range(10), *range(3)])


def test_a_pattern_chooses_objects_and_a_star_stays_within_a_part(place: Place):
    place.open().write({f"in/{name}": lines(name) for name in ("a-1.jsonl", "a-2.txt", "b.jsonl", "a-3/c.jsonl")})
    assert rest(reader(JsonLines(f"{place.location}/in/a-*.jsonl"))) == ["a-1.jsonl"]
    assert rest(reader(JsonLines(f"{place.location}/in/*/c.jsonl"))) == ["a-3/c.jsonl"]
    with pytest.raises(NoInputError, match=r"in/z\*"):
        reader(JsonLines(f"{place.location}/in/z*"))
    assert JsonLines("s3://bucket/orders/*.jsonl").label == "orders"


@pytest.mark.parametrize("is_larger", [False, True])
def test_an_object_that_was_replaced_is_refused_also_if_it_only_grew(place: Place, is_larger: bool):
    place.open().write({"in/a.jsonl": lines(1, 2)})
    described = JsonLines(f"{place.location}/in")
    opened = reader(described)
    assert opened.read(1) == [1]
    place.open().write({"in/a.jsonl": lines(1, 2, 3) if is_larger else lines(1, 7)})
    with pytest.raises(InputChangedError, match=r"in/a\.jsonl"):
        reader(described, positions=opened.positions())


def test_an_object_that_is_gone_is_named_and_one_that_was_read_may_be_gone(place: Place):
    place.open().write({"in/a.jsonl": lines(1)})
    described = JsonLines(f"{place.location}/in")
    opened = reader(described)
    begin = opened.positions()
    assert rest(opened) == [1]
    place.open().remove(["in/a.jsonl"])
    assert rest(reader(described, positions=opened.positions())) == []
    with pytest.raises(InputChangedError, match=r"in/a\.jsonl"):
        reader(described, positions=begin)


def test_an_object_that_is_replaced_while_it_is_read_is_never_mixed(place: Place):
    row = {"n": "x" * 1000}
    place.open(Repeats()).write({"in/a.jsonl": lines(*[row] * (PIECE_BYTES // 500))})
    described = JsonLines(f"{place.location}/in")
    opened = reader(described)
    assert opened.read(1) == [row]
    place.open(Repeats()).write({"in/a.jsonl": lines(*[{"n": "y" * 1000}] * (PIECE_BYTES // 500))})
    with pytest.raises(OSError, match="replaced"):
        rest(opened)
    with pytest.raises(InputChangedError):
        reader(described, positions=opened.positions())


@pytest.mark.parametrize("kind", ["lost reply", "cut", 503])
def test_requests_that_fail_are_repeated(place: Place, kind: Any):
    place.open().write({"in/a.jsonl": lines(*range(100)), "in/b.parquet": parquet_of(100, 100)})
    fault = place.proxy.plan("GET", "in/a.jsonl", kind)
    other = place.proxy.plan("GET", "in/b.parquet", kind)
    listing = place.proxy.plan("GET", "list", kind)
    assert rest(reader(JsonLines(f"{place.location}/in"))) == list(range(100))
    assert len(reader(Parquet(f"{place.location}/in")).read(1000)) == 100
    assert (fault.happened, other.happened, listing.happened) == (1, 1, 1)


def test_input_that_cannot_be_read_is_refused_before_the_run(place: Place, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(NoInputError, match=r"/none"):
        check_source(source(JsonLines(f"{place.location}/none")))
    place.open().write({"in/a.csv": b"n\n"})
    with pytest.raises(NoInputError, match=r"no file ending in \.jsonl.*'a\.csv'"):
        check_source(source(JsonLines(f"{place.location}/in")))
    scheme = place.location.partition("://")[0]
    with pytest.raises(NoInputError, match=rf"{scheme}://missing"):
        check_source(source(JsonLines(f"{scheme}://missing/in")))
    fault = place.proxy.plan("HEAD", "/in", 403)
    with pytest.raises(NoInputError, match=r"access was denied"):
        check_source(source(JsonLines(f"{place.location}/in")))
    assert fault.happened == 1


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "backedge.recovery.stores.object_store", None)
    with pytest.raises(NoInputError, match=r"s3://bucket/in.*backedge\[s3\]"):
        check_source(source(JsonLines("s3://bucket/in")))


def test_objects_that_arrive_are_found_once_and_in_the_version_that_was_found(place: Place):
    """Below a path, and of a pattern."""
    store = place.open()
    for path, folder in (("in", "in"), ("by*/in-*.jsonl", "by-name")):
        described = JsonLines(f"{place.location}/{path}", watch=0.001)
        assert check_source(source(described)) is None
        find = finder_of(source(described))
        assert find(()) == ([], False, ()), "a folder without objects is none"
        store.write({f"{folder}/in-1.jsonl": lines(1), f"{folder}/in-2.jsonl": lines(2), f"{folder}/.x.jsonl": b"no"})
        found: list[str] = []
        while len(found) < 2:  # the clock of the server may be a little ahead
            found += find(found).new
        opened = reader(described, positions={})
        for split in found:
            opened.begin(split, described.first_position(split))
        assert sorted(rest(opened)) == [1, 2]
        store.remove([f"{folder}/in-1.jsonl"])
        assert list(find(found).gone) == found[:1]
        store.write({f"{folder}/in-2.jsonl": lines(3)})
        with pytest.raises(InputChangedError, match=r"source 'in': .*/in-2\.jsonl has changed since it was found"):
            find(found[1:])


def test_the_last_object_is_in_the_folder_or_beside_what_a_pattern_chooses(place: Place):
    store = place.open()
    for path in ("in", "in/a-*.jsonl"):
        store.write({"in/a-1.jsonl": lines(1)})
        find = finder_of(source(JsonLines(f"{place.location}/{path}", watch=3600, until="_DONE")))
        assert not find(()).is_last
        store.write({"in/_DONE": b""})
        assert find(()).is_last
        store.remove(["in/_DONE"])

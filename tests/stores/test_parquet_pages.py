"""Files with a column of bytes that is written page by page are what Arrow would have written, and read by others."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
from pyarrow.dataset import dataset

from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.cut.cut import InputRecord, OperatorState, TaskSnapshot
from backedge.recovery.cut.keyed_parts import entries_of
from backedge.recovery.spark.audit.file_checks import faults_in
from backedge.recovery.stores import parquet_pages, thrift
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.parquet_pages import BytesColumn, WithBytes
from backedge.recovery.stores.parquet_tables import decode, encode
from backedge.recovery.stores.record_tables import LOG, REPEATING_IN_LOG, log_part, logs_in
from backedge.recovery.stores.state_table import REPEATING, STATE, Part, state_parts
from backedge.recovery.stores.store_errors import SnapshotCorruptError
from tests.stores.snapshots import BACK, DEPLOYMENT, IN, begin, held, log_of, manifest_for

TASK = TaskId("held", 0)
SIZES = {"of one size": (1_000, 1_000), "of many sizes": (0, 3_000), "small": (0, 9), "long": (400_000, 900_000)}
FEWER_FAST = [pytest.param(name, marks=pytest.mark.slow) if name == "small" else name for name in SIZES]


def bytes_by_key(least: int, most: int, size: int = 3_000_000) -> dict[int, bytes]:
    drawn, found = random.Random(7), dict[int, bytes]()
    while size > 0:
        found[-len(found) if len(found) % 2 else len(found) << 20] = value = drawn.randbytes(drawn.randint(least, most))
        size -= max(len(value), 16)
    return found


def parts_of(values: dict[int, Any]) -> list[Part]:
    return list(state_parts(OperatorState(held(values))))


def pieces_of(part: Part) -> WithBytes:
    assert part.values is not None
    return WithBytes(part.columns, REPEATING, part.values)


@pytest.fixture(params=FEWER_FAST)
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Part:
    monkeypatch.setattr(parquet_pages, "LARGE_BYTES", 1)
    monkeypatch.setattr(parquet_pages, "PAGE_BYTES", 100_000)
    [found] = parts_of(bytes_by_key(*SIZES[request.param]))
    return found


def test_such_a_file_has_the_rows_and_the_columns_of_one_that_arrow_has_written(part: Part):
    pieces = pieces_of(part)
    data, others = b"".join(pieces), encode(part.rows, REPEATING)
    assert data == b"".join(pieces), "it may be written again"
    assert len(list(pieces)) > 3 or len(data) < 300_000
    assert decode(data, STATE, "held").equals(decode(others, STATE, "held"))
    ours, theirs = (parquet.ParquetFile(io.BytesIO(each)) for each in (data, others))
    assert ours.schema.equals(theirs.schema)
    for place, name in enumerate(STATE.names):
        found, expected = (file.metadata.row_group(0).column(place) for file in (ours, theirs))
        assert (found.path_in_schema, found.num_values) == (name, expected.num_values)
        assert found.physical_type == expected.physical_type
    assert ours.metadata.row_group(0).total_byte_size > sum(part.values.sizes if part.values else ())
    assert faults_in("state", io.BytesIO(data), part.span) == []


def test_a_page_holds_about_as_much_as_it_may(part: Part):
    _, *pages, _ = pieces_of(part)
    largest = max(part.values.sizes) if part.values else 0
    assert max(map(len, pages)) < 100_000 + largest + 50


def test_a_value_that_no_column_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch, part: Part):
    monkeypatch.setattr(parquet_pages, "_VALUE_BYTES_MAX", 5)
    with pytest.raises(OSError, match="and a table holds at most 5 of one"):
        list(pieces_of(part))


def written(folder: Path, values: dict[int, Any]) -> CutStore:
    store = CutStore(str(folder), "job")
    begin(store)
    [*parts] = parts_of(values)
    assert any(part.values is not None for part in parts)
    snapshot = TaskSnapshot(TASK, Epoch(1), Attempt(1), {"held": OperatorState(held(values))}, (), (), base=None)
    files = store.write_task(Attempt(1), Epoch(1), snapshot, left_bytes_max=1_000_000)
    assert files.is_settled and files.state_rows == len(values)
    assert store.create(2, manifest_for({TASK: files}, 1), {TASK: files}, DEPLOYMENT)
    return store


def test_large_bytes_come_back_from_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("backedge.recovery.stores.state_table.PART_BYTES", 2_000_000)
    values = bytes_by_key(500, 1_500, 5_000_000)
    store = written(tmp_path, values)
    store.verify(Epoch(1))
    groups = store.cut(Epoch(1)).snapshots[TASK].operators["held"].keyed
    assert dict(entries_of(groups)) == values
    folder = Path(store.path, "epoch=1/attempt=1/table=state")
    assert len(list(folder.rglob("held.0*.parquet"))) == 3
    rows = dataset(folder, partitioning="hive").to_table(columns=["key_int", "value_bytes"]).to_pydict()
    assert dict(zip(rows["key_int"], rows["value_bytes"], strict=True)) == values


@pytest.mark.parametrize("where", [0.3, 0.6, 0.99])
def test_a_byte_that_was_changed_in_such_a_file_is_found(tmp_path: Path, where: float):
    store = written(tmp_path, bytes_by_key(500, 1_500))
    [file] = Path(store.path).rglob("*.parquet")
    data = bytearray(file.read_bytes())
    data[int(where * len(data))] ^= 1
    file.write_bytes(data)
    for read in (store.verify, store.cut):
        with pytest.raises(SnapshotCorruptError, match="was changed"):
            read(Epoch(1))


def test_a_file_that_has_lost_its_temporary_name_is_written_again(tmp_path: Path):
    """A sweep removes what an interrupted write has left, and may take this for it."""
    store, turns = FolderStore(str(tmp_path)), list[int]()

    class Pieces:
        def __iter__(self) -> Iterator[bytes]:
            turns.append(len(turns))
            yield b"one "
            if len(turns) == 1:
                for path in tmp_path.rglob(".part-*"):
                    path.unlink()
            yield b"two"

    store.write_pieces("a/b", Pieces())
    assert store.read("a/b") == b"one two" and turns == [0, 1]


@pytest.mark.parametrize(("name", "most"), [("ROWS_MAX", 5), ("LARGE_BYTES", 1 << 30)])
def test_few_bytes_and_more_rows_than_one_group_has_are_left_to_arrow(
    monkeypatch: pytest.MonkeyPatch, name: str, most: int
):
    values = bytes_by_key(500, 1_500)
    assert all(part.values is not None for part in parts_of(values))
    monkeypatch.setattr(parquet_pages, name, most)
    assert all(part.values is None for part in parts_of(values))


def log_part_of(*payloads: bytes) -> Part:
    first, second = log_of(*payloads[:3]), log_of(*payloads[3:])
    return log_part([InputRecord(BACK, True, 9, 9, first), InputRecord(IN, False, 9, 9, second)])


def test_a_large_log_is_written_page_by_page_and_read_as_it_was(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parquet_pages, "PAGE_BYTES", 100_000)
    payloads = [drawn(size) for size in (9, 700_000, 0, 400_000, 90_000)]
    part = log_part_of(*payloads)
    assert part.values is not None
    pieces = list(WithBytes(part.columns, REPEATING_IN_LOG, part.values))
    assert len(pieces) == 5
    data = b"".join(pieces)
    assert part.rows.equals(decode(data, LOG, "log"))
    assert logs_in(decode(data, LOG, "log")) == {BACK: log_of(*payloads[:3]), IN: log_of(*payloads[3:])}
    assert faults_in("log", io.BytesIO(data), None) == []


def drawn(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


MIXED = {
    "zeros behind bytes that do not shrink": [drawn(70_000), *[bytes(60_000)] * 50],
    "zeros before bytes that do not shrink": [*[bytes(60_000)] * 50, drawn(70_000)],
    "small ones that are equal": [b"many times the same, and longer than a word or two"] * 25_000,
    "zeros behind the head of each": [drawn(4_096, n) + bytes(60_000) for n in range(128)],
    "halves": [drawn(9_000, n) + bytes(9_000) for n in range(100)],
}


@pytest.mark.parametrize("payloads", MIXED.values(), ids=MIXED)
def test_bytes_most_of_which_shrink_are_left_to_arrow_and_do_shrink(payloads: list[bytes]):
    size = sum(map(len, payloads))
    [state] = parts_of(dict(enumerate(payloads)))
    for part, repeating in ((log_part_of(*payloads), REPEATING_IN_LOG), (state, REPEATING)):
        assert size > parquet_pages.LARGE_BYTES and part.values is None
        assert len(encode(part.columns, repeating)) < 0.7 * size


def test_bytes_that_do_not_shrink_but_for_the_head_of_each_have_pages():
    payloads = [bytes(4_096) + drawn(60_000, n) for n in range(128)]
    assert log_part_of(*payloads).values is not None
    assert all(part.values is not None for part in parts_of(dict(enumerate(payloads))))


def test_a_value_that_is_too_large_for_a_page_is_left_to_arrow(monkeypatch: pytest.MonkeyPatch):
    payloads = [drawn(700_000, n) for n in range(3)]
    assert log_part_of(*payloads).values is not None
    monkeypatch.setattr(parquet_pages, "_VALUE_BYTES_MAX", 600_000)
    assert log_part_of(*payloads).values is None


@pytest.mark.parametrize("payload", [bytes(3_000_000), random.Random(1).randbytes(1_000_000)], ids=["zeros", "small"])
def test_a_log_that_compression_makes_smaller_and_a_small_one_are_left_to_arrow(payload: bytes):
    part = log_part_of(payload)
    assert part.values is None
    data = encode(part.columns, REPEATING_IN_LOG)
    assert len(data) < 1_100_000
    assert logs_in(decode(data, LOG, "log")) == {BACK: log_of(payload)}


def test_pages_can_have_columns_on_both_sides():
    table = parts_of({1: (2,)})[0].columns.select(["kind", "key_int"])
    column = BytesColumn("between", 1, [b"x"], np.array([1]))
    found = parquet.ParquetFile(io.BytesIO(b"".join(WithBytes(table, REPEATING, column)))).read()
    assert found.to_pylist() == [{"kind": "value", "between": b"x", "key_int": 1}]


def test_what_a_footer_of_parquet_cannot_hold_is_refused():
    double = 7
    with pytest.raises(ValueError, match="no values of type 7"):
        thrift.encoded({1: (double, 0.5)})
    with pytest.raises(ValueError, match="no values of type 7"):
        thrift.decoded(bytes([1 << 4 | double]))


def test_a_number_without_end_is_refused():
    begun = bytes([1 << 4 | thrift.I64]) + bytes([128] * 9)
    assert thrift.decoded(begun + b"\x01\0") == {1: (thrift.I64, 1 << 62)}
    with pytest.raises(ValueError, match="more than 64 bits"):
        thrift.decoded(begun + b"\x80\x01\0")


def test_a_footer_is_what_it_was_after_it_was_decoded(part: Part):
    data = encode(part.columns, REPEATING)
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    assert thrift.encoded(thrift.decoded(footer)) == footer
    many = {number: (thrift.LIST, (thrift.I64, [number, -number] * number)) for number in (1, 17, 300)}
    assert thrift.decoded(thrift.encoded(many)) == many
    booleans = {1: (thrift.LIST, (thrift.TRUE, [True, False, True])), 2: (thrift.I32, 7)}
    assert thrift.decoded(thrift.encoded(booleans)) == booleans

    listed = bytes([1 << 4 | thrift.LIST, 0xF0 | thrift.TRUE, 100])
    assert thrift.decoded(listed + bytes([2]) * 100 + b"\0")[1][1][1] == [False] * 100, "a byte for each"
    with pytest.raises(ValueError, match="100 bytes are to follow"):
        thrift.decoded(listed + bytes(50))

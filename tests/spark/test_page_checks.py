"""Files that were forged so that reading them would take any amount of memory, or end the process: one line says so."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backedge.recovery.spark.audit import file_checks
from backedge.recovery.spark.audit.file_checks import TooLargeError, faults_in
from backedge.recovery.spark.audit.file_verification import check_file
from backedge.recovery.spark.cut_tables import table_files
from backedge.recovery.spark.cut_tables.file_rows import stored_batches
from backedge.recovery.spark.cut_tables.page_checks import PageError
from backedge.recovery.spark.spark_errors import UnreadableError
from backedge.recovery.stores import record_tables as records
from backedge.recovery.stores import thrift
from backedge.recovery.stores.digests import digest_of_task_file
from backedge.recovery.stores.parquet_tables import encode, from_rows, pa, parquet
from backedge.recovery.stores.state_table import REPEATING, STATE
from backedge.recovery.stores.thrift import BINARY, I32, I64, LIST, STRUCT, Struct
from tests.stores.test_parquet_pages import bytes_by_key, parts_of, pieces_of

FEW, MANY = 3, 10_000
BYTES = 3_000_000


def state(count: int = FEW, **columns: Any) -> Any:
    """A table of state; `columns` in place of some of its own."""
    found = {field.name: pa.nulls(count, field.type) for field in STATE}
    numbers = {"key_int": pa.array(range(count)), "value_int": pa.array(range(count))}
    found |= {"kind": pa.array(["value"] * count), "key_group": pa.array([0] * count, pa.int32()), **numbers}
    return pa.table(found | columns)


def log(count: int = FEW) -> Any:
    return from_rows(records.LOG, [(n, "e", "a", 0, "b", 0, False, n, 0, 0, 0, b"y") for n in range(count)])


def rows(count: int = FEW) -> Any:
    struct = pa.array([{"n": n} for n in range(count)])
    return pa.table({"key_group": pa.array([0] * count, pa.int32()), "key": struct, "value": struct})


def plain(table: Any, **options: Any) -> bytes:
    """The file that another writer makes of a table."""
    sink = io.BytesIO()
    given = {"use_dictionary": False, "store_schema": False, "column_encoding": None, **options}
    parquet.write_table(table, sink, **given)
    return sink.getvalue()


def answer(folder: Path, table: str, data: bytes) -> str:
    """What an audit says of a file, which it must not decode."""
    owner = {"state": "operator=x/", "rows": "operator=x/", "log": "loop=x/"}.get(table, "")
    name = f"epoch=1/attempt=1/table={table}/{owner}rank.0.parquet"
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    found = check_file(str(folder), name, len(data), digest_of_task_file(data), (0, 0))
    assert isinstance(found, str) and "\n" not in found and str(path) in found, found
    return found


# -- bombs -------------------------------------------------------------------------------------------------------


def repeated(value: Any) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(MANY, np.int32)), pa.array([value]))


LARGE_DICTIONARY = {"use_dictionary": True, "dictionary_pagesize_limit": 1 << 30}
BOMBS: dict[str, tuple[str, Callable[[], Any], dict[str, Any], str]] = {
    "bytes": ("state", lambda: state(MANY, value_bytes=repeated(bytes(BYTES))), LARGE_DICTIONARY, "has a page of"),
    "kinds": ("state", lambda: state(MANY, kind=repeated("x" * BYTES)), LARGE_DICTIONARY, "repeats values of column"),
    "edges": (
        "log",
        lambda: log(MANY).set_column(1, "edge", repeated("x" * BYTES)),
        {**LARGE_DICTIONARY, "use_dictionary": ["edge"]},
        "repeats values of column edge",
    ),
    "parts of keys": (
        "rows",
        lambda: rows(MANY).set_column(1, "key", pa.StructArray.from_arrays([repeated("x" * BYTES)], ["n"])),
        {**LARGE_DICTIONARY, "use_dictionary": ["key.n"]},
        "has a page of column key, of type 2",
    ),
    "beginnings": (
        "state",
        lambda: state(2, value_bytes=pa.array([bytes(BYTES)] * 2)),
        {"column_encoding": {"value_bytes": "DELTA_BYTE_ARRAY"}},
        "has a page of column value_bytes, of type 0 and encoding 7",
    ),
    "a compression that makes much of little": ("state", state, {"compression": "zstd"}, "in a compression"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_file_that_asks_for_more_than_a_multiple_of_its_size_is_not_decoded(bomb: str, tmp_path: Path):
    table, make, options, told = BOMBS[bomb]
    data = plain(make(), **options)
    assert len(data) < 4_000_000
    assert told in answer(tmp_path, table, data)
    (path,) = tmp_path.rglob("*.parquet")
    listed = str(tmp_path), path.relative_to(tmp_path).as_posix(), len(data), digest_of_task_file(data)
    with pytest.raises(UnreadableError, match=f"{path} .*{told}"):
        next(stored_batches(table, *listed))


def test_more_rows_than_the_bytes_of_a_file_can_describe_are_not_decoded(tmp_path: Path):
    numbers = np.zeros(2_000_000, np.int64)
    struct = pa.StructArray.from_arrays([pa.array(numbers)], ["n"])
    table = pa.table({"key_group": pa.array(numbers.astype(np.int32)), "key": struct, "value": struct})
    data = plain(table, column_encoding="DELTA_BINARY_PACKED", compression="snappy")
    assert len(data) < 100_000
    assert "is to have 2,000,000 rows in" in answer(tmp_path, "rows", data)


def test_large_values_are_decoded_some_at_a_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_files, "_AT_ONCE_BYTES", 100_000)
    sizes: list[int] = []
    look = file_checks._State._look_at
    monkeypatch.setattr(file_checks._State, "_look_at", lambda self, rows: (sizes.append(len(rows)), look(self, rows)))
    [part] = parts_of(bytes_by_key(500, 1_500))
    assert faults_in("state", io.BytesIO(b"".join(pieces_of(part))), part.span) == []
    assert max(sizes) < 100 and sum(sizes) == part.columns.num_rows


# -- types -------------------------------------------------------------------------------------------------------

OF_OTHER_TYPES = {
    "list": pa.array([[1]] * FEW),
    "struct": pa.array([{"a": 1}] * FEW),
    "map": pa.array([[("a", 1)]] * FEW, pa.map_(pa.string(), pa.int64())),
    "decimal": pa.array([1] * FEW).cast(pa.decimal128(20)),
    "date": pa.array([1] * FEW, pa.int32()).cast(pa.date32()),
    "unsigned": pa.array([1] * FEW, pa.uint8()),
    "float": pa.array([0.5] * FEW, pa.float32()),
    "large text": pa.array(["a"] * FEW, pa.large_string()),
    "dictionary": pa.array(["a"] * FEW).dictionary_encode(),
}


@pytest.mark.parametrize("kind", OF_OTHER_TYPES)
@pytest.mark.parametrize(
    ("table", "make"),
    [
        ("state", state),
        pytest.param("log", log, marks=pytest.mark.slow),
        pytest.param("rows", rows, marks=pytest.mark.slow),
    ],
)
def test_columns_of_other_types_than_a_restore_reads_are_refused(
    table: str, make: Callable[[], Any], kind: str, tmp_path: Path
):
    for place, name in enumerate(make().schema.names):
        if (table, kind) == ("rows", "struct") and name != "key_group":
            continue  # the columns of a table of a process class are its own
        data = plain(make().set_column(place, name, OF_OTHER_TYPES[kind]), store_schema=True)
        assert f"its columns are not those of a {table} table" in answer(tmp_path, table, data)


def test_text_that_is_none_is_told_in_a_line(tmp_path: Path):
    texts = pa.Array.from_buffers(pa.string(), FEW, pa.array([b"\xff\xfe"] * FEW).buffers())
    answer(tmp_path, "state", plain(state(key_int=pa.nulls(FEW, pa.int64()), key_str=texts)))


# -- footers -----------------------------------------------------------------------------------------------------


def with_footer(data: bytes, change: Callable[[Struct], Any]) -> bytes:
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = thrift.decoded(data[start:-8])
    change(footer)
    encoded = thrift.encoded(footer)
    return data[:start] + encoded + len(encoded).to_bytes(4, "little") + data[-4:]


def chunk(footer: Struct, column: str) -> Struct:
    [group] = footer[4][1][1]
    return group[1][1][1][STATE.get_field_index(column)][3][1]


def in_chunk(field: int, value: Any) -> Callable[[Struct], None]:
    return lambda footer: chunk(footer, "key_int").update({field: value})


def of_no_length(footer: Struct) -> None:
    """A histogram of another length than the column has levels: Arrow ends the process that asks for this column."""
    chunk(footer, "key_int")[16] = STRUCT, {3: (LIST, (I64, [1, 2, 3, 4]))}


def in_many_groups(footer: Struct) -> None:
    footer[4] = LIST, (STRUCT, footer[4][1][1] * 1_000)


def of_one_column(footer: Struct) -> None:
    [group] = footer[4][1][1]
    group[1] = LIST, (STRUCT, group[1][1][1][:1])


FOOTERS: dict[str, tuple[Callable[[Struct], Any], str]] = {
    "pages behind the end": (in_chunk(9, (I64, 1 << 40)), "outside of it"),
    "pages before the beginning": (in_chunk(9, (I64, -5)), "outside of it"),
    "pages without an end": (in_chunk(7, (I64, 1 << 62)), "outside of it"),
    "pages of negative size": (in_chunk(7, (I64, -1)), "outside of it"),
    "pages that are none": (in_chunk(9, (I64, 5)), "page of column key_int"),
    "an unknown compression": (in_chunk(4, (I32, 77)), "compression"),
    "no place of the pages": (lambda footer: chunk(footer, "key_int").pop(9), ""),
    "a number of another type": (in_chunk(9, (BINARY, b"4")), ""),
    "a histogram of no column": (of_no_length, ""),
    "many rows": (lambda footer: footer.update({3: (I64, 1 << 50)}), "rows in"),
    "a negative number of rows": (lambda footer: footer.update({3: (I64, -3)}), ""),
    "many groups": (in_many_groups, "1,000 groups"),
    "few columns": (of_one_column, ""),
    "no groups, but a number": (lambda footer: footer.update({4: (I32, 7)}), ""),
}


@pytest.mark.parametrize(
    "footer", [pytest.param(name, marks=pytest.mark.slow) if name == "many groups" else name for name in FOOTERS]
)
def test_a_footer_that_was_forged_is_told_in_a_line(footer: str, tmp_path: Path):
    change, told = FOOTERS[footer]
    data = encode(state(), REPEATING)
    assert faults_in("state", io.BytesIO(with_footer(data, lambda footer: None)), (0, 0)) != []
    assert told in answer(tmp_path, "state", with_footer(data, change))


def test_the_sizes_that_a_footer_tells_are_not_believed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_checks, "VALUE_BYTES_MAX", 5_000)
    [part] = parts_of(bytes_by_key(2_000, 9_000, 20_000))
    data = encode(part.rows, REPEATING)
    lying = with_footer(data, lambda footer: chunk(footer, "value_bytes").update({6: (I64, 1), 5: (I64, 1)}))
    for each in (data, lying):
        with pytest.raises(TooLargeError, match="value_bytes"):
            faults_in("state", io.BytesIO(each), part.span)


@pytest.mark.parametrize("data", [b"", b"PAR1", bytes(7), b"PAR1" + (1 << 30).to_bytes(4, "little") + b"PAR1"])
def test_what_is_no_file_of_this_kind_is_told_in_a_line(data: bytes, tmp_path: Path):
    answer(tmp_path, "state", data)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_whatever_bytes_are_changed_the_answer_is_one_of_those_expected(seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("backedge.recovery.stores.parquet_pages.LARGE_BYTES", 1)
    monkeypatch.setattr("backedge.recovery.stores.parquet_pages.shrinks", lambda sample: False)
    [part] = parts_of(bytes_by_key(0, 300, 20_000))
    files = [("state", b"".join(pieces_of(part)), part.span), ("log", encode(log(), records.REPEATING_IN_LOG), None)]
    files.append(("rows", encode(rows()), (0, 0)))
    drawn, refused = random.Random(seed), 0
    for _ in range(400):
        table, data, span = drawn.choice(files)
        changed = bytearray(data)
        footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        for _ in range(drawn.choice([1, 1, 2, 5])):
            at = drawn.randrange(drawn.choice([0, footer, footer]), len(data))
            changed[at] = drawn.choice([0, 127, 128, 255, changed[at] ^ 1 << drawn.randrange(8)])
        try:
            faults_in(table, io.BytesIO(bytes(changed)), span)
        except (TooLargeError, PageError, pa.ArrowException, OSError, UnicodeDecodeError):
            refused += 1
    assert 100 < refused < 400

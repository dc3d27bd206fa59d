"""JSON lines, CSV and text: every record once, from wherever a run goes on."""

from __future__ import annotations

import gzip
import random
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from backedge.engine.io.files import text_splits as lines
from backedge.engine.io.files.file_errors import InputChangedError, MalformedInputError
from backedge.engine.io.files.file_formats import CSV, JsonLines, TextLines
from tests.files.opened import file_reader, fresh, reader, rest, write_json

READ: list[tuple[Any, bytes, list[Any]]] = [
    (JsonLines, b"", []),
    (JsonLines, b"\n\n", []),
    (JsonLines, '{"n":1,"ü":"é"}\n[1,2]\n"t"\nnull\n1.5\n'.encode(), [{"n": 1, "ü": "é"}, [1, 2], "t", None, 1.5]),
    (JsonLines, b"1", [1]),
    (JsonLines, b"1\n2", [1, 2]),
    (JsonLines, b"1\r\n2\r\n", [1, 2]),
    (JsonLines, b"\n 1 \n\n\t2\n", [1, 2]),
    (JsonLines, '\ufeff{"a": 1}\n'.encode(), [{"a": 1}]),
    (JsonLines, '"a\u2028b"\n'.encode(), ["a\u2028b"]),
    (TextLines, b"one\r\n\ntwo \x0b\nthree", ["one", "", "two \x0b", "three"]),
    (CSV, b"", []),
    (CSV, b"id,name\n", []),
    (CSV, b'id,name\r\n1,"a ""b"", c"\r\n\r\n2,"two\nlines"\r\n3,\r\n', [
        {"id": "1", "name": 'a "b", c'}, {"id": "2", "name": "two\nlines"}, {"id": "3", "name": ""}]),
    (CSV, b"a\n" + b"x" * 200_000 + b"\n", [{"a": "x" * 200_000}]),
]  # fmt: skip


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(("kind", "content", "records"), READ, ids=range(len(READ)))
def test_line_ends_blank_lines_headers_and_byte_order_marks_are_no_records(
    tmp_path: Path, kind: Any, content: bytes, records: list[Any], ending: str
):
    path = tmp_path / f"a{ending}"
    # A compressed file may have several members.
    path.write_bytes(gzip.compress(content[:1]) + gzip.compress(content[1:]) if ending else content)
    assert rest(reader(kind(str(path)))) == records


NOT_JSON = [b'{"a": 1', b"1,2", b"{'a': 1}", b'{"a": 1} x', b"nan", b'"a\tb"']
TWO_THOUSAND = b"1\n" * 2000
ZIPPED = gzip.compress(b"1\n" * 100_000)
CSV_HEADER = 'a,"b\nb"\n'
MALFORMED: list[tuple[Any, str, bytes, str]] = [
    *((JsonLines, "a.jsonl", TWO_THOUSAND + line + b"\n3\n", r"line 2001: .*JSON.*TextLines") for line in NOT_JSON),
    (JsonLines, "a.jsonl", b"1\n" + b"[" * 100_000 + b"\n", r"line 2: (nested too deeply|not JSON)"),
    *((kind, "a.txt", b"1\n2\n\xff\n4\n", r"line 3: .*UTF-8") for kind in (JsonLines, CSV, TextLines)),
    (CSV, "a.csv", f"{CSV_HEADER}1,2\n3\n".encode(), r"line 4: 1 values .* 2 columns"),
    (CSV, "a.csv", f"{CSV_HEADER}1,2\n3,4,5\n".encode(), r"line 4: 3 values .* 2 columns"),
    (CSV, "a.csv", f'{CSV_HEADER}1,2\n3,"open\n'.encode(), r"unexpected end of data"),
    (CSV, "a.csv", f'{CSV_HEADER}1,2\n"3"x,4\n'.encode(), r"line 4: not CSV"),
    (CSV, "a.csv", b"a,b,a\n1,2,3\n", r"column .*twice"),
    (JsonLines, "a.jsonl.gz", ZIPPED[:-20], "unpack"),
    (JsonLines, "a.jsonl.gz", b"1\n2\n" * 10, "unpack"),
]


@pytest.mark.parametrize(("kind", "name", "content", "told"), MALFORMED, ids=range(len(MALFORMED)))
def test_what_is_malformed_is_told_with_its_file_and_line(
    tmp_path: Path, kind: Any, name: str, content: bytes, told: str
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MalformedInputError, match=rf"/{re.escape(name)} ?.*{told}"):
        rest(reader(kind(str(tmp_path / name))), records_max=300)


def test_the_number_of_a_malformed_line_is_right_after_a_restore(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text("1\n" * 2000 + "wrong\n")
    first = reader(JsonLines(str(tmp_path)))
    assert len(first.read(1500)) == 1500
    with pytest.raises(MalformedInputError, match=r"a\.jsonl line 2001:"):
        rest(reader(JsonLines(str(tmp_path)), positions=first.positions()))


@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 40))])
def test_ranges_and_restores_share_every_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int):
    chance = random.Random(seed)
    monkeypatch.setattr(lines, "BLOCK_BYTES", chance.choice([1, 3, 16, 1000]))
    texts = ["".join(chance.choices("aé", k=chance.choice([0, 1, 2, 30]))) for _ in range(chance.randrange(60))]
    text = "\n".join(texts) + chance.choice(["", "\n"])
    (tmp_path / "a.txt").write_text(text)
    source = TextLines(str(tmp_path / "a.txt"))
    found: list[str] = []
    for split, first in fresh(source, chance.choice([1, 2, 5, 40, 10_000])).items():
        position = first
        while not (reading := file_reader(source, {split: position})).exhausted:
            found += reading.read(chance.randrange(1, 5))
            position = reading.positions()[split.name]
    expected = text.split("\n")
    assert found == (expected[:-1] if expected[-1] == "" else expected)


def test_big_files_are_shared_by_tasks_and_small_ones_are_not(tmp_path: Path):
    path = write_json(tmp_path / "a.jsonl", range(1000))
    splits = list(fresh(JsonLines(str(path)), range_bytes_max=1000))
    assert [split.stop - split.start for split in splits] == [972, 973, 972, 973]
    assert len(fresh(JsonLines(str(path)), range_bytes_max=3890)) == 1
    records = [record for split in splits for record in rest(file_reader(JsonLines(str(path)), {split: split.first}))]
    assert records == list(range(1000))


def test_csv_and_compressed_files_are_never_split(tmp_path: Path):
    (tmp_path / "a.csv").write_text("a\n" + "1\n" * 1000)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"1\n" * 100_000))
    assert len(fresh(CSV(str(tmp_path)), range_bytes_max=10)) == 1
    assert len(fresh(JsonLines(str(tmp_path)), range_bytes_max=10)) == 1


def test_a_compressed_file_that_was_read_is_not_unpacked_again(tmp_path: Path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"1\n2\n"))
    first = reader(JsonLines(str(path)))
    assert rest(first) == [1, 2]
    path.unlink()
    assert reader(JsonLines(str(path)), positions=first.positions()).exhausted


@pytest.mark.parametrize("left", [None, "1\n2\n", ""], ids=["gone", "shorter", "empty"])
def test_a_file_that_has_changed_is_told_and_nothing_of_it_is_read(tmp_path: Path, left: str | None):
    path = write_json(tmp_path / "in" / "a.jsonl", range(100))
    source = JsonLines(str(tmp_path / "in"))
    first = reader(source)
    first.read(10)
    path.unlink()
    if left is not None:
        path.write_text(left)
    with pytest.raises(InputChangedError, match=r"in/a\.jsonl "):
        reader(source, positions=first.positions())


def test_a_file_that_shrinks_while_it_is_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 10)
    path = write_json(tmp_path / "a.jsonl", range(100))
    opened = reader(JsonLines(str(path)))
    assert opened.read(1) == [0]
    path.write_text("1\n2\n")
    with pytest.raises(InputChangedError, match=r"a\.jsonl .*\b10 bytes"):
        rest(opened)


def test_lines_that_were_added_later_are_left_to_the_next_run(tmp_path: Path):
    path = write_json(tmp_path / "a.jsonl", range(100))
    first = reader(JsonLines(str(path)))
    assert first.read(10) == list(range(10))
    with path.open("a") as file:
        file.write("1000\n")
    assert rest(reader(JsonLines(str(path)), positions=first.positions())) == list(range(10, 100))


@pytest.mark.parametrize("kind", [JsonLines, CSV])
def test_lines_behind_one_that_was_repaired_are_not_taken_for_added_ones(tmp_path: Path, kind: Any):
    path, header = tmp_path / f"a{kind.endings[0]}", "n\n" if kind is CSV else ""
    path.write_text(f'{header}"1"\n"2\n"3"\n"4"\n')
    described = kind(str(path))
    broken = reader(described)
    assert len(broken.read(1)) == 1
    with pytest.raises(MalformedInputError):
        rest(broken)
    path.write_text(f'{header}"1"\n"2 is longer"\n"3"\n"4"\n')
    with pytest.raises(InputChangedError, match="not only lines that were added"):
        reader(described, positions=broken.positions())
    path.write_text(f'{header}"1"\n"2\n"3"\n"4"\n'.replace('"2\n', "22\n"))
    assert len(rest(reader(described, positions=broken.positions()))) == 3


def test_a_split_of_something_else_is_refused(tmp_path: Path):
    write_json(tmp_path / "a.jsonl", [1])
    for name in ("0-of-1", "../a.jsonl?size=2&start=0&stop=2", "a.jsonl?size=x", "a.jsonl?what=1"):
        with pytest.raises(InputChangedError, match="another source"):
            reader(JsonLines(str(tmp_path)), positions={name: 0})


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 10)
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 100)
    (tmp_path / "a.jsonl").write_text("1\n" + "2" * 1000)
    with pytest.raises(MalformedInputError, match=r"a\.jsonl line 2: .*\b100 bytes"):
        rest(reader(JsonLines(str(tmp_path))))


@pytest.mark.slow
def test_a_big_file_is_read_in_little_memory(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes((b"x" * 999 + b"\n") * 40_000)
    reading = reader(TextLines(str(path)))
    tracemalloc.start()
    count = 0
    while not reading.exhausted:
        count += len(reading.read(1000))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 40_000
    assert peak_bytes < 12_000_000

"""Which files are read, into what parts they fall, and who reads which."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path
from typing import Any

import pytest

from backedge import Generate, Items, Range, Source
from backedge.engine.batches.arrow import arrow, parquet
from backedge.engine.io.files.checks import check_source
from backedge.engine.io.files.file_errors import InputChangedError, MalformedInputError, NoInputError
from backedge.engine.io.files.file_formats import JsonLines, Parquet, TextLines
from backedge.engine.io.files.locations import FolderLocation
from backedge.engine.io.files.splits import Split
from backedge.graphs.task_errors import UserFunctionError
from tests.files.opened import reader, rest, services, source, write_json


def write_parquet(path: Path, count: int, rows: int, start: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet().write_table(
        arrow().table({"n": range(start, start + count), "s": ["x"] * count}), path, row_group_size=rows
    )
    return path


def test_a_folder_is_all_files_of_the_ending_below_it(tmp_path: Path):
    for name in ("b.jsonl", "a.json", "sub/c.ndjson", "D.JSONL", "_staging/x.jsonl", ".hidden.jsonl", "sub/_e.jsonl"):
        write_json(tmp_path / name, [name])
    write_json(tmp_path / "other.txt", ["no"])
    (tmp_path / "z.jsonl.gz").write_bytes(gzip.compress(b'"z"\n'))
    assert rest(reader(JsonLines(str(tmp_path)))) == ["D.JSONL", "a.json", "b.jsonl", "sub/c.ndjson", "z"]


def test_text_lines_of_a_folder_are_those_of_every_file(tmp_path: Path):
    (tmp_path / "a.log").write_text("a\n")
    (tmp_path / "b").write_text("b\n")
    (tmp_path / "_c").write_text("c\n")
    assert rest(reader(TextLines(str(tmp_path)))) == ["a", "b"]


def test_a_file_that_is_named_itself_may_have_any_ending(tmp_path: Path):
    assert rest(reader(JsonLines(str(write_json(tmp_path / "_orders", [1, 2]))))) == [1, 2]


def test_a_uri_of_a_file_is_the_file(tmp_path: Path):
    write_json(tmp_path / "sub" / "a.jsonl", [1, 2])
    assert rest(reader(JsonLines(f"file://{tmp_path}"))) == [1, 2]
    assert rest(reader(JsonLines(f"file://{tmp_path}/sub/a.jsonl"))) == [1, 2]


def test_a_folder_behind_a_uri_is_listed_as_a_local_one_is(tmp_path: Path):
    for name in ("b.jsonl", "sub/a.jsonl", "_c/d.jsonl", "sub/.e.jsonl", "f.csv"):
        write_json(tmp_path / name, [1])
    local, remote = FolderLocation(str(tmp_path)), FolderLocation(f"file://{tmp_path}/")
    remote.is_local = False
    assert remote.files([".jsonl"]) == local.files([".jsonl"])
    assert {path: stamp.size for path, stamp in local.files([".jsonl"]).items()} == {"b.jsonl": 2, "sub/a.jsonl": 2}
    assert remote.stamps(["b.jsonl"])["b.jsonl"] == local.files([".jsonl"])["b.jsonl"]


def test_links_are_followed_and_a_circle_of_them_ends(tmp_path: Path):
    write_json(tmp_path / "elsewhere" / "a.jsonl", [1])
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "in")
    assert rest(reader(JsonLines(str(tmp_path / "in")))) == [1]


@pytest.mark.parametrize(
    "name", ["a b.jsonl", "a?b&size=1.jsonl", "100%.jsonl", "%3F%25.jsonl", "日本.jsonl", "#1.jsonl"]
)
def test_a_split_is_found_again_by_its_name_whatever_the_file_is_called(tmp_path: Path, name: str):
    write_json(tmp_path / name, [1, 2])
    first = reader(JsonLines(str(tmp_path)))
    assert first.read(1) == [1]
    (split,) = first.positions()
    assert Split.parse(split).path == name
    assert rest(reader(JsonLines(str(tmp_path)), positions=first.positions())) == [2]


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("nowhere", r"nowhere does not exist: give the path"),
        ("empty", r"empty contains no file that is not hidden: put files ending in .jsonl or .ndjson or .json"),
        ("others", r"others contains no file ending in .*, but 1 other such as 'a.csv'"),
        ("ftp://host/a", r"ftp://host/a cannot be read from"),
    ],
)
def test_a_source_without_input_is_refused_before_anything_runs(tmp_path: Path, path: str, complaint: str):
    (tmp_path / "empty").mkdir()
    write_json(tmp_path / "empty" / "_hidden.jsonl", [1])
    write_json(tmp_path / "others" / "a.csv", [1])
    with pytest.raises(NoInputError, match=complaint):
        check_source(source(JsonLines(path if "://" in path else str(tmp_path / path))))


def test_text_is_looked_for_in_files_of_any_ending(tmp_path: Path):
    with pytest.raises(NoInputError, match=rf"{re.escape(str(tmp_path))}\b.*\bhidden"):
        check_source(source(TextLines(str(tmp_path))))


class Unreachable(Items[int]):
    """A source whose system is down."""

    def validate_input(self) -> None:
        raise ConnectionError("no route to the queue")


class SameNames(Items[int]):
    def splits(self) -> list[str]:
        return ["a", "b", "a"]


def test_a_source_that_does_not_say_how_it_is_opened_cannot_be_made():
    with pytest.raises(TypeError, match="open_split"):
        Source[Any]()  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (Unreachable, r"cannot read Unreachable.*no route to the queue.*readable"),
        (SameNames, "'a'"),
    ],
)
def test_a_source_that_finds_itself_unreadable_or_names_two_splits_alike_is_refused_in_one_line(kind: Any, named: str):
    with pytest.raises(NoInputError, match=rf"^source 'in' .*{named}"):
        check_source(source(kind([1])))


def test_sources_of_numbered_records_have_no_splits_to_list():
    assert [check_source(source(s)) for s in (Items([1]), Range(3), Generate(str))] == [None, None, None]


def test_splits_that_were_listed_once_are_what_every_task_shares_in(tmp_path: Path):
    for number in range(4):
        write_json(tmp_path / f"{number}.jsonl", [number])
    operator = source(JsonLines(str(tmp_path)))
    listed = check_source(operator)
    write_json(tmp_path / "0a.jsonl", ["late"])
    opened = services(splits={"in": listed})
    assert [rest(opened.reader(operator, index, 2, None)) for index in range(2)] == [[0, 2], [1, 3]]


def test_a_file_that_goes_between_listing_and_reading_is_told(tmp_path: Path):
    path = write_json(tmp_path / "a.jsonl", [1])
    write_json(tmp_path / "b.jsonl", [1])
    operator = source(JsonLines(str(tmp_path)))
    opened = services(splits={"in": check_source(operator)})
    path.unlink()
    with pytest.raises(InputChangedError, match=r"/a\.jsonl\b"):
        opened.reader(operator, 0, 1, None)


def test_a_task_with_positions_reads_those_splits_and_no_others(tmp_path: Path):
    for name in "abc":
        write_json(tmp_path / f"{name}.jsonl", [name, name])
    first = reader(JsonLines(str(tmp_path)))
    first.read(3)
    first.read(1)
    positions = first.positions()
    assert [offset for offset, _ in positions.values()] == [8, 4, 0]
    one, two, three = positions
    shared = {name: positions[name] for name in (three, one)}
    assert rest(reader(JsonLines(str(tmp_path)), positions=shared)) == ["c", "c"]
    assert rest(reader(JsonLines(str(tmp_path)), positions={two: positions[two]})) == ["b"]
    assert reader(JsonLines(str(tmp_path)), positions={}).exhausted


def test_splits_stay_listed_when_they_are_read(tmp_path: Path):
    for name in "ab":
        write_json(tmp_path / f"{name}.jsonl", [name])
    reading = reader(JsonLines(str(tmp_path)))
    before = reading.positions()
    assert rest(reading) == ["a", "b"]
    assert reading.positions().keys() == before.keys()


@pytest.mark.parametrize("records_max", [1, 7, 10_000])
def test_parquet_goes_on_within_a_row_group(tmp_path: Path, records_max: int):
    path = write_parquet(tmp_path / "a.parquet", 50, rows=20)
    positions = None
    numbers: list[int] = []
    for _ in range(60):
        reading = reader(Parquet(str(path)), positions=positions)
        numbers += [row["n"] for row in reading.read(records_max)]
        positions = reading.positions()
        if reading.exhausted:
            break
    assert numbers == list(range(50))
    splits = [Split.parse(name) for name in positions or {}]
    assert [(split.group, split.start, split.stop) for split in splits] == [(0, 0, 20), (1, 0, 20), (2, 0, 10)]
    found = path.stat()
    assert {(split.size, split.time_ns) for split in splits} == {(found.st_size, found.st_mtime_ns)}
    assert len({split.footer for split in splits}) == 1 and splits[0].footer


def test_a_parquet_file_of_several_batches_a_row_group_is_read_whole(tmp_path: Path):
    path = write_parquet(tmp_path / "a.parquet", 20_000, rows=20_000)
    first = reader(Parquet(str(path)))
    rows = len(first.read(100_000)) + len(first.read(100))
    restored = reader(Parquet(str(path)), positions=first.positions())
    assert [row["n"] for row in rest(restored)] == list(range(rows, 20_000))


@pytest.mark.slow
def test_row_groups_are_read_one_at_a_time(tmp_path: Path):
    texts = [random.Random(number).randbytes(500).hex() for number in range(20_000)]
    parquet().write_table(arrow().table({"s": texts}), tmp_path / "a.parquet", row_group_size=1000)
    before = arrow().total_allocated_bytes()
    reading, most, count = reader(Parquet(str(tmp_path))), 0, 0
    while not reading.exhausted:
        count += len(reading.read(500))
        most = max(most, arrow().total_allocated_bytes() - before)
    assert count == 20_000
    assert most < 10_000_000, "half of it; Arrow reads some groups ahead"


def test_rows_are_dicts_of_plain_values(tmp_path: Path):
    parquet().write_table(
        arrow().table({"n": [1, None], "l": [[1, 2], []], "s": [{"a": 1}, None]}), tmp_path / "a.parquet"
    )
    assert rest(reader(Parquet(str(tmp_path)))) == [
        {"n": 1, "l": [1, 2], "s": {"a": 1}},
        {"n": None, "l": [], "s": None},
    ]


def test_a_file_that_is_not_parquet_is_told_before_anything_runs(tmp_path: Path):
    (tmp_path / "a.parquet").write_text("no")
    with pytest.raises(MalformedInputError, match=r"/a\.parquet .*\bnot Parquet\b"):
        check_source(source(Parquet(str(tmp_path))))


def test_a_parquet_file_that_is_damaged_inside_is_told(tmp_path: Path):
    path = write_parquet(tmp_path / "a.parquet", 5_000, rows=5_000)
    data = bytearray(path.read_bytes())
    data[4:200] = b"\xff" * 196
    path.write_bytes(data)
    reading = reader(Parquet(str(path)))
    with pytest.raises(MalformedInputError, match=r"/a\.parquet row group 0: .*Parquet"):
        rest(reading)


def test_a_generator_that_raises_is_told_with_the_operator_and_its_position():
    def make(position: int) -> int:
        return 1 // (2 - position)

    with pytest.raises(UserFunctionError, match=r"(?s)operator 'in' raised ZeroDivisionError.* in make\(2\).*1 // \(2"):
        reader(Generate(make)).read(5)

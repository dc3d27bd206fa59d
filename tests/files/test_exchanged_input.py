"""Input that was exchanged while a run reads it is noticed: no run reads half of one file and half of another."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backedge.engine.batches.arrow import arrow, parquet
from backedge.engine.io.files import text_splits as lines
from backedge.engine.io.files.file_errors import InputChangedError
from backedge.engine.io.files.file_formats import CSV, JsonLines, Parquet, TextLines
from tests.files.opened import file_reader, reader, rest

SOURCES: dict[str, Callable[[str], Any]] = {"jsonl": JsonLines, "csv": CSV, "txt": TextLines, "jsonl.gz": JsonLines}
COUNT, READ = 100, 10


def text_of(kind: str, first: int) -> bytes:
    """Lines of one length whatever the numbers, below a header where there is one."""
    rows = [str(number) for number in range(first, first + COUNT)]
    return "\n".join(["n", *rows] if kind == "csv" else rows).encode() + b"\n"


def write(path: Path, content: bytes) -> Path:
    """Write a file, a compressed one in one size for each length of its content."""
    if path.suffix == ".gz":
        content = gzip.compress(content, compresslevel=0, mtime=0)
    path.write_bytes(content)
    return path


def exchange(path: Path, content: bytes, *, keeps_time: bool) -> None:
    """Put another file in its place, as `mv` or `rsync` do."""
    found = path.stat()
    other = write(path.with_name(f"other{''.join(path.suffixes)}"), content)
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns + (0 if keeps_time else 1_000_000_000)))
    other.replace(path)


@pytest.mark.parametrize("keeps_time", [True, False])
@pytest.mark.parametrize("kind", SOURCES)
def test_a_file_of_the_same_size_is_not_taken_for_the_one_that_was_read(tmp_path: Path, kind: str, keeps_time: bool):
    path = write(tmp_path / f"a.{kind}", text_of(kind, 100))
    size = path.stat().st_size
    source = SOURCES[kind](str(path))
    first = reader(source)
    assert len(first.read(READ)) == READ
    exchange(path, text_of(kind, 300), keeps_time=keeps_time)
    assert path.stat().st_size == size, "the exchange shows nothing unless the size is the same"
    with pytest.raises(InputChangedError, match=rf"a\.{kind} .*\bchanged\b.* byte \d+"):
        rest(reader(source, positions=first.positions()))


@pytest.mark.parametrize("kind", SOURCES)
def test_a_file_that_was_put_back_is_read_on(tmp_path: Path, kind: str):
    path = write(tmp_path / f"a.{kind}", text_of(kind, 100))
    source = SOURCES[kind](str(path))
    expected = rest(reader(source))
    first = reader(source)
    records = first.read(READ)
    exchange(path, text_of(kind, 100), keeps_time=False)
    assert records + rest(reader(source, positions=first.positions())) == expected


def test_a_longer_file_is_told_from_one_with_more_lines(tmp_path: Path):
    path = write(tmp_path / "a.txt", text_of("txt", 100))
    first = reader(TextLines(str(path)))
    records = first.read(READ)
    exchange(path, text_of("txt", 100) + b"more\n", keeps_time=False)
    second = reader(TextLines(str(path)), positions=first.positions())
    records += second.read(READ)
    exchange(path, b"new" + text_of("txt", 100) + b"more\n", keeps_time=False)
    with pytest.raises(InputChangedError, match=r"a\.txt .*\bchanged\b"):
        rest(reader(TextLines(str(path)), positions=second.positions()))
    assert records == [str(number) for number in range(100, 120)]


def test_a_file_that_was_read_may_go_or_be_written_anew(tmp_path: Path):
    path = write(tmp_path / "a.txt", text_of("txt", 100))
    first = reader(TextLines(str(path)))
    rest(first)
    exchange(path, text_of("txt", 300), keeps_time=False)
    assert reader(TextLines(str(path)), positions=first.positions()).exhausted


# -- files that are read in several parts ----------------------------------------------------------------------------


@pytest.fixture
def ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Any, dict[Any, Any]]:
    """A text file of several ranges, as different tasks read them."""
    monkeypatch.setattr(lines, "BLOCK_BYTES", 32)
    path = write(tmp_path / "a.txt", text_of("txt", 100))
    source = TextLines(str(path))
    splits = source.list_splits(range_bytes_max=150)
    assert len(splits) > 2
    return path, source, {split: split.first for split in splits}


@pytest.mark.parametrize("content", [text_of("txt", 300), text_of("txt", 100) + b"more\n"], ids=["other", "longer"])
@pytest.mark.parametrize("begins", [True, False], ids=["when it is opened", "after a restart"])
def test_ranges_of_two_files_are_not_read_as_one(ranges: Any, content: bytes, begins: bool):
    path, source, positions = ranges
    one, two, *_ = positions
    assert len(rest(file_reader(source, {one: positions[one]}))) > READ
    second = file_reader(source, {two: positions[two]}) if begins else None
    exchange(path, content, keeps_time=False)
    with pytest.raises(InputChangedError, match=r"a\.txt .*\bchanged\b"):
        rest(second or file_reader(source, {two: positions[two]}))


def test_a_range_of_which_something_was_read_is_known_by_it(ranges: Any):
    path, source, positions = ranges
    for split, position in positions.items():
        first = file_reader(source, {split: position})
        first.read(3)
        exchange(path, text_of("txt", 300), keeps_time=True)
        with pytest.raises(InputChangedError, match=r"a\.txt .*\bchanged\b"):
            rest(file_reader(source, {split: first.positions()[split.name]}))
        exchange(path, text_of("txt", 100), keeps_time=True)
        assert rest(first)


def table(path: Path, first: int) -> None:
    columns = arrow().table({"n": [first + number for number in range(COUNT)]})
    parquet().write_table(columns, path, row_group_size=40, compression="none", use_dictionary=False)


@pytest.mark.parametrize("keeps_time", [True, False])
@pytest.mark.parametrize("read", [0, READ])
def test_row_groups_of_two_files_are_not_read_as_one(tmp_path: Path, keeps_time: bool, read: int):
    path = tmp_path / "a.parquet"
    table(path, 100)
    source, size = Parquet(str(path)), path.stat().st_size
    first = reader(source)
    assert len(first.read(40)) == 40
    assert not read or len(first.read(read)) == read
    table(tmp_path / "other", 300)
    exchange(path, (tmp_path / "other").read_bytes(), keeps_time=keeps_time)
    assert path.stat().st_size == size, "the exchange shows nothing unless the size is the same"
    told = "its footer differs" if keeps_time else r"it was modified at 20\d\d-.*, previously at 20\d\d-"
    with pytest.raises(InputChangedError, match=rf"a\.parquet .*\bchanged\b.*{told}"):
        rest(reader(source, positions=first.positions()))


def test_a_position_is_json_safe_and_small(tmp_path: Path):
    path = write(tmp_path / "a.txt", text_of("txt", 100))
    first = reader(TextLines(str(path)))
    first.read(READ)
    ((offset, digest),) = first.positions().values()
    assert json.loads(json.dumps([offset, digest])) == [40, digest]
    assert 0 <= digest < 1 << 32

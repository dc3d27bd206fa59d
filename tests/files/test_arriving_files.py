"""Files that arrive in a folder: when one is complete, what is forgotten, and when all are there."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from backedge import (
    CSV,
    BadOptionError,
    Collect,
    Flow,
    FoundSplits,
    Items,
    JsonLines,
    NoInputError,
    Parquet,
    TextLines,
)
from backedge.engine.io.files.checks import check_source
from backedge.engine.io.reader import finder_of
from backedge.graphs.io import OtherInputError
from backedge.graphs.kinds import Read
from backedge.graphs.plan import Operator

WATCH_S = 60.0


def put(folder: Path, name: str, text: str = '{"n": 1}\n', *, age_s: float = 3_600) -> Path:
    """A file that was written so long ago."""
    path = folder / name
    path.write_text(text)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def names(splits: object) -> list[str]:
    assert isinstance(splits, list)
    return [split.partition("?")[0] for split in splits]


def test_a_file_is_found_once_and_when_it_is_complete(tmp_path: Path):
    source = JsonLines(str(tmp_path), watch=WATCH_S)
    assert source.find_splits(()) == ([], False, ())
    put(tmp_path, "b.jsonl")
    put(tmp_path, "a.jsonl")
    put(tmp_path, "c.jsonl", age_s=WATCH_S / 2)
    put(tmp_path, "_d.jsonl")
    put(tmp_path, "e.txt")
    known = source.find_splits(()).new
    assert names(known) == ["a.jsonl", "b.jsonl"]
    assert source.find_splits(known).new == []
    put(tmp_path, "c.jsonl", age_s=WATCH_S + 5)
    assert names(source.find_splits(known).new) == ["c.jsonl"]


def test_another_process_goes_on_from_what_is_known(tmp_path: Path):
    put(tmp_path, "a.jsonl")
    known = JsonLines(str(tmp_path), watch=WATCH_S).find_splits(()).new
    put(tmp_path, "b.jsonl")
    assert names(JsonLines(str(tmp_path), watch=WATCH_S).find_splits(known).new) == ["b.jsonl"]


def test_a_file_that_has_changed_since_it_was_found_is_refused(tmp_path: Path):
    source = JsonLines(str(tmp_path), watch=WATCH_S)
    known = source.find_splits(()).new
    put(tmp_path, "a.jsonl")
    known = [*known, *source.find_splits(known).new]
    put(tmp_path, "a.jsonl", '{"n": 1}\n{"n": 2}\n')
    with pytest.raises(OtherInputError, match=r"a\.jsonl has changed"):
        source.find_splits(known)


def test_a_file_that_is_gone_is_forgotten_and_new_if_it_comes_again(tmp_path: Path):
    source = JsonLines(str(tmp_path), watch=WATCH_S)
    put(tmp_path, "a.jsonl")
    b = put(tmp_path, "b.jsonl")
    known = source.find_splits(()).new
    b.unlink()
    found = source.find_splits(known)
    assert (found.new, names(list(found.gone))) == ([], ["b.jsonl"])
    put(tmp_path, "b.jsonl")
    assert names(source.find_splits(known[:1]).new) == ["b.jsonl"]


@pytest.mark.parametrize("below", ["", "2026/", "2026/11/"])
def test_the_files_of_a_disk_that_is_not_mounted_are_not_forgotten(tmp_path: Path, below: str):
    source = JsonLines(str(tmp_path / "in"), watch=WATCH_S)
    disk = tmp_path / "in" / below.partition("/")[0]
    (tmp_path / "in" / below).mkdir(parents=True)
    put(tmp_path / "in" / below, "a.jsonl")
    known = source.find_splits(()).new
    disk.rename(tmp_path / "disk")
    disk.mkdir()
    assert source.find_splits(known) == ([], False, ())
    disk.rmdir()
    (tmp_path / "disk").rename(disk)
    assert source.find_splits(known) == ([], False, ())
    put(disk, "b.jsonl")
    (tmp_path / "in" / below / "a.jsonl").unlink()
    if below == "2026/11/":
        (tmp_path / "in" / below).rmdir()
    assert list(source.find_splits(known).gone) == known


def test_a_file_that_goes_before_it_is_read_is_not_forgotten(tmp_path: Path):
    source = JsonLines(str(tmp_path), watch=WATCH_S)
    (tmp_path / "other").touch()
    a = put(tmp_path, "a.jsonl")
    stamp_ns = a.stat().st_mtime_ns
    known = source.find_splits(()).new
    a.unlink()
    # Nothing has read it, so the operator does not forget it, and another file of its name would be read twice.
    assert list(source.find_splits(known).gone) == known
    os.utime(put(tmp_path, "a.jsonl"), ns=(0, stamp_ns))
    assert source.find_splits(known) == ([], False, ())
    a.unlink()
    source.find_splits(known)
    put(tmp_path, "a.jsonl", age_s=7_200)
    with pytest.raises(OtherInputError, match="has changed since it was found"):
        source.find_splits(known)


def test_a_file_that_is_renamed_during_a_look_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(tmp_path, "a.jsonl")
    part = put(tmp_path, "b.jsonl.part")
    real = os.scandir

    def renaming(folder: str) -> object:
        entries = list(real(folder))
        if part.exists():
            part.rename(tmp_path / "b.jsonl")
        return nullcontext(entries)

    monkeypatch.setattr(os, "scandir", renaming)
    source = JsonLines(str(tmp_path), watch=WATCH_S)
    assert names(source.find_splits(()).new) == ["a.jsonl"]
    assert not part.exists()
    assert names(source.find_splits(()).new) == ["b.jsonl"]


def test_a_link_to_nothing_is_refused_if_it_is_input(tmp_path: Path):
    put(tmp_path, "a.jsonl")
    (tmp_path / "b.txt").symlink_to("/no/such/file")
    source = JsonLines(str(tmp_path), watch=WATCH_S)
    assert names(source.find_splits(()).new) == ["a.jsonl"]
    (tmp_path / "b.jsonl").symlink_to("/no/such/file")
    for look in (lambda: source.find_splits(()), JsonLines(str(tmp_path)).splits):
        with pytest.raises(NoInputError, match=r"b\.jsonl is a link to a file that does not exist"):
            look()


def test_a_folder_that_is_gone_is_no_empty_one(tmp_path: Path):
    folder = tmp_path / "in"
    source = JsonLines(str(folder), watch=WATCH_S)
    with pytest.raises(NoInputError, match="is no folder: create it"):
        check_source(Operator("in", Read(source)))
    folder.mkdir()
    put(folder, "a.jsonl")
    known = source.find_splits(()).new
    folder.rename(tmp_path / "away")
    with pytest.raises(NoInputError, match="is no folder"):
        source.find_splits(known)
    (tmp_path / "away").rename(folder)
    assert source.find_splits(known) == ([], False, ())


def test_a_name_that_no_cut_can_hold_is_refused(tmp_path: Path):
    put(tmp_path, os.fsdecode(b"\xff.jsonl"))
    find = finder_of(Operator("in", Read(JsonLines(str(tmp_path), watch=WATCH_S))))
    with pytest.raises(NoInputError, match="rename files whose names are not UTF-8"):
        find(())


def test_a_source_that_finds_a_split_again_is_refused():
    class Forgetful(Items[int]):
        def find_splits(self, known: object) -> FoundSplits:
            return FoundSplits(["0-of-1"], is_last=False)

    find = finder_of(Operator("in", Read(Forgetful([1]))))
    assert find(()).new == ["0-of-1"]
    with pytest.raises(NoInputError, match="only those from find_splits that are not known yet"):
        find(["0-of-1"])


def test_the_last_file_says_that_all_others_are_complete(tmp_path: Path):
    source = JsonLines(str(tmp_path), watch=WATCH_S, until="_DONE")
    put(tmp_path, "a.jsonl", age_s=0)
    assert source.find_splits(()) == ([], False, ())
    put(tmp_path, "_DONE", "")
    found = source.find_splits(())
    assert (names(found.new), found.is_last) == (["a.jsonl"], True)
    # Text may be in a file with any ending, but this one has none.
    (tmp_path / "DONE").write_text("no more\n")
    lines = TextLines(str(tmp_path), watch=WATCH_S, until="DONE").find_splits(())
    assert (names(lines.new), lines.is_last) == (["a.jsonl"], True)
    assert source.bounded
    assert not JsonLines(str(tmp_path), watch=WATCH_S).bounded


def test_every_format_can_arrive(tmp_path: Path):
    for source in (CSV(str(tmp_path), watch=1), Parquet(str(tmp_path), watch=1)):
        flow = Flow("arriving")
        flow.read(source, name="in").write(Collect(), name="out")
        assert [*flow.plan().operators] == ["in.splits", "in", "out"]


def test_what_cannot_be_watched_is_refused(tmp_path: Path):
    put(tmp_path, "a.jsonl")
    of_a_file = Operator("in", Read(JsonLines(str(tmp_path / "a.jsonl"), watch=1)))
    with pytest.raises(NoInputError, match="give the folder"):
        check_source(of_a_file)
    check_source(Operator("in", Read(JsonLines(str(tmp_path), watch=1))))
    for wrong in ({"watch": 0}, {"watch": 1, "until": "a/b"}, {"until": "_DONE"}):
        with pytest.raises(BadOptionError):
            JsonLines(str(tmp_path), **wrong)

"""Files that arrive in a folder: when one is complete, what is forgotten, and when all are there."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from backedge import CSV, BadOptionError, Collect, Flow, JsonLines, NoInputError, Parquet
from backedge.engine.io.files.checks import check_source
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
    # Forgotten by the source, and still to be read: it is not found a second time.
    b.unlink()
    source.find_splits(known)
    os.utime(put(tmp_path, "b.jsonl"), ns=(0, int(known[1].partition("time_ns=")[2].partition("&")[0])))
    assert source.find_splits(known).new == []


def test_the_last_file_says_that_all_others_are_complete(tmp_path: Path):
    source = JsonLines(str(tmp_path), watch=WATCH_S, until="_DONE")
    put(tmp_path, "a.jsonl", age_s=0)
    assert source.find_splits(()) == ([], False, ())
    put(tmp_path, "_DONE", "")
    found = source.find_splits(())
    assert (names(found.new), found.is_last) == (["a.jsonl"], True)
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

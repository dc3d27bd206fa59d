"""Peers do the work that ours does, and a stranger can bring one."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.notes import note, read_notes
from bench.peers import PeerError, count_bare, loop_bare, peers
from bench.workloads import (
    CountWorkload,
    is_told,
)

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def path_of_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield


def written(folder: Path, source: str) -> str:
    file = folder / f"peer_{next(NUMBERS)}.py"
    file.write_text(source)
    return str(file)


# -- a stranger's peer -------------------------------------------------------------------------------------------


def test_a_file_stands_in_for_the_peer_that_it_names(tmp_path: Path):
    path = written(tmp_path, "PEER = 'other'\ndef run(workload):\n    return 1\n")
    known = peers({"bare": loop_bare.run, "other": loop_bare.run}, path)
    assert known["bare"] is loop_bare.run and known["other"](None) == 1.0


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("number = 7\n", "has no run(workload)"),
        ("PEER = 'flink'\ndef run(workload): ...\n", "has PEER = 'flink': the peers here are bare"),
    ],
)
def test_a_file_that_is_no_peer_is_refused_at_once(source: str, complaint: str, tmp_path: Path):
    with pytest.raises(PeerError, match="--peer") as refused:
        peers({"bare": loop_bare.run}, written(tmp_path, source))
    assert complaint in str(refused.value)


@pytest.mark.parametrize("figure", ["0", "-1.0", "None", "'fast'"])
def test_a_peer_that_gives_no_figure_is_refused(figure: str, tmp_path: Path):
    known = peers({"bare": loop_bare.run}, written(tmp_path, f"def run(workload):\n    return {figure}\n"))
    with pytest.raises(PeerError, match="figure"):
        known["bare"](None)


# -- the peers ---------------------------------------------------------------------------------------------------


def test_the_count_by_hand_counts():
    make = CountWorkload(words=3).make()
    words = [make(at) for at in range(6_000)]
    counting = count_bare.Counting()
    counting.take(words[:3_500])
    counting.take(words[3_500:])
    assert counting.states == Counter(words)
    assert sorted(counting.told) == sorted((word, times) for word in set(words) for times in (1_000, 2_000))
    assert all(map(is_told, counting.told)) and counting.records == 6_000


def test_notes_are_read_in_order_and_a_torn_one_is_left(tmp_path: Path):
    path = str(tmp_path / "notes")
    assert read_notes(path) == []
    for value in (3.0, 1.0, 2.0):
        note(path, value)
    with open(path, "ab") as file:
        file.write(b"torn")
    assert [value for _, value in read_notes(path)] == [3.0, 1.0, 2.0]
    assert [value for _, value in read_notes(path, 2)] == [2.0]

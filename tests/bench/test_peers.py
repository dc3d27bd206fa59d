"""Peers do the work that ours does, and a stranger can bring one."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import recover
from bench.notes import note, read_notes
from bench.peers import PeerError, count_bare, loop_bare, peers, snapshot_dict_copy
from bench.workloads import (
    CopyWorkload,
    CountWorkload,
    LoopWorkload,
    climb,
    is_done,
    is_told,
    loop_key,
    tally,
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
    with pytest.raises(PeerError, match="return a figure above 0"):
        known["bare"](None)


# -- the workloads -----------------------------------------------------------------------------------------------


def test_a_record_of_the_loop_makes_its_hops_and_no_more():
    workload = LoopWorkload(records=3, rounds=4, seed=5)
    for record in workload.start():
        keys: list[int] = []
        hops = 0
        while not is_done(record := tally(0, climb(record))[1]):
            hops += 1
            keys.append(loop_key(record))
        assert hops == workload.hops / workload.records == 4
        assert len(set(keys)) == 4
    assert workload.start() == workload.start() != LoopWorkload(records=3, rounds=4, seed=6).start()


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


@pytest.mark.slow
@pytest.mark.long
def test_the_peers_by_hand_run_and_leave():
    assert loop_bare.run(LoopWorkload(records=1_000, repetitions=3_000, seconds=0.2, warm_up_s=0.1)) > 0
    assert count_bare.run(CountWorkload(seconds=0.2, warm_up_s=0.1)) > 0
    assert snapshot_dict_copy.run(CopyWorkload(keys=1_000)) > 0


# -- notes -------------------------------------------------------------------------------------------------------


def test_notes_are_read_in_order_and_a_torn_one_is_left(tmp_path: Path):
    path = str(tmp_path / "notes")
    assert read_notes(path) == []
    for value in (3.0, 1.0, 2.0):
        note(path, value)
    with open(path, "ab") as file:
        file.write(b"torn")
    assert [value for _, value in read_notes(path)] == [3.0, 1.0, 2.0]
    assert [value for _, value in read_notes(path, 2)] == [2.0]


def test_what_tasks_still_do_after_a_kill_and_what_is_read_again_is_not_past_it(tmp_path: Path):
    path = str(tmp_path / "notes")
    for position in (50.0, 100.0):
        note(path, position)
    killed_s = read_notes(path)[-1][0]
    for position in (150.0, 50.0, 150.0):
        note(path, position)
        assert recover.time_past(path, killed_s) == 0.0
    note(path, 200.0)
    assert recover.time_past(path, killed_s) == read_notes(path)[-1][0]

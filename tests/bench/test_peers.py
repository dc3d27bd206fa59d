"""Peers do the work that ours does, and a stranger can bring one."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.peers import PeerError, loop_bare, peers

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


def test_a_file_that_is_no_peer_or_gives_no_figure_is_refused(tmp_path: Path):
    for source, complaint in (
        ("number = 7\n", r"--peer .* has no run\(workload\)"),
        ("PEER = 'flink'\ndef run(workload): ...\n", "--peer .* has PEER = 'flink': the peers here are bare"),
    ):
        with pytest.raises(PeerError, match=complaint):
            peers({"bare": loop_bare.run}, written(tmp_path, source))
    for figure in ("0", "-1.0", "None", "'fast'"):
        known = peers({"bare": loop_bare.run}, written(tmp_path, f"def run(workload):\n    return {figure}\n"))
        with pytest.raises(PeerError, match="figure"):
            known["bare"](None)

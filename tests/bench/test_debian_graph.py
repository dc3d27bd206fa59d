"""The graph of Debian's index: what an entry names, the numbers of vertices, and no index."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.debian_graph import write_debian
from bench.graph_input import read_graph
from bench.ours import BenchError

INDEX = """Package: less
Source: pager (2:590-2)
Depends: libc6 (>= 2.34), debconf | debconf-2.0:any
Tag: role::program,
 use::viewing
Description: pager program, a pager

Package: libc6
Section: libs
"""


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An apt-cache that prints a file, which is empty at first."""
    program, index = tmp_path / "bin" / "apt-cache", tmp_path / "index"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nwhile IFS= read -r line; do printf '%s\\n' \"$line\"; done < {index}\n")
    program.chmod(0o755)
    index.touch()
    monkeypatch.setenv("PATH", str(program.parent))
    return index


def test_an_entry_leads_once_to_each_thing_that_it_names(apt: Path, tmp_path: Path):
    apt.write_text(INDEX)
    assert write_debian(str(tmp_path)) == (11, 10)
    sources, targets = map(list, read_graph(str(tmp_path)))
    assert sorted(map(sources.count, set(sources))) == [1, 9]
    assert set(sources) | set(targets) == set(range(11))
    assert len(set(sources) & set(targets)) == 1, "libc6 is the same vertex in both entries"


def test_an_empty_index_is_refused(apt: Path, tmp_path: Path):
    with pytest.raises(BenchError, match="apt-get update"):
        write_debian(str(tmp_path))


def test_a_machine_without_apt_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchError, match="run this on Debian"):
        write_debian(str(tmp_path))

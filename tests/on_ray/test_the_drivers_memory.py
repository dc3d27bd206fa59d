"""The memory of a process that starts runs does not grow with their number."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from backedge import Collect, Flow, Items, run

pytestmark = pytest.mark.slow


def run_once(folder: Path) -> None:
    flow = Flow("one of many")
    flow.read(Items([1, 2, 3])).write(Collect())
    run(flow, snapshots=str(folder), progress=False)


def classes() -> set[int]:
    gc.collect()
    return {id(each) for each in gc.get_objects() if isinstance(each, type)}


def test_a_run_leaves_no_class_behind(on_ray: None, tmp_path: Path):
    """Ray never lets go of a class that it has made actors of."""
    run_once(tmp_path / "first")
    before = classes()
    run_once(tmp_path / "second")
    assert classes() <= before

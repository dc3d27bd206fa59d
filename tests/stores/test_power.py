"""The disk whose power is cut shows a sync that is missing: what was acknowledged is gone, or a file is not whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.power import cut_after_each_death, cut_at_each_sync

CAREFUL = ("write", "sync file", "rename", "sync folder")


class Renamed:
    """A process that writes a file under another name and renames it, step by step; whoever finds the file reads it."""

    def __init__(self, folder: Path, steps: Sequence[str] = CAREFUL) -> None:
        self.folder = folder
        self.steps = steps
        self.is_acknowledged = False

    def go_on(self) -> None:
        part, whole = self.folder / "part", self.folder / "whole"
        for step in self.steps:
            match step:
                case "write":
                    part.write_bytes(b"all")
                case "rename":
                    part.replace(whole)
                case "sync folder":
                    sync(self.folder)
                case _:
                    sync(part if part.exists() else whole)
        self.is_acknowledged = True

    def check(self, folder: Path) -> None:
        whole = folder / "whole"
        assert whole.exists() or not self.is_acknowledged, "what was acknowledged is gone"
        assert not whole.exists() or whole.read_bytes() == b"all", "a file has its name, and is not whole"


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def test_a_file_that_is_synced_before_and_after_it_is_renamed_survives(tmp_path: Path):
    assert cut_at_each_sync(tmp_path / "cut", Renamed) == 2
    assert cut_after_each_death(tmp_path / "death", Renamed) > 2


@pytest.mark.parametrize(
    ("steps", "what"),
    [
        (("write", "rename"), "gone"),
        (("write", "sync file", "rename"), "gone"),
        (("write", "rename", "sync folder"), "not whole"),
        (("write", "rename", "sync file", "sync folder"), "not whole"),
        (("write", "rename", "sync folder", "sync file"), "not whole"),
    ],
    ids=["none", "of the folder", "of the file", "of the file before its name", "of the file before the folder"],
)
def test_a_missing_sync_is_found(tmp_path: Path, steps: Sequence[str], what: str):
    with pytest.raises(AssertionError, match=what):
        cut_at_each_sync(tmp_path, lambda folder: Renamed(folder, steps))

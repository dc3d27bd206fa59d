"""ARCHITECTURE.md names every file there is, no other, and every rule that can be broken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.simulation.breaks import BREAKS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()


def files_in_the_map(folder: str) -> set[str]:
    """The files in the first column of the table under a folder's heading."""
    _, _, part = PAGE.partition(f"**{folder}/**")
    rows = [line for line in part.partition("\n**")[0].splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([\w.]+\.py|\w+/)`", row.split("|")[1])}


@pytest.mark.parametrize(
    "folder",
    ["graphs", "recovery", "recovery/stores", "engine", "engine/files", "engine/on_ray", "engine/simulation", "proof"],
)
def test_the_map_names_every_file_and_no_other(folder: str):
    files = {file.name for file in (ROOT / folder).glob("*.py")} - {"__init__.py"}
    folders = {"operators/"} if folder == "engine" else set[str]()
    assert files_in_the_map(folder) == files | folders


def test_every_rule_that_can_be_broken_is_told_with_what_follows():
    rules = re.findall(r"^ +- ((?:`[\w-]+`(?:, )?)+)", PAGE, flags=re.MULTILINE)
    told = {name for names in rules for name in re.findall(r"`([\w-]+)`", names)}
    assert told == set(BREAKS)

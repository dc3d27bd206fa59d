"""Every command of the tutorial does what the tutorial says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from backedge.engine.on_ray import cluster

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
BLOCK = re.compile(r"^```(python|sh|text) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND_S = 240.0


@pytest.fixture
def folder(local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, with the commands of this Python at hand, and one Ray for all of them, which saves minutes."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("RAY_ADDRESS", cluster.ray.get_runtime_context().gcs_address)
    return tmp_path


def pattern(line: str) -> str:
    """What a line of the tutorial matches: three dots stand for anything.

    >>> bool(re.fullmatch(pattern("...2 kills, ..."), "crawl: 2 kills, 1 restore"))
    True
    """
    return ".*".join(map(re.escape, line.split("...")))


@pytest.mark.long
def test_every_command_of_the_tutorial_does_what_it_says(folder: Path):
    said: list[str] = []
    commands = 0
    for kind, title, body in BLOCK.findall(TUTORIAL):
        if kind == "python":
            name, _, place = title.partition(", ")
            with (folder / name).open("a" if place else "w") as file:
                file.write(f"\n\n{body}" if place else body)
        elif kind == "text":
            lacking = [line for line in body.splitlines() if not any(re.fullmatch(pattern(line), got) for got in said)]
            assert not lacking, f"the tutorial shows {lacking}, and there was\n" + "\n".join(said)
        else:
            done = subprocess.run(body, shell=True, cwd=folder, capture_output=True, text=True, timeout=COMMAND_S)
            said = (done.stdout + done.stderr).splitlines()
            wanted = int(title.removeprefix("exits with ") or 0)
            assert done.returncode == wanted, f"{body} exits with {done.returncode}:\n" + "\n".join(said)
            commands += 1
    assert commands == TUTORIAL.count("\n```sh") > 5
    assert (folder / "cuts.html").read_text().startswith("<!doctype html>")

"""What the pages for people say can be done, can be done."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path
from xml.etree import ElementTree

import pytest
from packaging.requirements import Requirement

from backedge import RunOptions
from backedge.engine.on_ray import cluster

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def running_ray(local_ray: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray that the programs find; each of their own takes seconds. The example of the README starts one."""
    monkeypatch.setenv("RAY_ADDRESS", cluster.ray.get_runtime_context().gcs_address)


def run_example(page: str, folder: Path, number: int = 0) -> str:
    """Run a Python example of a page as it stands; returns what it prints."""
    example = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)[number]
    (folder / "example.py").write_text(example)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "example.py"]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.usefixtures("running_ray")
def test_readme_example_prints_what_the_page_shows(tmp_path: Path):
    page = (ROOT / "README.md").read_text()
    shown = re.search(r"```python\n.*?```\n\n```text\n(.*?)```", page, flags=re.DOTALL)
    assert shown is not None
    printed = ast.literal_eval(run_example("README.md", tmp_path))
    for records in printed.values():
        records.sort(key=lambda order: order["id"])
    assert printed == ast.literal_eval(shown[1])


@pytest.mark.usefixtures("running_ray")
def test_the_example_of_cuts_on_demand_runs_as_it_stands(tmp_path: Path):
    run_example("docs/recovery.md", tmp_path)
    assert list((tmp_path / "cuts" / "doubled").glob("**/manifest-*.json"))


@pytest.mark.slow
def test_the_example_of_state_versions_runs_as_it_stands(tmp_path: Path):
    run_example("docs/recovery.md", tmp_path, 1)


def test_the_page_of_cuts_and_restarts_has_their_options_with_their_defaults():
    rows = re.findall(r"^\| `([a-z_]+)` \| (.*?) \|", (ROOT / "docs" / "recovery.md").read_text(), flags=re.MULTILINE)
    assert len(rows) > 10
    for name, default in rows:
        assert ast.literal_eval(default.strip("`")) == getattr(RunOptions(), name), name


@pytest.mark.long
@pytest.mark.usefixtures("running_ray")
def test_the_picture_is_drawn_from_a_run_that_is_killed_and_loses_nothing(tmp_path: Path):
    command = [sys.executable, ROOT / "scripts" / "draw_run.py", tmp_path / "run.svg"]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert drawn.returncode == 0, drawn.stderr
    for picture in (tmp_path / "run.svg", ROOT / "docs" / "run.svg"):
        said = " ".join(ElementTree.parse(picture).getroot().itertext())
        assert "SIGKILL" in said and "each exactly once" in said
        assert re.search(r"all tasks run again from cut \d+,.* with the [1-9]\d* orders", said, flags=re.DOTALL)


def test_what_the_extra_of_spark_connect_installs_is_pinned():
    def needed(package: str, extra: str = "") -> set[str]:
        wanted = (Requirement(text) for text in requires(package) or ())
        return {one.name for one in wanted if one.marker is not None and one.marker.evaluate({"extra": extra})}

    pinned = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))
    assert needed("backedge", "connect") == {"pyspark"}, "the extra of PySpark of the same name is what is installed"
    found = needed("pyspark", "connect")
    assert len(found) > 3
    assert found <= pinned

"""The wheel carries everything: installed alone, away from the checkout, it runs a flow and its command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from backedge.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("backedge", "engine", "graphs", "recovery", "pyproject.toml", "README.md", "LICENSE")

FLOW = """
from backedge import Collect, Flow, Items

flow = Flow("retries")
orders = flow.read(Items([{"id": 1, "tries": 0}, {"id": 2, "tries": 0}]), name="orders")
again = flow.loop("again", max_rounds=5)
tried = orders.merge(again).map(lambda order: {**order, "tries": order["tries"] + 1}, name="attempt")
done, failed = tried.split(lambda order: order["tries"] == 3)
again.feed(failed)
done.write(Collect(), name="done")
"""


def run(*command: str | Path, cwd: Path) -> str:
    """What `command` prints; the checkout is not on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that no build folder of an earlier day slips in and none is left behind."""
    copy = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    built = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "-w",
        built,
        copy,
        cwd=copy,
    )
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh virtual environment that has the wheel, and the dependencies without network."""
    home = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        home / "bin" / "python",
        "install",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=home,
    )
    # A path line in a .pth file brings packages but not the .pth files beside them: the editable project stays out.
    packages = run(
        home / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home
    ).strip()
    (Path(packages) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def test_wheel_holds_every_module_and_nothing_else(wheel: Path):
    packages = ("backedge", "engine", "graphs", "recovery")
    ours = {file.relative_to(ROOT).as_posix() for package in packages for file in (ROOT / package).rglob("*.py")}
    ours |= {f"{package}/py.typed" for package in packages}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == ours


def test_flow_runs_from_another_folder(installed: Path, tmp_path: Path):
    simulation = "import backedge\nprint(backedge.simulate(flow, seeds=range(3)))\nprint(backedge.__file__)\n"
    (tmp_path / "retries.py").write_text(FLOW + simulation)
    said = run(installed / "python", "retries.py", cwd=tmp_path)
    assert said.splitlines()[-1].startswith(str(installed.parent))


def test_command_says_its_version(installed: Path, tmp_path: Path):
    assert run(installed / "backedge", "--version", cwd=tmp_path) == f"backedge {VERSION}\n"


def test_command_draws_a_flow_of_the_current_folder(installed: Path, tmp_path: Path):
    (tmp_path / "retries.py").write_text(FLOW)
    assert "again" in run(installed / "backedge", "graph", "retries:flow", cwd=tmp_path)

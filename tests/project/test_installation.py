"""Installed into a fresh environment, in each of the ways of the README, it runs a flow and its command.

No network is used: the repository is a local one, the dependencies are those of this environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from backedge.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
OFFLINE = ("--no-deps", "--no-index", "--no-build-isolation")

LINKED = ("engine", "graphs", "recovery")
"""Folders that lie beside `backedge` and are installed within it; a user's project may have folders of these names."""

SOURCES = (*LINKED, "backedge", "src", "backedge_command.py", "pyproject.toml", "README.md", "LICENSE")

FLOW = """
from backedge import Collect, Flow, Items
from engine.limits import TRIES

flow = Flow("retries")
orders = flow.read(Items([{"id": 1, "tries": 0}, {"id": 2, "tries": 0}]), name="orders")
again = flow.loop("again", max_rounds=5)
tried = orders.merge(again).map(lambda order: {**order, "tries": order["tries"] + 1}, name="attempt")
done, failed = tried.split(lambda order: order["tries"] == TRIES)
again.feed(failed)
done.write(Collect(), name="done")
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What `command` prints; the checkout is not on its path."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [*map(str, command)], cwd=cwd, env={**inherited, **environment}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with what is needed to build, as it stands here, without build folders of earlier days."""
    copy = tmp_path_factory.mktemp("repository")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    run("git", "init", "--quiet", cwd=copy)
    run("git", "add", ".", cwd=copy)
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    run("git", *identity, "commit", "--quiet", "--message", "As it stands", cwd=copy)
    return copy


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("wheel")
    clone = tmp_path_factory.mktemp("built") / "backedge"
    run("git", "clone", "--quiet", repository, clone, cwd=built)
    run(sys.executable, "-m", "pip", "wheel", *OFFLINE, "-w", built, clone, cwd=built)
    (path,) = built.glob("*.whl")
    return path


def targets() -> dict[str, str]:
    """What the README installs, by where it comes from."""
    named = re.findall(r"^    pip install (\S+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    return {"git" if "git+" in text else "wheel" if text.endswith(".whl") else "clone": text for text in named}


def install(target: str | Path, home: Path) -> Path:
    """Make an environment with this installed; gives its folder of programs."""
    home.mkdir(exist_ok=True)
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
    tools = home / "tools"
    tools.mkdir()
    # What a build needs and nothing else, or pip would find an installed Backedge, too.
    for part in Path(sysconfig.get_path("purelib")).glob("*setuptools*"):
        (tools / part.name).symlink_to(part)
    (tools / "_distutils_hack").symlink_to(Path(sysconfig.get_path("purelib")) / "_distutils_hack")
    pip = (sys.executable, "-m", "pip", "--python", home / "bin" / "python")
    run(*pip, "install", *OFFLINE, target, cwd=home, PYTHONPATH=str(tools))
    # A path line in a .pth file brings packages but not the .pth files beside them: the editable project stays out.
    packages = run(
        home / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home
    ).strip()
    (Path(packages) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel."""
    return install(wheel, tmp_path_factory.mktemp("installed"))


def test_the_readme_installs_from_a_clone_a_wheel_and_a_git_address():
    assert targets().keys() == {"clone", "wheel", "git"}
    assert targets()["wheel"].startswith(f"backedge-{VERSION}-")


@pytest.mark.long
def test_an_installed_clone_runs_a_flow(repository: Path, tmp_path: Path):
    """As the README says it: the clone lies beside the project."""
    project = tmp_path / "project"
    project.mkdir()
    clone = (project / targets()["clone"]).resolve()
    run("git", "clone", "--quiet", repository, clone, cwd=tmp_path)
    runs_a_flow(install(clone, tmp_path / "home"), project)


@pytest.mark.long
def test_an_installed_git_address_runs_a_flow(repository: Path, tmp_path: Path):
    target, replaced = re.subn(r"git\+https://\S+", f"git+file://{repository}", targets()["git"])
    assert replaced == 1
    runs_a_flow(install(target, tmp_path / "home"), tmp_path)


def write_project(folder: Path, more: str = "") -> None:
    """A user's project with folders that have the names of ours."""
    (folder / "retries.py").write_text(FLOW + more)
    for name in LINKED:
        (folder / name).mkdir()
        (folder / name / "limits.py").write_text("TRIES = 3\n")


def runs_a_flow(programs: Path, folder: Path) -> None:
    """Raise unless a flow of this folder runs with what is installed there, and so does the command."""
    simulation = "import backedge\nprint(backedge.simulate(flow, seeds=range(3)))\nprint(backedge.__file__)\n"
    write_project(folder, simulation)
    said = run(programs / "python", "retries.py", cwd=folder)
    assert said.splitlines()[-1].startswith(str(programs.parent))
    assert run(programs / "backedge", "--version", cwd=folder) == f"backedge {VERSION}\n"


@pytest.mark.slow
def test_wheel_holds_every_module_and_nothing_else(wheel: Path):
    ours = {file.relative_to(ROOT).as_posix() for file in (ROOT / "backedge").rglob("*.py")}
    ours |= {f"backedge/{file.relative_to(ROOT).as_posix()}" for name in LINKED for file in (ROOT / name).rglob("*.py")}
    ours |= {"backedge/py.typed", "backedge/__init__.pyi"}
    ours |= {file.relative_to(ROOT).as_posix() for file in (ROOT / "backedge" / "page" / "assets").iterdir()}
    ours.add("backedge_command.py")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == ours


@pytest.mark.slow
def test_an_installed_wheel_runs_a_flow(installed: Path, tmp_path: Path):
    runs_a_flow(installed, tmp_path)


@pytest.mark.slow
def test_command_draws_a_flow_of_the_current_folder(installed: Path, tmp_path: Path):
    write_project(tmp_path)
    assert "again" in run(installed / "backedge", "graph", "retries:flow", cwd=tmp_path)

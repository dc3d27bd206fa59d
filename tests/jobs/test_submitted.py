"""The two recipes of docs/cluster.md for `ray job submit`, with a stop in the middle, a continuation, and kills."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.cyclic.transfers import ACCOUNTS, OPENING, SIZE, STOPS
from tests.gates import HANG_S, Gate, opened_after
from tests.jobs.rays import Submitted, last_json, submitted

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
FLOW = "examples.cyclic.transfers:flow"
TOTAL = f"{ACCOUNTS} accounts, opened with {ACCOUNTS * OPENING:,}, closed with {ACCOUNTS * OPENING:,}"
BOOKED = {"booked": SIZE * STOPS}
GATED = """
from examples.cyclic import transfers
from engine.gates import Gate, behind


def flow(gate):
    return behind(transfers.flow(), Gate(gate), 200)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Submitted]:
    """A cluster whose Python has Backedge."""
    with submitted(Path(sys.executable)) as found:
        yield found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What somebody would submit: a folder with a flow in it, and with folders that have the names of ours."""
    shutil.copytree(ROOT / "examples", tmp_path / "project" / "examples")
    for name in ("engine", "graphs", "recovery"):
        (tmp_path / "project" / name).mkdir()
    shutil.copy(ROOT / "tests" / "gates.py", tmp_path / "project" / "engine")
    (tmp_path / "project" / "gated.py").write_text(GATED)
    return tmp_path / "project"


def test_a_job_that_was_stopped_goes_on_from_its_last_cut(cluster: Submitted, project: Path, tmp_path: Path):
    """The second job first tries a relative path, which a submitted job refuses."""
    out, cuts, gate = tmp_path / "run.json", tmp_path / "cuts", Gate(tmp_path / "gate")
    words = ["--set", f"gate={gate}", "--snapshots", str(cuts), "--json-out", str(out)]
    submit = ["submit", "--working-dir", str(project)]
    run = ["backedge", "run", "gated:flow", *words, "--resume", "latest", "--json"]
    cluster.job(*submit, "--no-wait", "--submission-id", "stopped", "--", *run)
    cluster.wait_for(cuts / "transfers" / "chain" / "00000003.json")
    assert "was stopped" in cluster.job("stop", "stopped")
    assert cluster.actors() == []
    stopped = json.loads(out.read_text())
    assert stopped["state"] == "cancelled"
    assert stopped["last_epoch"] >= 1

    last = stopped["last_epoch"]
    with opened_after(2, gate, cuts, "transfers"):
        refused = f"backedge run {FLOW} --snapshots cuts"
        said = cluster.job(*submit, "--", "sh", "-c", f"{refused} || {shlex.join(run)}")
    assert "--snapshots 'cuts' is relative, but this is a submitted job" in said
    assert "succeeded" in said, said
    assert TOTAL in said
    summary = last_json(said)
    assert (summary["state"], summary["kills"], summary["restores"]) == ("finished", 0, 1)
    assert summary["outputs"] == BOOKED
    assert summary["restored"][0]["epoch"] == last
    assert json.loads(out.read_text()) == summary
    assert cluster.actors() == []


@pytest.mark.long
def test_an_example_runs_from_spark_to_spark_as_a_job(cluster: Submitted, project: Path, tmp_path: Path):
    example = ["python", "-m", "examples.cyclic.connected_components", "--size", "300", "--every", "0.2", "--json"]
    kept = ["--snapshots", f"file://{tmp_path}/cuts", "--kill", "head@epoch=2", "--audit", "final"]
    said = cluster.job("submit", "--working-dir", str(project), "--", *example, *kept)
    assert "succeeded" in said, said
    summary = last_json(said)
    assert (summary["state"], summary["kills"], summary["restores"]) == ("finished", 1, 1), said
    assert (summary["differing"], summary["audit"], summary["failures"]) == (0, "consistent", [])
    assert summary["rows"] > 0
    assert cluster.actors() == []


def test_a_cluster_that_is_found_gets_the_token_of_the_user_and_one_that_refuses_it_is_named(
    cluster: Submitted, tmp_path: Path
):
    """`backedge jobs` on the cluster that Ray has noted on this machine: with the token, without one, with another."""
    note = Path(cluster.folder) / "ray" / "ray_current_cluster"
    note.parent.mkdir(exist_ok=True)
    note.write_text(cluster.address)
    kept = {name: value for name, value in cluster.environment.items() if name != "RAY_AUTH_MODE"}
    without = {"HOME": str(tmp_path)}
    for given in ({}, without, {**without, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
        environment = {**kept, "PYTHONPATH": str(ROOT), **given}
        command = [sys.executable, "-m", "backedge", "jobs"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S)
        if given:
            assert done.returncode == 2
            assert f"the Ray cluster at {cluster.address} requires its token: set RAY_AUTH_MODE=token" in done.stderr
        else:
            assert done.returncode == 0 and "token" not in done.stderr.lower(), done.stderr


# -- a wheel in the runtime environment ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has what Backedge depends on, and not Backedge."""
    home = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip())
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "backedge" not in entry.name and not entry.name.startswith("__pycache__"):
            (packages / entry.name).symlink_to(entry)
    assert subprocess.run([python, "-c", "import ray, zmq"], cwd=home, check=False).returncode == 0
    assert subprocess.run([python, "-c", "import backedge"], cwd=home, capture_output=True, check=False).returncode == 1
    return python


@pytest.fixture
def wheel(project: Path, tmp_path: Path) -> str:
    """The wheel in the folder that is submitted: its name there."""
    copy = tmp_path / "sources"
    for name in ("backedge", "engine", "graphs", "recovery"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("backedge_command.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    options = ["--no-deps", "--no-index", "--no-build-isolation", "-w", str(project / "wheels")]
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", *options, str(copy)], cwd=copy, check=True)
    (path,) = (project / "wheels").glob("*.whl")
    return f"wheels/{path.name}"


@pytest.mark.long
def test_a_job_brings_backedge_as_a_wheel(bare: Path, wheel: str, project: Path, tmp_path: Path):
    environment = {"pip": {"packages": ["${RAY_RUNTIME_ENV_CREATE_WORKING_DIR}/" + wheel]}}
    run = ["backedge", "run", FLOW, "--json", "--kill", "head@epoch=2"]
    kept = ["--snapshots", str(tmp_path / "cuts"), "--json-out", str(tmp_path / "run.json")]
    with submitted(bare) as cluster:
        options = ["--working-dir", str(project), "--runtime-env-json", json.dumps(environment)]
        said = cluster.job("submit", *options, "--", *run, *kept)
        assert "succeeded" in said, said
        assert TOTAL in said
        assert cluster.actors() == []
    summary = json.loads((tmp_path / "run.json").read_text())
    assert (summary["state"], summary["kills"], summary["restores"]) == ("finished", 1, 1)

"""Ctrl-C and SIGTERM end a run as they should: soon, with a cut to go on from, and with no process left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backedge import RunResult
from backedge.command import main
from backedge.run_command import after_interruption
from tests.command.endless import MODULE
from tests.gates import HANG_S
from tests.jobs.rays import check_gone, descendants, last_json, processes, short_folder

pytestmark = pytest.mark.slow

AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


@contextmanager
def running(folder: Path) -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """A run that has a cut, and the processes that it has started."""
    (folder / "endless.py").write_text(MODULE)
    options = ["--snapshots", "cuts", "--every", "0.2", "--json"]
    with short_folder() as short:
        environment = {**os.environ, "RAY_TMPDIR": short, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment.pop("RAY_ADDRESS", None)
        run = subprocess.Popen(
            [sys.executable, "-m", "backedge", "run", "endless:flow", *options],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert run.stdout is not None
        assert run.stdout.readline(), "what is printed is committed, so there is a cut"
        started = set(descendants(run.pid))
        assert len(started) > 5, "a Ray of its own runs"
        yield run, started


def cuts(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["snapshots", "list", "--snapshots", str(folder / "cuts"), "--json"]) == 0
    return last_json(capsys.readouterr().out)["cuts"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)]
)
def test_an_interrupted_run_leaves_a_cut_and_no_process(
    number: signal.Signals, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with running(tmp_path) as (run, started):
        run.send_signal(number)
        output, errors = run.communicate(timeout=HANG_S)
        check_gone(started)
    assert run.returncode == code, errors
    assert "Traceback" not in errors
    assert "--resume latest" in errors
    summary = json.loads(output.splitlines()[-1])
    assert summary["state"] == "cancelled"
    last = cuts(tmp_path, capsys)[-1]
    assert (last["epoch"], last["restorable"]) == (summary["last_epoch"], True)


def test_an_interrupted_run_claims_only_cuts_that_there_are():
    cancelled = RunResult("endless", "cancelled", 9, 0, 0, 0, None, 1.0, (), (), (), {})
    before_any = after_interruption(cancelled, "/cuts")
    assert "before a cut was complete" in before_any and "--snapshots /cuts --resume latest" in before_any
    restored = replace(cancelled, restores=({"epoch": 4}, {"epoch": None}))
    assert "its last cut, 4, is in /cuts" in after_interruption(restored, "/cuts")
    assert "its last cut, 7, is in /cuts" in after_interruption(replace(restored, last_epoch=7), "/cuts")
    assert "if it has none" in after_interruption(None, "/cuts")


@pytest.mark.long  # what dies in tests/on_ray/test_resuming.py is a driver, too, but no command
def test_a_driver_that_dies_leaves_a_cut_and_no_actor(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with running(tmp_path) as (run, started):
        # Agents of Ray's own take a minute to find out that all the others are gone.
        agents = {pid for pid, (_, command) in processes().items() if command.startswith(AGENTS)}
        run.kill()
        run.communicate(timeout=HANG_S)
        check_gone(started - agents)
    assert run.returncode == -signal.SIGKILL
    assert cuts(tmp_path, capsys)[-1]["restorable"]

"""`python -m tests.faults` counts a fault as survived only if it happened and something was checked after it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.faults.fault_list import FAULTS
from tests.faults.recorder import ROOT
from tests.gates import HANG_S, wait_for
from tests.on_ray.leftovers import has_ended

ROWS = {*range(1, 8), *range(9, 26), 28, 29}


def planted(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.faults.planted", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=os.environ | environment)


def outcome(*names: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code for some planted faults, and the line of each."""
    process = planted("--json", "--only", ",".join(names))
    out, _ = process.communicate(timeout=HANG_S)
    return process.returncode, {line["number"]: line for line in map(json.loads, out.splitlines())}


@pytest.mark.slow
def test_a_fault_counts_only_if_it_happened_and_what_follows_was_checked():
    code, lines = outcome("fine", "calm", "loss", "silent", "unchecked")
    assert code == 1
    found = {number: (line["happened"], line["survived"]) for number, line in lines.items()}
    assert found == {
        "fine": (True, True),
        "calm": (False, False),
        "loss": (True, False),
        "silent": (False, False),
        "unchecked": (True, False),
    }
    assert lines["fine"]["proof"] == {
        "happened": {"processes that died": 1},
        "survived": {"records equal to the reference": 2},
    }
    (error,) = lines["loss"]["errors"].values()
    assert "lacking [(2, 1)]" in error


@pytest.mark.slow
def test_a_test_that_is_not_found_turns_it_red():
    code, lines = outcome("fine", "gone")
    assert code == 1 and not lines["gone"]["happened"]


@pytest.mark.slow
def test_faults_that_are_survived_leave_it_green_and_one_that_is_not_built_is_told():
    code, lines = outcome("fine", "later")
    assert code == 0
    assert lines["fine"]["built"] and not lines["later"]["built"] and not lines["later"]["happened"]


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_leaves_nothing_running(tmp_path: Path, by: signal.Signals):
    note = tmp_path / "pid"
    process = planted("--only", "endless", PLANTED_PID=str(note))
    wait_for(lambda: note.exists() and note.read_text(), "the test has begun")
    process.send_signal(by)
    _, progress = process.communicate(timeout=HANG_S)
    assert process.returncode == 130 and "interrupted" in progress
    assert has_ended(int(note.read_text()))


@pytest.mark.slow
def test_a_fault_that_does_not_exist_is_refused_with_those_that_do():
    process = planted("--only", "fine,9")
    _, said = process.communicate(timeout=HANG_S)
    assert process.returncode == 2 and "no fault 9: there are fine, calm, " in said


def test_every_row_of_the_list_is_there_once_and_every_test_that_it_names():
    numbers = Counter(fault.number for fault in FAULTS)
    assert set(numbers) >= ROWS and max(numbers.values()) == 1 and len(numbers) >= 30
    for test in (test for fault in FAULTS for test in fault.tests):
        path, _, name = test.partition("::")
        assert re.search(rf"^def {name.partition('[')[0]}\(", (ROOT / path).read_text(), re.MULTILINE), test

"""Faults that the command must not count as survived: python -m tests.faults.planted [--json] [--only calm]"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.__main__ import main
from tests.faults.evidence import Evidence
from tests.faults.recorder import Fault


def test_nothing_dies(evidence: Evidence):
    evidence.happened("processes that died", 0)


def test_a_record_is_lost(evidence: Evidence):
    evidence.happened("processes that died", 1)
    evidence.same([1, 2], [1, 2, 2])


def test_passes_and_measures_nothing():
    assert True


def test_checks_nothing_after_its_fault(evidence: Evidence):
    evidence.happened("processes that died", 1)


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process.pid
        process.kill()


def test_never_ends(child: int):
    Path(os.environ["PLANTED_PID"]).write_text(str(child))
    threading.Event().wait()


def test_is_survived(evidence: Evidence):
    evidence.happened("processes that died", 1)
    evidence.same([2, 1], [1, 2])


HERE = "tests/faults/planted.py"
PLANTED = [
    Fault("fine", "a fault that is survived", (f"{HERE}::test_is_survived",)),
    Fault("calm", "a fault that does not happen", (f"{HERE}::test_nothing_dies",)),
    Fault("loss", "a fault that is not survived", (f"{HERE}::test_a_record_is_lost",)),
    Fault("silent", "a test that measures nothing", (f"{HERE}::test_passes_and_measures_nothing",)),
    Fault("unchecked", "a test that checks nothing", (f"{HERE}::test_checks_nothing_after_its_fault",)),
    Fault("gone", "a test that does not exist", (f"{HERE}::test_that_was_renamed",)),
    Fault("later", "a fault that is not built"),
    Fault("endless", "a run that does not end", (f"{HERE}::test_never_ends",)),
]

if __name__ == "__main__":
    sys.exit(main(faults=PLANTED))

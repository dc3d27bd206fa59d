"""Every test that the list of faults names is there: `python -m tests.faults` takes a quarter of an hour to miss it."""

from __future__ import annotations

import re

from tests.faults.fault_list import FAULTS
from tests.faults.recorder import ROOT


def test_every_test_of_the_list_is_there():
    assert len({fault.number for fault in FAULTS}) == len(FAULTS)
    for test in (test for fault in FAULTS for test in fault.tests):
        path, _, name = test.partition("::")
        assert re.search(rf"^def {name.partition('[')[0]}\(", (ROOT / path).read_text(), re.MULTILINE), test


def test_the_faults_of_make_proof_are_in_the_list():
    (named,) = re.findall(r"^FAULTS = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(named.split(",")) <= {fault.number for fault in FAULTS}

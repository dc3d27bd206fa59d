"""Runs the tests of faults in one pytest and makes of each fault a result, as soon as its last test is over."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.faults.fault_list import Fault

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Result:
    """What came of a fault.

    - proof: what its tests counted, under "happened" and under "survived".
    - lacking: which of the two some test did not count at all.
    - errors: the message of each test that failed.
    """

    fault: Fault
    proof: dict[str, Counter[str]] = field(default_factory=lambda: {"happened": Counter(), "survived": Counter()})
    lacking: set[str] = field(default_factory=set[str])
    errors: dict[str, str] = field(default_factory=dict[str, str])
    seconds: float = 0.0
    tests: int = 0

    @property
    def happened(self) -> bool:
        """Whether every test has counted that its fault happened."""
        return self.tests > 0 and "happened" not in self.lacking

    @property
    def survived(self) -> bool:
        """Whether the fault happened, every test has passed, and each has counted what it checked."""
        return self.happened and "survived" not in self.lacking and not self.errors

    def add(self, notes: dict[str, dict[str, int]], errors: str, nodeid: str, seconds: float) -> None:
        """Add a test that is over."""
        self.tests += 1
        self.seconds += seconds
        for part, counted in self.proof.items():
            counted.update(notes[part])
            if not notes[part] or not min(notes[part].values()):
                self.lacking.add(part)
        if errors:
            self.errors[nodeid] = errors

    def to_json(self) -> dict[str, Any]:
        """One line of the report."""
        line = {
            "number": self.fault.number,
            "fault": self.fault.name,
            "happened": self.happened,
            "survived": self.survived,
            "proof": {part: dict(counted) for part, counted in self.proof.items()},
            "tests": self.tests,
            "seconds": round(self.seconds, 1),
        }
        return line | ({"errors": self.errors} if self.errors else {})


class Recorder:
    """A plugin of pytest. `on_begin` hears of each test that begins, `on_result` of each fault that is through."""

    def __init__(
        self, faults: Sequence[Fault], on_begin: Callable[[str], None], on_result: Callable[[Result], None]
    ) -> None:
        self.results = {fault.number: Result(fault) for fault in faults}
        self._left: dict[str, set[str]] = {}
        self._on_begin = on_begin
        self._on_result = on_result
        self._reports: list[pytest.TestReport] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Tests with a Ray of their own come before those that share one, which is started once."""
        items.sort(key=lambda item: "local_ray" in getattr(item, "fixturenames", ()))
        for number, result in self.results.items():
            self._left[number] = {item.nodeid for item in items if result.fault.has(item.nodeid)}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._reports = []
        self._on_begin(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        notes = dict(self._reports[-1].user_properties).get("evidence", {"happened": {}, "survived": {}})
        errors = "\n".join(report.longreprtext for report in self._reports if not report.passed)
        seconds = sum(report.duration for report in self._reports)
        for number, left in self._left.items():
            if nodeid in left:
                left.remove(nodeid)
                self.results[number].add(notes, errors, nodeid, seconds)
                if not left:
                    self._on_result(self.results[number])


def run_tests(recorder: Recorder) -> tuple[int, str]:
    """Run the tests of all faults; the exit code of pytest, and what it printed."""
    tests = dict.fromkeys(test for result in recorder.results.values() for test in result.fault.tests)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.chdir(ROOT):
        code = pytest.main(["--audit-cuts", "-p", "no:cacheprovider", *tests], plugins=[recorder]) if tests else 0
    return int(code), said.getvalue()

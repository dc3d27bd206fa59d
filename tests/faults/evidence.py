"""What a test has measured of a fault and of the run that it befell. `python -m tests.faults` reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

LISTED_MAX = 9

Audit = Callable[[str, bytes | None], int]
"""Audits all cuts of the job in a folder; returns how many passed, and fails if one does not."""


class Evidence:
    """The notes of one test. What was counted and is zero fails the test: then it proves nothing.

    - notes: claim -> how often it was counted, under "happened" and under "survived".
    - audit: None where a test run has no time for audits.
    """

    def __init__(self, audit: Audit | None = None) -> None:
        self.notes: dict[str, dict[str, int]] = {"happened": {}, "survived": {}}
        self._audit = audit

    def happened(self, what: str, count: int) -> None:
        """The fault happened this often, as measured."""
        self._note("happened", what, count)

    def survived(self, what: str, count: int) -> None:
        """What must hold in spite of the fault was checked this often."""
        self._note("survived", what, count)

    def same(self, found: Iterable[Any], wanted: Iterable[Any]) -> None:
        """What was committed equals the reference, as multisets."""
        ours, reference = Counter(found), Counter(wanted)
        lacking, surplus = reference - ours, ours - reference
        assert ours == reference, (
            f"lacking {list(lacking.items())[:LISTED_MAX]}, surplus {list(surplus.items())[:LISTED_MAX]}"
        )
        self.survived("records equal to the reference", ours.total())

    def cuts(self, folder: Path | str, key: bytes | None = None) -> None:
        """Every cut of the job in this folder passes the audit."""
        if self._audit is not None:
            self.survived("cuts that pass the audit", self._audit(str(folder), key))

    def _note(self, part: str, what: str, count: int) -> None:
        notes = self.notes[part]
        notes[what] = notes.get(what, 0) + count
        assert count > 0, f"not {part}: {what}"

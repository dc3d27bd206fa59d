"""Whatever the documents of a job hold: an exit code, one line for a refusal, no traceback, and nothing is executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores.fuzzing import fuzz


@pytest.mark.slow
@pytest.mark.parametrize("count", [150, pytest.param(3_000, marks=pytest.mark.long)])
def test_documents_that_were_changed_and_sealed_again_are_read_or_refused_in_one_line(tmp_path: Path, count: int):
    outcomes = fuzz(tmp_path, count, seed=1)
    for kind in ("job.json", "chain", "past", "graph", "manifest"):
        assert outcomes[f"changed {kind}"] > count // 30
    # Some are still good, some are judged, most are refused.
    for outcome in ("list 0", "list 2", "show 0", "show 2", "audit not consistent", "audit refused"):
        assert outcomes[outcome] > 5, outcomes

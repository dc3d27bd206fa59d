"""Two pipelines of a job, which share its chain, its store and its supervisor: one restarts, and the other goes on."""

from __future__ import annotations

import pytest

from proof.runner import Summary, run_seeds


@pytest.fixture(scope="module")
def summary() -> Summary:
    return run_seeds(range(20_000, 20_012), crashes=3, only_pipelines=True)


@pytest.mark.slow
def test_no_schedule_of_two_pipelines_violates_anything(summary: Summary):
    assert summary.failed == []
    assert summary.counts["schedules_of_pipelines"] == 12


@pytest.mark.slow
def test_one_pipeline_is_restored_while_the_other_goes_on(summary: Summary):
    assert summary.counts["pipelines_apart"] > 12
    assert summary.happened["takeovers"] > 2, "and both when their supervisor dies"

"""Every schedule of two pipelines on one chain, with a lost reply, a successor or another run at every point."""

from __future__ import annotations

import pytest

from backedge.engine.simulation.breaks.broken_pipelines import PIPELINES
from proof.explored_pipelines import GIVEN_UP, WALKS, explore_pipelines


@pytest.mark.slow
@pytest.mark.parametrize("name", WALKS)
def test_no_schedule_of_two_pipelines_loses_the_job_or_mixes_them(name: str):
    found = explore_pipelines(name)
    assert found.complete
    assert found.violations == []
    assert found.states > 500 and found.ends > 20


@pytest.mark.parametrize(
    "rule", ["pipeline-shares-a-completion", "pipeline-fences-another", "pipelines-count-attempts-apart"]
)
def test_a_broken_rule_of_pipelines_is_found_with_its_story(rule: str):
    found = explore_pipelines("two pipelines, a lost reply", PIPELINES[rule].parts().supervisor)
    assert found.violations and "step first.one" in found.violations[0]


@pytest.mark.slow
def test_a_pipeline_that_was_given_up_and_continues_is_found():
    found = explore_pipelines(GIVEN_UP, PIPELINES["given-up-pipeline-continues"].parts().supervisor)
    assert found.violations and "of b from 1" in found.violations[0]

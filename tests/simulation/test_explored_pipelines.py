"""Every schedule of two pipelines on one chain, with a lost reply, a successor or another run at every point."""

from __future__ import annotations

import pytest

from backedge.engine.simulation.breaks.broken_pipelines import PIPELINES
from proof.explored_pipelines import GIVEN_UP, WALKS, explore_pipelines

LONG = ("two pipelines, a predecessor that wakes", GIVEN_UP)
"""Thousands of states, which `python -m proof explore` visits too."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in WALKS])
def test_no_schedule_of_two_pipelines_loses_the_job_or_mixes_them(name: str):
    found = explore_pipelines(name)
    assert found.complete
    assert found.violations == []
    assert found.states > 500 and found.ends > 20


LOST_REPLY = "two pipelines, a lost reply"


@pytest.mark.parametrize(
    ("rule", "name", "told"),
    [
        ("pipeline-shares-a-completion", LOST_REPLY, "step first.one"),
        ("pipeline-fences-another", LOST_REPLY, "step first.one"),
        ("pipelines-count-attempts-apart", LOST_REPLY, "step first.one"),
        pytest.param("given-up-pipeline-continues", GIVEN_UP, "of b from 1", marks=pytest.mark.slow),
    ],
)
def test_a_broken_rule_of_pipelines_is_found_with_its_story(rule: str, name: str, told: str):
    found = explore_pipelines(name, PIPELINES[rule].parts().supervisor)
    assert found.violations and told in found.violations[0]

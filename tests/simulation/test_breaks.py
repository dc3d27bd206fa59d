"""Each rule, broken on purpose, is found: a checker that no break turns red checks nothing."""

from __future__ import annotations

import pytest

from backedge.engine.simulation.breaks import BREAKS
from proof.broken_rules import WALKED, how_found


@pytest.mark.slow
@pytest.mark.parametrize("rule", [rule for rule in BREAKS if rule not in WALKED])
def test_a_broken_rule_is_found(rule: str):
    assert how_found(rule) is not None

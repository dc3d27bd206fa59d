"""The explorer: it ends, finds nothing in the core, and finds what is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.simulation.breaks import BREAKS
from engine.simulation.explorer import Explorer
from engine.simulation.tiny_graphs import TinyGraph, graphs


def graph(name: str, **bounds: int) -> TinyGraph:
    found = next(graph for graph in graphs() if graph.name == name)
    return replace(found, bounds={**found.bounds, **bounds})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nested loops", "a death during the restore"])
def test_every_schedule_of_a_small_graph_is_right(name: str):
    found = Explorer(graph(name)).run()
    assert found.complete
    assert found.violations == []
    assert found.cuts_with_log > 0
    assert found.ends > 0
    assert found.crash_points > 1000


@pytest.mark.parametrize("rule", ["no-loop-log", "log-without-the-queue", "log-not-replayed", "blocking-variant"])
def test_a_broken_rule_is_found_with_its_story(rule: str):
    found = Explorer(graph("a death during the restore"), BREAKS[rule].parts()).run()
    assert found.violations
    assert "receive" in found.violations[0]


def test_an_exploration_that_is_cut_short_is_not_complete():
    found = Explorer(graph("nested loops"), states_max=50).run()
    assert not found.complete

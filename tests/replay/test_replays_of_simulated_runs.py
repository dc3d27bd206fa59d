"""Replays of generated flows under crashes: loops, rounds, timers, calls, columns, other parallelism."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backedge import Collect, Flow, Items, VertexProgram, Vertices
from backedge.engine.simulation.world.fault_plan import FaultPlan
from backedge.engine.simulation.world.schedule import Schedule
from backedge.engine.vertices import edges as vertex_edges
from backedge.engine.vertices import rounds as in_rounds
from proof.runner import STEPS_EXPECTED, STEPS_LIVE, STEPS_SAFE, case_of, drawn_topology, run_case, world_of
from tests.replay.kept import keeping_parts, replays_of

# Small flows that have all calls in common.
SEEDS = (0, 26, 36, 99, 156)
WORDS = {
    *("produce", "process", "timers", "answer", "end"),
    *("round_end", "contributions", "decide", "release_round", "release_result"),
}


class Way(VertexProgram):
    combine, best = "min", "length"

    def start(self, vertices: Vertices) -> Any:
        vertices.active = vertices.ids == 0
        return {"length": np.where(vertices.active, 0.0, np.inf)}

    def along(self, sent: Any, weights: Any) -> Any:
        return sent + weights


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"free_running": True}], ids=["in rounds", "free-running"])
def test_replays_of_best_values_send_the_same_also_past_later_cuts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any
):
    """A run forgets at each cut which values it has sent."""
    monkeypatch.setattr(in_rounds, "SENT_MIN", 1)
    monkeypatch.setattr(vertex_edges, "FEW", 1)
    past_a_cut = 0
    for seed in range(3):
        drawn = random.Random(seed)
        edges = [
            {"source": drawn.randrange(15), "target": drawn.randrange(15), "km": float(drawn.randrange(1, 9))}
            for _ in range(45)
        ]
        flow, job = Flow("ways"), f"seed-{seed}"
        read = flow.read(Items(edges), name="edges")
        flow.vertex_program(Way, read, name="program", weight="km", **options).write(Collect(), name="out")
        case = replace(
            case_of(0, None), flow=flow, plan=flow.plan(), inputs={"edges": edges}, parallelism=2, policy="aligned"
        )
        world = world_of(case, seed, keeping_parts(tmp_path, job, case.plan))
        plan = FaultPlan(crashes=0, rescale_to=None, rescales=0, go_backs=0, slow_compactions=False)
        assert Schedule(world, seed, plan, STEPS_SAFE, STEPS_LIVE, STEPS_EXPECTED).run().violations == [], seed
        for host in world.hosts.values():
            host.runtime.close()
        for each in replays_of(world, tmp_path, job):
            assert each.found.is_same, (seed, each)
            past_a_cut += bool(each.found.cuts)
    assert past_a_cut > 5


@pytest.mark.slow
def test_replays_send_what_the_runs_sent_whatever_died(tmp_path: Path):
    happened, words = Counter[str](), set[str]()
    for seed in SEEDS:
        case, job = case_of(seed, drawn_topology(seed)), f"seed-{seed}"
        outcome, world = run_case(case, seed, crashes=3, parts=keeping_parts(tmp_path, job, case.plan))
        assert outcome.violations == [], seed
        for host in world.hosts.values():
            host.runtime.close()
        for each in replays_of(world, tmp_path, job):
            assert each.found.is_same and each.found.error is None, (seed, each)
            words.update(each.words)
            happened["complete" if each.found.is_complete else "cut off"] += 1
            happened["begins with a cut"] += each.id.epoch > 0
            happened["goes past a cut"] += bool(each.found.cuts)
            happened["is of a later attempt"] += each.id.attempt > 1
            happened["sent"] += each.found.sent
    assert words == WORDS
    assert {"complete", "cut off", "begins with a cut", "goes past a cut", "is of a later attempt"} <= (
        +happened
    ).keys()
    assert happened["sent"] > 200

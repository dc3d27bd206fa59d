"""A free-running vertex program on Ray, while its tasks are killed: the values are those without a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backedge import Collect, Flow, Items, RunOptions, VertexProgram, Vertices
from backedge.faults import Faults, run_with_faults

LENGTH = 1_000
ROWS_OF_GRAPH_MAX = 1_400
"""More rows than the graph of each of two tasks has: the edges and vertices of its half, and what ends them."""


class Steps(VertexProgram):
    """How many steps it is from vertex 0."""

    combine, best = "min", "steps"

    def start(self, vertices: Vertices) -> Any:
        vertices.active = is_first = vertices.ids == 0
        return {"steps": np.where(is_first, 0.0, np.inf)}

    def along(self, sent: Any, weights: Any) -> Any:
        return sent + weights


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_a_free_running_program_whose_tasks_are_killed_gives_the_same_values(tmp_path: Path):
    """A chain, in which every other step or so leads to the other task, and a dearer way past every tenth vertex."""
    chain = [{"source": n, "target": n + 1, "cost": 1.0} for n in range(LENGTH)]
    past = [{"source": n, "target": n + 2, "cost": 3.0} for n in range(0, LENGTH - 1, 10)]
    flow = Flow("steps")
    edges = flow.read(Items(chain + past), name="edges")
    flow.vertex_program(Steps, edges, weight="cost", free_running=True, name="steps").write(Collect(), name="out")
    options = RunOptions(snapshots=str(tmp_path), every=0.05, parallelism=2, progress=False)
    # So the first of them dies while messages circulate.
    kills = [f"steps/0@records={ROWS_OF_GRAPH_MAX}", f"steps/1@records={ROWS_OF_GRAPH_MAX + 100}"]
    result = run_with_faults(flow, Faults(kills), options)
    assert result.missed_faults == () and len(result.kills) == 2
    assert {row["vertex"]: row["steps"] for row in result.outputs["out"]} == {n: n for n in range(LENGTH + 1)}

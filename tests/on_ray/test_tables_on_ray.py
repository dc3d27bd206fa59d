"""A table and a free-running vertex program on Ray, while their tasks are killed: every row counts once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backedge import Collect, Flow, Items, Process, Range, Table, VertexProgram, Vertices
from tests.gates import Gate, Gated
from tests.on_ray.flows import finish

COUNT, KEYS = 4_000, 1_500
LENGTH = 1_000
ROWS_OF_GRAPH_MAX = 1_400
"""More rows than the graph of each of two tasks has: the edges and vertices of its half, and what ends them."""


class Sums(Process[Any, Any]):
    table = Table(key={"key": "int64"}, columns={"sum": "int64"})

    def on_batch(self, ctx: Any, batch: dict[str, Any]) -> None:
        ctx.table.combine(np.add, ctx.table.rows(batch["key"]), sum=batch["n"])

    def on_end(self, ctx: Any) -> None:
        ctx.emit_batch(ctx.table.scan())


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
def test_a_table_and_a_free_running_program_whose_tasks_are_killed_give_the_same_values(tmp_path: Path):
    """A chain, in which every other step or so leads to the other task, and a dearer way past every tenth vertex."""
    flow, gate = Flow("tables"), Gate(tmp_path / "gate")
    numbers = flow.read(Gated(Range(COUNT), gate, COUNT // 4), name="numbers")
    rows = numbers.map(lambda n: {"key": n % KEYS, "n": n}, name="rows").key_by("key")
    rows.process(Sums, batch_format="numpy", name="sums").write(Collect(), name="summed")
    chain = [{"source": n, "target": n + 1, "cost": 1.0} for n in range(LENGTH)]
    past = [{"source": n, "target": n + 2, "cost": 3.0} for n in range(0, LENGTH - 1, 10)]
    edges = flow.read(Items(chain + past), name="edges")
    program = flow.vertex_program(Steps, edges, weight="cost", free_running=True, name="steps")
    program.write(Collect(), name="stepped")
    # The first of the program's tasks dies while messages circulate.
    stepping = [f"steps/{task}@records={ROWS_OF_GRAPH_MAX + 100 * task}" for task in range(2)]
    options: dict[str, Any] = {"every": 0.1, "parallelism": 2, "kills": ["sums@epoch=3", "sums@epoch=7", *stepping]}
    _, result = finish(flow, gate=gate, snapshots=tmp_path / "cuts", **options)
    sums = {row["key"]: row["sum"] for row in result.outputs["summed"]}
    assert sums == {key: sum(range(key, COUNT, KEYS)) for key in range(KEYS)}
    assert list(tmp_path.rglob("table=rows/operator=sums/*.parquet"))
    assert {row["vertex"]: row["steps"] for row in result.outputs["stepped"]} == {n: n for n in range(LENGTH + 1)}

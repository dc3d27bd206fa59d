"""The table of a process class on Ray, while its task is killed: in cuts with deltas, every row counts once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backedge import Collect, Flow, Process, Range, Table
from tests.gates import Gate, Gated
from tests.on_ray.flows import finish

COUNT, KEYS = 4_000, 1_500


class Sums(Process[Any, Any]):
    table = Table(key={"key": "int64"}, columns={"sum": "int64"})

    def on_batch(self, ctx: Any, batch: dict[str, Any]) -> None:
        ctx.table.combine(np.add, ctx.table.rows(batch["key"]), sum=batch["n"])

    def on_end(self, ctx: Any) -> None:
        ctx.emit_batch(ctx.table.scan())


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_a_table_whose_tasks_are_killed_counts_every_row_once(tmp_path: Path):
    flow, gate = Flow("sums"), Gate(tmp_path / "gate")
    numbers = flow.read(Gated(Range(COUNT), gate, COUNT // 4), name="numbers")
    rows = numbers.map(lambda n: {"key": n % KEYS, "n": n}, name="rows").key_by("key")
    rows.process(Sums, batch_format="numpy", name="sums").write(Collect(), name="out")
    kills = ["sums@epoch=3", "sums@epoch=7"]
    _, result = finish(flow, gate=gate, snapshots=tmp_path / "cuts", every=0.2, parallelism=2, kills=kills)
    sums = {row["key"]: row["sum"] for row in result.outputs["out"]}
    assert sums == {key: sum(range(key, COUNT, KEYS)) for key in range(KEYS)}
    assert list(tmp_path.rglob("table=rows/operator=sums/*.parquet"))

"""The table of a process class on Ray, while its task is killed: in cuts with deltas, every row counts once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backedge import Collect, Flow, Items, Process, Range, RunOptions, Stream, Table
from backedge.faults import Faults, run_with_faults
from tests.gates import Gate, Gated
from tests.on_ray.flows import finish

COUNT, KEYS = 4_000, 1_500
EDGES, VERTICES, ROUNDS = 3_000, 600, 40


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


class Numbers(Process[Any, Any]):
    """Sends the number of each vertex along its edges: their ends are the same keys in each round."""

    outputs = ("messages", "values")
    table = Table(key={"vertex": "int64"}, columns={"number": "int64"})

    def __init__(self) -> None:
        self.edges = np.zeros((2, 0), np.int64)

    def on_batch(self, ctx: Any, input: str, batch: dict[str, Any]) -> None:
        if input == "edges":
            self.edges = np.concatenate([self.edges, [batch["source"], batch["target"]]], axis=1)
            ctx.table.rows(batch["source"])
        else:
            ctx.table.combine(np.add, ctx.table.rows(batch["target"]), number=batch["number"])

    def on_round_end(self, ctx: Any) -> None:
        sources, targets = self.edges
        ctx.emit_batch({"target": targets, "number": sent_along(ctx.table.get("number", ctx.table.rows(sources)))})

    def on_end(self, ctx: Any) -> None:
        found = ctx.table._repeated.found
        ctx.emit_batch({**ctx.table.scan(), "found": np.full(len(ctx.table), found)}, "values")

    def capture(self) -> Any:
        return self.edges

    def restore(self, state: Any) -> None:
        self.edges = state


def sent_along(numbers: Any) -> Any:
    return (numbers * 7 + 1) % 997


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_keys_that_are_the_same_in_each_round_are_found_again_after_a_kill_and_count_once(tmp_path: Path):
    random = np.random.default_rng(5)
    sources, targets = np.arange(EDGES) % VERTICES, random.integers(0, VERTICES, EDGES)
    flow = Flow("numbers")
    ends = zip(sources.tolist(), targets.tolist(), strict=True)
    read = flow.read(Items([{"source": source, "target": target} for source, target in ends]), name="in")
    values: list[Stream[Any]] = []

    def body(messages: Stream[Any]) -> Stream[Any]:
        inputs = {"edges": read.key_by("source"), "messages": messages.key_by("target")}
        sent: Stream[Any] = flow.process(Numbers, **inputs, batch_format="numpy", name="numbers")
        values.append(sent.side("values"))
        return sent

    flow.iterate(read.map(lambda edge: {"target": edge["target"], "number": 0}), body, rounds=ROUNDS, name="rounds")
    values[0].write(Collect(), name="out")
    options = RunOptions(snapshots=str(tmp_path), every=0.05, parallelism=2, progress=False)
    result = run_with_faults(flow, Faults([f"numbers@records={10 * EDGES}"]), options)
    assert result.missed_faults == () and len(result.kills) == 1
    numbers = np.zeros(VERTICES, np.int64)
    for _ in range(ROUNDS - 1):
        numbers += np.bincount(targets, sent_along(numbers[sources]), VERTICES).astype(np.int64)
    out = result.outputs["out"]
    assert {row["vertex"]: row["number"] for row in out} == dict(enumerate(numbers.tolist()))
    assert min(row["found"] for row in out) > ROUNDS // 4

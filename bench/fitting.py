"""What `kmeans` and `sgd` share: a model that is fitted in rounds by two tasks, ours beside the peers.

Parallelism 2, a process per slice with one thread for arithmetic, a cut every second. In each round a task computes the
contribution of its rows and broadcasts it as columns; each task adds them up and moves its copy of the parameters.
Rows are in the memory of the tasks before the clock starts, after the warm-up rounds. Cuts hold parameters and
contributions; rows are read from their file again. All cases must end with the same parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from backedge import Collect, Flow, Items, Stream
from bench.measuring import Report, beside_peers, ours_and_peers
from bench.options import Options
from bench.ours import BenchError, run_to_end
from bench.peers import peers
from bench.workloads import FitWorkload, Floats, Model

Columns = dict[str, Any]
Peers = Mapping[str, Callable[[FitWorkload], float]]


def run(
    bench: str, workload: FitWorkload, known: Peers, limits: Mapping[str, float], options: Options, **more: Any
) -> Report:
    """Measure ours and the peers in turns."""
    cuts: list[int] = []
    found = ours_and_peers(lambda: measure(workload, cuts), workload, peers(known, options.peer), options.turns)
    check_parameters(workload, "ours", *(name for name in known if options.peer is None))
    figures = {**more, "rounds": workload.rounds, "cuts_min": min(cuts[-options.turns :])}
    return beside_peers(bench, "ms a round", found, limits, is_rate=False, more=figures)


def check_parameters(workload: FitWorkload, first: str, *others: str) -> None:
    """Raise unless all have come to the same parameters. The order of sums differs, so the last digits may."""
    parameters = np.load(workload.result(first))
    for other in others:
        theirs = np.load(workload.result(other))
        if not np.allclose(parameters, theirs, rtol=1e-6, atol=1e-9):
            worst = float(np.abs(parameters - theirs).max())
            raise BenchError(f"the parameters of {first} and {other} differ by up to {worst}: one of them is wrong")


def measure(workload: FitWorkload, cuts: list[int]) -> float:
    """Milliseconds a round, at the slower task."""
    result = run_to_end(make_flow(workload), every=1.0, parallelism=2, actors="slice")
    cuts.append(result.snapshots)
    rows = result.outputs["fitted"]
    np.save(workload.result("ours"), fitted(rows))
    return max(row["seconds"] for row in rows) / workload.rounds * 1e3


def fitted(rows: list[Columns]) -> Floats:
    """The parameters that the first task has emitted."""
    return np.array([row["value"] for row in sorted(rows, key=lambda row: row["index"]) if row["task"] == 0])


def make_flow(workload: FitWorkload) -> Flow:
    """Contributions go round. Round 0 begins with one that does not count; those of the last round are not used."""
    flow = Flow("fitting")
    begin = flow.read(Items([{"index": 0, "value": 0.0}]), name="begin")

    def body(parts: Stream[Any]) -> Stream[Any]:
        fit = parts.broadcast().process(Fit, workload=workload, batch_format="numpy", name="fit")
        fit.side("fitted").write(Collect(), name="fitted")
        return fit

    flow.iterate(begin, body, rounds=workload.warm_up_rounds + workload.rounds + 1, name="rounds")
    return flow


class Fit:
    """The rows of a task, and its copy of the parameters."""

    outputs = ("parts", "fitted")

    def __init__(self, workload: FitWorkload) -> None:
        self.workload = workload
        self.model: Model | None = None
        self.parameters = workload.first()
        self.parts: list[Columns] = []
        self.began_s = self.now_s = 0.0

    def on_batch(self, ctx: Any, parts: Columns) -> None:
        """The contribution of a task, or of several."""
        self.parts.append(parts)

    def on_round_end(self, ctx: Any) -> None:
        """All contributions are here: move the parameters, and contribute to the next round."""
        if self.model is None:
            self.model = self.workload.model(self.workload.folder, ctx.task_index, ctx.parallelism)
        index = np.concatenate([part["index"] for part in self.parts])
        values = np.concatenate([part["value"] for part in self.parts])
        self.parts = []
        round = ctx.round[-1]
        if round > 0:
            total = np.bincount(index, values).astype(np.float64)
            self.parameters = self.model.moved(self.parameters, total)
        self.now_s = time.perf_counter()
        if round == self.workload.warm_up_rounds:
            self.began_s = self.now_s
        part = self.model.part(self.parameters, round)
        ctx.emit_batch({"index": np.arange(len(part)), "value": part}, output="parts")

    def on_end(self, ctx: Any) -> None:
        """Emit the parameters, and how long they took since the warm-up."""
        count = len(self.parameters)
        task, seconds = np.full(count, ctx.task_index), np.full(count, self.now_s - self.began_s)
        rows = {"task": task, "index": np.arange(count), "value": self.parameters, "seconds": seconds}
        ctx.emit_batch(rows, output="fitted")

    def capture(self) -> Any:
        """The state, for a snapshot."""
        return self.parameters, self.parts

    def restore(self, state: Any) -> None:
        """The state of a snapshot."""
        self.parameters, self.parts = state

"""K-means: assign each flower to the nearest centre, move each centre to the mean of its flowers, repeat.

    python -m examples.cyclic.kmeans --kill assign@epoch=2 --kill move@epoch=4
    backedge compare examples.cyclic.kmeans --kills 3 --seed 1

150 irises were measured by Edgar Anderson and published by Ronald Fisher ("The use of multiple measurements in
taxonomic problems", 1936): data/iris.csv. The flow does not know their species, and its groups nearly match them.

In each round the centres are broadcast to the tasks that hold the flowers; each task reports the number of flowers
nearest to each centre and the sums of their measures; then the centres move. The iteration ends with the round in which
no centre moves. Flowers and centres are columns, and both classes work on whole batches of them. Similar loops: any
small model that is trained on a large data set.

Guaranteed: the groups and distances of an undisturbed run. Measures are whole millimetres, so sums do not depend on the
order of their terms.
"""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from backedge import Collect, Flow, Parquet, Stream, tasks_of_keys

Flower = dict[str, Any]
Arrays = dict[str, np.ndarray]

DATA = Path(__file__).parent / "data" / "iris.csv"
MEASURED = 150
MEASURES = ("sepal_length", "sepal_width", "petal_length", "petal_width")
GROUPS = 3
MOVED_MM = 1e-6
"""A centre that has moved by less has not moved."""

SIZE = 15_000
"""Number of flowers. Fewer than were measured: every n-th is taken; more: some are taken again."""

SINK = "flowers"
KEYS = ("flower",)
TOLERANCES = {"distance_mm": 1e-9}
IN_LOOP = False  # What comes round waits at the head for its round, in the head's state.


def prepare(spark: Any, inputs: str, size: int = SIZE, seed: int = 0) -> None:
    """The flowers, in millimetres. Centres are put on the first flowers, all of one species: they have far to go."""
    from pyspark.sql import functions as F

    measured = spark.read.csv(str(DATA), header=True, inferSchema=True).withColumnRenamed("flower", "number")
    in_mm = [F.round(F.col(measure) * 10).cast("long").alias(measure) for measure in MEASURES]
    taken = spark.range(size).select(F.col("id").alias("flower"), F.expr(f"id * {MEASURED} DIV {size} + 1 AS number"))
    flowers = taken.join(measured, "number").select("flower", "species", *in_mm)
    flowers.repartition(4, "flower").write.mode("overwrite").parquet(f"{inputs}/flowers")
    centres = spark.read.parquet(f"{inputs}/flowers").where(f"flower < {GROUPS}")
    as_floats = [F.col(measure).cast("double").alias(measure) for measure in MEASURES]
    centres.select(F.col("flower").alias("group"), *as_floats).coalesce(1).write.mode("overwrite").parquet(
        f"{inputs}/centres"
    )


class Assign:
    """Holds the flowers of its task, which came in round 0. Each round brings it all of the centres."""

    outputs = ("parts", "flowers")

    def __init__(self) -> None:
        self.flowers: list[Arrays] = []
        self.centres: list[Arrays] = []

    def on_batch(self, ctx: Any, input: str, batch: Arrays) -> None:
        """Flowers to keep, or centres of this round."""
        (self.flowers if input == "flowers" else self.centres).append(batch)

    def on_round_end(self, ctx: Any) -> None:
        """All centres are here: find the nearest for each flower, and say what there is in each group."""
        centres, self.centres = together(self.centres), []
        if not self.flowers:
            return
        flowers = together(self.flowers)
        distances = np.linalg.norm(table(flowers)[:, None] - table(centres)[None, :], axis=2)
        nearest = distances.argmin(axis=1)
        found = {"group": centres["group"][nearest], "distance_mm": distances.min(axis=1)}
        self.flowers = [flowers | found]
        count = len(centres["group"])
        sums = {f"sum_{one}": np.bincount(nearest, flowers[one], count) for one in MEASURES}
        was = {f"was_{one}": centres[one] for one in MEASURES}
        flowers_each = np.bincount(nearest, minlength=count)
        ctx.emit_batch({"group": centres["group"], "count": flowers_each, **sums, **was}, output="parts")

    def on_end(self, ctx: Any) -> None:
        """The centres have come to rest: say where each flower belongs."""
        for flowers in self.flowers:
            ctx.emit_batch(flowers, output="flowers")

    def capture(self) -> Any:
        """The state, for a snapshot."""
        return self.flowers, self.centres

    def restore(self, state: Any) -> None:
        """The state of a snapshot."""
        self.flowers, self.centres = state


class Move:
    """Holds what the tasks have said of its groups in this round."""

    def __init__(self) -> None:
        self.parts: list[Arrays] = []

    def on_batch(self, ctx: Any, batch: Arrays) -> None:
        """A task has spoken."""
        self.parts.append(batch)

    def on_round_end(self, ctx: Any) -> None:
        """All have: each centre moves to the mean of its flowers. One that has none stays."""
        if not self.parts:
            return
        parts, self.parts = together(self.parts), []
        groups, first, rows = np.unique(parts["group"], return_index=True, return_inverse=True)
        counts = np.bincount(rows, parts["count"])
        was = {one: parts[f"was_{one}"][first] for one in MEASURES}
        sums = {one: np.bincount(rows, parts[f"sum_{one}"]) for one in MEASURES}
        centres = {one: np.where(counts > 0, sums[one] / np.maximum(counts, 1), was[one]) for one in MEASURES}
        moved = np.abs(table(centres) - table(was)).max(axis=1)
        ctx.emit_batch({"group": groups, **centres, "moved": moved})

    def capture(self) -> Any:
        """The state, for a snapshot."""
        return self.parts

    def restore(self, state: Any) -> None:
        """The state of a snapshot."""
        self.parts = state

    @staticmethod
    def merge(states: list[list[Arrays]]) -> list[Arrays]:
        """The state of one task, from those of several."""
        return [part for state in states for part in state]

    @staticmethod
    def split(state: list[Arrays], parts: int) -> list[list[Arrays]]:
        """The states of several tasks, from that of one."""
        if not state:
            return [[] for _ in range(parts)]
        whole = together(state)
        tasks = tasks_of_keys(whole["group"], parts)
        return [[{name: column[tasks == task] for name, column in whole.items()}] for task in range(parts)]


def together(batches: list[Arrays]) -> Arrays:
    """The rows of all batches."""
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def table(rows: Arrays) -> np.ndarray:
    """Their measures: a row for each."""
    return np.stack([rows[measure] for measure in MEASURES], axis=1).astype(float)


def flow(inputs: str, rounds: int | None = None) -> Flow:
    """The graph: centres come to the head of the iteration, go round in it, and leave it when they rest."""
    flow = Flow("kmeans")
    flowers = flow.read(Parquet(f"{inputs}/flowers"), name="measured").rebalance()
    first = flow.read(Parquet(f"{inputs}/centres"), name="first")

    def body(centres: Stream[Any]) -> Stream[Any]:
        assigned = flow.process(
            Assign, flowers=flowers, centres=centres.broadcast(), batch_format="numpy", name="assign"
        )
        assigned.side("flowers").write(Collect(), name=SINK)
        return assigned.key_by("group").process(Move, batch_format="numpy", name="move")

    moved = {"measure": "moved", "reduce": max, "until": lambda most: most < MOVED_MM}
    flow.iterate(first, body, name="centres", rounds=rounds, **moved).write(Collect(), name="resting")
    return flow


def reference(spark: Any, inputs: str, rounds: int | None = None) -> Any:
    """The same rounds as sums by group; three centres a round come to the driver."""
    from pyspark.sql import functions as F

    flowers = spark.read.parquet(f"{inputs}/flowers").localCheckpoint()
    centres = {row["group"]: row for row in spark.read.parquet(f"{inputs}/centres").collect()}
    means = [F.avg(measure).alias(measure) for measure in MEASURES]
    for number in count(1):
        far = [
            f"struct(sqrt({' + '.join(f'power({measure} - {centre[measure]}D, 2)' for measure in MEASURES)}) "
            f"AS distance_mm, {group}L AS group)"
            for group, centre in centres.items()
        ]
        assigned = flowers.withColumn("nearest", F.expr(f"least({', '.join(far)})")).select("*", "nearest.*")
        after = centres | {row["group"]: row for row in assigned.groupBy("group").agg(*means).collect()}
        most = max(abs(after[group][measure] - centres[group][measure]) for group in centres for measure in MEASURES)
        centres = after
        if number == rounds or most < MOVED_MM:
            return assigned.drop("nearest")


def show(rows: list[Flower]) -> None:
    """Which species are in which group, and where they lie: petals from left to right by length, upwards by width."""
    counts = Counter((row["species"], row["group"]) for row in rows)
    print(f"{'species':>12}" + "".join(f"{f'group {group}':>9}" for group in range(GROUPS)))
    for species in sorted({row["species"] for row in rows}):
        print(f"{species:>12}" + "".join(f"{counts[species, group]:>9}" for group in range(GROUPS)))
    places = {(row["petal_length"], row["petal_width"] // 2): str(row["group"]) for row in rows}
    for width in range(12, -1, -1):
        print("  |" + "".join(places.get((length, width), " ") for length in range(8, 72)))


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

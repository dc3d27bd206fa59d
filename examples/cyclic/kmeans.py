"""K-means: assign each flower to the nearest centre, move each centre to the mean of its flowers, repeat.

    python -m examples.cyclic.kmeans --kill assign@epoch=2 --kill move@epoch=4
    backedge compare examples.cyclic.kmeans --kills 3 --seed 1

150 irises were measured by Edgar Anderson and published by Ronald Fisher ("The use of multiple measurements in
taxonomic problems", 1936): data/iris.csv. The flow does not know their species, and its groups nearly match them.

In each round the centres are broadcast to the tasks that hold the flowers; each task reports the number of flowers
nearest to each centre and the sums of their measures; then the centres move. The iteration ends with the round in which
no centre moves. Similar loops: any small model that is trained on a large data set.

Guaranteed: the groups and distances of an undisturbed run. Measures are whole millimetres, so sums do not depend on the
order of their terms.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from backedge import Collect, Flow, Parquet, Stream

Flower = dict[str, Any]
Centre = dict[str, Any]

DATA = Path(__file__).parent / "data" / "iris.csv"
MEASURED = 150
MEASURES = ("sepal_length", "sepal_width", "petal_length", "petal_width")
GROUPS = 3
MOVED_MM = 1e-6
"""A centre that has moved by less has not moved."""

SIZE = 150
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
        self.flowers: list[Flower] = []
        self.centres: list[Centre] = []

    def on_record(self, ctx: Any, input: str, record: dict[str, Any]) -> None:
        """A flower to keep, or a centre of this round."""
        (self.flowers if input == "flowers" else self.centres).append(record)

    def on_round_end(self, ctx: Any) -> None:
        """All centres are here: find the nearest for each flower, and say what there is in each group."""
        centres, self.centres = sorted(self.centres, key=lambda centre: centre["group"]), []
        distances = np.linalg.norm(table(self.flowers)[:, None] - table(centres)[None, :], axis=2)
        for flower, from_centres in zip(self.flowers, distances, strict=True):
            flower |= {"group": int(from_centres.argmin()), "distance_mm": float(from_centres.min())}
        for centre in centres:
            members = [flower for flower in self.flowers if flower["group"] == centre["group"]]
            sums = {measure: sum(flower[measure] for flower in members) for measure in MEASURES}
            ctx.emit({"group": centre["group"], "count": len(members), "sums": sums, "was": centre})

    def on_end(self, ctx: Any) -> None:
        """The centres have come to rest: say where each flower belongs."""
        for flower in self.flowers:
            ctx.emit(flower, output="flowers")

    def capture(self) -> Any:
        """The state, for a snapshot."""
        return self.flowers, self.centres

    def restore(self, state: Any) -> None:
        """The state of a snapshot."""
        self.flowers, self.centres = state


class Move:
    """State by group is what the tasks have said of it in this round."""

    def on_record(self, ctx: Any, part: dict[str, Any]) -> None:
        """One task has spoken."""
        ctx.state.set([*ctx.state.get([]), part])

    def on_round_end(self, ctx: Any) -> None:
        """All have: the centre moves to the mean of its flowers. One that has none stays."""
        for group in ctx.keys():  # noqa: SIM118
            parts = ctx.state.get()
            ctx.state.clear()
            was, count = parts[0]["was"], sum(part["count"] for part in parts)
            sums = {measure: sum(part["sums"][measure] for part in parts) for measure in MEASURES}
            centre = {measure: sums[measure] / count if count else was[measure] for measure in MEASURES}
            moved = max(abs(centre[measure] - was[measure]) for measure in MEASURES)
            ctx.emit({"group": group, **centre, "moved": moved})


def table(records: list[dict[str, Any]]) -> np.ndarray:
    """Their measures: a row for each."""
    return np.array([[record[measure] for measure in MEASURES] for record in records], float).reshape(-1, len(MEASURES))


def look(pause_s: float) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Each flower takes a moment, as if there was more to it than four measures."""

    def looked(part: dict[str, Any]) -> dict[str, Any]:
        time.sleep(part["count"] * pause_s)
        return part

    return looked


def flow(inputs: str, size: int = SIZE, rounds: int | None = None, round_seconds: float = 0.4) -> Flow:
    """The graph: centres come to the head of the iteration, go round in it, and leave it when they rest."""
    flow = Flow("kmeans")
    flowers = flow.read(Parquet(f"{inputs}/flowers"), name="measured").rebalance()
    first = flow.read(Parquet(f"{inputs}/centres"), name="first")

    def body(centres: Stream[Centre]) -> Stream[Centre]:
        assigned = flow.process(Assign, flowers=flowers, centres=centres.broadcast(), name="assign")
        assigned.side("flowers").write(Collect(), name=SINK)
        parts = assigned.map(look(round_seconds / size), name="look")
        return parts.key_by("group").process(Move, name="move")

    moved = {"measure": lambda centre: centre["moved"], "reduce": max, "until": lambda most: most < MOVED_MM}
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

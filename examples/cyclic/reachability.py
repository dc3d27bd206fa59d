"""Reachability: what can be reached on a graph that keeps changing, exactly for each of its versions.

    python -m examples.cyclic.reachability --kill reach@epoch=2 --kill reach_dealer@epoch=4 --audit final
    backedge compare examples.cyclic.reachability --kills 3 --seed 7

Edges are added and removed, and every 20 changes make a version of the graph: which vertices can be reached from the
entrance now? Only what has changed since the version before is told. Similar loops: permissions that are granted and
revoked, dependencies, or the spread of a fault.

When an edge is removed, there may be another way to its end, but not one that leads in a circle back to where it came
from. So each vertex counts what supports it: edges from vertices that are nearer to the entrance. One that loses its
last support gives up, and so do those that have only been reached by way of it. Then what is left reaches them again,
if it can. All of that costs what it affects; the reference in Spark searches each version from the beginning.

Guaranteed: the differences between versions are exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from backedge import Collect, Flow, JsonLines, VertexProgram, Vertices

if TYPE_CHECKING:  # no process of the flow's waits for PySpark
    from pyspark.sql import Column, DataFrame, SparkSession

Record = dict[str, Any]

SIZE = 8_000
"""How many changes there are."""

CHANGES = 20
"""How many changes make a version."""

VERTICES, DOORS = 100, 4
"""How many vertices there are, beside the entrance; and how many of them it leads to at times."""

ENTRANCE = 0
SINK = "reached"
KEYS = ("version", "vertex")


class Reach(VertexProgram):
    """The value of a vertex is 1 if it can be reached, otherwise 0."""

    combine, message, best = "max", np.uint8, "reached"

    def start(self, vertices: Vertices) -> dict[str, np.ndarray]:
        """At first, only the entrance."""
        return {"reached": vertices.ids == ENTRANCE}


def prepare(spark: SparkSession, inputs: str, size: int = SIZE, seed: int = 0) -> None:
    """A graph to begin with, then edges and doors that come and go."""
    from pyspark.sql import functions as F

    def drawn(what: str, count: int) -> Column:
        return F.pmod(F.xxhash64("id", F.lit(what), F.lit(seed)), F.lit(count))

    is_door = F.col("id") % 10 == 0
    vertex = 1 + drawn("from", VERTICES)
    to = 1 + F.pmod(vertex * 7 + drawn("to", 2) * 11, F.lit(VERTICES))
    changes = spark.range(size).select(
        F.floor(F.col("id") / CHANGES).alias("version"),
        "id",
        F.when(is_door, F.lit(ENTRANCE)).otherwise(vertex).alias("source"),
        F.when(is_door, 1 + drawn("door", DOORS)).otherwise(to).alias("target"),
        ((F.col("id") < 2 * VERTICES) | (drawn("add", 10) < 7)).alias("added"),
    )
    changes.repartition(1).sortWithinPartitions("id").write.mode("overwrite").json(f"{inputs}/changes")


def flow(inputs: str) -> Flow:
    """The graph. One task reads, so that the changes arrive in their order."""
    flow = Flow("reachability")
    changes = flow.read(JsonLines(f"{inputs}/changes"), name="changes", parallelism=1)
    flow.changing_graph(Reach, changes, name="reach").write(Collect(), name=SINK)
    return flow


def reference(spark: SparkSession, inputs: str) -> DataFrame:
    """The graph of each version, and then the search in it: a step in all of them, then the next."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    changes = spark.read.json(f"{inputs}/changes").localCheckpoint()
    versions = changes.select(F.col("version").alias("now")).distinct()
    before = versions.join(changes, F.col("version") <= F.col("now"))
    latest = before.groupBy("now", "source", "target").agg(F.max_by("added", "id").alias("added"))
    edges = latest.where("added").select("now", "source", "target").localCheckpoint()
    reached = frontier = versions.selectExpr("now", f"{ENTRANCE} AS vertex").localCheckpoint()
    while not frontier.isEmpty():
        following = frontier.toDF("now", "source").join(edges, ["now", "source"]).selectExpr("now", "target AS vertex")
        frontier = following.distinct().join(reached, ["now", "vertex"], "left_anti").localCheckpoint()
        reached = reached.union(frontier).localCheckpoint()
    ends = edges.selectExpr("now", "source AS vertex").union(edges.selectExpr("now", "target"))
    known = ends.groupBy("vertex").agg(F.min("now").alias("first")).join(versions, F.col("first") <= F.col("now"))
    is_reached = reached.withColumn("reached", F.lit(1))
    values = known.join(is_reached, ["now", "vertex"], "left").selectExpr(
        "vertex", "coalesce(reached, 0) AS reached", "now AS version"
    )
    former = F.lag("reached").over(Window.partitionBy("vertex").orderBy("version"))
    return values.withColumn("former", former).where("former IS NULL OR former <> reached").drop("former")


def show(rows: list[Record]) -> None:
    """How much of the graph could be reached, for some twenty versions."""
    reached: set[int] = set()
    counts: dict[int, int] = {}
    for row in sorted(rows, key=lambda row: row["version"]):
        (reached.add if row["reached"] else reached.discard)(row["vertex"])
        counts[row["version"]] = len(reached)
    for version, count in list(counts.items())[:: max(1, len(counts) // 20)]:
        print(f"version {version:>6}: {count:>4} of {VERTICES + 1} vertices {'#' * (count * 40 // VERTICES)}")


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

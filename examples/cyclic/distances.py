"""Distances: how far each crossing is from the nearest fire station, as a vertex program without rounds.

    python -m examples.cyclic.distances --kill distance@epoch=2 --kill distance@epoch=4
    backedge compare examples.cyclic.distances --kills 3 --seed 1

Each crossing knows how many seconds the engine needs to it. One that has become nearer sends that to its neighbours,
plus the seconds of the street; a crossing takes the least that it receives. Nothing waits for a round to end: the
nearest crossings send first, since what they send is hardly ever improved later. `shortest_paths` does the same record
by record, while the input still changes. Similar loops: routes, credit along supply chains, the earliest date of each
step of a plan.

Guaranteed: the exact times.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from backedge import Flow, Parquet, VertexProgram, Vertices

Crossing = dict[str, Any]
Arrays = dict[str, np.ndarray]

WIDTH = 50
"""Crossings lie in rows of so many."""

STATIONS = (3, 1_717)
"""The crossings with a fire station."""

SIZE = 2_500
"""How many crossings."""

SINK = "times"
KEYS = ("vertex",)
IN_LOOP = False  # Values for a task's own crossings do not travel, so with one task the loop is always empty.

PAUSE_S = 0.005
"""Pause of a task each time that its crossings send, so that cuts and kills have time to happen."""


def prepare(spark: Any, inputs: str, size: int = SIZE, seed: int = 0) -> None:
    """Streets to the next crossing and to the one below; the way back takes another time."""
    crossings = spark.range(size)
    east = crossings.where(f"id % {WIDTH} < {WIDTH} - 1").selectExpr("id AS one", "id + 1 AS other")
    south = crossings.selectExpr("id AS one", f"id + {WIDTH} AS other")
    streets = east.union(south).where(f"other < {size}")
    ways = streets.toDF("source", "target").union(streets.selectExpr("other", "one"))
    seconds = f"CAST(5 + pmod(xxhash64(source, target, {seed}), 60) AS DOUBLE) AS seconds"
    ways.selectExpr("source", "target", seconds).write.mode("overwrite").parquet(f"{inputs}/ways")


class Distance(VertexProgram):
    """The value of a crossing is how many seconds it takes to get there."""

    combine, best = "min", "seconds"

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s

    def start(self, vertices: Vertices) -> Arrays:
        """The stations are there already."""
        vertices.active = np.isin(vertices.ids, STATIONS)
        return {"seconds": np.where(vertices.active, 0.0, np.inf)}

    def along(self, sent: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        """The time at its end."""
        time.sleep(self.pause_s)
        return sent + weights


def flow(inputs: str, output: str = "distances", pause_s: float = PAUSE_S) -> Flow:
    """The graph: streets, and the time to each crossing at the end."""
    flow = Flow("distances")
    ways = flow.read(Parquet(f"{inputs}/ways"), name="ways")
    times = flow.vertex_program(Distance, ways, weight="seconds", free_running=True, pause_s=pause_s, name="distance")
    times.write(Parquet(f"{output}/times"), name=SINK)
    return flow


def reference(spark: Any, inputs: str) -> Any:
    """Bellman and Ford: all streets at once, again and again, until no crossing becomes nearer."""
    from pyspark.sql import functions as F

    ways = spark.read.parquet(f"{inputs}/ways").withColumnRenamed("seconds", "takes").coalesce(1).localCheckpoint()
    at_once = F.when(F.col("vertex").isin(*STATIONS), 0.0).otherwise(float("inf")).alias("seconds")
    times = ways.selectExpr("source AS vertex").distinct().select("vertex", at_once).coalesce(1).localCheckpoint()
    least, found_before = F.min("seconds").alias("seconds"), None
    while True:
        arriving = ways.join(times, F.col("source") == F.col("vertex")).selectExpr("target", "seconds + takes")
        times = times.union(arriving).coalesce(1).groupBy("vertex").agg(least).localCheckpoint(eager=False)
        reached = times.where("seconds < double('infinity')")
        found = reached.agg(F.count("vertex"), F.sum("seconds")).first()
        if found == found_before:
            return times
        found_before = found


def show(rows: list[Crossing]) -> None:
    """A map: how long it takes to each crossing, from 0 to 9."""
    seconds = {row["vertex"]: row["seconds"] for row in rows}
    longest = max(seconds.values())
    for start in range(0, max(seconds) + 1, WIDTH):
        told = (seconds.get(crossing) for crossing in range(start, start + WIDTH))
        print("  " + "".join(" " if one is None else str(int(one * 10 // (longest + 1))) for one in told))
    print(f"  {len(rows):,} crossings; the farthest is {longest:.0f} seconds from a station")


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

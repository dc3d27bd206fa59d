"""The k-core: what remains of a graph when everybody with fewer than k neighbours leaves, as a vertex program.

    python -m examples.cyclic.k_core --kill core@epoch=2 --kill core@epoch=4
    backedge compare examples.cyclic.k_core --kills 3 --seed 1

Who leaves tells its neighbours, which may then have too few and leave in the next round. So rounds are cheap: only
those that have just left send anything. What remains are groups that are tied closely. `nested_loops` computes the same
for every k, with a loop within a loop, record by record. Similar loops: cascades, such as failures in a power grid.

Guaranteed: exactly those who remain.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

from backedge import Flow, Parquet, VertexProgram, Vertices

Member = dict[str, Any]
Arrays = dict[str, np.ndarray]

K = 3
"""How many neighbours a member needs."""

FRINGE = 30
"""How many members of each group of 40 hang together in a chain, which comes apart from its end."""

SIZE = 4_000
"""How many members."""

SINK = "members"
KEYS = ("vertex",)
IN_LOOP = False  # What comes round waits at the head for its round, in the head's state.


def prepare(spark: Any, inputs: str, size: int = SIZE, seed: int = 0) -> None:
    """Each member of a chain knows the next two; the others of its group know each other."""
    members = spark.range(size).selectExpr("id AS one", "id DIV 40 AS team", "id % 40 AS place")
    chain = members.where(f"place < {FRINGE}").selectExpr("one", "explode(array(one + 1, one + 2)) AS other")
    closed = members.where(f"place >= {FRINGE}")
    knowing = closed.join(closed.toDF("other", "team", "at"), "team").where("one < other").select("one", "other")
    some = f"pmod(xxhash64(one, other, {seed}), 4) > 0"
    pairs = chain.union(knowing.where(some)).where(f"other < {size}").distinct()
    pairs.write.mode("overwrite").parquet(f"{inputs}/pairs")


class Core(VertexProgram):
    """The values of a member: whether it stays, and how many of its neighbours do."""

    message = np.int64

    def __init__(self, k: int) -> None:
        self.k = k

    def start(self, vertices: Vertices) -> Arrays:
        """Who has too few neighbours leaves at once."""
        vertices.active = vertices.degrees < self.k
        return {"stays": ~vertices.active, "neighbours": vertices.degrees}

    def send(self, vertices: Vertices) -> np.ndarray:
        """One neighbour less."""
        return np.ones(len(vertices), np.int64)

    def apply(self, vertices: Vertices, received: np.ndarray) -> Arrays:
        """Who has too few now leaves, too."""
        neighbours = vertices["neighbours"] - received
        vertices.active = vertices["stays"] & (neighbours < self.k)
        return {"stays": vertices["stays"] & ~vertices.active, "neighbours": neighbours}


def flow(inputs: str, output: str = "k_core", rounds: int | None = None) -> Flow:
    """The graph: pairs of neighbours, and who stays at the end."""
    flow = Flow("k_core")
    pairs = flow.read(Parquet(f"{inputs}/pairs"), name="pairs")
    found = flow.vertex_program(
        Core, pairs, source="one", target="other", undirected=True, rounds=rounds, name="core", k=K
    )
    found.write(Parquet(f"{output}/members"), name=SINK)
    return flow


def reference(spark: Any, inputs: str, rounds: int | None = None) -> Any:
    """The same, as joins with those who left last."""
    from pyspark.sql import functions as F

    pairs = spark.read.parquet(f"{inputs}/pairs")
    both = pairs.union(pairs.select("other", "one")).coalesce(1).localCheckpoint()
    known = both.groupBy("one").agg(F.count("other").alias("neighbours"))
    found = known.selectExpr("one", f"neighbours >= {K} AS stays", "neighbours").coalesce(1)
    leaving = found.where("NOT stays").select("one").localCheckpoint()
    for number in count(1):
        lost = both.join(leaving, "one").groupBy(F.col("other").alias("one")).agg(F.count("other").alias("lost"))
        after = found.join(lost, "one", "left").selectExpr(
            "one", "stays", "neighbours - coalesce(lost, 0) AS neighbours"
        )
        leaves = f"stays AND neighbours < {K}"
        after = after.coalesce(1).selectExpr("one", "stays", "neighbours", f"{leaves} AS leaves").localCheckpoint()
        found = after.selectExpr("one", "stays AND NOT leaves AS stays", "neighbours")
        leaving = after.where("leaves").select("one")
        if number == rounds or leaving.isEmpty():
            return found.toDF("vertex", "stays", "neighbours")


def show(rows: list[Member]) -> None:
    """How many stay, with how many neighbours."""
    staying = [row["neighbours"] for row in rows if row["stays"]]
    for neighbours in sorted(set(staying)):
        known = staying.count(neighbours)
        print(f"  {neighbours:>3} neighbours: {known:>5} members {'#' * -(-50 * known // len(staying))}")
    print(f"  {len(staying):,} of {len(rows):,} members are in the {K}-core")


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

"""Components: which devices belong together, directly or through others, as a vertex program.

    python -m examples.cyclic.components --kill lowest@epoch=2 --kill lowest@epoch=4
    backedge compare examples.cyclic.components --kills 3 --seed 1

Two devices that were used by the same person belong together. Each device sends its neighbours the lowest number that
it knows of. In each round it takes the lowest that it receives, and sends again only if that was lower. When no device
has anything to send, all devices of a household know the same number. `connected_components` does the same in a loop
without rounds, record by record. Similar loops: anything where a fact spreads along edges and the strongest one wins.

Guaranteed: the exact components.
"""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import numpy as np

from backedge import Flow, Parquet, VertexProgram, Vertices

Device = dict[str, Any]
Arrays = dict[str, np.ndarray]

SIZE = 4_000
"""How many devices."""

HOUSEHOLD = 40
"""The largest number of devices that belong together."""

SINK = "households"
KEYS = ("vertex",)
IN_LOOP = False  # What comes round waits at the head for its round, in the head's state.


def prepare(spark: Any, inputs: str, size: int = SIZE, seed: int = 0) -> None:
    """Chains of devices: each was used with the next one, and their numbers say nothing about that."""
    household = f"id DIV {HOUSEHOLD}"
    is_alone = f"id % {HOUSEHOLD} >= 2 + pmod(xxhash64({household}, {seed}), {HOUSEHOLD} - 2) AS is_alone"
    number = f"CAST(row_number() OVER (ORDER BY xxhash64(id, {seed})) - 1 AS BIGINT) AS device"
    devices = spark.range(size).selectExpr("id", f"{household} AS household", is_alone)
    numbered = devices.selectExpr("*", number).localCheckpoint()
    following = numbered.selectExpr("id - 1 AS id", "household", "device AS other", "is_alone AS other_is_alone")
    pairs = numbered.join(following, ["id", "household"]).where("NOT is_alone AND NOT other_is_alone")
    pairs.select("device", "other").write.mode("overwrite").parquet(f"{inputs}/pairs")
    numbered.select("device").toDF("vertex").write.mode("overwrite").parquet(f"{inputs}/devices")


class Lowest(VertexProgram):
    """The value of a device is the lowest number that it knows of."""

    combine, message, best = "min", np.int64, "lowest"

    def start(self, vertices: Vertices) -> Arrays:
        """Each device knows its own number."""
        return {"lowest": vertices.ids}


def flow(inputs: str, output: str = "components", rounds: int | None = None) -> Flow:
    """The graph: pairs and devices, and the lowest number of each household at the end."""
    flow = Flow("components")
    pairs = flow.read(Parquet(f"{inputs}/pairs"), name="pairs")
    devices = flow.read(Parquet(f"{inputs}/devices"), name="devices")
    columns = {"source": "device", "target": "other"}
    found = flow.vertex_program(
        Lowest, pairs, vertices=devices, undirected=True, rounds=rounds, name="lowest", **columns
    )
    found.write(Parquet(f"{output}/households"), name=SINK)
    return flow


def reference(spark: Any, inputs: str, rounds: int | None = None) -> Any:
    """The same rounds as joins."""
    from pyspark.sql import functions as F

    pairs = spark.read.parquet(f"{inputs}/pairs")
    both = pairs.union(pairs.select("other", "device")).coalesce(1).localCheckpoint()
    found = spark.read.parquet(f"{inputs}/devices").selectExpr("vertex AS device", "vertex AS lowest")
    lowest, sum_before = F.min("lowest").alias("lowest"), None
    for number in count(1):
        told = both.join(found, "device").select("other", "lowest")
        found = found.union(told).coalesce(1).groupBy("device").agg(lowest).localCheckpoint(eager=False)
        sum_found = found.agg(F.sum("lowest")).first()
        if number == rounds or sum_found == sum_before:
            return found.toDF("vertex", "lowest")
        sum_before = sum_found


def show(rows: list[Device]) -> None:
    """How many households there are of each size."""
    sizes = Counter(Counter(row["lowest"] for row in rows).values())
    for size, households in sorted(sizes.items(), reverse=True):
        print(f"  {size:>4} devices: {households:>5} households {'#' * -(-50 * households // sum(sizes.values()))}")
    print(f"  {len(rows):,} devices in {sum(sizes.values()):,} households")


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

"""Triangles: how often three members all know each other, as a vertex program.

    python -m examples.cyclic.triangles --kill triangle@epoch=2 --kill triangle@epoch=4
    backedge compare examples.cyclic.triangles --kills 3 --seed 1

Each pair is an edge from the lower number to the higher one. In each round a member sends the number of one more of
its neighbours to all of them. A neighbour that has an edge to that number has found a triangle. So each triangle is
found once, at its middle number, and no message is longer than a number. Similar loops: how closely a neighbourhood
is tied, and rings of accounts that pay each other.

Guaranteed: the exact number of triangles.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from backedge import Flow, Messages, Parquet, VertexProgram, Vertices

Member = dict[str, Any]
Arrays = dict[str, np.ndarray]

TEAM = 40
"""How many members may know each other."""

SIZE = 4_000
"""How many members."""

SINK = "members"
KEYS = ("vertex",)
IN_LOOP = False  # What comes round waits at the head for its round, in the head's state.


def prepare(spark: Any, inputs: str, size: int = SIZE, seed: int = 0) -> None:
    """Each member knows the next one of its team and half of the others."""
    members = spark.range(size).selectExpr("id AS one", f"id DIV {TEAM} AS team")
    pairs = members.join(members.toDF("other", "team"), "team").where("one < other")
    known = f"other = one + 1 OR pmod(xxhash64(one, other, {seed}), 2) = 0"
    pairs.where(known).select("one", "other").write.mode("overwrite").parquet(f"{inputs}/pairs")


class Triangles(VertexProgram):
    """The value of a member: in how many triangles its number is the middle one."""

    combine, message = "all", np.int64

    def start(self, vertices: Vertices) -> Arrays:
        """None is found yet."""
        vertices.active = vertices.degrees > 0
        return {"triangles": np.zeros(len(vertices), np.int64)}

    def send(self, vertices: Vertices) -> np.ndarray:
        """The next one of those that a member leads to."""
        starts, ends = vertices.neighbours
        return np.take(np.append(ends, -1), starts[:-1] + vertices.round, mode="clip")

    def apply(self, vertices: Vertices, received: Messages) -> Arrays:
        """Count the members named that the receiver leads to as well."""
        starts, ends = vertices.neighbours
        owners = np.repeat(np.arange(len(vertices)), np.diff(starts))
        is_known = np.isin(pairs_of(received.at, received.values), pairs_of(owners, ends))
        vertices.active = vertices.degrees > vertices.round
        found = np.bincount(received.at[is_known], minlength=len(vertices))
        return {"triangles": vertices["triangles"] + found}


def pairs_of(positions: np.ndarray, members: np.ndarray) -> np.ndarray:
    """A number for each pair. The numbers of members have up to 32 bits."""
    return positions << 32 | members


def flow(inputs: str, output: str = "triangles", rounds: int | None = None) -> Flow:
    """The graph: pairs, and the triangles of each member at the end."""
    flow = Flow("triangles")
    pairs = flow.read(Parquet(f"{inputs}/pairs"), name="pairs")
    found = flow.vertex_program(Triangles, pairs, source="one", target="other", rounds=rounds, name="triangle")
    found.write(Parquet(f"{output}/members"), name=SINK)
    return flow


def reference(spark: Any, inputs: str, rounds: int | None = None) -> Any:
    """Three pairs that fit together; only the first ones of each member are named in the first rounds."""
    pairs = spark.read.parquet(f"{inputs}/pairs").localCheckpoint()
    place = "row_number() OVER (PARTITION BY one ORDER BY other) AS place"
    named = pairs.selectExpr("one", "other AS last", place).where("true" if rounds is None else f"place <= {rounds}")
    middle = pairs.toDF("one", "middle").join(named, "one")
    closed = middle.join(pairs.toDF("middle", "last"), ["middle", "last"]).groupBy("middle").count()
    members = pairs.selectExpr("explode(array(one, other)) AS middle").distinct()
    return members.join(closed, "middle", "left").selectExpr("middle", "coalesce(count, 0)").toDF("vertex", "triangles")


def show(rows: list[Member]) -> None:
    """How many members are in the middle of how many triangles, and how many triangles there are."""
    tens = Counter(row["triangles"] // 10 for row in rows)
    for ten, members in sorted(tens.items()):
        print(f"  {10 * ten:>4} or more: {members:>5} members {'#' * -(-50 * members // len(rows))}")
    print(f"  {len(rows):,} members, {sum(row['triangles'] for row in rows):,} triangles")


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

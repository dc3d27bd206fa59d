"""Communities: groups of members who mostly know each other, by label propagation, as a vertex program.

    python -m examples.cyclic.communities --kill label@epoch=2 --kill label@epoch=4
    backedge compare examples.cyclic.communities --kills 3 --seed 1

Each member has a label, at first its own number. In each round it takes the label that most of its neighbours have, and
of several the lowest. After a few rounds most members of a community have the same label, although some of them know
members of other communities. A count of labels is not a sum, a minimum or a maximum: so nothing is combined on the way,
and a member receives the label of each neighbour. Similar loops: votes, and opinions that spread.

Guaranteed: the exact labels, because what a member receives is sorted before it is counted.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from backedge import Flow, Messages, Parquet, VertexProgram, Vertices

Member = dict[str, Any]
Arrays = dict[str, np.ndarray]

COMMUNITY = 25
"""How many members belong together."""

SIZE = 4_000
"""How many members."""

ROUNDS = 12
"""The most rounds: two members may take each other's label again and again."""

SINK = "labels"
KEYS = ("vertex",)
IN_LOOP = False  # What comes round waits at the head for its round, in the head's state.


def prepare(spark: Any, inputs: str, size: int = SIZE, seed: int = 0) -> None:
    """Each member knows the next one of its community, most of the three after that, and some know anybody."""
    members = spark.range(size).selectExpr("id AS one", f"id DIV {COMMUNITY} AS community")
    near = members.selectExpr("one", "community", "explode(sequence(one + 1, one + 4)) AS other")
    near = near.where(f"other DIV {COMMUNITY} = community")
    near = near.where(f"other = one + 1 OR pmod(xxhash64(one, other, {seed}), 4) > 0").select("one", "other")
    far = members.where(f"pmod(xxhash64(one, {seed}), 4) = 0")
    far = far.selectExpr("one", f"pmod(xxhash64(one, {seed} + 1), {size}) AS other").where("other > one")
    pairs = near.union(far).where(f"other < {size}").distinct()
    pairs.write.mode("overwrite").parquet(f"{inputs}/pairs")


class Labels(VertexProgram):
    """The value of a member is its label."""

    combine, message = "all", np.int64

    def start(self, vertices: Vertices) -> Arrays:
        """Each member has a label of its own."""
        return {"label": vertices.ids}

    def send(self, vertices: Vertices) -> np.ndarray:
        """The label."""
        return vertices["label"]

    def apply(self, vertices: Vertices, received: Messages) -> Arrays:
        """The most frequent label among those of the neighbours, and the lowest of several."""
        (at, labels), counts = np.unique(np.stack(received), axis=1, return_counts=True)
        order = np.lexsort((labels, -counts, at))
        members, first = np.unique(at[order], return_index=True)
        label = vertices["label"].copy()
        label[members] = labels[order][first]
        vertices.change = float(np.count_nonzero(label != vertices["label"]))
        return {"label": label}


def flow(inputs: str, output: str = "communities", rounds: int | None = None) -> Flow:
    """The graph: pairs of neighbours, and the label of each member at the end."""
    flow = Flow("communities")
    pairs = flow.read(Parquet(f"{inputs}/pairs"), name="pairs")
    found = flow.vertex_program(
        Labels,
        pairs,
        rounds=rounds or ROUNDS,
        until=lambda change: change == 0,
        name="label",
        source="one",
        target="other",
        undirected=True,
    )
    found.write(Parquet(f"{output}/labels"), name=SINK)
    return flow


def reference(spark: Any, inputs: str, rounds: int | None = None) -> Any:
    """The same rounds as joins and counts."""
    pairs = spark.read.parquet(f"{inputs}/pairs")
    both = pairs.union(pairs.select("other", "one")).coalesce(1).localCheckpoint()
    found = both.selectExpr("one", "one AS label").distinct().coalesce(1).localCheckpoint()
    for _ in range(rounds or ROUNDS):
        heard = both.join(found, "one").groupBy("other", "label").count()
        best = "row_number() OVER (PARTITION BY other ORDER BY count DESC, label) AS place"
        after = heard.selectExpr("other AS one", "label", best).where("place = 1").select("one", "label")
        after = after.coalesce(1).localCheckpoint()
        rests = after.exceptAll(found).isEmpty()
        found = after
        if rests:
            break
    return found.toDF("vertex", "label")


def show(rows: list[Member]) -> None:
    """How many communities there are of each size."""
    sizes = Counter(Counter(row["label"] for row in rows).values())
    for size, communities in sorted(sizes.items(), reverse=True):
        bar = "#" * -(-50 * communities // sum(sizes.values()))
        print(f"  {size:>4} members: {communities:>5} communities {bar}")
    print(f"  {len(rows):,} members in {sum(sizes.values()):,} communities")


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

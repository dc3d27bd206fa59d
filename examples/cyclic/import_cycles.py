"""Import cycles: which modules of a program import each other in circles, as a vertex program.

    python -m examples.cyclic.import_cycles --kill cycle@epoch=2 --kill cycle@epoch=4
    backedge compare examples.cyclic.import_cycles --kills 3 --seed 1

Modules that import each other, directly or through others, can only be tested and released together. In a graph these
are the strongly connected components. The program takes turns between two phases. First each module learns the highest
number among the modules that lead to it. Then, against the direction of the imports, a module that has kept its own
number collects those that lead to it and have learned that number: they are its circle. The modules that are left
begin again. A phase is over when no module sends anything. Similar loops: debts that can be set off against each other,
and locks that wait for each other.

Guaranteed: the exact circles.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from backedge import Flow, Parquet, VertexProgram, Vertices

Module = dict[str, Any]
Arrays = dict[str, np.ndarray]

PACKAGE = 20
"""How many modules import only each other."""

SIZE = 3_000
"""How many modules."""

SINK = "cycles"
KEYS = ("vertex",)
IN_LOOP = False  # What comes round waits at the head for its round, in the head's state.
NONE = -1


def prepare(spark: Any, inputs: str, size: int = SIZE, seed: int = 0) -> None:
    """In each package a module imports the next one, and some import one before them. Their numbers are mixed."""
    modules = spark.range(size).selectExpr("id", f"id % {PACKAGE} AS place", f"xxhash64(id, {seed}) AS chance")
    following = modules.where(f"place < {PACKAGE} - 1").selectExpr("id", "id + 1 AS other")
    earlier = modules.selectExpr("id", "place", "chance", "id - 1 - pmod(chance, 5) AS other")
    earlier = earlier.where("pmod(chance, 4) = 0 AND other >= id - place").select("id", "other")
    pairs = following.union(earlier).where(f"other < {size}").distinct()
    mixed = (f"{column} * 1009 % {size}" for column in ("id", "other"))
    pairs.selectExpr(*mixed).toDF("module", "imports").write.mode("overwrite").parquet(f"{inputs}/imports")


class Cycles(VertexProgram):
    """The values of a module: the number of its circle, and in each phase the highest number that leads to it."""

    combine, message = "max", np.int64
    phases = reverses = True

    def start(self, vertices: Vertices) -> Arrays:
        """No circle is known, and each module knows its own number."""
        return {"cycle": np.full(len(vertices), NONE), "highest": vertices.ids}

    def send(self, vertices: Vertices) -> np.ndarray:
        """Backwards the lowest wins: a module belongs to a circle if any module that it imports has its number."""
        return -vertices["highest"] if vertices.backwards else vertices["highest"]

    def apply(self, vertices: Vertices, received: np.ndarray) -> Arrays:
        """Modules whose circle is known are out of it."""
        cycle, highest = vertices["cycle"], vertices["highest"]
        is_open = cycle == NONE
        if vertices.senders == 0:
            vertices.backwards = not vertices.backwards
            if not vertices.backwards:
                vertices.active = is_open
                return {"cycle": cycle, "highest": np.where(is_open, vertices.ids, highest)}
            joins = is_open & (highest == vertices.ids)
        elif vertices.backwards:
            joins = is_open & (received == -highest)
        else:
            vertices.active = is_open & (received > highest)
            return {"cycle": cycle, "highest": np.where(vertices.active, received, highest)}
        vertices.active = joins
        return {"cycle": np.where(joins, highest, cycle), "highest": highest}


def flow(inputs: str, output: str = "import_cycles") -> Flow:
    """The graph: imports, and the circle of each module at the end."""
    flow = Flow("import_cycles")
    imports = flow.read(Parquet(f"{inputs}/imports"), name="imports")
    found = flow.vertex_program(Cycles, imports, source="module", target="imports", name="cycle")
    found.map_batches(final, batch_format="numpy", name="final").write(Parquet(f"{output}/cycles"), name=SINK)
    return flow


def final(batch: Arrays) -> Arrays:
    """The circles alone."""
    return {"vertex": batch["vertex"], "cycle": batch["cycle"]}


def reference(spark: Any, inputs: str) -> Any:
    """Two modules are in one circle if each leads to the other. All paths, by joining those that are known."""
    from pyspark.sql import functions as F

    imports = spark.read.parquet(f"{inputs}/imports").toDF("start", "end")
    modules = imports.selectExpr("explode(array(start, end)) AS start").selectExpr("start", "start AS end")
    paths, count = imports.union(modules).distinct().coalesce(1).localCheckpoint(), 0
    while paths.count() > count:
        count = paths.count()
        further = paths.toDF("start", "middle").join(paths.toDF("middle", "end"), "middle").select("start", "end")
        paths = further.distinct().coalesce(1).localCheckpoint()
    back = paths.toDF("end", "start")
    circles = paths.join(back, ["start", "end"]).groupBy("start").agg(F.max("end").alias("cycle"))
    return circles.toDF("vertex", "cycle")


def show(rows: list[Module]) -> None:
    """How many circles there are of each size."""
    sizes = Counter(Counter(row["cycle"] for row in rows).values())
    for size, cycles in sorted(sizes.items(), reverse=True):
        print(f"  {size:>4} modules: {cycles:>5} circles {'#' * -(-50 * cycles // sum(sizes.values()))}")
    print(f"  {len(rows):,} modules, of which {sizes[1]:,} are in no circle with another one")


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

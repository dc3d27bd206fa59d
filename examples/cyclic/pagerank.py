"""PageRank: the rank of a page depends on the ranks of the pages that link to it.

    python -m examples.cyclic.pagerank --kill rank@epoch=2 --kill rank@epoch=4
    backedge compare examples.cyclic.pagerank --kills 3 --seed 1

In each round a page divides its rank among the pages it links to; its next rank is 0.15 plus 0.85 times the sum of the
shares it receives. (The average rank is 1 if every page has links; pages without links pass nothing on.) The iteration
ends after the round in which the ranks change by less than a thousandth on average. Similar loops: any quantity that
spreads over a graph until it settles, such as influence, risk or trust.

Spark turns the output of a crawler into links, dropping duplicates and links of a page to itself. `Rank` is a vertex
program: it works on arrays with one item for each page of a task. Links stay at the task of their page, and what a task
gives to the same page is added up before it travels.

Guaranteed: the ranks of an undisturbed run, up to the last digits, because floating-point sums depend on their order.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

import backedge
from backedge import Flow, Parquet, VertexProgram, Vertices

Page = dict[str, Any]
Arrays = dict[str, np.ndarray]

DAMPING = 0.85
RESTS_BELOW = 0.001
"""By how much a page's rank may change, on average, in the last round."""

SIZE = 2_000
"""How many pages."""

SINK = "ranks"
KEYS = ("page",)
TOLERANCES = {"rank": 1e-9}
IN_LOOP = False  # What comes round waits at the head for its round, in the head's state.


def prepare(spark: Any, inputs: str, size: int = SIZE, seed: int = 0) -> None:
    """What a crawler left, most of it links to pages with low numbers; then the links to be ranked by, of those."""
    chance = f"pmod(xxhash64(page, link, {seed}), 1000000) / 1000000"
    pages = spark.range(size).withColumnRenamed("id", "page")
    crawled = pages.selectExpr("page", f"explode(sequence(1, 1 + pmod(xxhash64(page, {seed}), 8))) AS link")
    crawled = crawled.selectExpr("page", f"CAST({size} * power({chance}, 3) AS BIGINT) AS target")
    crawled.write.mode("overwrite").json(f"{inputs}/crawled")
    backedge.prepare(
        spark,
        f"{inputs}/crawled",
        f"{inputs}/links",
        key="page",
        schema="page BIGINT NOT NULL, target BIGINT NOT NULL",
        format="json",
        unique=("page", "target"),
        where="page <> target",
    )
    pages.toDF("vertex").coalesce(1).write.mode("overwrite").parquet(f"{inputs}/pages")


class Rank(VertexProgram):
    """The value of a page is its rank."""

    def start(self, vertices: Vertices) -> Arrays:
        """Every page has rank 1."""
        return {"rank": np.ones(len(vertices))}

    def send(self, vertices: Vertices) -> np.ndarray:
        """A page divides its rank among its links."""
        return vertices["rank"] / np.maximum(vertices.degrees, 1)

    def apply(self, vertices: Vertices, received: np.ndarray) -> Arrays:
        """The next rank, from the sum of the shares; and how much the ranks of this task change."""
        rank = 1 - DAMPING + DAMPING * received
        vertices.change = float(np.abs(rank - vertices["rank"]).sum())
        return {"rank": rank}


def flow(inputs: str, output: str = "pagerank", size: int = SIZE, rounds: int | None = None) -> Flow:
    """The graph: links and pages, and the ranks at the end."""
    flow = Flow("pagerank")
    links = flow.read(Parquet(f"{inputs}/links/data"), name="links")
    pages = flow.read(Parquet(f"{inputs}/pages"), name="pages")
    ranks = flow.vertex_program(
        Rank,
        links,
        vertices=pages,
        source="page",
        rounds=rounds,
        until=lambda change: change < RESTS_BELOW * size,
        name="rank",
    )
    ranks.map_batches(as_pages, batch_format="numpy", name="final").write(Parquet(f"{output}/ranks"), name=SINK)
    return flow


def as_pages(batch: Arrays) -> Arrays:
    """Vertices are pages."""
    return {"page": batch["vertex"], "rank": batch["rank"]}


def reference(spark: Any, inputs: str, size: int = SIZE, rounds: int | None = None) -> Any:
    """The same rounds as joins and sums."""
    from pyspark.sql import functions as F

    links = spark.read.parquet(f"{inputs}/links/data")
    links = links.join(links.groupBy("page").count(), "page").localCheckpoint()
    ranks = spark.read.parquet(f"{inputs}/pages").selectExpr("vertex AS page", "1.0D AS rank").localCheckpoint()
    for number in count(1):
        shares = links.join(ranks, "page").select(F.col("target").alias("page"), F.expr("rank / count AS share"))
        given = shares.groupBy("page").agg(F.sum("share").alias("share"))
        rank = F.lit(1 - DAMPING) + DAMPING * F.coalesce("share", F.lit(0.0))
        after = ranks.join(given, "page", "left").select("page", rank.alias("next"), F.abs(rank - F.col("rank")))
        after = after.toDF("page", "rank", "change").localCheckpoint(eager=False)
        ranks = after.select("page", "rank")
        if number == rounds or after.agg(F.sum("change")).first()[0] < RESTS_BELOW * size:
            return ranks


def show(rows: list[Page]) -> None:
    """The pages that are worth most."""
    first = sorted(rows, key=lambda row: -row["rank"])[:10]
    for row in first:
        print(f"  page {row['page']:>5} {row['rank']:>9.3f} {'#' * round(50 * row['rank'] / first[0]['rank'])}")
    print(f"  {len(rows):,} pages, {sum(row['rank'] for row in rows):,.1f} in all")


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

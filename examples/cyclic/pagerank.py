"""PageRank: the rank of a page depends on the ranks of the pages that link to it.

    python -m examples.cyclic.pagerank --kill spread@epoch=2 --kill gather@epoch=4
    backedge compare examples.cyclic.pagerank --kills 3 --seed 1

In each round a page divides its rank among the pages it links to; its next rank is 0.15 plus 0.85 times the sum of the
shares it receives. (The average rank is 1 if every page has links; pages without links pass nothing on.) The iteration
ends after the round in which the ranks change by less than a thousandth on average. Similar loops: any quantity that
spreads over a graph until it settles, such as influence, risk or trust.

Spark turns the output of a crawler into links, dropping duplicates and links of a page to itself. From `combine` on,
which adds up the shares for the same page in each batch, shares travel as columns.

Guaranteed: the ranks of an undisturbed run, up to the last digits, because floating-point sums depend on their order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

import backedge
from backedge import Flow, Parquet, Stream

Page = dict[str, Any]
Columns = dict[str, np.ndarray]

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
    begun = pages.selectExpr("page", "CAST(1 AS DOUBLE) AS rank")
    begun.coalesce(1).write.mode("overwrite").parquet(f"{inputs}/pages")


class Spread:
    """State by page: its rank in this round, and the pages to which it links, which came in round 0."""

    def on_record(self, ctx: Any, input: str, record: Page) -> None:
        """A link of the page, or its rank."""
        rank, targets = ctx.state.get((None, []))
        if input == "links":
            targets.append(record["target"])
        else:
            rank = record["rank"]
        ctx.state.set((rank, targets))

    def on_round_end(self, ctx: Any) -> None:
        """Divide each page's rank among its links. Each page hears of itself, too, or would be lost without links."""
        for page in ctx.keys():  # noqa: SIM118
            rank, targets = ctx.state.get()
            ctx.emit({"page": page, "share": 0.0, "was": rank})
            for target in targets:
                ctx.emit({"page": target, "share": rank / len(targets), "was": 0.0})


def combine(pause_s: float) -> Callable[[Columns], Columns]:
    """Adds up what a batch has for the same page, so that less of it travels. Takes a moment for each batch."""

    def combined(batch: Columns) -> Columns:
        time.sleep(pause_s)
        pages, places = np.unique(batch["page"], return_inverse=True)
        return {"page": pages, **{name: np.bincount(places, batch[name]) for name in ("share", "was")}}

    return combined


class Gather:
    """State by page: what it is given in this round, and the rank that it had."""

    def on_record(self, ctx: Any, given: Page) -> None:
        """The page is given a share."""
        share, was = ctx.state.get((0.0, 0.0))
        ctx.state.set((share + given["share"], was + given["was"]))

    def on_round_end(self, ctx: Any) -> None:
        """All shares are here."""
        for page in ctx.keys():  # noqa: SIM118
            share, was = ctx.state.get()
            rank = 1 - DAMPING + DAMPING * share
            ctx.emit({"page": page, "rank": rank, "change": abs(rank - was)})
            ctx.state.clear()


def flow(
    inputs: str, output: str = "pagerank", size: int = SIZE, rounds: int | None = None, pause_ms: float = 15
) -> Flow:
    """The graph: `ranking` is the head of the iteration, and what `gather` makes of a round comes back to it."""
    flow = Flow("pagerank")
    links = flow.read(Parquet(f"{inputs}/links/data"), name="links").key_by("page")
    pages = flow.read(Parquet(f"{inputs}/pages"), name="pages").key_by("page")

    # Small batches, of which there are some twenty in a round, so that there is something to be killed in.
    batch = max(1, size // 4)

    def body(ranks: Stream[Page]) -> Stream[Page]:
        shares = flow.process(Spread, links=links, ranks=ranks.key_by("page"), name="spread")
        combined = shares.map_batches(combine(pause_ms / 1000), batch_format="numpy", batch_size=batch, name="combine")
        return combined.key_by("page").process(Gather, name="gather")

    change = {"measure": lambda page: page["change"], "until": lambda total: total < RESTS_BELOW * size}
    ranks = flow.iterate(pages, body, name="ranking", rounds=rounds, **change)
    ranks.map(lambda page: {"page": page["page"], "rank": page["rank"]}, name="final").write(
        Parquet(f"{output}/ranks"), name=SINK
    )
    return flow


def reference(spark: Any, inputs: str, size: int = SIZE, rounds: int | None = None) -> Any:
    """The same rounds as joins and sums."""
    from pyspark.sql import functions as F

    links = spark.read.parquet(f"{inputs}/links/data")
    links = links.join(links.groupBy("page").count(), "page").localCheckpoint()
    ranks = spark.read.parquet(f"{inputs}/pages").localCheckpoint()
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

"""PageRank by Spark, on two cores of this machine: joins and sums on frames, once a round.

Links stay partitioned by page, in memory, so that of each round only the shares are shuffled. It computes fewer rounds
than the others, and compares its ranks with those of scipy after as many.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from backedge.engine.batches.arrow import arrow, parquet
from backedge.recovery.spark.sessions.spark_session import close_session, open_session
from bench.graph_input import DAMPING, read_graph
from bench.peers import pagerank_scipy
from bench.workloads import RankWorkload

ROUNDS = 8
WARM_UP_ROUNDS = 2
PARTITIONS = 2


def run(workload: RankWorkload) -> float:
    """Millions of edges a second."""
    spark = open_session("pagerank", master=f"local[{PARTITIONS}]")
    try:
        spark.conf.set("spark.sql.shuffle.partitions", PARTITIONS)
        sources, targets = read_graph(workload.folder)
        parquet().write_table(arrow().table({"page": sources, "target": targets}), f"{workload.folder}/links.parquet")
        links = spark.read.parquet(f"{workload.folder}/links.parquet")
        degrees = links.groupBy("page").count().toDF("page", "degree")
        links = links.join(degrees, "page").repartition(PARTITIONS, "page").localCheckpoint()
        ranks = degrees.selectExpr("page", "1.0D AS rank").localCheckpoint()
        began_s = 0.0
        for round in range(WARM_UP_ROUNDS + ROUNDS):
            if round == WARM_UP_ROUNDS:
                began_s = time.perf_counter()
            shares = links.join(ranks, "page").selectExpr("target AS page", "rank / degree AS share")
            given = shares.groupBy("page").agg({"share": "sum"}).toDF("page", "share")
            # Every page is linked to, so each of them is given something.
            ranks = given.selectExpr("page", f"{1 - DAMPING}D + {DAMPING}D * share AS rank").localCheckpoint()
        seconds = time.perf_counter() - began_s
        _check(workload, ranks.toArrow())
        return workload.edges * ROUNDS / seconds / 1e6
    finally:
        close_session(spark)


def _check(workload: RankWorkload, rows: object) -> None:
    ranks = np.empty(workload.pages)
    table = arrow().table(rows)
    ranks[table["page"].to_numpy()] = table["rank"].to_numpy()
    fewer = replace(workload, rounds=ROUNDS, warm_up_rounds=WARM_UP_ROUNDS)
    if not np.allclose(ranks, pagerank_scipy.ranks(fewer), rtol=1e-9, atol=0):
        raise ValueError("Spark has computed other ranks than scipy: one of them is wrong")

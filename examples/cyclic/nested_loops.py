"""Nested loops: core numbers of a graph of accounts, by a loop inside a loop.

    python -m examples.cyclic.nested_loops --kill head@epoch=2 --kill body@epoch=4 --audit final
    backedge compare examples.cyclic.nested_loops --kills 3 --seed 1

Accounts that pay each other form a graph. Its k-core is what remains after repeatedly removing every account with fewer
than k remaining partners. The core number of an account is the highest k whose core contains it. Most are low; rings of
accounts that all pay each other stand out.

The inner loop removes accounts for one k until a round removes none; how many rounds that takes is not known in
advance. The outer loop raises k until no account is left. Both run in rounds, and `ctx.round` is (outer, inner), so k
need not be kept in state: a run killed in the middle of a round resumes in that round.

Guaranteed: exact core numbers. Spark computes them differently, as a fixed point: starting from the number of partners,
each account's number is repeatedly replaced by the highest h such that h partners have a number of at least h.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from backedge import Flow, JsonLines, Parquet, Stream

Record = dict[str, Any]

SIZE = 1_200
"""How many accounts there are."""

RING = 7
"""How many accounts a ring has, in which everybody pays everybody."""

SINK = "cores"
KEYS = ("account",)
IN_LOOP = False
"""In a cut in the middle of a round the accounts are in states; that may be all of them."""

STAYING = """
    WITH staying AS (SELECT get_json_object(record, '$.account') AS account FROM in_flight
                     UNION ALL SELECT get_json_object(value, '$[0].account') FROM state WHERE kind = 'pending'
                     UNION ALL SELECT `key` FROM state
                               WHERE operator = 'peel' AND kind = 'value' AND value NOT LIKE '[0,%')"""
INVARIANTS = {
    "no account is in two places": f"""{STAYING}
        SELECT account, count(*) AS places FROM staying GROUP BY account HAVING count(*) > 1""",
    "every account that was read is still in the loops, or is written": f"""{STAYING}
        SELECT * FROM (SELECT (SELECT sum(records) FROM operators WHERE operator = 'accounts') AS read,
                              (SELECT sum(records) FROM operators WHERE operator = 'cores') AS written,
                              (SELECT count(*) FROM staying) AS staying) WHERE read != written + staying""",
}


def prepare(spark: Any, inputs: str, size: int = SIZE, seed: int = 0) -> None:
    """Accounts with their partners: each pays some that came earlier, old ones more often, and some are rings."""
    paid = spark.range(1, size).selectExpr("id AS account", "explode(sequence(0, id % 4)) AS time")
    paid = paid.selectExpr("account", f"pmod(xxhash64(account, time, {seed}), 1000) / 1000 AS chance")
    paid = paid.selectExpr("account", "CAST(account * chance * chance AS LONG) AS partner")
    members = spark.range(size).selectExpr("id AS account", f"id DIV {RING} AS ring").where("ring % 20 = 1")
    rings = members.join(members.withColumnRenamed("account", "partner"), "ring").select("account", "partner")
    pairs = paid.union(rings).where("account != partner")
    pairs = pairs.union(pairs.select("partner", "account"))
    accounts = pairs.groupBy("account").agg({"partner": "collect_set"}).toDF("account", "partners")
    accounts.selectExpr("account", "sort_array(partners) AS partners").write.mode("overwrite").parquet(
        f"{inputs}/accounts"
    )


def tell(pause_s: float) -> Callable[[Record], Iterator[Record]]:
    """Everybody tells all partners, and itself, how many partners it has."""

    def told(account: Record) -> Iterator[Record]:
        time.sleep(pause_s)
        for receiver in (account["account"], *account["partners"]):
            yield {"account": receiver, "sender": account["account"], "partners": len(account["partners"])}

    return told


class Peel:
    """State by account, for one round: how many partners it had, and who of them stays."""

    outputs = ("stays", "cores")

    def on_record(self, ctx: Any, told: Record) -> None:
        """One of its partners has so many partners; or it has."""
        had, stay = ctx.state.get((0, []))
        if told["sender"] == ctx.key:
            ctx.state.set((told["partners"], stay))
        elif told["partners"] > ctx.round[0]:
            ctx.state.set((had, [*stay, told["sender"]]))

    def on_round_end(self, ctx: Any) -> None:
        """Whoever has too few partners goes, with its core number; the others stay, with the partners who stay."""
        k = ctx.round[0] + 1
        for account in ctx.keys():  # noqa: SIM118
            had, stay = ctx.state.get()
            ctx.state.clear()
            if had < k:
                ctx.emit({"account": account, "core": k - 1}, output="cores")
            else:
                ctx.emit({"account": account, "partners": sorted(stay), "lost": had - len(stay)})


def flow(
    inputs: str = "inputs",
    output: str = "nested_loops",
    size: int = SIZE,
    rounds: int | None = None,
    seconds: float = 2,
) -> Flow:
    """The graph: `peeling` runs inside of `raising`. What is known leaves from the innermost loop.

    After so many `rounds` of the outer loop, if there are, whoever is left leaves with what is known by then.

    All pauses together take some `seconds`, for an account is in some 16 rounds.
    """
    flow = Flow("nested_loops")
    accounts = flow.read(Parquet(f"{inputs}/accounts"), name="accounts")
    cores: list[Stream[Record]] = []

    def peel(staying: Stream[Record]) -> Stream[Record]:
        told = staying.flat_map(tell(seconds / size / 16), name="tell")
        peeled = told.key_by("account").process(Peel, name="peel")
        cores.append(peeled.side("cores"))
        return peeled

    def raise_k(staying: Stream[Record]) -> Stream[Record]:
        return flow.iterate(staying, peel, measure=lost, until=lambda losses: losses == 0, name="peeling")

    left = flow.iterate(accounts, raise_k, rounds=rounds, name="raising")
    at_least = left.map(lambda account: {"account": account["account"], "core": rounds}, name="at_least")
    at_least.merge(*cores).write(JsonLines(f"{output}/cores"), name=SINK)
    return flow


def lost(account: Record) -> int:
    """How many partners it has lost in this round."""
    return account["lost"]


def reference(spark: Any, inputs: str, rounds: int | None = None) -> Any:
    """Core numbers as the fixed point of h-indices, which begins with how many partners there are."""
    accounts = spark.read.parquet(f"{inputs}/accounts")
    edges = accounts.selectExpr("account", "explode(partners) AS partner").localCheckpoint()
    cores, total = accounts.selectExpr("account", "size(partners) AS core"), None
    while True:
        cores = cores.localCheckpoint()
        before, total = total, cores.agg({"core": "sum"}).first()[0]
        if total == before:
            highest = "core" if rounds is None else f"least(core, {rounds})"
            return cores.selectExpr("account", f"CAST({highest} AS LONG) AS core")
        seen = edges.join(cores.toDF("partner", "core"), "partner").groupBy("account").agg({"core": "collect_list"})
        highest = "size(filter(sort_array(cores, false), (core, place) -> core > place))"
        cores = seen.toDF("account", "cores").selectExpr("account", f"{highest} AS core")


def show(rows: list[Record]) -> None:
    """How many accounts have which core number, and who is tied most tightly."""
    counts = Counter(row["core"] for row in rows)
    for core in sorted(counts):
        print(f"  core {core:>2}: {counts[core]:>6} accounts {'#' * -(-60 * counts[core] // len(rows))}")
    highest = sorted(row["account"] for row in rows if row["core"] == max(counts))
    print(f"  tied most tightly: accounts {', '.join(map(str, highest[: 2 * RING]))}")


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

"""Shortest paths: how long does it take from one town to every other, and by which way?

    python -m examples.cyclic.shortest_paths --kill towns@epoch=2 --kill drive@epoch=4
    backedge compare examples.cyclic.shortest_paths --kills 3 --seed 1

Whoever reaches a town sets out from it on every road. A town that is reached sooner than before tells of it, and
travellers set out again; one who comes late is forgotten. Nobody waits for anybody: the loop runs freely, records of
long ways and of short ones at the same time, and ends by itself when no record is left in it. For a loop like it,
think of whatever spreads and gets better on its way: routes, permissions, taint, types, prices through a bill of
materials.

Promised: the exact times and ways, whatever the order in which towns are reached. Of two ways that take as long the one
is named that comes from the town of the lower number, and towns are told of when nothing goes round any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import backedge
from backedge import Flow, Items, JsonLines, Parquet

Record = dict[str, Any]

HOME = 0
WIDTH = 25
"""Towns lie in rows of so many."""

SIZE = 500
"""How many towns."""

SINK = "reached"
KEYS = ("town",)

INVARIANTS = {
    "nobody arrives before having set out": """
        SELECT record FROM in_flight
        WHERE loop = 'arriving' AND CAST(get_json_object(record, '$.minutes') AS LONG) <= 0""",
    "home is where one is at once": f"""
        SELECT value FROM state WHERE operator = 'towns' AND key_int = {HOME}
        AND CAST(get_json_object(value, '$.minutes') AS LONG) <> 0""",
}


def prepare(spark: Any, inputs: str, size: int = SIZE, seed: int = 0) -> None:
    """Roads between neighbours, some of them quick. Half of those to the south have no minutes: they are closed."""
    towns = spark.range(size).withColumnRenamed("id", "town")
    east = towns.where(f"town % {WIDTH} < {WIDTH} - 1").selectExpr("town", "town + 1 AS target", "true AS is_open")
    is_open = f"pmod(xxhash64(town, {seed}), 2) = 0 AS is_open"
    south = towns.selectExpr("town", f"town + {WIDTH} AS target", is_open).where(f"target < {size}")
    quick = f"pmod(xxhash64(town, target, {seed}), 5) = 0"
    slow = f"5 + pmod(xxhash64(target, town, {seed}), 20)"
    built = east.union(south).selectExpr("town", "target", f"IF(is_open, IF({quick}, 2, {slow}), NULL) AS minutes")
    both_ways = built.union(built.selectExpr("target", "town", "minutes"))
    both_ways.write.mode("overwrite").csv(f"{inputs}/mapped", header=True)
    backedge.prepare(
        spark,
        f"{inputs}/mapped",
        f"{inputs}/roads",
        key="town",
        schema="town BIGINT NOT NULL, target BIGINT NOT NULL, minutes BIGINT NOT NULL",
        format="csv",
        unique=("town", "target"),
    )


class Towns:
    """State by town: how many minutes it is from home (None: not reached), by way of which town, and its roads."""

    outputs = ("departures", "reached")

    def on_record(self, ctx: Any, input: str, record: Record) -> None:
        """A road is known, or somebody arrives."""
        town = ctx.state.get({"minutes": None, "via": None, "roads": []})
        if input == "roads":
            town["roads"].append(record)
            if town["minutes"] is not None:
                ctx.emit(departure(town["minutes"], record))
        elif town["minutes"] is None or record["minutes"] < town["minutes"]:
            town |= {"minutes": record["minutes"], "via": record["via"]}
            for road in town["roads"]:
                ctx.emit(departure(town["minutes"], road))
        elif record["minutes"] == town["minutes"]:
            town["via"] = min(town["via"], record["via"])
        ctx.state.set(town)

    def on_end(self, ctx: Any) -> None:
        """Nobody is on the way any more: say what was found."""
        for number in ctx.keys():  # noqa: SIM118
            town = ctx.state.get()
            if town["minutes"] is not None:
                ctx.emit({"town": number, "minutes": town["minutes"], "via": town["via"]}, output="reached")


def departure(minutes: int, road: Record) -> Record:
    """Somebody sets out on a road, and will arrive in the town at its end."""
    return {"town": road["target"], "minutes": minutes + road["minutes"], "via": road["town"]}


def drive(pause_s: float) -> Callable[[list[Record]], list[Record]]:
    """Takes a moment for all who travel together. Of those to the same town only the first to arrive matters."""

    def driven(travellers: list[Record]) -> list[Record]:
        time.sleep(pause_s)
        first: dict[int, Record] = {}
        for traveller in sorted(travellers, key=lambda traveller: (traveller["minutes"], traveller["via"])):
            first.setdefault(traveller["town"], traveller)
        return list(first.values())

    return driven


def flow(inputs: str, output: str = "shortest_paths", pause_ms: float = 80) -> Flow:
    """The graph: who leaves a town drives, and arrives in another by the back edge."""
    flow = Flow("shortest_paths")
    roads = flow.read(Parquet(f"{inputs}/roads/data"), name="roads").key_by("town")
    home = flow.read(Items([{"town": HOME, "minutes": 0, "via": HOME}]), name="home")
    arriving = flow.loop("arriving", of=dict)
    travellers = home.merge(arriving).key_by("town")
    departures = flow.process(Towns, roads=roads, travellers=travellers, name="towns")
    arriving.feed(departures.rebalance().map_batches(drive(pause_ms / 1000), name="drive"))
    departures.side("reached").write(JsonLines(f"{output}/reached"), name=SINK)
    return flow


def reference(spark: Any, inputs: str) -> Any:
    """Bellman and Ford: all roads at once, again and again, until that brings nobody anywhere sooner."""
    from pyspark.sql import functions as F

    # So few roads that handing them from task to task would take longest: all is done in one.
    roads = (
        spark.read.parquet(f"{inputs}/roads/data").withColumnRenamed("minutes", "takes").coalesce(1).localCheckpoint()
    )
    reached = spark.createDataFrame([(HOME, 0, HOME)], "town BIGINT, minutes BIGINT, via BIGINT")
    best, found_before = F.min(F.struct("minutes", "via")).alias("best"), None
    while True:
        arriving = roads.join(reached, "town").selectExpr("target", "minutes + takes AS minutes", "town AS via")
        known = reached.union(arriving).coalesce(1).groupBy("town").agg(best)
        reached = known.select("town", "best.*").localCheckpoint(eager=False)
        found = reached.agg(F.count("town"), F.sum("minutes"), F.sum("via")).first()
        if found == found_before:
            return reached
        found_before = found


def show(rows: list[Record]) -> None:
    """A map: how far each town is, from 0 to 9, and the way to the one that is farthest."""
    reached = {row["town"]: row for row in rows}
    farthest = max(rows, key=lambda row: (row["minutes"], row["town"]))
    way = [farthest["town"]]
    while way[-1] != HOME:
        way.append(reached[way[-1]]["via"])
    for start in range(0, max(reached) + 1, WIDTH):
        towns = range(start, start + WIDTH)
        print("  " + " ".join(sign(reached.get(town), town in way, farthest["minutes"]) for town in towns))
    print(
        f"  {len(rows):,} towns; town {farthest['town']} is {farthest['minutes']} minutes and {len(way) - 1} roads away"
    )


def sign(row: Record | None, on_the_way: bool, most: int) -> str:
    """A town on the map."""
    if row is None:
        return " "
    return "*" if on_the_way else str(row["minutes"] * 10 // (most + 1))


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

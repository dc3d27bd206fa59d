"""Shortest paths: the fastest way from the nearest depot to each town, while depots keep opening.

    python -m examples.cyclic.shortest_paths --kill towns@epoch=2 --kill drive@epoch=4
    backedge compare examples.cyclic.shortest_paths --kills 3 --seed 1

When a depot opens, a traveller leaves on every road. When a traveller reaches a town sooner than any before, the town
sends travellers on along all its roads; late arrivals are dropped. Nothing waits: short and long paths are explored at
the same time, and the loop ends by itself when no depot will open and no traveller is left. Similar loops: anything
that spreads and improves on the way, such as routes, permissions, taint, or prices through a bill of materials.

Guaranteed: the exact times and paths, whatever the order of arrivals. Of two equally fast paths, the one through the
town with the lower number is reported. Results are emitted when the loop has run dry.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import backedge
from backedge import Flow, JsonLines, Parquet

Record = dict[str, Any]

DEPOTS = 6
WIDTH = 25
"""Towns lie in rows of so many."""

SIZE = 500
"""How many towns."""

TRIPS = 5
"""About how often somebody leaves for each town."""

SINK = "reached"
KEYS = ("town",)

INVARIANTS = {
    "nobody arrives before having set out": """
        SELECT record FROM in_flight
        WHERE loop = 'arriving' AND CAST(get_json_object(record, '$.minutes') AS LONG) <= 0""",
    "who has not been reached has sent nobody": """
        SELECT record FROM in_flight JOIN state ON key_int = CAST(get_json_object(record, '$.via') AS LONG)
        WHERE loop = 'arriving' AND operator = 'towns' AND get_json_object(value, '$.minutes') IS NULL""",
}


def prepare(spark: Any, inputs: str, size: int = SIZE, seed: int = 0) -> None:
    """Roads between neighbours, some of them quick. Half of those to the south have no minutes: they are closed."""
    towns = spark.range(size).withColumnRenamed("id", "town")
    east = towns.where(f"town % {WIDTH} < {WIDTH} - 1").selectExpr("town", "town + 1 AS target", "true AS is_open")
    is_open = f"pmod(xxhash64(town, {seed}), 2) = 0 AS is_open"
    south = towns.selectExpr("town", f"town + {WIDTH} AS target", is_open)
    quick = f"pmod(xxhash64(town, target, {seed}), 5) = 0"
    slow = f"5 + pmod(xxhash64(target, town, {seed}), 20)"
    built = east.union(south).where(f"target < {size}")
    built = built.selectExpr("town", "target", f"IF(is_open, IF({quick}, 2, {slow}), NULL) AS minutes")
    depots = spark.range(DEPOTS).selectExpr(f"pmod(id * 137, {size}) AS town")
    depots.coalesce(1).write.mode("overwrite").parquet(f"{inputs}/depots")
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
    """State by town: how many minutes it is from a depot (None: not reached), by way of which town, and its roads."""

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


def set_out(depot: Record) -> Record:
    """Somebody is in the town where a depot opens."""
    return {"town": depot["town"], "minutes": 0, "via": depot["town"]}


def drive(pause_s: float) -> Callable[[list[Record]], list[Record]]:
    """Takes a moment for each. Of those who travel together to the same town only the first to arrive matters."""

    def driven(travellers: list[Record]) -> list[Record]:
        time.sleep(pause_s * len(travellers))
        first: dict[int, Record] = {}
        for traveller in sorted(travellers, key=lambda traveller: (traveller["minutes"], traveller["via"])):
            first.setdefault(traveller["town"], traveller)
        return list(first.values())

    return driven


def flow(inputs: str, output: str = "shortest_paths", size: int = SIZE, seconds: float = 4) -> Flow:
    """The graph: who leaves a town drives, and arrives in another by the back edge. Depots open within some seconds."""
    flow = Flow("shortest_paths")
    roads = flow.read(Parquet(f"{inputs}/roads/data"), name="roads").key_by("town")
    depots = flow.read(Parquet(f"{inputs}/depots"), rate=DEPOTS / seconds if seconds else None, name="depots")
    arriving = flow.loop("arriving", of=dict[str, Any])
    travellers = depots.map(set_out, name="set_out").merge(arriving).key_by("town")
    departures = flow.process(Towns, roads=roads, travellers=travellers, name="towns")
    arriving.feed(departures.rebalance().map_batches(drive(seconds / (TRIPS * size)), name="drive"))
    departures.side("reached").write(JsonLines(f"{output}/reached"), name=SINK)
    return flow


def reference(spark: Any, inputs: str) -> Any:
    """Bellman and Ford: all roads at once, again and again, until that brings nobody anywhere sooner."""
    from pyspark.sql import functions as F

    # So few roads that handing them from task to task would take longest: all is done in one.
    roads = (
        spark.read.parquet(f"{inputs}/roads/data").withColumnRenamed("minutes", "takes").coalesce(1).localCheckpoint()
    )
    depots = spark.read.parquet(f"{inputs}/depots").distinct()
    reached = depots.selectExpr("town", "0L AS minutes", "town AS via")
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
    """A map: how far each town is from a depot (D), from 0 to 9, and the way to the one that is farthest."""
    reached = {row["town"]: row for row in rows}
    farthest = max(rows, key=lambda row: (row["minutes"], row["town"]))
    way = [farthest["town"]]
    while reached[way[-1]]["via"] != way[-1]:
        way.append(reached[way[-1]]["via"])
    for start in range(0, max(reached) + 1, WIDTH):
        towns = range(start, start + WIDTH)
        print("  " + " ".join(sign(reached.get(town), town in way, farthest["minutes"]) for town in towns))
    print("  D: a depot; 0 to 9: from near to far; *: on the longest way")
    print(f"  {len(rows):,} towns; {farthest['town']} is {farthest['minutes']} minutes and {len(way) - 1} roads away")


def sign(row: Record | None, on_the_way: bool, most: int) -> str:
    """A town on the map."""
    if row is None:
        return " "
    if row["minutes"] == 0:
        return "D"
    return "*" if on_the_way else str(row["minutes"] * 10 // (most + 1))


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

"""Count and print: two sources feed two counters, which feed two printers and each other.

    python -m examples.cyclic.count_and_print --kill head@epoch=2 --kill post@epoch=4 --audit final
    backedge compare examples.cyclic.count_and_print --kills 3 --seed 7

Two shops sell the same articles. Each has a counter for the sales of both shops, so it must hear of every sale of the
other shop, and a printer that prints each count. The counters send each other their sales, which closes a cycle; the
slow way from south to north is the back edge. Similar loops: caches, replicas or rate limits that are kept in two
places and must agree.

Guaranteed, whatever dies: both counters count every sale of both shops once, and each printer prints 1, 2, 3, ... for
every article, without gaps or repetitions. Not guaranteed: which sale gets which number, because that depends on the
order in which sales arrive.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from backedge import Collect, Flow, JsonLines

if TYPE_CHECKING:  # no process of the flow's waits for PySpark
    from pyspark.sql import DataFrame, SparkSession

Sale = dict[str, Any]

SIZE = 1_000
"""How many sales each shop makes."""

SECONDS = 3.0
"""Within this time the sales are made, whatever their number; the post needs somewhat longer."""

ARTICLES = 40
SHOPS = ("north", "south")
SINK = "printed"
KEYS = ("printer", "article", "number")

INVARIANTS = {
    # South has counted what north has, and what is still on its way from south to north.
    "counters agree": """
        SELECT article, sum(sales) AS differ_by FROM (
            SELECT key_str AS article, value_int AS sales FROM state WHERE operator = 'north_counter'
            UNION ALL SELECT get_json_object(record, '$.article'), 1 FROM in_flight WHERE loop = 'told'
            UNION ALL SELECT key_str, -value_int FROM state WHERE operator = 'south_counter')
        GROUP BY article HAVING sum(sales) <> 0""",
    "every count is printed": """
        SELECT * FROM (SELECT coalesce(sum(value_int), 0) AS counted FROM state),
                      (SELECT sum(records) AS printed FROM operators WHERE operator = 'printed')
        WHERE counted <> printed""",
}


def prepare(spark: SparkSession, inputs: str, size: int, seed: int = 0) -> None:
    """The sales of both shops, as files of lines."""
    from pyspark.sql import functions as F

    for shop in SHOPS:
        article = F.concat(F.lit("A"), F.pmod(F.xxhash64("id", F.lit(shop), F.lit(seed)), F.lit(ARTICLES)))
        sales = spark.range(size).select(F.lit(shop).alias("shop"), F.col("id").alias("sale"), article.alias("article"))
        sales.coalesce(1).write.mode("overwrite").json(f"{inputs}/{shop}")


def count(sold: int, sale: Sale) -> tuple[int, Sale]:
    """One more of an article is sold. State by article is how many were."""
    return sold + 1, {**sale, "number": sold + 1}


def printed(printer: str, sale: Sale) -> dict[str, Any]:
    """What a printer prints."""
    return {"printer": printer, "article": sale["article"], "number": sale["number"]}


def flow(inputs: str, size: int = SIZE) -> Flow:
    """The graph. It is the same on both sides, but for the pause of the post that goes from south to north."""
    rate, pause_s = size / SECONDS, 1.3 * SECONDS / size

    def post(sale: Sale) -> Sale:
        time.sleep(pause_s)
        return sale

    flow = Flow("count_and_print")
    north = flow.read(JsonLines(f"{inputs}/north"), rate=rate, name="north")
    south = flow.read(JsonLines(f"{inputs}/south"), rate=rate, name="south")
    told = flow.loop("told", of=dict[str, Any])
    at_north = north.merge(told).key_by("article").stateful_map(count, initial=0, name="north_counter")
    sold_north = at_north.filter(lambda sale: sale["shop"] == "north", name="sold_north")
    at_south = south.merge(sold_north).key_by("article").stateful_map(count, initial=0, name="south_counter")
    sold_south = at_south.filter(lambda sale: sale["shop"] == "south", name="sold_south")
    told.feed(sold_south.key_by("sale").map(post, name="post"))
    north_lines = at_north.map(lambda sale: printed("north", sale), name="north_printer")
    south_lines = at_south.map(lambda sale: printed("south", sale), name="south_printer")
    north_lines.merge(south_lines).rebalance().write(Collect(), name="printed")
    return flow


def reference(spark: SparkSession, inputs: str) -> DataFrame:
    """Both printers print 1 to n for an article that was sold n times."""
    from pyspark.sql import functions as F

    sold = spark.read.json([f"{inputs}/{shop}" for shop in SHOPS]).groupBy("article").count()
    numbers = F.explode(F.sequence(F.lit(1), F.col("count").cast("int"))).alias("number")
    printer = F.explode(F.array(*map(F.lit, SHOPS))).alias("printer")
    return sold.select("article", "count", printer).select("printer", "article", numbers)


def show(rows: list[dict[str, Any]]) -> None:
    """The last line of each printer for each of the first articles."""
    counted = {printer: Counter(row["article"] for row in rows if row["printer"] == printer) for printer in SHOPS}
    print(f"{'article':>8} {'north':>6} {'south':>6}")
    for article in sorted(counted["north"], key=lambda article: (len(article), article))[:10]:
        print(f"{article:>8} {counted['north'][article]:>6} {counted['south'][article]:>6}")
    print(f"{'all':>8} {counted['north'].total():>6} {counted['south'].total():>6}")


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

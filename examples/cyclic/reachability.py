"""Reachability: exact reachability queries on a graph that keeps changing.

    python -m examples.cyclic.reachability --kill vertices@epoch=2 --kill way@epoch=4 --audit final
    backedge compare examples.cyclic.reachability --kills 3 --seed 7

Edges and sources are added and removed one at a time, and in between come questions: which vertices can be reached from
the sources now? Similar loops: permissions that are granted and revoked, dependencies, or the spread of a fault.

Undoing what was reached over a removed edge is hard, because there may be another path. So nothing is undone. A
question is sent to every vertex, behind all changes before it, and each vertex records its edges at that moment:
together they are the graph of that question. Tokens of the question travel round the loop on this graph, while the
graph keeps changing and other questions are in flight. A token that arrives before its question waits for it.

Guaranteed: every question is answered exactly for the graph at the time of the question, each vertex once.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from backedge import Collect, Flow, JsonLines

if TYPE_CHECKING:  # no process of the flow's waits for PySpark
    from pyspark.sql import Column, DataFrame, SparkSession

Record = dict[str, Any]

SIZE = 800
"""How many changes and questions there are."""

SECONDS = 3.0
"""Within this time they come, whatever their number. To travel over an edge takes a moment."""

VERTICES, SOURCES = 40, 4
QUESTION_EVERY = 10
SINK = "reached"
KEYS = ("question", "vertex")

INVARIANTS = {
    "what was reached is told, once": """
        SELECT * FROM (SELECT coalesce(sum(json_array_length(get_json_object(value, '$.reached'))), 0) AS reached
                       FROM state WHERE operator = 'vertices'),
                      (SELECT sum(records) AS told FROM operators WHERE operator = 'reached')
        WHERE reached <> told""",
}


class Vertices:
    """State by vertex.

    - `edges` and `is_source`: what the changes so far have made of it.
    - `noted`: question -> the edges that it had then, until the question reaches it.
    - `reached`: the questions that have reached it; `early`: those whose tokens are ahead of them.
    """

    outputs = ("tokens", "reached")

    def on_record(self, ctx: Any, record: Record) -> None:
        """A change, a question or a token."""
        vertex = ctx.state.get({"edges": [], "is_source": False, "noted": {}, "reached": [], "early": []})
        if record["kind"] == "source":
            vertex["is_source"] = record["add"]
        elif record["kind"] == "edge":
            others = [to for to in vertex["edges"] if to != record["to"]]
            vertex["edges"] = [*others, record["to"]] if record["add"] else others
        elif record["kind"] == "question":
            vertex["noted"][record["question"]] = vertex["edges"]
            if vertex["is_source"] or record["question"] in vertex["early"]:
                self._reach(ctx, vertex, record["question"])
        elif record["question"] in vertex["noted"]:
            self._reach(ctx, vertex, record["question"])
        elif record["question"] not in vertex["reached"] + vertex["early"]:
            vertex["early"].append(record["question"])
        ctx.state.set(vertex)

    def _reach(self, ctx: Any, vertex: Record, question: int) -> None:
        vertex["early"] = [other for other in vertex["early"] if other != question]
        vertex["reached"].append(question)
        ctx.emit({"question": question, "vertex": ctx.key}, output="reached")
        for to in vertex["noted"].pop(question):
            ctx.emit({"kind": "token", "question": question, "vertex": to})


def dealt(change: Record) -> list[Record]:
    """A change to the vertices that it concerns, a question to all of them: behind what each was dealt before."""
    if change["kind"] == "question":
        return [{"kind": "question", "question": change["number"], "vertex": vertex} for vertex in range(VERTICES)]
    return [{"kind": change["kind"], "add": change["add"], **pair} for pair in change["pairs"]]


def prepare(spark: SparkSession, inputs: str, size: int, seed: int = 0) -> None:
    """A graph and its sources to begin with, then single edges and sources that come and go, and every tenth asks."""
    from pyspark.sql import functions as F

    def drawn(what: str, count: int) -> Column:
        return F.pmod(F.xxhash64("number", "nth", F.lit(what), F.lit(seed)), F.lit(count)).cast("int")

    number = F.col("id").alias("number")
    pairs_count = F.when(number == 0, 2 * VERTICES).when(number == 1, SOURCES).otherwise(1)
    drawing = spark.range(size).select(number, F.explode(F.sequence(F.lit(1), pairs_count)).alias("nth"))
    asks, is_source = F.col("number") % QUESTION_EVERY == QUESTION_EVERY - 1, F.col("number") % 20 == 1
    kinds = drawing.select(
        "number",
        F.when(asks, "question").when(is_source, "source").otherwise("edge").alias("kind"),
        ((F.col("number") < 2) | (drawn("add", 10) < 7)).alias("add"),
        F.when(is_source, drawn("source", SOURCES)).otherwise(drawn("from", VERTICES)).alias("vertex"),
        drawn("to", 2).alias("to"),
    )
    to = F.pmod(F.col("vertex") * 7 + F.col("to") * 11 + 1, F.lit(VERTICES)).alias("to")
    pairs = F.collect_list(F.struct("vertex", to)).alias("pairs")
    changes = kinds.groupBy("number", "kind", "add").agg(pairs)
    changes.repartition(1).sortWithinPartitions("number").write.mode("overwrite").json(f"{inputs}/changes")


def flow(inputs: str, size: int = SIZE) -> Flow:
    """The graph. One task reads and deals, so that the order of changes and questions is the same for every vertex."""
    rate, pause_s = size / SECONDS, 0.4 * SECONDS / size

    def travel(token: Record) -> Record:
        time.sleep(pause_s)
        return token

    flow = Flow("reachability")
    changes = flow.read(JsonLines(f"{inputs}/changes", rate=rate), name="changes", parallelism=1)
    tokens = flow.loop("tokens", of=dict)
    news = changes.flat_map(dealt, name="dealt", parallelism=1)
    vertices = news.merge(tokens).key_by("vertex").process(Vertices, name="vertices")
    tokens.feed(vertices.rebalance().map(travel, name="way"))
    vertices.side("reached").write(Collect(), name="reached")
    return flow


def reference(spark: SparkSession, inputs: str) -> DataFrame:
    """The graph of each question, and then the search in it: a step in all of them, then the next."""
    from pyspark.sql import functions as F

    changes = spark.read.json(f"{inputs}/changes").localCheckpoint()
    questions = changes.where("kind = 'question'").select(F.col("number").alias("question"))
    single = changes.where("kind <> 'question'").select("number", "kind", "add", F.explode("pairs").alias("pair"))
    to = F.when(F.col("kind") == "edge", F.col("pair.to")).alias("to")
    parts = single.select("number", "kind", "add", "pair.vertex", to)
    before = questions.join(parts, F.col("number") < F.col("question"))
    latest = before.groupBy("question", "kind", "vertex", "to")
    graph = latest.agg(F.max_by("add", "number").alias("add")).where("add").localCheckpoint()
    edges = graph.where("kind = 'edge'").select("question", "vertex", "to")
    reached = frontier = graph.where("kind = 'source'").select("question", "vertex").localCheckpoint()
    while not frontier.isEmpty():
        following = frontier.join(edges, ["question", "vertex"]).select("question", F.col("to").alias("vertex"))
        frontier = following.distinct().join(reached, ["question", "vertex"], "left_anti").localCheckpoint()
        reached = reached.union(frontier).localCheckpoint()
    return reached


def show(rows: list[Record]) -> None:
    """How much of the graph could be reached when a question was asked, for some twenty of them."""
    counted = Counter(row["question"] for row in rows)
    few = max(1, len(counted) // 20)
    for question, count in sorted(counted.items())[::few]:
        print(f"question {question:>6}: {count:>4} of {VERTICES} vertices {'#' * (count * 40 // VERTICES)}")


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

"""Connected components: group documents that are near-duplicates of each other, directly or through others.

    python -m examples.cyclic.connected_components --kill documents@epoch=2 --kill tell@epoch=4
    backedge compare examples.cyclic.connected_components --kills 3 --seed 1

A training set or an archive should keep one of each group of near-duplicates. Spark finds pairs that share most of
their word triples. The first and the last version of a text may share little and still belong together, because each
version is close to the one before it. So pairs are not enough; they must be followed.

Each document sends its neighbours the lowest document number it knows of, and again whenever it learns of a lower one.
Nothing waits: the loop runs freely and ends by itself when there are no more messages. Similar loops: customers with
several addresses, devices in a household, accounts behind a fraud.

Guaranteed: the exact components, whatever the order of messages, because the lowest number always wins. Results are
emitted when the loop has run dry.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from backedge import Flow, JsonLines, Parquet

Record = dict[str, Any]

VERSIONS = 12
"""How many versions of a text there are."""

ALIKE = 0.5
"""Two documents are nearly the same that have this part of their word triples in common."""

SIZE = 1_500
"""How many documents."""

PAIRS, WORDS = 2, 6
"""About how many pairs there are for each document, and how often it is told something."""

SINK = "originals"
KEYS = ("document",)

INVARIANTS = {
    "nobody believes in a higher number than its own": """
        SELECT key_int, value FROM state
        WHERE operator = 'documents' AND CAST(get_json_object(value, '$.lowest') AS LONG) > key_int""",
    "nobody is told of a higher number than the teller's": """
        SELECT record FROM in_flight WHERE loop = 'told'
        AND CAST(get_json_object(record, '$.lowest') AS LONG) > CAST(get_json_object(record, '$.teller') AS LONG)""",
}


def prepare(spark: Any, inputs: str, size: int = SIZE, seed: int = 0) -> None:
    """Texts that were changed a little again and again, in any order; then the pairs that are nearly the same."""
    from pyspark.sql import functions as F

    # Each version drops two words at its start and appends two at its end, so it shares most words with the next
    # version and few with the last. Some versions are complete rewrites.
    first = f"2 * (id % {VERSIONS}) + 100 * (id % {VERSIONS} DIV (3 + pmod(xxhash64(id DIV {VERSIONS}, {seed}), 10)))"
    versions = spark.range(size).selectExpr("id", f"id DIV {VERSIONS} AS text", f"{first} AS first")
    shuffled = versions.selectExpr("*", f"row_number() OVER (ORDER BY xxhash64(id, {seed})) - 1 AS document")
    places = F.explode(F.expr("sequence(first, first + 19)")).alias("place")
    words = shuffled.select(
        "document", places, F.expr(f"hex(pmod(xxhash64(text, place, {seed}), 50000))").alias("word")
    )
    ordered = F.sort_array(F.collect_list(F.struct("place", "word"))).getField("word")
    documents = words.groupBy("document").agg(F.array_join(ordered, " ").alias("words"))
    documents.repartition(4, "document").write.mode("overwrite").parquet(f"{inputs}/documents")
    pairs_alike(spark.read.parquet(f"{inputs}/documents")).repartition(4).write.mode("overwrite").parquet(
        f"{inputs}/pairs"
    )


def pairs_alike(documents: Any) -> Any:
    """Pairs of documents that have enough triples of words in common."""
    words = documents.selectExpr("document", "split(words, ' ') AS words")
    triples = words.selectExpr(
        "document",
        "explode(transform(sequence(1, size(words) - 2), at -> array_join(slice(words, at, 3), ' '))) AS triple",
    ).distinct()
    triples = triples.join(triples.groupBy("document").count(), "document").localCheckpoint()
    left, right = triples.toDF("document", "triple", "has"), triples.toDF("other", "triple", "other_has")
    shared = left.join(right, "triple").where("document < other").groupBy("document", "other", "has", "other_has")
    return shared.count().where(f"count / (has + other_has - count) >= {ALIKE}").select("document", "other")


class Documents:
    """State by document: the lowest number that it knows of, and the documents that are nearly the same."""

    outputs = ("tell", "originals")

    def on_record(self, ctx: Any, input: str, record: Record) -> None:
        """The document itself, one that is nearly the same, or a lower number that one of those has heard of."""
        known = ctx.state.get({"lowest": ctx.key, "alike": []})
        if input == "alike":
            known["alike"].append(record["other"])
            ctx.emit(word(ctx.key, known["lowest"], record["other"]))
        elif input == "told" and record["lowest"] < known["lowest"]:
            known["lowest"] = record["lowest"]
            for other in known["alike"]:
                ctx.emit(word(ctx.key, known["lowest"], other))
        ctx.state.set(known)

    def on_end(self, ctx: Any) -> None:
        """Nobody has anything to tell any more."""
        for document in ctx.keys():  # noqa: SIM118
            ctx.emit({"document": document, "original": ctx.state.get()["lowest"]}, output="originals")


def word(teller: int, lowest: int, document: int) -> Record:
    """What one document tells another."""
    return {"document": document, "lowest": lowest, "teller": teller}


def both_ways(pair: Record) -> Iterator[Record]:
    """A pair, as each of the two sees it."""
    yield pair
    yield {"document": pair["other"], "other": pair["document"]}


def tell(pause_s: float) -> Callable[[Record], Record]:
    """Telling takes a moment."""

    def told(word: Record) -> Record:
        time.sleep(pause_s)
        return word

    return told


def flow(inputs: str, output: str = "connected_components", size: int = SIZE, seconds: float = 4) -> Flow:
    """The graph: what one document tells another comes round by the back edge.

    Pairs come within so many seconds, as if they were found just now, and telling takes somewhat longer, of any size.
    """
    flow = Flow("connected_components")
    documents = flow.read(Parquet(f"{inputs}/documents"), name="texts").key_by("document")
    pairs = flow.read(
        Parquet(f"{inputs}/pairs"), rate=PAIRS * size / seconds if seconds else None, name="pairs"
    ).flat_map(both_ways, name="both_ways")
    told = flow.loop("told", of=dict[str, Any])
    words = flow.process(
        Documents, texts=documents, alike=pairs.key_by("document"), told=told.key_by("document"), name="documents"
    )
    told.feed(words.rebalance().map(tell(seconds / (WORDS * size)), name="tell"))
    words.side("originals").write(JsonLines(f"{output}/originals"), name=SINK)
    return flow


def reference(spark: Any, inputs: str) -> Any:
    """Each document takes the lowest number of those around it, all at once, until none is lower."""
    from pyspark.sql import functions as F

    pairs = spark.read.parquet(f"{inputs}/pairs")
    alike = pairs.union(pairs.select("other", "document")).coalesce(1).localCheckpoint()
    found = spark.read.parquet(f"{inputs}/documents").selectExpr("document", "document AS original")
    lowest, sum_before = F.min("original").alias("original"), None
    while True:
        heard = alike.join(found, "document").select("other", "original")
        found = found.union(heard).coalesce(1).groupBy("document").agg(lowest).localCheckpoint(eager=False)
        sum_found = found.agg(F.sum("original")).first()
        if sum_found == sum_before:
            return found
        sum_before = sum_found


def show(rows: list[Record]) -> None:
    """How many documents there are of each, and which have most copies."""
    copies = Counter(row["original"] for row in rows)
    print(f"  {len(rows):,} documents, {len(copies):,} to keep")
    for versions, texts in sorted(Counter(copies.values()).items(), reverse=True):
        print(f"  {versions:>4} versions of {texts:>4} texts {'#' * -(-50 * versions * texts // len(rows))}")
    original = min(copies, key=lambda number: (-copies[number], number))
    members = sorted(row["document"] for row in rows if row["original"] == original)
    print(f"  document {original} is kept for {', '.join(map(str, members))}")


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

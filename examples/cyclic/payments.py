"""Payments: a refused payment goes round the loop, triggers a reminder, and is retried up to five times.

    python -m examples.cyclic.payments --kill head@epoch=2 --kill head@epoch=4 --audit final
    make demo

Spark reads the raw payments, removes duplicates, and derives from the number of refusals how often each payment must
be tried and whether it goes through. The number of reminders a customer has already had depends on the order in which
payments come round, and is not compared.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backedge import Flow, JsonLines

if TYPE_CHECKING:  # no process of the flow's waits for PySpark
    from pyspark.sql import DataFrame, SparkSession

SIZE = 600
SINK = "settled"
KEYS = ("id",)
INVARIANTS = {
    "every payment is settled or goes round": """
        SELECT * FROM
            (SELECT coalesce(sum(records) FILTER (WHERE operator = 'arriving'), 0) AS arrived,
                    coalesce(sum(records) FILTER (WHERE operator = 'settled'), 0) AS settled FROM operators),
            (SELECT count(*) AS go_round FROM in_flight WHERE loop = 'again')
        WHERE arrived != settled + go_round"""
}
DATA = Path(__file__).parent / "data"
RAW = "payments.jsonl"

ROUNDS_MAX = 5
SECONDS = 3.0
"""Within this time the payments arrive, whatever their number; reminders need somewhat longer."""

Payment = dict[str, Any]


def attempt(tries: int, payment: Payment) -> tuple[int, Payment]:
    """Try a payment once more. The state of a payment is its number of tries."""
    tries += 1
    return tries, {**payment, "tries": tries, "paid": tries > payment["refusals"]}


def reminder(pause_s: float) -> Any:
    """Write to the customer, which takes a moment. The state of a customer is the number of reminders."""

    def remind(reminders: int, payment: Payment) -> tuple[int, Payment]:
        time.sleep(pause_s)
        return reminders + 1, {**payment, "reminders": reminders + 1}

    return remind


def settled(payment: Payment) -> Payment:
    """The result for a settled payment."""
    return {name: payment[name] for name in ("id", "customer", "cents", "tries", "paid")}


def prepare(spark: SparkSession, inputs: str, size: int, seed: int = 0) -> None:
    """Write the raw payments without duplicates."""
    came = spark.read.json(str(DATA / RAW), schema="id STRING, customer STRING, cents BIGINT, refusals BIGINT")
    once = came.dropna().dropDuplicates(["id"]).orderBy("id").limit(size)
    once.coalesce(1).write.mode("overwrite").json(f"{inputs}/{RAW}")


def flow(inputs: str = str(DATA), output: str = "payments", size: int = SIZE) -> Flow:
    """The graph: `again` is a stream with an open end, and feeding it is the back edge."""
    flow = Flow("payments")
    arriving = flow.read(JsonLines(f"{inputs}/{RAW}"), rate=size / SECONDS, name="arriving")
    again = flow.loop("again", of=dict[str, Any], max_rounds=ROUNDS_MAX)
    tried = arriving.merge(again).key_by("id").stateful_map(attempt, initial=0, name="attempts")
    paid, refused = tried.split(lambda payment: payment["paid"], name="paid")
    pause_s = SECONDS / size
    reminded = refused.key_by("customer").stateful_map(reminder(pause_s), initial=0, name="reminders")
    again.feed(reminded)
    given_up = again.dead_letters.map(settled, name="given_up")
    paid.map(settled, name="done").merge(given_up).rebalance().write(JsonLines(f"{output}/settled"), name="settled")
    return flow


def reference(spark: SparkSession, inputs: str) -> DataFrame:
    """The number of tries of each payment, and whether it goes through."""
    return spark.read.json(f"{inputs}/{RAW}").selectExpr(
        "id", "customer", "cents", f"least(refusals, {ROUNDS_MAX}) + 1 AS tries", f"refusals <= {ROUNDS_MAX} AS paid"
    )


def show(rows: list[Payment]) -> None:
    """Print the number of payments for each number of tries."""
    tries = Counter((row["tries"], row["paid"]) for row in rows)
    for (count, paid), payments in sorted(tries.items(), key=lambda item: (not item[0][1], item[0][0])):
        print(f"{payments:5,} payments {'went through at' if paid else 'were given up after'} try {count}")


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

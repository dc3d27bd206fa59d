"""Retry queue: failed deliveries are retried with exponential back-off and given up after the fourth retry.

    python -m examples.cyclic.retry_queue --kill body@epoch=2 --kill head@epoch=4 --audit final
    backedge compare examples.cyclic.retry_queue --kills 3 --seed 7

Messages are delivered to addresses, some of which refuse the first few tries. A refused message enters the loop, waits
there for its timer, 40 ms at first and twice as long each time, and is tried again. `max_rounds` limits the retries: a
message that would go round once more leaves as a dead letter instead. Similar loops: webhooks, e-mail, or calls of an
unreliable service.

Guaranteed, whatever dies: every message is settled once, delivered or given up, after the expected number of tries; in
every cut each message is waiting, in the loop, or settled. Not guaranteed: when. Timers are state, and a timer that
became due while the run was down fires as soon as it is back. The result therefore holds the planned pauses, not times.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from backedge import Collect, Flow, JsonLines

if TYPE_CHECKING:  # no process of the flow's waits for PySpark
    from pyspark.sql import DataFrame, SparkSession

Message = dict[str, Any]

SIZE = 800
"""How many messages there are."""

SECONDS = 3.0
"""Within this time the messages come, whatever their number; to deliver them takes somewhat longer."""

RETRIES_MAX = 4
FIRST_PAUSE_MS = 40
SINK = "settled"
KEYS = ("message",)

INVARIANTS = {
    "every message is somewhere, once": """
        SELECT * FROM (SELECT sum(records) AS arrived FROM operators WHERE operator = 'messages'),
                      (SELECT count(*) AS waiting FROM state WHERE operator = 'back_off' AND kind = 'value'),
                      (SELECT count(*) AS in_loop FROM in_flight WHERE loop = 'again'),
                      (SELECT sum(records) AS settled FROM operators WHERE operator = 'settled')
        WHERE arrived <> waiting + in_loop + settled""",
    "who waits has a timer": """
        SELECT * FROM (SELECT count(*) AS waiting FROM state WHERE operator = 'back_off' AND kind = 'value'),
                      (SELECT count(*) AS timers FROM state WHERE operator = 'back_off' AND kind = 'timer')
        WHERE waiting <> timers""",
}


class BackOff:
    """State by message is the message itself, as long as it waits."""

    def on_record(self, ctx: Any, message: Message) -> None:
        """It was refused: wait, twice as long as the last time."""
        pause_ms = FIRST_PAUSE_MS * 2 ** (message["tries"] - 1)
        ctx.state.set({**message, "paused_ms": message["paused_ms"] + pause_ms})
        ctx.set_timer(ctx.now + pause_ms)

    def on_timer(self, ctx: Any, at_ms: int) -> None:
        """It has waited long enough."""
        ctx.emit(ctx.state.get())
        ctx.state.clear()


def prepare(spark: SparkSession, inputs: str, size: int, seed: int = 0) -> None:
    """The messages, each with how many tries its address refuses: of most none, of some more than are made."""
    from pyspark.sql import functions as F

    drawn = F.pmod(F.xxhash64("id", F.lit(seed)), F.lit(14)).cast("int")
    messages = spark.range(size).select(F.col("id").alias("message"), F.greatest(drawn - 7, F.lit(0)).alias("refusals"))
    messages.coalesce(1).write.mode("overwrite").json(f"{inputs}/messages")


def settled(message: Message) -> Message:
    """What is kept of a message in the end."""
    kept = {name: message[name] for name in ("message", "tries", "paused_ms")}
    return {**kept, "delivered": message["tries"] > message["refusals"]}


def flow(inputs: str, size: int = SIZE) -> Flow:
    """The graph. What comes round waits first; whether it may come round is decided where it is refused."""
    rate, pause_s = size / SECONDS, 0.6 * SECONDS / size

    def deliver(message: Message) -> Message:
        time.sleep(pause_s)
        return {**message, "tries": message["tries"] + 1}

    flow = Flow("retry_queue")
    messages = flow.read(JsonLines(f"{inputs}/messages"), rate=rate, name="messages")
    again = flow.loop("again", of=dict[str, Any], max_rounds=RETRIES_MAX)
    new = messages.map(lambda message: {**message, "tries": 0, "paused_ms": 0}, name="begin")
    waited = again.key_by("message").process(BackOff, name="back_off")
    tried = new.merge(waited).key_by("message").map(deliver, name="deliver")
    delivered, refused = tried.split(lambda message: message["tries"] > message["refusals"], name="accepted")
    again.feed(refused)
    delivered.merge(again.dead_letters).map(settled, name="settle").write(Collect(), name="settled")
    return flow


def reference(spark: SparkSession, inputs: str) -> DataFrame:
    """A message is tried until it is accepted, or was retried RETRIES_MAX times, with a pause before each retry."""
    from pyspark.sql import functions as F

    refusals, retries_max = F.col("refusals"), F.lit(RETRIES_MAX)
    retries = F.least(refusals, retries_max)
    paused_ms = (FIRST_PAUSE_MS * (F.pow(F.lit(2), retries) - 1)).cast("bigint").alias("paused_ms")
    delivered = (refusals <= retries_max).alias("delivered")
    return spark.read.json(f"{inputs}/messages").select("message", (retries + 1).alias("tries"), paused_ms, delivered)


def show(rows: list[Message]) -> None:
    """How many messages took how many tries."""
    counted = Counter((row["delivered"], row["tries"], row["paused_ms"]) for row in rows)
    for (delivered, tries, paused_ms), count in sorted(counted.items(), key=lambda item: (not item[0][0], item[0][1])):
        outcome = "delivered" if delivered else "given up"
        print(f"{count:>5} {outcome} at try {tries}, after pauses of {paused_ms:>4} ms in all")


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

"""Agent loop: a language model plans, tools act, and a person approves what is important.

    python -m examples.cyclic.agent_loop --kill conversations@epoch=2 --kill model@epoch=4 --audit final
    backedge compare examples.cyclic.agent_loop --kills 3 --seed 7

The messages of a conversation are keyed state. `Chat` asks the model, for many conversations at a time, each of which
has a budget of tokens that survives crashes. Tool calls are routed to the tools. A tool that fails does not fail the
run: its dead letter goes round the loop, and the model sees the failure and tries again. An answer above 600 waits for
a person, who decides in a table of SQLite: a timer has the table looked at from time to time, for a day at most, which
is one second here. The model is a server on loopback that counts; give `flow` the address of another one.

Guaranteed: every conversation ends once, with an answer or a reason. No finished call of the model or of a tool is made
again: their answers are kept, and a request that runs in a process when it dies has a key by which the server knows it.
In every cut, each conversation that has begun is open or finished.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

from backedge import Chat, Collect, Flow, JsonLines, Parquet, SqliteTable
from examples.cyclic.model_server import FAILED, TASK, Message, next_message, served, tokens_of

if TYPE_CHECKING:  # no process of the flow's waits for PySpark
    from pyspark.sql import Column, DataFrame, SparkSession

Record = dict[str, Any]

SIZE = 300
"""How many conversations there are."""

SECONDS = 3.0
"""Within this time the requests come, whatever their number. To take in what was said takes a moment."""

BUDGET = 150
"""Tokens of one conversation."""

OUT_OF_BUDGET = {"role": "system", "content": "out of budget"}
"""What a conversation ends with that may not ask the model any more."""

DAY_S = 1.0
LOOKS = 5
"""How often the table of decisions is looked at within a day."""

COLUMNS = "conversation INTEGER PRIMARY KEY, ended TEXT, turns INTEGER"
SINK = "finished"
KEYS = ("conversation",)

INVARIANTS = {
    "every conversation is open or finished": """
        SELECT * FROM (SELECT sum(records) AS begun FROM operators WHERE operator = 'requests'),
                      (SELECT count(*) AS open FROM state WHERE operator = 'conversations' AND kind = 'value'),
                      (SELECT sum(records) AS finished FROM operators WHERE operator = 'finished')
        WHERE begun <> open + finished""",
}


class Conversations:
    """State by conversation: its messages, and how often a person was asked about its answer."""

    outputs = ("asked", "tool", "person", "finished")

    def __init__(self, day_s: float) -> None:
        self.pause_ms = 1000 * day_s / LOOKS

    def on_record(self, ctx: Any, event: Record) -> None:
        """A request begins the conversation. What the model says, a tool or a person, goes on with it."""
        if "request" in event:
            self.go_on(ctx, {"messages": [], "looks": 0}, {"role": "user", "content": event["request"]})
        elif event["message"] is None:
            ctx.set_timer_in(self.pause_ms)
        else:
            self.go_on(ctx, ctx.state.get(), event["message"])

    def go_on(self, ctx: Any, state: Record, message: Message) -> None:
        """Pass on what was said last: to the model, to a tool, to a person, or out of the loop."""
        state["messages"].append(message)
        ctx.state.set(state)
        if message["role"] in ("user", "tool"):
            ctx.emit({"conversation": ctx.key, "messages": state["messages"]}, output="asked")
        elif "tool_calls" not in message:
            turns = sum(said["role"] == "assistant" for said in state["messages"])
            ctx.emit({"conversation": ctx.key, "ended": message["content"], "turns": turns}, output="finished")
            ctx.state.clear()
        elif (call := message["tool_calls"][0]["function"])["name"] == "ask_person":
            ctx.set_timer_in(self.pause_ms)
        else:
            ctx.emit({"conversation": ctx.key, "arguments": json.loads(call["arguments"])}, output="tool")

    def on_timer(self, ctx: Any, at_ms: int) -> None:
        """Look whether a person has decided."""
        state = ctx.state.get()
        state["looks"] += 1
        ctx.state.set(state)
        ctx.emit({"conversation": ctx.key, "is_last": state["looks"] == LOOKS}, output="person")


def square(asked: Record) -> Record:
    """A tool. For some numbers its first or its second try fails."""
    time.sleep(0.005)
    number, tries = asked["arguments"]["n"], asked["arguments"]["tries"]
    if tries <= number % 3:
        raise TimeoutError(f"no square of {number} at try {tries}")
    return heard(asked, str(number**2))


def heard(asked: Record, content: str) -> Record:
    """What a tool or a person has to say to a conversation."""
    return {"conversation": asked["conversation"], "message": {"role": "tool", "content": content}}


def open_decisions(inputs: str) -> sqlite3.Connection:
    """The table in which a person decides."""
    decisions = sqlite3.connect(f"{inputs}/decisions.db")
    decisions.execute("CREATE TABLE IF NOT EXISTS decisions (conversation INTEGER PRIMARY KEY, decision TEXT)")
    return decisions


def prepare(spark: SparkSession, inputs: str, size: int, seed: int = 0) -> None:
    """The requests, each of two to four numbers; and what a person decides about three quarters of them."""
    from pyspark.sql import functions as F

    def drawn(what: str, count: int) -> Column:
        return F.pmod(F.xxhash64("id", F.lit(what), F.lit(seed)), F.lit(count)).cast("int")

    numbers = F.slice(F.array(*(drawn(f"number {n}", 20) + 1 for n in range(4))), 1, drawn("length", 3) + 2)
    request = F.concat(F.lit(TASK), F.array_join(numbers.cast("array<string>"), " ")).alias("request")
    requests = spark.range(size)
    requests.select(F.col("id").alias("conversation"), request).coalesce(1).write.mode("overwrite").json(
        f"{inputs}/requests"
    )
    decision = F.element_at(F.array(*map(F.lit, ("approved", "approved", "refused"))), drawn("decision", 4))
    decided = requests.filter(drawn("decision", 4) > 0).select("id", decision)
    with closing(open_decisions(inputs)) as decisions, decisions:
        decisions.executemany("INSERT INTO decisions VALUES (?, ?)", [(row[0], row[1]) for row in decided.collect()])


def flow(inputs: str, size: int = SIZE, url: str | None = None, day_s: float = DAY_S, results: str = "") -> Flow:
    """The graph. `url`: of the model. `results`: a folder for Parquet files and a table of SQLite, as well."""
    rate, pause_s = size / SECONDS, SECONDS / size / 8
    chat = Chat(url or served()[1], "stand-in")

    def arrive(event: Record) -> Record:
        time.sleep(pause_s)
        return event

    async def ask(asked: Record) -> Record:
        reply = await chat(asked["messages"])
        tokens = (reply.prompt_tokens or 0) + (reply.completion_tokens or 0)
        return {"conversation": asked["conversation"], "message": reply.message, "tokens": tokens}

    def look(asked: Record) -> Record:
        with closing(open_decisions(inputs)) as decisions:
            found = decisions.execute("SELECT decision FROM decisions WHERE conversation = ?", (asked["conversation"],))
            decision = next(found, (None,))[0]
        if decision is None and not asked["is_last"]:
            return {"conversation": asked["conversation"], "message": None}
        return heard(asked, decision or "nobody answers")

    flow = Flow("agent_loop")
    requests = flow.read(JsonLines(f"{inputs}/requests"), rate=rate, name="requests")
    again = flow.loop("again", of=dict[str, Any])
    arriving = requests.merge(again).map(arrive, name="arriving")
    talks = arriving.key_by("conversation").process(Conversations, day_s=day_s, name="conversations")
    asked = talks.side("asked").key_by("conversation")
    said = asked.map_async(ask, cost="tokens", budget=BUDGET, timeout=30, on_error="dead_letter", name="model")
    unasked = said.dead_letters.map(lambda asked: {**asked, "message": OUT_OF_BUDGET}, name="over_budget")
    used = talks.side("tool").map_async(square, on_error="dead_letter", name="tools")
    failed = used.dead_letters.map(lambda asked: heard(asked, FAILED), name="failed")
    # A table that is looked at again may say something else.
    looked = talks.side("person").map_async(look, answers="again", name="person")
    again.feed(said.merge(unasked, used, failed, looked).rebalance())
    finished = talks.side("finished")
    finished.write(Collect(), name="finished")
    if results:
        with closing(sqlite3.connect(f"{results}/finished.db")) as table:
            table.execute(f"CREATE TABLE IF NOT EXISTS finished ({COLUMNS})")
        finished.write(Parquet(f"{results}/finished"), name="files")
        finished.write(SqliteTable(f"{results}/finished.db", "finished", key="conversation"), name="table")
    return flow


def reference(spark: SparkSession, inputs: str) -> DataFrame:
    """Each conversation by itself, one call after the other."""
    with closing(open_decisions(inputs)) as decisions:
        decided = dict(decisions.execute("SELECT conversation, decision FROM decisions"))

    def converse(row: Any) -> tuple[int, str, int]:
        messages: list[Message] = [{"role": "user", "content": row["request"]}]
        tokens = turns = 0
        while tokens < BUDGET:
            message = next_message(messages)
            tokens, turns = tokens + tokens_of([*messages, message]), turns + 1
            if "tool_calls" not in message:
                return row["conversation"], message["content"], turns
            call = message["tool_calls"][0]["function"]
            asked = {"conversation": row["conversation"], "arguments": json.loads(call["arguments"])}
            try:
                is_tool = call["name"] == "square"
                said = square(asked) if is_tool else heard(asked, decided.get(row["conversation"], "nobody answers"))
            except TimeoutError:
                said = heard(asked, FAILED)
            messages += [message, said["message"]]
        return row["conversation"], "out of budget", turns

    rows = spark.read.json(f"{inputs}/requests").rdd.map(converse)
    columns = "conversation long, ended string, turns long"
    return spark.createDataFrame(rows, columns)  # pyright: ignore[reportUnknownMemberType]  # as PySpark declares it


def show(rows: list[Record]) -> None:
    """How the conversations have ended, and after how many turns of the model."""
    counted = Counter((row["ended"].rstrip("0123456789 "), row["turns"]) for row in rows)
    for (ended, turns), count in sorted(counted.items()):
        print(f"{count:>5} {ended:<14} after {turns:>2} turns of the model {'#' * -(-60 * count // len(rows))}")


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

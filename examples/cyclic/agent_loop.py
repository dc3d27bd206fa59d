"""Agent loop: a language model plans, a tool acts, the model judges the result and tries again if necessary.

    python -m examples.cyclic.agent_loop --kill conversations@epoch=2 --kill tools@epoch=4 --audit final
    backedge compare examples.cyclic.agent_loop --kills 3 --seed 7

Every conversation has a budget of model calls. Its history is keyed state; model and tools are external calls, many at
a time, made by `map_async`. Responses of the model are routed: a tool request goes to the tools, anything else back to
the conversation. A failing tool does not fail the run: its dead letter goes round the loop, and the model sees the
failure and may retry. The model here is a deterministic stand-in, so that the result can be computed; pass `flow` any
other object with `complete(messages)`.

Guaranteed: every conversation ends once, with an answer or out of budget, and every call counts exactly once: in every
cut, an open conversation waits for one call or for one message in the loop. Calls themselves may be repeated, because
unanswered calls are made again after a crash: tools with external effects need an idempotency key made of the
conversation and the call, and a real model may answer differently the second time.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from backedge import Collect, Flow, JsonLines

if TYPE_CHECKING:  # no process of the flow's waits for PySpark
    from pyspark.sql import Column, DataFrame, SparkSession

Message = dict[str, str]
Record = dict[str, Any]

SIZE = 300
"""How many conversations there are."""

SECONDS = 3.0
"""Within this time the requests come, whatever their number. To take in what was said takes a moment."""

ASK_TO_SUM = "Sum the squares of "
ASK_TO_JUDGE = "Is that the sum of the squares that you found?"
FAILED = "the tool failed"
SINK = "finished"
KEYS = ("conversation",)

INVARIANTS = {
    "every conversation is open or finished": """
        SELECT * FROM (SELECT sum(records) AS begun FROM operators WHERE operator = 'requests'),
                      (SELECT count(*) AS open FROM state WHERE operator = 'conversations' AND kind = 'value'),
                      (SELECT sum(records) AS finished FROM operators WHERE operator = 'finished')
        WHERE begun <> open + finished""",
    "an open conversation waits for one thing": """
        SELECT * FROM (SELECT count(*) AS open FROM state WHERE operator = 'conversations' AND kind = 'value'),
                      (SELECT count(*) AS asked FROM state WHERE operator IN ('model', 'tools') AND kind = 'pending'),
                      (SELECT count(*) AS in_loop FROM in_flight WHERE loop = 'again')
        WHERE open <> asked + in_loop""",
}


class LanguageModel(Protocol):
    """What stands in for a model, or calls one. Messages have a role (user, assistant, tool) and a content."""

    def complete(self, messages: list[Message]) -> str:
        """What the assistant says next."""
        ...


class StandIn:
    """Asks for each square, adds them up, at times too hastily, and judges the sum."""

    def complete(self, messages: list[Message]) -> str:
        """`USE square N TRY T`, `ANSWER N`, `ACCEPT` or `REJECT`."""
        time.sleep(0.005)
        numbers = [int(word) for word in messages[0]["content"].removeprefix(ASK_TO_SUM).split()]
        heard = [message["content"] for message in messages if message["role"] == "tool"]
        squares = [int(content) for content in heard if content != FAILED]
        answers = [message["content"] for message in messages if message["content"].startswith("ANSWER")]
        if messages[-1]["content"] == ASK_TO_JUDGE:
            return "ACCEPT" if answers[-1] == f"ANSWER {sum(squares)}" else "REJECT"
        if len(squares) < len(numbers):
            tries = next((n for n, content in enumerate(reversed(heard)) if content != FAILED), len(heard))
            return f"USE square {numbers[len(squares)]} TRY {tries + 1}"
        is_hasty = not answers and sum(squares) % 4 == 0
        return f"ANSWER {sum(squares[:-1] if is_hasty else squares)}"


def square(said: str) -> str:
    """The tool. For some numbers its first or its second try fails, too."""
    _, _, number, _, tries = said.split()
    time.sleep(0.005)
    if int(tries) <= int(number) % 3:
        raise TimeoutError(f"no square of {number} at try {tries}")
    return str(int(number) ** 2)


class Conversations:
    """State by conversation: its messages, its budget, and what it has spent of it."""

    outputs = ("asked", "finished")

    def on_record(self, ctx: Any, event: Record) -> None:
        """A request begins the conversation; what was said, and what a tool had to say to it, goes on with it."""
        if "request" in event:
            state = {"messages": [_message("user", event["request"])], "budget": event["budget"], "calls": 0}
        else:
            state = ctx.state.get()
            new = [_message("assistant", event["said"])]
            new += [_message("tool", event["heard"])] if "heard" in event else []
            new += [_message("user", ASK_TO_JUDGE)] if event["said"].startswith("ANSWER") else []
            state = {**state, "messages": [*state["messages"], *new]}
        is_accepted = state["messages"][-1]["content"] == "ACCEPT"
        if is_accepted or state["calls"] == state["budget"]:
            answers = [int(said["content"].split()[1]) for said in state["messages"] if said["content"][:6] == "ANSWER"]
            answer = answers[-1] if is_accepted else None
            ctx.emit({"conversation": ctx.key, "answer": answer, "calls": state["calls"]}, output="finished")
            ctx.state.clear()
            return
        ctx.state.set({**state, "calls": state["calls"] + 1})
        ctx.emit({"conversation": ctx.key, "messages": [*state["messages"]]}, output="asked")


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def prepare(spark: SparkSession, inputs: str, size: int, seed: int = 0) -> None:
    """The requests, each of two to four numbers and with a budget that is too small for some."""
    from pyspark.sql import functions as F

    def drawn(what: str, count: int) -> Column:
        return F.pmod(F.xxhash64("id", F.lit(what), F.lit(seed)), F.lit(count)).cast("int")

    numbers = F.slice(F.array(*(drawn(f"number {n}", 20) + 1 for n in range(4))), 1, drawn("length", 3) + 2)
    request = F.concat(F.lit(ASK_TO_SUM), F.array_join(numbers.cast("array<string>"), " ")).alias("request")
    requests = spark.range(size).select(
        F.col("id").alias("conversation"), request, (drawn("budget", 8) + 7).alias("budget")
    )
    requests.coalesce(1).write.mode("overwrite").json(f"{inputs}/requests")


def flow(inputs: str, size: int = SIZE, model: LanguageModel | None = None) -> Flow:
    """The graph. The conversations are the head; what comes round is what was said, and what the tools had to say."""
    rate, pause_s = size / SECONDS, SECONDS / size / 8
    speaker = StandIn() if model is None else model

    def arrive(event: Record) -> Record:
        time.sleep(pause_s)
        return event

    def ask(asked: Record) -> Record:
        return {"conversation": asked["conversation"], "said": speaker.complete(asked["messages"])}

    def use(said: Record) -> Record:
        return {**said, "heard": square(said["said"])}

    flow = Flow("agent_loop")
    requests = flow.read(JsonLines(f"{inputs}/requests", rate=rate), name="requests")
    again = flow.loop("again", of=dict)
    arriving = requests.merge(again).map(arrive, name="arriving")
    asked = arriving.key_by("conversation").process(Conversations, name="conversations")
    said = asked.map_async(ask, concurrency=20, timeout=30, name="model")
    to_tool, to_conversation = said.split(lambda reply: reply["said"].startswith("USE"), name="router")
    used = to_tool.map_async(use, concurrency=20, on_error="dead_letter", name="tools")
    failed = used.dead_letters.map(lambda said: {**said, "heard": FAILED}, name="failed")
    again.feed(to_conversation.merge(used, failed).rebalance())
    asked.side("finished").write(Collect(), name="finished")
    return flow


def reference(spark: SparkSession, inputs: str) -> DataFrame:
    """A call for each try of a tool, one for each answer and one for each judgement, as far as the budget goes."""
    from pyspark.sql import functions as F

    numbers = F.expr(f"cast(split(substring(request, {len(ASK_TO_SUM) + 1}), ' ') AS array<int>)")
    requests = spark.read.json(f"{inputs}/requests").withColumn("numbers", numbers)
    answer = F.expr("aggregate(numbers, 0L, (total, n) -> total + n * n)")
    tries = F.expr("aggregate(numbers, 0L, (total, n) -> total + 1 + n % 3)")
    needed = tries + F.when(answer % 4 == 0, 4).otherwise(2)
    return requests.select(
        "conversation",
        F.when(needed <= F.col("budget"), answer).alias("answer"),
        F.least(needed, F.col("budget")).alias("calls"),
    )


def show(rows: list[Record]) -> None:
    """How many conversations came to an answer, by how many calls it took."""
    counted = Counter((row["answer"] is not None, row["calls"]) for row in rows)
    for (is_answered, calls), count in sorted(counted.items(), key=lambda item: (not item[0][0], item[0][1])):
        bar = "#" * -(-60 * count // len(rows))
        print(
            f"{count:>5} {'answered' if is_answered else 'out of budget':<13} after {calls:>2} calls of the model {bar}"
        )


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

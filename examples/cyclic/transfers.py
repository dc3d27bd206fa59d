"""Transfers: money goes from account to account, a few in a row, and at every moment some of it is under way.

    python -m examples.cyclic.transfers --kill head@epoch=2 --kill body@epoch=4 --audit final
    backedge compare examples.cyclic.transfers --kills 3 --seed 7

A transfer takes money from an account, goes round the loop through the clearing house, is paid into the next account
of its route, and from there on to the one after, less a fee of 1 at each. What is in the loop is in no account, so a
snapshot that left it out would lose money, and one that took it twice would make some.

Spark says what has to be booked, from the orders alone. In which order an account gets its bookings depends on what
arrived first; of that it is promised that every account counts them without a gap, and that each balance is the one
before and the change.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backedge import Collect, Flow, JsonLines, Print

if TYPE_CHECKING:  # no process of the flow's waits for PySpark
    from pyspark.sql import DataFrame, SparkSession

SIZE = 1_000
SINK = "booked"
KEYS = ("id", "step")
INVARIANTS = {
    "money": """
        SELECT * FROM
            (SELECT count(*) AS accounts, coalesce(sum(CAST(get_json_object(value, '$[0]') AS BIGINT)), 0) AS held
             FROM state WHERE operator = 'accounts'),
            (SELECT coalesce(sum(CAST(get_json_object(record, '$.brings') AS BIGINT)), 0) AS under_way
             FROM in_flight WHERE loop = 'arriving')
        WHERE held + under_way != 1000 * accounts"""
}
"""In every cut: what the accounts hold, and what is in the loop, is what the accounts were opened with."""

DATA = str(Path(__file__).parent / "data" / "transfers")
"""Orders that were prepared before, of the default size, for runs that do not begin with Spark."""

OPENING = 1_000
"""What each account holds when it is opened."""

ACCOUNTS, STOPS, FEE = 50, 5, 1
SECONDS = 3.0
"""Within this time the orders arrive, whatever their number; the clearing house needs half as much again."""

Transfer = dict[str, Any]


class Accounts:
    """The books. State by account is its balance and how many bookings it has had."""

    outputs = ("under_way", "booked", "balances")

    def on_record(self, ctx: Any, transfer: Transfer) -> None:
        """Pay in what the transfer brings, and take out what it takes on."""
        balance, bookings = ctx.state.get((OPENING, 0))
        step = transfer["step"]
        goes_on = step + 1 < len(transfer["route"])
        takes = transfer["amount"] - step * FEE if goes_on else 0
        change = transfer["brings"] - takes
        ctx.state.set((balance + change, bookings + 1))
        booking = {"id": transfer["id"], "step": step, "account": ctx.key, "change": change}
        ctx.emit({**booking, "number": bookings + 1, "balance": balance + change}, output="booked")
        if goes_on:
            ctx.emit({**transfer, "step": step + 1, "brings": takes})

    def on_end(self, ctx: Any) -> None:
        """Nothing is under way any more: close the books."""
        for account in ctx.keys():  # noqa: SIM118
            balance, bookings = ctx.state.get()
            ctx.emit({"account": account, "balance": balance, "bookings": bookings}, output="balances")


class Total:
    """Adds up the balances when all of them are known."""

    def on_record(self, ctx: Any, closed: dict[str, Any]) -> None:
        """One account is closed."""
        accounts, total = ctx.state.get((0, 0))
        ctx.state.set((accounts + 1, total + closed["balance"]))

    def on_end(self, ctx: Any) -> None:
        """Say what there was and what there is."""
        for _ in ctx.keys():  # noqa: SIM118
            accounts, total = ctx.state.get()
            ctx.emit(f"{accounts} accounts, opened with {accounts * OPENING:,}, closed with {total:,}")


def clear(pause_s: float) -> Callable[[int, Transfer], tuple[int, Transfer]]:
    """The clearing house looks at each transfer for a moment. State by transfer is how often it came by."""

    def cleared(passed: int, transfer: Transfer) -> tuple[int, Transfer]:
        time.sleep(pause_s)
        return passed + 1, transfer

    return cleared


def prepare(spark: SparkSession, inputs: str, size: int, seed: int = 0) -> None:
    """Write the orders, as JSON lines: each has an amount and a route of accounts."""
    stops = ", ".join(f"pmod(hash(id, {stop}, {seed}), {ACCOUNTS})" for stop in range(STOPS))
    orders = spark.range(size).selectExpr("id", "10 + id % 90 AS amount", f"array({stops}) AS route")
    orders.coalesce(1).write.mode("overwrite").json(f"{inputs}/orders")


def flow(inputs: str = DATA, size: int = SIZE) -> Flow:
    """The graph. The books are the head of the loop, the clearing house is its body, each a task of its own."""
    flow = Flow("transfers")
    read = flow.read(JsonLines(f"{inputs}/orders", rate=size / SECONDS), name="read")
    orders = read.map(lambda order: {**order, "step": 0, "brings": 0}, name="orders")
    arriving = flow.loop("arriving", of=dict)
    at_account = orders.merge(arriving).key_by(lambda transfer: transfer["route"][transfer["step"]])
    under_way = at_account.process(Accounts, name="accounts")
    pause_s = 1.5 * SECONDS / (size * (STOPS - 1))
    arriving.feed(under_way.key_by("id").stateful_map(clear(pause_s), initial=0, name="clearing"))
    under_way.side("booked").write(Collect(), name="booked")
    under_way.side("balances").key_by(lambda closed: "all").process(Total, name="add").write(Print(), name="total")
    return flow


def reference(spark: SparkSession, inputs: str) -> DataFrame:
    """What has to be booked: at every stop of every order, what it brings less what it takes on."""
    spark.read.json(f"{inputs}/orders").createOrReplaceTempView("orders")
    return spark.sql(f"""
        SELECT id, step, account,
            IF(step = 0, 0, amount - (step - 1) * {FEE})
                - IF(step + 1 = size(route), 0, amount - step * {FEE}) AS change
        FROM orders LATERAL VIEW posexplode(route) AS step, account""")


def promised(spark: SparkSession, inputs: str, result: DataFrame) -> DataFrame:
    """The bookings that break what is promised of their order."""
    result.createOrReplaceTempView("booked")
    return spark.sql(f"""
        SELECT * FROM
            (SELECT *, row_number() OVER account AS wanted_number,
                {OPENING} + sum(change) OVER account AS wanted_balance
             FROM booked WINDOW account AS (PARTITION BY account ORDER BY number, id, step
                                            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW))
        WHERE number != wanted_number OR balance != wanted_balance""")


def show(rows: list[dict[str, Any]]) -> None:
    """Prints the accounts that had most bookings."""
    last: dict[int, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["number"]):
        last[row["account"]] = row
    print("account  bookings  balance")
    for row in sorted(last.values(), key=lambda row: -row["number"])[:5]:
        print(f"{row['account']:7}  {row['number']:8}  {row['balance']:7,}")
    print(f"{sum(row['balance'] for row in last.values()):,} in {len(last)} accounts, opened with {OPENING:,} each")


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)

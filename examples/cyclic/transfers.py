"""Transfers: money moves through several accounts in a row, and some of it is always in flight.

    python -m examples.cyclic.transfers --kill head@epoch=2 --kill body@epoch=4 --audit final
    backedge compare examples.cyclic.transfers --kills 3 --seed 7

A transfer withdraws money from an account, passes through the clearing house in the loop, and is paid into the next
account on its route; from there it continues to the one after, less a fee of 1 at each stop. Money in the loop is in no
account, so a snapshot without it would lose money, and one that held it twice would create some.

Spark derives all bookings from the orders. Their order within an account depends on arrival, but each account numbers
its bookings without gaps, and each balance is the previous balance plus the change.
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
"""In every cut, the money in accounts plus the money in the loop equals the opening balances."""

DATA = str(Path(__file__).parent / "data" / "transfers")
"""Prepared orders of the default size, for runs without Spark."""

OPENING = 1_000
"""The opening balance of each account."""

ACCOUNTS, STOPS, FEE = 50, 5, 1
SECONDS = 3.0
"""All orders arrive within this time, whatever their number; clearing takes half as long again."""

Transfer = dict[str, Any]


class Accounts:
    """Keeps the accounts. The state of an account is its balance and its number of bookings."""

    outputs = ("under_way", "booked", "balances")

    def on_record(self, ctx: Any, transfer: Transfer) -> None:
        """Pay in the incoming amount and withdraw the amount that travels on."""
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
        """All transfers are done: report the balances."""
        for account in ctx.keys():  # noqa: SIM118
            balance, bookings = ctx.state.get()
            ctx.emit({"account": account, "balance": balance, "bookings": bookings}, output="balances")


class Total:
    """Adds up the final balances."""

    def on_record(self, ctx: Any, closed: dict[str, Any]) -> None:
        """Record the balance of an account."""
        accounts, total = ctx.state.get((0, 0))
        ctx.state.set((accounts + 1, total + closed["balance"]))

    def on_end(self, ctx: Any) -> None:
        """Report the opening and the closing total."""
        for _ in ctx.keys():  # noqa: SIM118
            accounts, total = ctx.state.get()
            ctx.emit(f"{accounts} accounts, opened with {accounts * OPENING:,}, closed with {total:,}")


def clear(pause_s: float) -> Callable[[int, Transfer], tuple[int, Transfer]]:
    """Clear a transfer, which takes a moment. The state of a transfer is its number of passes."""

    def cleared(passed: int, transfer: Transfer) -> tuple[int, Transfer]:
        time.sleep(pause_s)
        return passed + 1, transfer

    return cleared


def prepare(spark: SparkSession, inputs: str, size: int, seed: int = 0) -> None:
    """Write the orders as JSON lines; each has an amount and a route of accounts."""
    stops = ", ".join(f"pmod(hash(id, {stop}, {seed}), {ACCOUNTS})" for stop in range(STOPS))
    orders = spark.range(size).selectExpr("id", "10 + id % 90 AS amount", f"array({stops}) AS route")
    orders.coalesce(1).write.mode("overwrite").json(f"{inputs}/orders")


def begin(order: dict[str, Any]) -> dict[str, Any]:
    """The transfer of an order, at its first account."""
    return {**order, "step": 0, "brings": 0}


def flow(inputs: str = DATA, size: int = SIZE) -> Flow:
    """The graph: the accounts are the head of the loop, the clearing house is its body; each is a separate task."""
    flow = Flow("transfers")
    read = flow.read(JsonLines(f"{inputs}/orders"), rate=size / SECONDS, name="read")
    orders = read.map(begin, name="orders")
    arriving = flow.loop("arriving", of=dict[str, Any])
    at_account = orders.merge(arriving).key_by(lambda transfer: transfer["route"][transfer["step"]])
    under_way = at_account.process(Accounts, name="accounts")
    pause_s = 1.5 * SECONDS / (size * (STOPS - 1))
    arriving.feed(under_way.key_by("id").stateful_map(clear(pause_s), initial=0, name="clearing"))
    under_way.side("booked").write(Collect(), name="booked")
    under_way.side("balances").key_by(lambda closed: "all").process(Total, name="add").write(Print(), name="total")
    return flow


def reference(spark: SparkSession, inputs: str) -> DataFrame:
    """The expected bookings: for every stop of every order, the amount paid in less the amount withdrawn."""
    spark.read.json(f"{inputs}/orders").createOrReplaceTempView("orders")
    return spark.sql(f"""
        SELECT id, step, account,
            IF(step = 0, 0, amount - (step - 1) * {FEE})
                - IF(step + 1 = size(route), 0, amount - step * {FEE}) AS change
        FROM orders LATERAL VIEW posexplode(route) AS step, account""")


def promised(spark: SparkSession, inputs: str, result: DataFrame) -> DataFrame:
    """Bookings that violate the order within their account."""
    result.createOrReplaceTempView("booked")
    return spark.sql(f"""
        SELECT * FROM
            (SELECT *, row_number() OVER account AS wanted_number,
                {OPENING} + sum(change) OVER account AS wanted_balance
             FROM booked WINDOW account AS (PARTITION BY account ORDER BY number, id, step
                                            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW))
        WHERE number != wanted_number OR balance != wanted_balance""")


def show(rows: list[dict[str, Any]]) -> None:
    """Print the accounts with most bookings."""
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

"""The flows whose cuts are stored, and what they must give. They stay as they are: the cuts are of these graphs.

Each counts how often a value of its state was changed, so that what is lost or counted twice shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from backedge import Collect, Flow, Range, Table
from tests.gates import Gate, Gated

COUNT = 40
TRIPS = 3
ROWS = 8
PAUSE_S = 0.02
"""What goes round until a gate is open leaves the processors to others for this long in each round."""


def plain(gate: Gate, _: str) -> Flow:
    """Records make trips in a loop, under state by number. Number 0 stays in it until the gate is open."""

    def grow(trips: int, record: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if record["number"] == 0 and not gate.is_open:
            time.sleep(PAUSE_S)
            return trips, record
        return trips + 1, {**record, "trips": trips + 1}

    flow = Flow("plain")
    again = flow.loop("again")
    numbers = flow.read(Gated(Range(COUNT), gate), name="numbers").map(
        lambda number: {"number": number, "trips": 0}, name="begin"
    )
    grown = numbers.merge(again).key_by("number").stateful_map(grow, initial=0, name="grow")
    done, rest = grown.split(lambda record: record["trips"] >= TRIPS, name="enough")
    again.feed(rest)
    done.write(Collect(), name="done")
    return flow


PLAIN = [{"number": number, "trips": TRIPS} for number in range(COUNT)]


class Sums:
    """Counts the rows of each key in a table, and sends them round."""

    table = Table(key={"key": "int64"}, columns={"seen": "int64"})
    outputs = ("rest", "done")

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def on_batch(self, ctx: Any, rows: dict[str, Any]) -> None:
        """A row leaves when it was here often enough. The rows of key 0 stay until the gate is open."""
        waits = (rows["key"] == 0) & (not self.gate.is_open)
        if waits.any():
            time.sleep(PAUSE_S)
        counted = {name: column[~waits] for name, column in rows.items()}
        if len(counted["key"]):
            ctx.table.combine(np.add, ctx.table.rows(counted["key"]), seen=1)
        trips = rows["trips"] + ~waits
        is_done = trips >= TRIPS
        for output, chosen in (("done", is_done), ("rest", ~is_done)):
            if chosen.any():
                ctx.emit_batch({"key": rows["key"][chosen], "trips": trips[chosen]}, output=output)

    def on_end(self, ctx: Any) -> None:
        """The table, with the number of trips of each key."""
        rows = ctx.table.scan()
        ctx.emit_batch({"key": rows["key"], "trips": rows["seen"] + 1_000}, output="done")


def columns(gate: Gate, _: str) -> Flow:
    """Rows make trips as columns, under a table by key."""

    def rows(batch: dict[str, Any]) -> dict[str, Any]:
        keys = np.repeat(batch["number"] % ROWS, ROWS)
        return {"key": keys, "trips": np.zeros(len(keys), np.int64)}

    flow = Flow("columns")
    again = flow.loop("again")
    numbers = flow.read(Gated(Range(ROWS), gate), name="numbers").map(lambda number: {"number": number}, name="named")
    begun = numbers.map_batches(rows, batch_format="numpy", name="begin")
    sums = begun.merge(again).key_by("key").process(Sums, gate=gate, batch_format="numpy", name="sums")
    again.feed(sums)
    sums.side("done").write(Collect(), name="done")
    return flow


COLUMNS = [
    *({"key": key, "trips": TRIPS} for key in range(ROWS) for _ in range(ROWS)),
    *({"key": key, "trips": 1_000 + ROWS * TRIPS} for key in range(ROWS)),
]


def calls(gate: Gate, word: str) -> Flow:
    """A count by key, of which most stays as it was between two cuts, and calls: each answer holds the word."""

    async def ask(number: int) -> tuple[int, str]:
        return number, word

    flow = Flow("calls")
    keyed = flow.read(Gated(Range(COUNT), gate), name="numbers").key_by(lambda number: number)
    counted = keyed.stateful_map(lambda seen, number: (seen + 1, number), initial=0, name="count")
    counted.map_async(ask, name="ask").write(Collect(), name="done")
    return flow


WHOLE, DELTA, JOURNAL = 20, 24, 30
"""How many numbers were read before the first cut and the second, and how many are answered in the journal."""

FLOWS: dict[str, Callable[[Gate, str], Flow]] = {"plain": plain, "columns": columns, "calls": calls}
MADE, LATER = "made", "later"
EXPECTED: dict[str, list[Any]] = {
    "plain": PLAIN,
    "columns": COLUMNS,
    "calls": [(number, MADE if number < JOURNAL else LATER) for number in range(COUNT)],
}

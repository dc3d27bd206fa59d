"""Transfers: money goes from account to account, a few in a row, and at every moment some of it is under way.

    python -m examples.cyclic.transfers
    backedge run examples.cyclic.transfers:flow --kill head@epoch=2 --kill body@epoch=4 --json

A transfer takes money from an account, goes round the loop through the clearing house, is paid into the next account,
and from there on to the one after. What is in the loop is in no account, so a snapshot that left it out would lose
money, and one that took it twice would make some. Two processes are killed here while money is under way: the one
that keeps the accounts, and the clearing house. In the end each account has been told every booking once, and the
total is what it was.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from backedge import Collect, Flow, Generate, Print, run

Transfer = dict[str, Any]

OPENING = 1_000
"""What each account holds when it is opened."""

KILLS = ("head@epoch=2", "body@epoch=4")


class Accounts:
    """The books. State by account is its balance and how many bookings it has had."""

    outputs = ("under_way", "booked", "balances")

    def on_record(self, ctx: Any, transfer: Transfer) -> None:
        """Pay in what the transfer brings, and take out what it takes on."""
        balance, bookings = ctx.state.get((OPENING, 0))
        route = transfer["route"]
        change = transfer["brings"] - (transfer["amount"] if route else 0)
        ctx.state.set((balance + change, bookings + 1))
        booking = {"account": ctx.key, "number": bookings + 1, "change": change, "balance": balance + change}
        ctx.emit(booking, output="booked")
        if route:
            ctx.emit({**transfer, "brings": transfer["amount"], "account": route[0], "route": route[1:]})

    def on_end(self, ctx: Any) -> None:
        """Nothing is under way any more: close the books."""
        for account in ctx.keys():  # noqa: SIM118
            balance, bookings = ctx.state.get()
            ctx.emit({"account": account, "balance": balance, "bookings": bookings}, output="balances")


class Audit:
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


def ordered(accounts: int, hops: int) -> Callable[[int], Transfer]:
    """Makes the transfer at each position of the input: the same one whenever it is asked."""

    def transfer(position: int) -> Transfer:
        route = [(position * (hop + 3) + hop * hop) % accounts for hop in range(hops + 1)]
        return {"id": position, "amount": position % 90 + 10, "brings": 0, "account": route[0], "route": route[1:]}

    return transfer


def clear(pause_s: float) -> Callable[[int, Transfer], tuple[int, Transfer]]:
    """The clearing house looks at each transfer for a moment. State by transfer is how often it came by."""

    def cleared(passed: int, transfer: Transfer) -> tuple[int, Transfer]:
        time.sleep(pause_s)
        return passed + 1, {**transfer, "cleared": passed + 1}

    return cleared


def flow(transfers: int = 1_000, accounts: int = 50, hops: int = 4, rate: float = 300, pause_ms: float = 0.7) -> Flow:
    """The graph. The books are the head of the loop, the clearing house is its body, each a task of its own."""
    flow = Flow("transfers")
    orders = flow.read(Generate(ordered(accounts, hops), count=transfers, rate=rate), name="orders")
    arriving = flow.loop("arriving", of=dict)
    under_way = orders.merge(arriving).key_by("account").process(Accounts, name="accounts")
    arriving.feed(under_way.key_by("id").stateful_map(clear(pause_ms / 1000), initial=0, name="clearing"))
    under_way.side("booked").write(Collect(), name="booked")
    under_way.side("balances").key_by(lambda closed: "all").process(Audit, name="audit").write(Print(), name="total")
    return flow


def check(booked: list[dict[str, Any]]) -> int:
    """The total of all balances; raises unless every account has had each of its bookings once, one after the other."""
    books: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for booking in booked:
        books[booking["account"]].append(booking)
    total = 0
    for account, bookings in books.items():
        balance = OPENING
        for number, booking in enumerate(sorted(bookings, key=lambda booking: booking["number"]), start=1):
            balance += booking["change"]
            if (booking["number"], booking["balance"]) != (number, balance):
                raise ValueError(f"account {account}: booking {number} should leave {balance}, and there is {booking}")
        total += balance
    if total != len(books) * OPENING:
        raise ValueError(f"{len(books)} accounts were opened with {OPENING} each, and {total} is left")
    return total


def main() -> None:
    """Runs it with two kills, and adds up."""
    with tempfile.TemporaryDirectory(prefix="transfers-") as folder:
        result = run(flow(), snapshots=folder, every=0.5, actors="task", kills=KILLS)
    total = check(result.outputs["booked"])
    in_loop = ", ".join(str(restore["in_loop_records"]) for restore in result.restores)
    print(f"{len(result.kills)} processes were killed; transfers found in the loop by the restores: {in_loop}")
    print(f"{len(result.outputs['booked']):,} bookings, each once; the total is {total:,}, as it was")
    if result.missed_faults:
        raise SystemExit(f"these kills did not happen: {', '.join(result.missed_faults)}")


if __name__ == "__main__":
    main()

"""Transfers between accounts, written into a real PostgreSQL while either side is killed at random steps."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from backedge import Flow, Items, PostgresTable, run
from backedge.engine.on_ray.supervisor.run_story import Story
from tests.databases.fault_proxy import FaultProxy, Strike, kill_client
from tests.databases.postgres_process import PostgresProcess
from tests.databases.test_databases_page import large_orders
from tests.gates import Gate, Gated
from tests.on_ray.flows import begin, until

ACCOUNTS, STOPS, OPENING, FEE = 20, 4, 1_000, 1
TABLE = """CREATE TABLE bookings
    (id integer, step integer, account integer, change integer, balance integer, PRIMARY KEY (id, step))"""
PREPARED_STEPS = ["COPY", "INSERT INTO", "PREPARE TRANSACTION", "COMMIT PREPARED"]
MARKED_STEPS = ["INSERT INTO", "COPY"]
"""Statements that only tasks execute: the death of the supervisor would end the run."""

OTHER_STEPS = ["BEGIN", "COMMIT"]
"""Statements at which the server may die, whoever executes them."""


def orders(count: int) -> list[dict[str, Any]]:
    return [
        {"id": n, "amount": 10 + n % 90, "route": [(n * 7 + stop * (n % 5 + 1)) % ACCOUNTS for stop in range(STOPS)]}
        for n in range(count)
    ]


def change_at(transfer: dict[str, Any], step: int) -> int:
    """What an account gets at a step of a transfer, less what it pays on."""
    pays = 0 if step == STOPS - 1 else transfer["amount"] - step * FEE
    gets = 0 if step == 0 else transfer["amount"] - (step - 1) * FEE
    return gets - pays


def book(balance: int, transfer: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    balance += change_at(transfer, transfer["step"])
    return balance, {**transfer, "balance": balance}


def transfers(table: PostgresTable, count: int, gate: Gate) -> Flow:
    flow = Flow("transfers")
    moving = flow.loop("moving", of=dict)
    read = flow.read(Gated(Items(orders(count)), gate), name="orders").map(
        lambda order: {**order, "step": 0}, name="start"
    )
    at_account = read.merge(moving).key_by(lambda transfer: transfer["route"][transfer["step"]])
    booked = at_account.stateful_map(book, initial=OPENING, name="accounts")
    onward = booked.filter(lambda transfer: transfer["step"] < STOPS - 1, name="onward")
    moving.feed(onward.map(lambda transfer: {**transfer, "step": transfer["step"] + 1}, name="clearing"))
    rows = booked.map(
        lambda transfer: {
            "id": transfer["id"],
            "step": transfer["step"],
            "account": transfer["route"][transfer["step"]],
            "change": change_at(transfer, transfer["step"]),
            "balance": transfer["balance"],
        },
        name="row",
    )
    rows.rebalance().write(table, name="bookings")
    return flow


@pytest.fixture(scope="module")
def server(own_home_and_temporary_folder: None) -> Iterator[PostgresProcess]:
    process = PostgresProcess()
    yield process
    process.remove()


def expect_all_booked(server: PostgresProcess, count: int) -> None:
    """The table equals the reference: every step of every transfer, and balances that follow from them."""
    found = Counter(server.execute("SELECT id, step, account, change FROM bookings"))
    wanted = Counter(
        (order["id"], step, order["route"][step], change_at(order, step))
        for order in orders(count)
        for step in range(STOPS)
    )
    assert found == wanted
    # Each booking moves the balance of its account: the sequence of balances is a path from the opening to the end.
    for account in range(ACCOUNTS):
        moves = server.execute("SELECT balance - change, balance FROM bookings WHERE account = %s", account)
        degrees = Counter(after for _, after in moves)
        degrees.subtract(Counter(before for before, _ in moves))
        end = OPENING + sum(after - before for before, after in moves)
        open_ends = {balance: degree for balance, degree in degrees.items() if degree}
        assert open_ends == ({} if end == OPENING else {OPENING: -1, end: 1}), account


def strikes(server: PostgresProcess, seed: int, count: int, steps: list[str]) -> list[Strike]:
    """Kills of either side, in turn, at random steps."""
    rng = random.Random(seed)

    def restart(client: int) -> None:
        rng.choice([server.kill, server.shut_down_at_once])()
        server.start()

    sides = [kill_client, restart]
    rng.shuffle(sides)
    found: list[Strike] = []
    for number in range(count):
        side = sides[number % 2]
        # The first one waits for a task: the driver has a look at the table before.
        possible = [*steps, *OTHER_STEPS] if found and side is restart else steps
        found.append(Strike(rng.choice(possible), rng.choice(["before", "after"]), side, rng.randrange(1, 4)))
    return found


def book_under_strikes(
    server: PostgresProcess, folder: Path, seed: int, kills: int, count: int, prepared: bool
) -> None:
    """Some more orders come with each look at the run, until all kills have happened."""
    server.execute("DROP TABLE IF EXISTS bookings")
    server.execute(TABLE)
    planned = strikes(server, seed, kills, PREPARED_STEPS if prepared else MARKED_STEPS)
    with FaultProxy(server.socket) as proxy:
        gate = Gate(folder / "gate")
        flow = transfers(PostgresTable(proxy.dsn, "bookings", prepared=prepared), count, gate)
        for strike in planned:
            proxy.plan(strike)
        job = begin(flow, snapshots=folder / "cuts", every=0.25, parallelism=2, max_restarts=20 * kills)

        def have_happened(_: Story) -> bool:
            gate.let(gate.allowed + 1)
            return proxy.happened == kills

        until(job, have_happened, f"{[(s.statement, s.side, s.has_happened.is_set()) for s in planned]}")
        gate.open()
        assert job.wait().state == "finished"
    expect_all_booked(server, count)
    assert server.prepared() == []


@pytest.mark.usefixtures("on_ray")
def test_the_example_of_the_page_on_databases_runs(tmp_path: Path):
    flow = large_orders(tmp_path / "shop.db")
    run(flow, snapshots=str(tmp_path / "cuts"), progress=False)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        found = connection.execute("SELECT * FROM large_orders ORDER BY id").fetchall()
    assert found == [(n, n * 10) for n in range(10, 30)]


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
@pytest.mark.parametrize("prepared", [True, False])
def test_kills_of_either_side_lose_nothing_and_double_nothing(server: PostgresProcess, tmp_path: Path, prepared: bool):
    book_under_strikes(server, tmp_path, seed=1, kills=2, count=600, prepared=prepared)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("on_ray")
@pytest.mark.parametrize("seed", [1, 2])
def test_ten_kills_of_either_side_lose_nothing_and_double_nothing(server: PostgresProcess, tmp_path: Path, seed: int):
    book_under_strikes(server, tmp_path, seed=seed, kills=10, count=3_000, prepared=True)

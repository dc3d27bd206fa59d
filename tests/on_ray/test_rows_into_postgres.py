"""A table of a real PostgreSQL is written while either side is killed at random steps."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from backedge import Flow, PostgresTable, Range, run
from backedge.engine.on_ray.supervisor.run_story import Story
from tests.databases.fault_proxy import FaultProxy, Strike, kill_client
from tests.databases.postgres_process import PostgresProcess
from tests.databases.test_databases_page import large_orders
from tests.gates import Gate, Gated
from tests.on_ray.flows import begin, until

pytestmark = pytest.mark.usefixtures("on_ray")

COUNT = 2_000
PREPARED_STEPS = ["COPY", "INSERT INTO", "PREPARE TRANSACTION", "COMMIT PREPARED"]
MARKED_STEPS = ["INSERT INTO", "COPY"]
"""Statements that only tasks execute: the death of the supervisor would end the run."""

OTHER_STEPS = ["BEGIN", "COMMIT"]
"""Statements at which the server may die, whoever executes them."""


@pytest.fixture(scope="module")
def server(own_home_and_temporary_folder: None) -> Iterator[PostgresProcess]:
    process = PostgresProcess()
    yield process
    process.remove()


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prepared", "seed", "kills"),
    [(True, 1, 2), (False, 1, 2), *(pytest.param(True, seed, 10, marks=pytest.mark.long) for seed in (1, 2))],
)
def test_kills_of_either_side_lose_nothing_and_double_nothing(
    server: PostgresProcess, tmp_path: Path, prepared: bool, seed: int, kills: int
):
    """Some more rows come with each look at the run, until all kills have happened."""
    server.execute("DROP TABLE IF EXISTS bookings")
    server.execute("CREATE TABLE bookings (id integer)")
    planned, gate = strikes(server, seed, kills, PREPARED_STEPS if prepared else MARKED_STEPS), Gate(tmp_path / "gate")
    with FaultProxy(server.socket) as proxy:
        flow = Flow("bookings")
        rows = flow.read(Gated(Range(COUNT), gate), name="orders").rebalance().map(lambda n: {"id": n}, name="row")
        rows.rebalance().write(PostgresTable(proxy.dsn, "bookings", prepared=prepared), name="bookings")
        for strike in planned:
            proxy.plan(strike)
        job = begin(flow, snapshots=tmp_path / "cuts", every=0.25, parallelism=2, max_restarts=20 * kills)

        def have_happened(_: Story) -> bool:
            gate.let(gate.allowed + 1)
            return proxy.happened == kills

        until(job, have_happened, f"{[(s.statement, s.side, s.has_happened.is_set()) for s in planned]}")
        gate.open()
        assert job.wait().state == "finished"
    assert server.execute("SELECT id FROM bookings ORDER BY id") == [(n,) for n in range(COUNT)]
    assert server.prepared() == []


def test_the_example_of_the_page_on_databases_runs(tmp_path: Path):
    flow = large_orders(tmp_path / "shop.db")
    run(flow, snapshots=str(tmp_path / "cuts"), progress=False)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        found = connection.execute("SELECT * FROM large_orders ORDER BY id").fetchall()
    assert found == [(n, n * 10) for n in range(10, 30)]

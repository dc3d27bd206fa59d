"""The server is killed at each step of the protocol and started again: every row is there once, and nothing is left."""

from __future__ import annotations

from typing import Any

import pytest

from backedge import DatabaseLostError
from tests.databases.fault_proxy import FaultProxy, Strike
from tests.databases.postgres_process import PostgresProcess
from tests.databases.sinks_by_hand import Rolls, Rows, place_in, postgres_rows, records, transaction
from tests.faults.evidence import Evidence
from tests.files.opened import stage

__all__ = ["postgres_rows"]

PREPARED_STEPS = ["BEGIN", "COPY", "INSERT INTO", "PREPARE TRANSACTION", "COMMIT PREPARED", "ROLLBACK PREPARED"]
MARKED_STEPS = ["BEGIN", "INSERT INTO", "COPY", "COMMIT"]
ATTEMPTS_MAX = 4


class Death:
    """Kills a server and starts it again. It is down in between: clients find nobody."""

    def __init__(self, server: PostgresProcess, is_killed: bool) -> None:
        self.server = server
        self.end = server.kill if is_killed else server.shut_down_at_once

    def __call__(self, client: int) -> None:
        self.end()
        self.server.start()


def run_two_cuts(rows: Rows, table: Any, proxy: FaultProxy, strike: Strike) -> int:
    """What a run does whose first cut is complete and whose second one is not, from attempt to attempt."""
    complete: str | None = None
    for attempt in range(1, ATTEMPTS_MAX + 1):
        # An orphan of the attempt before, as one that dies behind its PREPARE leaves it.
        removes = [transaction(epoch, attempt=earlier) for earlier in range(1, attempt) for epoch in (1, 2, 3)]
        try:
            table.roll_back(place_in(rows.folder, attempt=0), Rolls(removes=set(removes) - {complete}))
            writer = table.open_writer(place_in(rows.folder, attempt=attempt))
            if attempt == 1:
                proxy.plan(strike)
            if complete is not None:
                writer.commit(complete)
            else:
                stage(writer, records(1, 2), transaction(1, attempt=attempt))
                complete = transaction(1, attempt=attempt)
                writer.commit(complete)
            writer.write(records(3))
            if attempt == 1:
                writer.prepare(transaction(2))
                raise DatabaseLostError("the process dies, and its second cut is not complete")
            writer.prepare(transaction(3, attempt=attempt))
            writer.commit(transaction(3, attempt=attempt))
            writer.close()
        except DatabaseLostError:
            continue
        return attempt
    raise AssertionError(f"not done after {ATTEMPTS_MAX} attempts")


@pytest.mark.slow
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize(
    ("prepared", "step"), [*((True, step) for step in PREPARED_STEPS), *((False, step) for step in MARKED_STEPS)]
)
def test_a_server_that_is_killed_at_a_step_loses_nothing(
    postgres_rows: Rows, prepared: bool, step: str, side: Any, evidence: Evidence
):
    rows, server = postgres_rows, postgres_rows.server
    starts = server.starts
    strike = Strike(step, side, Death(server, is_killed=side == "after"))
    with FaultProxy(server.socket) as proxy:
        attempt = run_two_cuts(rows, rows.described(dsn=proxy.dsn, prepared=prepared), proxy, strike)
    assert strike.has_happened.is_set() and attempt >= 2
    evidence.happened("servers that were killed at a step", server.starts - starts)
    evidence.same(rows.ids(), [1, 2, 3])
    rows.described(prepared=prepared).roll_back(
        place_in(rows.folder, attempt=0), Rolls(removes=[transaction(2), transaction(2, attempt=2)])
    )
    evidence.survived("servers without a prepared transaction", not server.prepared())

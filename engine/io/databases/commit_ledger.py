"""Which transactions of a run a database holds, written by the transactions themselves.

    backedge_commits    the marker of each transaction: it is visible when its rows are, and a repeated commit finds it
    backedge_attempts   the latest attempt that has opened a sink: a writer of an earlier one commits nothing more

The statements are those that PostgreSQL and SQLite share. `?` stands for a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backedge.engine.batches.columns import Records, as_records
from backedge.engine.io.marked_output import superseded
from backedge.graphs.io import Rollback, SinkPlace

Execute = Callable[[str, Sequence[Any]], list[Any]]
"""Executes a statement with these values, and returns its rows. In the transaction that is open."""

COMMITS, ATTEMPTS = "backedge_commits", "backedge_attempts"

DEFINITIONS = {
    COMMITS: "(run text, sink text, transaction_name text, PRIMARY KEY (run, sink, transaction_name))",
    ATTEMPTS: "(run text, sink text, attempt integer, PRIMARY KEY (run, sink))",
}
"""What the tables are created with."""


def marked_by_hand(commits: str, place: SinkPlace, transactions: Sequence[str]) -> str:
    """How a user marks transactions as committed. `commits` is the table of markers."""
    rows = ((place.run, place.operator, transaction) for transaction in transactions)
    texts = (", ".join("'" + text.replace("'", "''") + "'" for text in row) for row in rows)
    return f"execute INSERT INTO {commits} VALUES {', '.join(f'({row})' for row in texts)}"


class CommitLedger:
    """The markers of one sink, within one transaction of the database.

    `schema` stands before the names of the tables, with its dot. `lock` keeps a row as it is to the transaction's end.
    """

    def __init__(self, execute: Execute, place: SinkPlace, schema: str = "", lock: str = "") -> None:
        self._execute = execute
        self._place = place
        self._commits = schema + COMMITS
        self._attempts = schema + ATTEMPTS
        self._lock = lock

    @property
    def _sink(self) -> tuple[str, str]:
        return self._place.run, self._place.operator

    def enter(self) -> None:
        """A writer of this attempt is open: those of earlier attempts commit nothing from here on."""
        self._execute(
            f"INSERT INTO {self._attempts} AS known VALUES (?, ?, ?) ON CONFLICT (run, sink) "
            "DO UPDATE SET attempt = excluded.attempt WHERE known.attempt < excluded.attempt",
            (*self._sink, self._place.attempt),
        )

    def mark(self, transaction: str) -> bool:
        """Mark a transaction as committed. False: it was before, and nothing is to be written."""
        found = self._column(f"SELECT attempt FROM {self._attempts} WHERE run = ? AND sink = ?{self._lock}")
        if found != [self._place.attempt]:
            raise superseded(self._place, repr(transaction), found[0] if found else None)
        values = (*self._sink, transaction)
        # This waits for another session that has inserted it and not yet committed.
        return bool(
            self._execute(f"INSERT INTO {self._commits} VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING 1", values)
        )

    def unmarked(self, written: Mapping[str, Records]) -> list[dict[str, Any]]:
        """Mark transactions; return the records of those that were not marked before."""
        return [record for name, records in written.items() if self.mark(name) for record in as_records(records)]

    def holds(self, transaction: str) -> bool:
        found = self._execute(
            f"SELECT 1 FROM {self._commits} WHERE run = ? AND sink = ? AND transaction_name = ?",
            (*self._sink, transaction),
        )
        return bool(found)

    def forget(self, rollback: Rollback) -> None:
        """Remove the markers that no restore will ask for; with the last one of a run that is over, its attempt."""
        names = self._column(f"SELECT transaction_name FROM {self._commits} WHERE run = ? AND sink = ?")
        dead = [name for name in names if rollback.forgets(name)]
        for name in dead:
            self._execute(
                f"DELETE FROM {self._commits} WHERE run = ? AND sink = ? AND transaction_name = ?", (*self._sink, name)
            )
        if rollback.is_over and len(dead) == len(names):
            for attempt in self._column(f"SELECT attempt FROM {self._attempts} WHERE run = ? AND sink = ?"):
                if rollback.removes_open(attempt):
                    self._execute(
                        f"DELETE FROM {self._attempts} WHERE run = ? AND sink = ? AND attempt = ?",
                        (*self._sink, attempt),
                    )

    def _column(self, query: str) -> list[Any]:
        return [value for (value,) in self._execute(query, self._sink)]

"""Prepared transactions of PostgreSQL: what each step leaves behind, and that a lost reply changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from backedge import DatabaseError, DatabaseLostError, FencedError, UnknownTransactionError, UnwritableRecordError
from backedge.engine.io.databases import prepared_writer
from backedge.engine.io.databases.prepared_writer import GID_BYTES_MAX, GlobalIds
from tests.databases.fault_proxy import FaultProxy, Strike
from tests.databases.sinks_by_hand import SINK, Rolls, Rows, place_in, postgres_rows, records, transaction
from tests.faults.evidence import Evidence
from tests.files.opened import stage

__all__ = ["postgres_rows"]


def gid(epoch: int, *, task: int = 0, attempt: int = 1, run: str = "5f3a") -> str:
    return f"backedge/transfers/{run}/{transaction(epoch, task=task, attempt=attempt)}"


def prepare(writer: Any, epoch: int, *ids: int, task: int = 0, attempt: int = 1) -> None:
    stage(writer, records(*ids), transaction(epoch, task=task, attempt=attempt))


@pytest.fixture
def writer(postgres_rows: Rows) -> Any:
    return postgres_rows.writer(prepared=True)


def test_rows_are_prepared_then_committed(postgres_rows: Rows, writer: Any):
    rows, server = postgres_rows, postgres_rows.server
    writer.write(records(1, 2))
    assert server.prepared() == []
    assert writer.prepare(transaction(1))
    assert (rows.ids(), rows.markers(), server.prepared()) == ([], [], [gid(1)])
    writer.commit(transaction(1))
    assert (rows.ids(), rows.markers(), server.prepared()) == ([1, 2], [transaction(1)], [])
    assert not writer.prepare(transaction(2)), "nothing was written since"


def test_rows_of_many_batches_are_sent_together(postgres_rows: Rows, writer: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prepared_writer, "ROWS_MAX", 10)
    for number in range(25):
        writer.write(records(number))
    assert writer.prepare(transaction(1))
    writer.commit(transaction(1))
    assert postgres_rows.ids() == list(range(25))


def test_the_first_task_that_is_asked_commits_the_epoch_of_all_tasks(postgres_rows: Rows, writer: Any):
    server = postgres_rows.server
    other = postgres_rows.writer(prepared=True, task=1)
    prepare(other, 2, 1, task=1)  # its epoch was aborted: the next complete cut lists it
    prepare(other, 3, 2, task=1)
    prepare(writer, 3, 3)
    prepare(other, 4, 4, task=1)
    prepare(other, 0, 5, task=1)
    writer.commit(transaction(3))
    assert postgres_rows.ids() == [1, 2, 3]
    assert server.prepared() == sorted([gid(4, task=1), gid(0, task=1)]), "a later cut lists these"
    for epoch in (2, 3, 0):
        other.commit(transaction(epoch, task=1))
    assert postgres_rows.ids() == [1, 2, 3, 5] and server.prepared() == [gid(4, task=1)]


def test_what_was_never_prepared_is_lost_and_says_so(writer: Any):
    told = r"neither prepared as 'backedge/transfers/5f3a/booked\.0\..*another database or table before; resume"
    with pytest.raises(UnknownTransactionError, match=told):
        writer.commit(transaction(7))


@pytest.mark.parametrize("is_open", [False, True])
def test_a_task_of_an_earlier_attempt_prepares_nothing_more_and_locks_nothing(
    postgres_rows: Rows, writer: Any, is_open: bool
):
    writer.write(records(1))
    if is_open:
        writer._send()
    later = postgres_rows.writer(prepared=True, attempt=2)
    with pytest.raises(DatabaseLostError if is_open else FencedError):
        writer.prepare(transaction(1))
    prepare(later, 1, 1, attempt=2)
    later.commit(transaction(1, attempt=2))
    assert postgres_rows.ids() == [1]


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("statement", ["COMMIT PREPARED", "PREPARE TRANSACTION"])
def test_a_step_whose_reply_is_lost_has_happened_or_not(
    postgres_rows: Rows, statement: str, side: Any, evidence: Evidence
):
    rows, server = postgres_rows, postgres_rows.server
    seen: list[list[str]] = []
    strike = Strike(statement, side, lambda client: seen.append(server.prepared()))
    with FaultProxy(server.socket, strike) as proxy:
        writer = rows.writer(dsn=proxy.dsn, prepared=True)
        writer.write(records(1, 2))
        if (statement, side) == ("PREPARE TRANSACTION", "before"):
            with pytest.raises(DatabaseLostError, match="'booked'"):
                writer.prepare(transaction(1))
            writer.close()
            evidence.happened(f"{statement} that did not arrive", strike.has_happened.is_set())
            evidence.survived("servers without a prepared transaction", not server.prepared())
            return
        assert writer.prepare(transaction(1))
        writer.commit(transaction(1))
        writer.close()
    what = "that did not arrive" if side == "before" else "whose reply was lost"
    evidence.happened(f"{statement} {what}", strike.has_happened.is_set())
    is_prepared = (statement, side) != ("COMMIT PREPARED", "after")
    assert seen == [[gid(1)] if is_prepared else []]
    assert server.prepared() == []
    evidence.same(rows.ids(), [1, 2])


@pytest.mark.parametrize("by_the_server", [True, False])
def test_what_was_open_when_the_connection_broke_is_not_prepared_or_continued_on_another(
    postgres_rows: Rows, writer: Any, by_the_server: bool
):
    writer.write(records(1))
    writer._send()
    if by_the_server:
        postgres_rows.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'backedge %' "
            "AND state = 'idle in transaction'"
        )
    else:
        writer._open.close()
    writer.write(records(2))
    for _ in range(2):
        with pytest.raises(DatabaseLostError):
            writer.prepare(transaction(1))
    assert postgres_rows.server.prepared() == postgres_rows.ids() == []


def test_a_row_that_the_table_refuses_is_found_before_the_cut(postgres_rows: Rows, writer: Any):
    writer.write([{"id": 1}, {"id": "one"}])
    with pytest.raises(UnwritableRecordError, match=r"integer") as failed:
        writer.prepare(transaction(1))
    assert "record: {'id': 'one'}" in str(failed.value)


def test_a_key_that_is_prepared_already_is_refused_and_waited_for_no_longer_than_a_moment(
    postgres_rows: Rows, writer: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(prepared_writer, "LOCK_TIMEOUT", "50ms")
    prepare(writer, 1, 1)
    writer.write(records(1))
    with pytest.raises(DatabaseError, match=rf"'{gid(1)}'.*key="):
        writer.prepare(transaction(2))


def test_a_row_that_an_orphan_has_prepared_is_written_by_the_next_attempt(
    postgres_rows: Rows, writer: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(prepared_writer, "LOCK_TIMEOUT", "50ms")
    prepare(writer, 1, 1)
    later = postgres_rows.writer(prepared=True, attempt=2)
    later.write(records(1))
    with pytest.raises(DatabaseLostError, match="'booked'"):
        later.prepare(transaction(1, attempt=2))
    table = postgres_rows.described(prepared=True)
    table.roll_back(place_in(postgres_rows.folder, attempt=0), Rolls(removes=[transaction(1)]))
    latest = postgres_rows.writer(prepared=True, attempt=3)
    prepare(latest, 1, 1, attempt=3)
    latest.commit(transaction(1, attempt=3))
    assert postgres_rows.ids() == [1]


def test_ids_are_short_enough_whatever_the_names_are():
    for name in ("booked", "x" * 150, "ü" * 90):
        ids = GlobalIds(name, "5f3a" * 8, name)
        transaction = f"{name}.1234.attempt-123456.epoch-123456789"
        found = ids.of(transaction)
        assert len(found.encode()) <= GID_BYTES_MAX
        assert ids.transaction(found) == transaction
    assert GlobalIds("a", "b", SINK).transaction(GlobalIds("a", "c", SINK).of(transaction)) is None

"""What sources and sinks have counted: a record more or less than positions and transactions say is found."""

from __future__ import annotations

import pickle

import pytest
from msgspec.structs import replace

from backedge.engine.simulation.checker import check_protocol
from backedge.engine.simulation.counts import COUNTED, check_counts
from backedge.engine.simulation.record import Record
from backedge.graphs.ids import Epoch, TaskId
from backedge.recovery.cut import OperatorState, Transaction
from proof.runner import run_seed
from tests.simulation.handmade import DOWN, FIRST, IN, TRANSACTION, good_record, state_of, with_states

LAST = Epoch(3)


def told(task: TaskId, states: dict[str, OperatorState]) -> list[str]:
    """What is said of the last cut with these states in it, against the others."""
    record = good_record()
    cut = with_states(record.cuts[LAST], task, states)
    return [violation.story for violation in check_counts(record, cut, [record.cuts[Epoch(1)], record.cuts[Epoch(2)]])]


def at_end(transaction: Transaction, records: int) -> dict[str, OperatorState]:
    return {"down": state_of(6), "out": OperatorState(transactions=(transaction,), records=records)}


def test_a_good_run_counts_right():
    record = good_record()
    assert not [violation for violation in check_protocol(record) if violation.statement == COUNTED]
    assert told(DOWN, at_end(Transaction(TRANSACTION, Epoch(0), FIRST, 1), 1)) == []


@pytest.mark.parametrize(("position", "records"), [(0, 1), (1, 0), (2, 1)])
def test_a_source_that_sent_something_else_than_it_read_is_found(position: int, records: int):
    states = {"in": OperatorState(splits={"0-of-1": pickle.dumps(position)}, records=records)}
    assert told(IN, states) == [f"source 'in' has sent {records} records, and read {position}"]


def test_positions_that_count_bytes_are_not_taken_for_records():
    assert told(IN, {"in": OperatorState(splits={"orders.jsonl": pickle.dumps(4_096)}, records=1)}) == []


@pytest.mark.parametrize(("written", "held"), [(2, 1), (1, 2), (1, 0)])
def test_a_sink_that_wrote_something_else_than_its_transactions_hold_is_found(written: int, held: int):
    found = told(DOWN, at_end(Transaction(TRANSACTION, Epoch(0), FIRST, held), written))
    assert found == [f"sink 'out' has written {written} records, and its transactions hold {held}"]


def test_a_transaction_that_two_epochs_share_is_found():
    record = good_record()
    transaction = Transaction(TRANSACTION, Epoch(0), FIRST, 1)
    for epoch, of in ((Epoch(2), replace(transaction, epoch=Epoch(2))), (LAST, transaction)):
        record.cuts[epoch] = with_states(record.cuts[epoch], DOWN, {"down": state_of(5), **at_end(of, 1)})
    assert any("which another cut lists as" in v.story for v in check_protocol(record) if v.statement == COUNTED)


def test_a_transaction_that_holds_something_else_than_is_said_is_found():
    record: Record = good_record()
    record.committed = {TRANSACTION: ("out", [0, 0])}
    (found,) = [violation for violation in check_protocol(record) if violation.statement == COUNTED]
    assert found.story == f"transaction {TRANSACTION!r} holds 2 records, not 1"


@pytest.mark.slow
def test_a_source_that_skips_a_record_is_found_by_what_it_has_counted():
    broken = [run_seed(seed, 3, "source-skips-a-record")[0] for seed in range(20)]
    found = {violation.statement for outcome in broken for violation in outcome.violations}
    assert COUNTED in found

"""Output, kept values and conserved quantities: nothing lost, nothing doubled, nothing published too early."""

from __future__ import annotations

import pickle
from typing import Any

from msgspec.structs import replace

from backedge.engine.simulation.checker import ALL, check, check_protocol
from backedge.engine.simulation.output_checks import CONSERVED, KEPT, LISTED, OUTPUT, check_conservation, check_output
from backedge.engine.simulation.plain import reference
from backedge.engine.simulation.record import Committed, Completed, Conserved, Record, Violation
from backedge.graphs.ids import Epoch
from backedge.recovery.cut import OperatorState, Transaction
from backedge.recovery.rounds import Phase, RoundsSnapshot
from tests.simulation.handmade import (
    BACK,
    DOWN,
    FIRST,
    IN,
    TRANSACTION,
    batch,
    good_record,
    input_of,
    moved,
    state_of,
    with_input,
    with_snapshot,
    with_states,
)

ONE_EACH = Conserved(of_record=lambda number: 1, of_state=lambda operator, key, value: 0)
"""What the hand-made flow conserves: a record goes round and leaves, it is always one."""


def output(record: Record) -> list[Violation]:
    return list(check_output(record, reference(record.plan, record.inputs)))


def conserved(record: Record, epoch: int, *previous: int) -> list[Violation]:
    lineage = [record.cuts[Epoch(earlier)] for earlier in previous]
    return list(check_conservation(record, record.cuts[Epoch(epoch)], lineage, ONE_EACH))


def unfinished(committed: dict[str, tuple[str, list[Any]]]) -> Record:
    record = good_record()
    record.finished = False
    record.committed = committed
    return record


# -- transactions ------------------------------------------------------------------------------------------------


def test_output_that_no_cut_lists_is_found() -> None:
    record = good_record()
    record.committed = {TRANSACTION: ("out", [0]), "out.0.attempt-1.epoch-2": ("out", [])}
    assert {violation.statement for violation in check_protocol(record)} == {LISTED}


def test_a_transaction_of_another_sink_is_found() -> None:
    record = good_record()
    record.committed = {TRANSACTION: ("elsewhere", [0])}
    assert LISTED in {violation.statement for violation in check_protocol(record)}
    record = good_record()
    two = OperatorState(transactions=(Transaction(TRANSACTION, Epoch(0), FIRST, 1),))
    record.cuts[Epoch(3)] = with_states(
        record.cuts[Epoch(3)], DOWN, {"down": replace(state_of(6), transactions=two.transactions)}
    )
    assert LISTED in {violation.statement for violation in check_protocol(record)}


def test_output_published_before_its_cut_is_complete_is_found() -> None:
    record = moved(good_record(), Committed(FIRST, DOWN, (TRANSACTION,)), before=Completed(FIRST, Epoch(3)))
    found = check_protocol(record)
    assert [violation.statement for violation in found] == [LISTED]
    assert "before a cut that lists them was complete" in found[0].story


def test_publishing_a_second_time_does_no_harm() -> None:
    record = good_record()
    record.trace.append(Committed(FIRST, DOWN, (TRANSACTION,)))
    assert check(record) == []


# -- output and kept values --------------------------------------------------------------------------------------


def test_lost_and_doubled_output_is_found() -> None:
    record = good_record()
    record.committed = {TRANSACTION: ("out", [])}
    assert [violation.statement for violation in output(record)] == [OUTPUT]
    record.committed = {TRANSACTION: ("out", [0, 0])}
    found = output(record)
    assert [violation.statement for violation in found] == [OUTPUT]
    assert "surplus records: 1 x 0" in found[0].story


def test_a_run_that_goes_on_may_lack_output_and_may_not_have_too_much() -> None:
    assert output(unfinished({})) == []
    assert output(unfinished({TRANSACTION: ("out", [0])})) == []
    assert [violation.statement for violation in output(unfinished({TRANSACTION: ("out", [1])}))] == [OUTPUT]


def test_values_that_are_not_those_of_the_plain_interpreter_are_found_at_the_end() -> None:
    record = good_record()
    record.cuts[Epoch(3)] = with_states(record.cuts[Epoch(3)], DOWN, {"down": state_of(7)})
    assert [violation.statement for violation in output(record)] == [KEPT]
    record.finished = False
    assert output(record) == []


def test_a_run_that_finishes_with_a_cut_in_the_middle_is_found() -> None:
    record = good_record()
    del record.cuts[Epoch(3)]
    assert [violation.statement for violation in output(record)] == [KEPT]


# -- conservation ------------------------------------------------------------------------------------------------


def test_every_good_cut_accounts_for_every_record() -> None:
    record = good_record()
    assert conserved(record, 1) == conserved(record, 2, 1) == conserved(record, 3, 1, 2) == []
    record.conserved = ONE_EACH
    assert check(record, theorems=ALL) == []


def test_a_record_that_is_nowhere_in_a_cut_is_found() -> None:
    record = good_record()
    cut = record.cuts[Epoch(1)]
    record.cuts[Epoch(1)] = with_input(cut, replace(input_of(cut, BACK), log=()))
    found = conserved(record, 1)
    assert [violation.statement for violation in found] == [CONSERVED]
    assert "0 in all, of 1" in found[0].story


def test_what_is_not_yet_read_waits_or_is_set_aside_counts() -> None:
    record = good_record()
    cut = record.cuts[Epoch(1)]
    emptied = with_input(cut, replace(input_of(cut, BACK), log=()))
    unread = OperatorState(splits={"0-of-1": pickle.dumps(0)})
    record.cuts[Epoch(1)] = with_states(emptied, IN, {"in": unread})
    assert conserved(record, 1) == []
    waiting = replace(state_of(3), pending=(pickle.dumps((2, 1), 5),))
    record.cuts[Epoch(1)] = with_states(emptied, DOWN, {"down": waiting})
    assert conserved(record, 1) == []
    rounds = RoundsSnapshot((0,), Phase.ROUND, (), {}, {BACK: (batch(2, hops=1),)}, {}, {}, False)
    record.cuts[Epoch(1)] = with_snapshot(emptied, replace(emptied.snapshots[DOWN], rounds=rounds))
    assert conserved(record, 1) == []


def test_output_counts_from_the_cut_that_lists_it_on() -> None:
    record = good_record()
    record.committed = {}
    found = conserved(record, 3)
    assert "does not exist" in found[0].story
    record.prepared = {TRANSACTION: ("out", [0])}
    assert conserved(record, 3) == []

"""The theorem, on a run written by hand: true of it, and false for each thing that a wrong cut or a wrong run does."""

from __future__ import annotations

import pickle

from msgspec.structs import replace

from backedge.engine.simulation.record import Captured, Ran, Record, Sent, Took, Violation
from backedge.engine.simulation.theorem import CHANNELS, LEGAL, PLAIN, PREPARED, STATE, check_theorem
from backedge.engine.simulation.trail import walk
from backedge.graphs.ids import Epoch
from backedge.graphs.routing import key_group
from backedge.recovery.cut import OperatorState, Transaction
from tests.simulation.handmade import (
    BACK,
    DOWN,
    FIRST,
    IN,
    ONE,
    RESTORED,
    SECOND,
    TRANSACTION,
    TWO,
    batch,
    good_record,
    input_of,
    log,
    moved,
    place_of,
    restored_record,
    state_of,
    with_input,
    with_states,
    without,
)


def theorem(record: Record, epoch: int) -> list[Violation]:
    cut = record.cuts[Epoch(epoch)]
    return check_theorem(record, walk(record)[cut.attempt], cut)


def statements(record: Record, epoch: int) -> list[str]:
    return [violation.statement for violation in theorem(record, epoch)]


def test_the_theorem_holds_of_every_good_cut() -> None:
    assert [theorem(good_record(), epoch) for epoch in (1, 2, 3)] == [[], [], []]
    assert theorem(restored_record(0), 2) == []
    assert theorem(restored_record(1), 2) == []


def test_it_holds_when_the_tasks_capture_far_apart() -> None:
    """The source captures at once, and again after everything else: the run in between is moved, and is legal."""
    record = moved(good_record(), Captured(FIRST, IN, Epoch(2)), before=Captured(FIRST, IN, None))
    assert theorem(record, 2) == []


def test_a_changed_value_is_found() -> None:
    record = good_record()
    record.cuts[Epoch(2)] = with_states(record.cuts[Epoch(2)], DOWN, {"down": state_of(6)})
    found = theorem(record, 2)
    assert [violation.statement for violation in found] == [STATE]
    assert "values are {'all': 6} in the cut, {'all': 5} in the run" in found[0].story


def test_a_forgotten_key_and_a_key_filed_under_another_group_are_found() -> None:
    record = good_record()
    record.cuts[Epoch(2)] = with_states(record.cuts[Epoch(2)], DOWN, {"down": OperatorState()})
    assert statements(record, 2) == [STATE]
    misfiled = OperatorState(groups={key_group("all") ^ 1: pickle.dumps(("all", 5), 5)})
    record.cuts[Epoch(2)] = with_states(record.cuts[Epoch(2)], DOWN, {"down": misfiled})
    found = theorem(record, 2)
    assert "filed under other groups" in found[0].story


def test_a_timer_and_a_waiting_record_that_nobody_has_are_found() -> None:
    for wrong in (
        OperatorState(groups={key_group("all"): pickle.dumps(("all", 5), 5) + pickle.dumps(("all", 10, 0), 5)}),
        replace(state_of(5), pending=(pickle.dumps((1, 0), 5),)),
    ):
        record = good_record()
        record.cuts[Epoch(2)] = with_states(record.cuts[Epoch(2)], DOWN, {"down": wrong})
        assert statements(record, 2) == [STATE]


def test_a_source_position_that_is_not_what_was_read_is_found() -> None:
    record = good_record()
    behind = OperatorState(splits={"0-of-1": pickle.dumps(0)})
    record.cuts[Epoch(2)] = with_states(record.cuts[Epoch(2)], IN, {"in": behind})
    assert statements(record, 2) == [STATE]


def test_a_batch_that_is_in_no_state_and_in_no_log_is_found() -> None:
    """What the blocking variant does: the token is nowhere."""
    record = good_record()
    cut = record.cuts[Epoch(1)]
    record.cuts[Epoch(1)] = with_input(cut, replace(input_of(cut, BACK), log=()))
    assert statements(record, 1) == [CHANNELS]


def test_a_batch_that_is_in_the_state_and_in_the_log_is_found() -> None:
    """The token twice: the log holds what was processed before the capture."""
    record = good_record()
    cut = record.cuts[Epoch(2)]
    record.cuts[Epoch(2)] = with_input(cut, replace(input_of(cut, BACK), log=log([TWO, ONE], 1)))
    assert statements(record, 2) == [CHANNELS]


def test_a_capture_behind_what_it_should_have_come_before_is_illegal() -> None:
    """The receiver captured after a batch that its sender sent after its own capture: moved, it is taken too early."""
    record = moved(good_record(), Captured(FIRST, IN, Epoch(1)), before=Ran(FIRST, IN, "produce", detail=5))
    found = theorem(record, 1)
    assert [violation.statement for violation in found] == [LEGAL]
    assert "batch 1 is taken when nothing is in the channel" in found[0].story


def test_user_code_that_sends_something_else_is_found() -> None:
    for wrong in (batch(9), batch(1, hops=1), batch(1, 1)):
        record = good_record()
        record.trace[place_of(record, Sent(FIRST, DOWN, BACK, 2, ONE))] = Sent(FIRST, DOWN, BACK, 2, wrong)
        assert statements(record, 1) == [PLAIN]


def test_user_code_that_sees_another_batch_than_was_sent_is_found() -> None:
    record = good_record()
    place = place_of(record, Ran(FIRST, DOWN, "batch", BACK, TWO))
    record.trace[place] = Ran(FIRST, DOWN, "batch", BACK, batch(2, 2))
    assert statements(record, 2) == [LEGAL]


def test_a_batch_that_is_taken_and_never_processed_is_found() -> None:
    record = without(
        good_record(),
        Ran(FIRST, DOWN, "batch", BACK, TWO),
        Sent(FIRST, DOWN, BACK, 2, ONE),
        Took(FIRST, DOWN, BACK, 2),
        Ran(FIRST, DOWN, "batch", BACK, ONE),
    )
    record.cuts[Epoch(2)] = with_states(record.cuts[Epoch(2)], DOWN, {"down": state_of(3)})
    found = theorem(record, 2)
    assert [violation.statement for violation in found] == [STATE]
    assert "taken and not passed on" in found[0].story


def test_a_damaged_batch_behind_a_right_cut_is_no_fault_of_the_cut_if_the_attempt_was_given_up() -> None:
    record = restored_record(0)
    place = place_of(record, Captured(FIRST, DOWN, Epoch(1))) + 1
    record.trace[place:place] = [
        Took(FIRST, DOWN, BACK, 1),
        Ran(FIRST, DOWN, "batch", BACK, batch(7)),
        Sent(FIRST, DOWN, BACK, 2, batch(6)),
    ]
    assert theorem(record, 1) == []
    record.trace = [event for event in record.trace if event.attempt == FIRST]
    del record.deployments[SECOND]
    assert statements(record, 1) == [LEGAL]


def test_a_replay_that_leaves_out_the_restored_log_is_found() -> None:
    record = restored_record(1)
    record.trace = [event for event in record.trace if not (isinstance(event, Took) and event.channel == RESTORED)]
    assert statements(record, 2) == [LEGAL]


def test_a_transaction_that_holds_more_or_less_than_the_output_up_to_its_capture_is_found() -> None:
    for stored in ({TRANSACTION: ("out", [0, 0])}, {TRANSACTION: ("out", [])}, {}):
        record = good_record()
        record.committed = stored
        assert statements(record, 3) == [PREPARED]


def test_output_that_no_transaction_holds_is_found() -> None:
    record = good_record()
    record.cuts[Epoch(3)] = with_states(record.cuts[Epoch(3)], DOWN, {"out": OperatorState()})
    found = theorem(record, 3)
    assert [violation.statement for violation in found] == [PREPARED]
    early = OperatorState(transactions=(Transaction(TRANSACTION, Epoch(2), FIRST),))
    record = good_record()
    record.cuts[Epoch(2)] = with_states(record.cuts[Epoch(2)], DOWN, {"out": early})
    assert statements(record, 2) == [PREPARED]

"""Traces that no protocol may leave, and cuts that their traces do not bear out."""

from __future__ import annotations

from msgspec.structs import replace

from backedge.engine.simulation.checker import check, check_protocol
from backedge.engine.simulation.cut_checks import LOGGED, ONCE
from backedge.engine.simulation.record import (
    Aborted,
    Barriered,
    Captured,
    Completed,
    EndSent,
    Event,
    Record,
    Sent,
    Took,
)
from backedge.engine.simulation.trail import BARRIERS, COUNTS, ENDED, GIVEN_UP, NUMBERED, OUTLIVED, lineage, walk
from backedge.graphs.ids import Epoch
from backedge.recovery.messages import Mode
from tests.simulation.handmade import (
    BACK,
    DOWN,
    ENTRY,
    FIRST,
    IN,
    ONE,
    SECOND,
    TWO,
    batch,
    good_record,
    input_of,
    log,
    moved,
    place_of,
    restored_record,
    with_input,
    without,
)


def statements(record: Record) -> set[str]:
    return {violation.statement for violation in check_protocol(record)}


def inserted(before: Event, *events: Event) -> Record:
    """The good run with these events in front of that one."""
    record = good_record()
    place = place_of(record, before)
    record.trace[place:place] = events
    return record


def test_a_good_run_has_no_fault() -> None:
    assert check(good_record()) == []
    assert check(restored_record(0)) == []
    assert check(restored_record(1)) == []


def test_an_epoch_that_was_over_before_the_attempt_began_is_found() -> None:
    record = restored_record(1)
    record.trace.insert(place_of(record, Captured(SECOND, DOWN, Epoch(2))), Captured(SECOND, DOWN, Epoch(1)))
    assert OUTLIVED in statements(record)


def test_a_batch_taken_twice_or_before_it_was_sent_is_found() -> None:
    record = inserted(Captured(FIRST, IN, None), Took(FIRST, DOWN, BACK, 2))
    assert statements(record) == {NUMBERED}
    record = inserted(Sent(FIRST, IN, ENTRY, 1, batch(3)), Took(FIRST, DOWN, ENTRY, 1))
    assert NUMBERED in statements(record)


def test_a_gap_in_the_numbers_and_a_batch_after_end_are_found() -> None:
    record = good_record()
    place = place_of(record, Sent(FIRST, DOWN, BACK, 2, ONE))
    record.trace[place] = Sent(FIRST, DOWN, BACK, 3, ONE)
    assert NUMBERED in statements(record)
    assert statements(inserted(Captured(FIRST, DOWN, None), EndSent(FIRST, DOWN, BACK))) == {ENDED}
    assert ENDED in statements(inserted(Captured(FIRST, DOWN, None), Sent(FIRST, DOWN, BACK, 3, ONE)))


def test_a_second_barrier_of_an_epoch_and_one_of_an_earlier_epoch_are_found() -> None:
    for epoch in (1, 2):
        again = Barriered(FIRST, IN, ENTRY, Epoch(epoch), Mode.ALIGNED)
        record = inserted(EndSent(FIRST, IN, ENTRY), again)
        assert statements(record) == {BARRIERS}
    probe = Barriered(FIRST, IN, ENTRY, Epoch(1), Mode.PROBE)
    assert statements(inserted(EndSent(FIRST, IN, ENTRY), probe)) == set()


def test_an_epoch_that_completes_after_it_was_given_up_is_found() -> None:
    assert statements(inserted(Completed(FIRST, Epoch(2)), Aborted(FIRST, Epoch(2)))) == {GIVEN_UP}
    assert statements(inserted(Completed(FIRST, Epoch(2)), Aborted(FIRST, Epoch(1)))) == set()


def test_a_snapshot_that_nobody_captured_is_found() -> None:
    record = without(good_record(), Captured(FIRST, DOWN, Epoch(2)))
    assert statements(record) == {ONCE}


def test_a_last_state_in_place_of_a_snapshot_is_found() -> None:
    """A task that captured the epoch and ended before it could say so: its last state is of a later moment."""
    record = good_record()
    record.cuts[Epoch(2)] = replace(
        record.cuts[Epoch(2)],
        snapshots={**record.cuts[Epoch(2)].snapshots, DOWN: record.cuts[Epoch(3)].snapshots[DOWN]},
    )
    assert statements(record) == {ONCE}


def test_counts_that_are_not_those_of_the_trace_are_found() -> None:
    record = moved(good_record(), Captured(FIRST, DOWN, Epoch(2)), before=Took(FIRST, DOWN, BACK, 1))
    assert COUNTS in statements(record)


def test_a_log_that_holds_other_bytes_than_were_sent_is_found_without_its_digests() -> None:
    record = good_record()
    forged = batch(2, hops=1)
    sent = place_of(record, Sent(FIRST, DOWN, BACK, 1, TWO))
    record.trace[sent] = Sent(FIRST, DOWN, BACK, 1, forged)
    assert LOGGED in statements(record)


def test_a_restored_log_is_held_against_what_was_restored() -> None:
    record = restored_record(0)
    cut = record.cuts[Epoch(2)]
    restored = BACK._replace(restored=True)
    record.cuts[Epoch(2)] = with_input(cut, replace(input_of(cut, restored), log=log([ONE], 1)))
    assert LOGGED in statements(record)


def test_the_lineage_of_a_cut_leads_through_what_its_attempt_was_restored_from() -> None:
    record = good_record()
    assert [cut.epoch for cut in lineage(record.cuts[Epoch(3)], record.cuts, walk(record))] == [1, 2]
    record = restored_record(0)
    assert [cut.attempt for cut in lineage(record.cuts[Epoch(2)], record.cuts, walk(record))] == [FIRST]

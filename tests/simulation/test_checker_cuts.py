"""Each statement about a cut is shown to hold of a good one, and to fail for the right reason."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backedge.engine.simulation.cut_checks import COVERED, EMPTY, LOGGED, ONCE, ONWARD, RECEIVED, check_cover, check_cut
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.plan import Edge
from backedge.recovery.cut import Cut, LogEntry, OperatorState
from tests.simulation.handmade import (
    BACK,
    DEPLOYMENT,
    DOWN,
    ENTRY,
    IN,
    ONE,
    PLAN,
    RESTORED,
    TWO,
    batch,
    cut_of,
    digest,
    good_cuts,
    input_of,
    log,
    loop_snapshot,
    restored_record,
    source_snapshot,
    with_input,
    with_snapshot,
    with_states,
)


def statements(cut: Cut, *previous: Cut) -> set[str]:
    return {violation.statement for violation in check_cut(cut, DEPLOYMENT, previous)}


def two_logged() -> Cut:
    """A cut that found two batches in the loop."""
    return cut_of(1, source_snapshot(1), loop_snapshot(1, 3, 0, [TWO, ONE]))


def with_log(*entries: LogEntry) -> Cut:
    cut = two_logged()
    return with_input(cut, replace(input_of(cut, BACK), log=entries))


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_a_good_cut_has_no_fault(epoch: int) -> None:
    cuts = good_cuts()
    previous = [cuts[Epoch(earlier)] for earlier in range(1, epoch)]
    assert check_cut(cuts[Epoch(epoch)], DEPLOYMENT, previous) == []
    assert check_cut(two_logged(), DEPLOYMENT) == []


# -- 1, 2, 3 -----------------------------------------------------------------------------------------------------


def test_more_consumed_than_sent_is_found() -> None:
    cut = two_logged()
    assert statements(with_input(cut, replace(input_of(cut, BACK), consumed=3, log=()))) == {RECEIVED}


def test_a_count_shifted_by_one_is_found() -> None:
    cut = two_logged()
    assert statements(with_input(cut, replace(input_of(cut, BACK), consumed=1))) == {LOGGED}


def test_a_dropped_log_entry_is_found_at_every_place() -> None:
    first, second = log([TWO, ONE], 1)
    assert statements(with_log(first)) == {LOGGED}
    assert statements(with_log(second)) == {LOGGED}
    assert statements(with_log()) == {LOGGED}


def test_a_doubled_log_entry_is_found() -> None:
    first, second = log([TWO, ONE], 1)
    assert statements(with_log(first, first, second)) == {LOGGED}
    assert statements(with_log(first, second, second._replace(seq=3))) == {LOGGED}


def test_swapped_log_entries_are_found_even_when_they_are_numbered_anew() -> None:
    first, second = log([TWO, ONE], 1)
    assert statements(with_log(second, first)) == {LOGGED}
    assert statements(with_log(second._replace(seq=1), first._replace(seq=2))) == {LOGGED}


def test_an_edited_log_entry_is_found_even_when_its_own_digests_fit() -> None:
    first, second = log([TWO, ONE], 1)
    forged = batch(1, hops=1)
    assert statements(with_log(first, second._replace(payload=forged))) == {LOGGED}
    fitting = second._replace(payload=forged, digest_after=digest(TWO, forged))
    found = check_cut(with_log(first, fitting), DEPLOYMENT)
    assert [violation.statement for violation in found] == [LOGGED]
    assert "what was sent has" in found[0].story


def test_a_broken_link_between_two_entries_is_found() -> None:
    first, second = log([TWO, ONE], 1)
    assert statements(with_log(first, second._replace(digest_before=7))) == {LOGGED}


def test_a_channel_within_an_actor_is_counted_and_has_no_digest() -> None:
    within = expand(PLAN, 1)
    assert within.channels[BACK].within_actor
    cut = two_logged()
    plain = tuple(entry._replace(digest_before=0, digest_after=0) for entry in input_of(cut, BACK).log)
    assert check_cut(with_input(cut, replace(input_of(cut, BACK), log=plain)), within) == []
    found = check_cut(with_input(cut, replace(input_of(cut, BACK), log=plain[1:])), within)
    assert {violation.statement for violation in found} == {LOGGED}


def test_a_regular_channel_that_is_not_empty_is_found_under_aligned_and_is_right_under_unaligned() -> None:
    cut = two_logged()
    entry = replace(input_of(cut, ENTRY), consumed=0, digest=0, log=log([batch(3)], 1))
    assert statements(with_input(cut, entry)) == {EMPTY}
    assert statements(replace(with_input(cut, entry), policy="unaligned")) == set()
    assert statements(with_input(cut, replace(entry, log=()))) == {EMPTY, LOGGED}


def test_the_log_of_a_restored_channel_is_the_rest_of_what_was_restored() -> None:
    for consumed in (0, 1):
        cut = restored_record(consumed).cuts[Epoch(2)]
        assert check_cut(cut, DEPLOYMENT, restored={RESTORED: (TWO,)}) == []
    whole = restored_record(0).cuts[Epoch(2)]
    replayed = input_of(whole, RESTORED)
    for wrong in (
        replace(replayed, log=()),
        replace(replayed, consumed=1, digest=digest(TWO)),
        replace(replayed, log=log([ONE], 1)),
        replace(replayed, digest=5),
    ):
        found = check_cut(with_input(whole, wrong), DEPLOYMENT, restored={RESTORED: (TWO,)})
        assert {violation.statement for violation in found} == {LOGGED}


# -- 4, 5 --------------------------------------------------------------------------------------------------------


def test_a_cycle_without_a_back_edge_is_found() -> None:
    assert check_cover(PLAN) == []
    forward = Edge("down.again->in.in", "down", "again", "in", "in")
    found = check_cover(replace(PLAN, edges=(*PLAN.edges, forward)))
    assert [violation.statement for violation in found] == [COVERED]
    assert "down, in, out" in found[0].story


def test_a_missing_task_and_a_strange_one_are_found() -> None:
    cut = two_logged()
    assert statements(replace(cut, snapshots={IN: cut.snapshots[IN]})) == {ONCE}
    strange = DOWN._replace(index=1)
    assert statements(replace(cut, snapshots={**cut.snapshots, strange: cut.snapshots[DOWN]})) == {ONCE}


def test_a_missing_channel_and_a_doubled_one_are_found() -> None:
    cut = two_logged()
    snapshot = cut.snapshots[DOWN]
    for wrong in (
        replace(snapshot, inputs=snapshot.inputs[:1]),
        replace(snapshot, inputs=(*snapshot.inputs, snapshot.inputs[0])),
        replace(snapshot, outputs=()),
    ):
        assert statements(with_snapshot(cut, wrong)) == {ONCE}


def test_two_epochs_mixed_are_found() -> None:
    cuts = good_cuts()
    mixed = with_snapshot(cuts[Epoch(2)], cuts[Epoch(1)].snapshots[DOWN])
    assert statements(mixed) == {ONCE}


def test_another_attempt_another_graph_and_other_operators_are_found() -> None:
    cut = two_logged()
    assert statements(with_snapshot(cut, replace(cut.snapshots[IN], attempt=Attempt(2)))) == {ONCE}
    assert statements(replace(cut, graph_hash="0")) == {ONCE}
    assert statements(replace(cut, parallelism={"in": 2})) == {ONCE}
    assert statements(with_states(cut, IN, {"more": OperatorState()})) == {ONCE}


def test_a_task_that_ended_stands_in_a_later_cut_with_its_last_state() -> None:
    cut = cut_of(7, source_snapshot(2, ended=True), loop_snapshot(7, 3, 0, [TWO]))
    assert statements(cut) == set()


# -- 8 -----------------------------------------------------------------------------------------------------------


def test_a_source_that_goes_back_or_forgets_a_split_is_found() -> None:
    before = with_states(good_cuts()[Epoch(1)], IN, {"in": OperatorState(splits={"0-of-1": b"K\x02."})})
    assert statements(good_cuts()[Epoch(2)], before) == {ONWARD}
    forgetting = with_states(good_cuts()[Epoch(2)], IN, {"in": OperatorState()})
    assert statements(forgetting, good_cuts()[Epoch(1)]) == {ONWARD}


def test_counts_that_go_back_and_tasks_that_run_again_are_found() -> None:
    cuts = good_cuts()
    assert statements(replace(cuts[Epoch(1)], epoch=Epoch(1)), cuts[Epoch(2)]) == {ONWARD}
    ended = with_snapshot(cuts[Epoch(1)], replace(source_snapshot(1), ended=True))
    assert statements(cuts[Epoch(2)], ended) == {ONWARD}

"""The checker, on a run written by hand: silent about it, and right about each thing that a wrong run or cut does."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from backedge.engine.simulation.checker.checker import check_protocol
from backedge.engine.simulation.checker.counts import COUNTED, check_counts
from backedge.engine.simulation.checker.cut_checks import (
    COVERED,
    EMPTY,
    LOGGED,
    ONCE,
    ONWARD,
    RECEIVED,
    check_cover,
    check_cut,
)
from backedge.engine.simulation.checker.output_checks import LISTED
from backedge.engine.simulation.checker.record import (
    Aborted,
    Barriered,
    Captured,
    Committed,
    Completed,
    Conserved,
    EndSent,
    Event,
    Ran,
    Record,
    Sent,
    Took,
)
from backedge.engine.simulation.checker.trail import (
    BARRIERS,
    COUNTS,
    ENDED,
    ENDS_ONCE,
    GIVEN_UP,
    NUMBERED,
    OUTLIVED,
    lineage,
    walk,
)
from backedge.engine.state.keyed_state import encode_entries
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.graphs.plan import Edge
from backedge.graphs.routing import key_group
from backedge.recovery.cut.cut import Cut, OperatorState, TaskSnapshot, Transaction
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.rounds import Phase, RoundsSnapshot
from proof.plain.interpreter import reference
from proof.plain.judge import check
from proof.plain.plain_output import CONSERVED, KEPT, OUTPUT, check_conservation, check_output
from proof.plain.theorem import CHANNELS, LEGAL, PLAIN, PREPARED, STATE, check_theorem
from tests.every import every
from tests.simulation.handmade import (
    BACK,
    DEPLOYMENT,
    DOWN,
    ENTRY,
    FIRST,
    IN,
    ONE,
    PLAN,
    RESTORED,
    SECOND,
    THREE,
    TRANSACTION,
    TWO,
    batch,
    cut_of,
    digest,
    good_cuts,
    good_record,
    input_of,
    log,
    loop_snapshot,
    moved,
    place_of,
    restored_record,
    source_snapshot,
    state_of,
    with_input,
    with_snapshot,
    with_states,
    without,
)

ONE_EACH = Conserved(of_record=lambda number: 1, of_state=lambda operator, key, value: 0)
"""What the hand-made flow conserves: a record goes round and leaves, it is always one."""
LAST = Epoch(3)
OF_THEOREM = {LEGAL, PLAIN, STATE, CHANNELS, PREPARED}
Wrong = Callable[[], Record]


def theorem(record: Record, epoch: int) -> list[str]:
    cut = record.cuts[Epoch(epoch)]
    return [violation.statement for violation in check_theorem(record, walk(record)[cut.attempt], cut)]


def output(record: Record) -> list[str]:
    return [violation.statement for violation in check_output(record, reference(record.plan, record.inputs))]


def edited(epoch: int, edit: Callable[[Cut], Cut]) -> Wrong:
    """The good run with one of its cuts changed."""

    def record() -> Record:
        record = good_record()
        record.cuts[Epoch(epoch)] = edit(record.cuts[Epoch(epoch)])
        return record

    return record


def kept(epoch: int, task: TaskId, name: str, state: OperatorState) -> Wrong:
    return edited(epoch, lambda cut: with_states(cut, task, {name: state}))


def received(epoch: int, channel: ChannelId, **changes: Any) -> Wrong:
    return edited(epoch, lambda cut: with_input(cut, replace(input_of(cut, channel), **changes)))


def snapshot(epoch: int, task: TaskId, change: Callable[[TaskSnapshot], TaskSnapshot]) -> Wrong:
    return edited(epoch, lambda cut: with_snapshot(cut, change(cut.snapshots[task])))


def inserted(before: Event, *events: Event, record: Wrong = good_record) -> Wrong:
    """A run with these events in front of that one."""

    def changed() -> Record:
        found = record()
        place = place_of(found, before)
        found.trace[place:place] = events
        return found

    return changed


def moving(event: Event, before: Event) -> Wrong:
    return lambda: moved(good_record(), event, before)


def exchanged(event: Event, other: Event) -> Wrong:
    def record() -> Record:
        record = good_record()
        record.trace[place_of(record, event)] = other
        return record

    return record


def published(committed: dict[str, tuple[str, list[int]]]) -> Wrong:
    """The good run, with this output of its last cut and of others."""

    def record() -> Record:
        record = good_record()
        record.committed = dict(committed)
        return record

    return record


def barrier(epoch: int, mode: Mode = Mode.ALIGNED) -> Barriered:
    return Barriered(FIRST, IN, ENTRY, Epoch(epoch), mode)


def sink(held: int, records: int = 0, epoch: int = 0) -> OperatorState:
    return OperatorState(transactions=transaction(held, epoch), records=records)


def source(position: int, records: int = 0) -> OperatorState:
    return OperatorState(splits={"0-of-1": pickle.dumps(position)}, records=records)


def values(group: int, *items: Any) -> OperatorState:
    parts = encode_entries("down", dict(items[:1]), items[1:])
    return OperatorState(tuple(part._replace(groups=np.full_like(part.groups, group)) for part in parts))


def transaction(held: int, epoch: int = 0) -> tuple[Transaction]:
    return (Transaction(TRANSACTION, Epoch(epoch), FIRST, held),)


FORGED = batch(1, hops=1)
BOTH = log([TWO, ONE], 1)
GROUP = key_group("all")
PRODUCED = Ran(FIRST, IN, "produce", detail=5)
FIRST_SENT, SECOND_SENT = Sent(FIRST, DOWN, BACK, 1, TWO), Sent(FIRST, DOWN, BACK, 2, ONE)
TWO_RAN = Ran(FIRST, DOWN, "batch", BACK, TWO)
SECOND_CAPTURE = Captured(FIRST, DOWN, Epoch(2))
PUBLISHED = Committed(FIRST, DOWN, (TRANSACTION,))
ENDED_THERE = EndSent(FIRST, IN, ENTRY)


def with_a_strange_task(cut: Cut) -> Cut:
    return replace(cut, snapshots={**cut.snapshots, DOWN._replace(index=1): cut.snapshots[DOWN]})


def an_old_epoch() -> Record:
    again = Captured(SECOND, DOWN, Epoch(2))
    return inserted(again, again._replace(epoch=Epoch(1)), record=lambda: restored_record(1))()


def an_end_again() -> Record:
    """The restored cut holds the end of the source, which goes on and sends something at its end."""
    record = restored_record()
    cut = record.cuts[Epoch(1)]
    record.cuts[Epoch(1)] = with_snapshot(cut, replace(cut.snapshots[IN], ended=True))
    record.trace += [Ran(SECOND, IN, "end"), Sent(SECOND, IN, ENTRY, 1, THREE)]
    return record


CASES: list[tuple[str, str, Wrong]] = [
    # what a cut says of channels
    ("more is consumed than was sent", RECEIVED, received(1, BACK, consumed=3, log=())),
    ("a count is shifted by one", LOGGED, received(2, BACK, consumed=0)),
    ("a log entry is dropped", LOGGED, received(1, BACK, log=())),
    ("a log entry is doubled", LOGGED, received(1, BACK, log=log([TWO], 1) * 2)),
    ("a regular channel is not empty", EMPTY, received(1, ENTRY, consumed=0, digest=0, log=log([batch(3)], 1))),
    ("an entry is edited", LOGGED, received(1, BACK, log=(log([TWO], 1)[0]._replace(payload=FORGED),))),
    ("other bytes were sent than are logged", LOGGED, exchanged(FIRST_SENT, FIRST_SENT._replace(payload=FORGED))),
    # what a cut says of tasks
    ("a task is missing", ONCE, edited(1, lambda cut: replace(cut, snapshots={IN: cut.snapshots[IN]}))),
    ("a strange task", ONCE, edited(1, with_a_strange_task)),
    ("a channel is missing", ONCE, snapshot(1, DOWN, lambda s: replace(s, inputs=s.inputs[:1]))),
    ("a channel is doubled", ONCE, snapshot(1, DOWN, lambda s: replace(s, inputs=(*s.inputs, s.inputs[0])))),
    ("two epochs are mixed", ONCE, snapshot(2, DOWN, lambda s: good_cuts()[Epoch(1)].snapshots[DOWN])),
    ("another attempt", ONCE, snapshot(1, IN, lambda s: replace(s, attempt=Attempt(2)))),
    ("another graph", ONCE, edited(1, lambda cut: replace(cut, graph_hash="0"))),
    ("another parallelism", ONCE, edited(1, lambda cut: replace(cut, parallelism={"in": 2}))),
    ("another operator", ONCE, kept(1, IN, "more", OperatorState())),
    ("a last state where the task had captured", ONCE, snapshot(2, DOWN, lambda s: good_cuts()[LAST].snapshots[DOWN])),
    ("a snapshot that was not captured", ONCE, lambda: without(good_record(), SECOND_CAPTURE)),
    ("a source goes back", ONWARD, kept(1, IN, "in", OperatorState(splits={"0-of-1": b"K\x02."}))),
    ("a source forgets a split", ONWARD, kept(2, IN, "in", OperatorState())),
    ("a task runs again", ONWARD, snapshot(1, IN, lambda s: replace(s, ended=True))),
    # the trace
    ("an epoch was over before its attempt", OUTLIVED, an_old_epoch),
    ("a batch is taken twice", NUMBERED, inserted(Captured(FIRST, IN, None), Took(FIRST, DOWN, BACK, 2))),
    ("a batch is taken before it was sent", NUMBERED, inserted(PRODUCED, Took(FIRST, DOWN, ENTRY, 1))),
    ("a gap in the numbers", NUMBERED, exchanged(SECOND_SENT, SECOND_SENT._replace(seq=3))),
    ("END twice", ENDED, inserted(Captured(FIRST, DOWN, None), EndSent(FIRST, DOWN, BACK))),
    ("a batch after END", ENDED, inserted(Captured(FIRST, DOWN, None), Sent(FIRST, DOWN, BACK, 3, ONE))),
    ("a barrier of an earlier epoch", BARRIERS, inserted(ENDED_THERE, barrier(1))),
    ("a barrier twice", BARRIERS, inserted(ENDED_THERE, barrier(2))),
    ("a cut that was given up", GIVEN_UP, inserted(Completed(FIRST, Epoch(2)), Aborted(FIRST, Epoch(2)))),
    ("something is sent at an end that was before the cut", ENDS_ONCE, an_end_again),
    ("counts of another moment", COUNTS, moving(SECOND_CAPTURE, before=Took(FIRST, DOWN, BACK, 1))),
    # the theorem
    ("a value is changed", STATE, kept(2, DOWN, "down", state_of(6))),
    ("a key is forgotten", STATE, kept(2, DOWN, "down", OperatorState())),
    ("a key of another group", STATE, kept(2, DOWN, "down", values(GROUP ^ 1, ("all", 5)))),
    ("a timer", STATE, kept(2, DOWN, "down", values(GROUP, ("all", 5), ("all", 10, 0)))),
    ("a waiting record", STATE, kept(2, DOWN, "down", replace(state_of(5), pending=(pickle.dumps((1, 0), 5),)))),
    ("a position that was not read", STATE, kept(2, IN, "in", source(0))),
    ("a batch in no state and no log", CHANNELS, received(1, BACK, log=())),
    ("a batch in the state and in the log", CHANNELS, received(2, BACK, log=BOTH)),
    ("a receiver captured behind its sender", LEGAL, moving(Captured(FIRST, IN, Epoch(1)), before=PRODUCED)),
    ("user code sends another record", PLAIN, exchanged(SECOND_SENT, SECOND_SENT._replace(payload=batch(9)))),
    ("user code sends other hops", PLAIN, exchanged(SECOND_SENT, SECOND_SENT._replace(payload=FORGED))),
    ("user code sees another batch", LEGAL, exchanged(TWO_RAN, TWO_RAN._replace(payload=batch(2, 2)))),
    ("more is in a transaction", PREPARED, published({TRANSACTION: ("out", [0, 0])})),
    ("less is in a transaction", PREPARED, published({TRANSACTION: ("out", [])})),
    ("output is in no transaction", PREPARED, kept(3, DOWN, "out", OperatorState())),
    ("a transaction comes early", PREPARED, kept(2, DOWN, "out", sink(0, epoch=2))),
    # output and counts
    ("output that no cut lists", LISTED, published({TRANSACTION: ("out", [0]), "out.0.other": ("out", [])})),
    ("a transaction of another sink", LISTED, published({TRANSACTION: ("elsewhere", [0])})),
    ("a transaction of two sinks", LISTED, kept(3, DOWN, "down", replace(state_of(6), transactions=transaction(1)))),
    ("output before its cut", LISTED, moving(PUBLISHED, before=Completed(FIRST, LAST))),
    ("a source sent more than it read", COUNTED, kept(3, IN, "in", source(0, records=1))),
    ("a sink wrote less than it holds", COUNTED, kept(3, DOWN, "out", sink(2, records=1))),
    ("two epochs share a transaction", COUNTED, kept(2, DOWN, "out", sink(1, records=1, epoch=2))),
    ("a transaction holds more than it says", COUNTED, published({TRANSACTION: ("out", [0, 0])})),
]  # fmt: skip


@every(("what", "statement", "wrong"), CASES)
def test_what_is_wrong_is_found_by_the_statement_that_it_breaks(what: str, statement: str, wrong: Wrong):
    record = wrong()
    if statement in OF_THEOREM:
        assert [statement] in [theorem(record, epoch) for epoch in record.cuts]
    else:
        assert statement in {violation.statement for violation in check_protocol(record)}


@every(
    "right",
    [
        good_record,
        lambda: restored_record(0),
        lambda: restored_record(1),
        moving(Captured(FIRST, IN, Epoch(2)), before=Captured(FIRST, IN, None)),
        inserted(ENDED_THERE, barrier(1, Mode.PROBE)),
        inserted(Completed(FIRST, Epoch(2)), Aborted(FIRST, Epoch(1))),
    ],
)
def test_a_right_run_has_no_fault(right: Wrong):
    record = right()
    record.conserved = ONE_EACH
    assert check(record) == []
    trails = walk(record)
    assert not [wrong for cut in record.cuts.values() for wrong in check_theorem(record, trails[cut.attempt], cut)]


def test_publishing_a_second_time_does_no_harm():
    record = good_record()
    record.trace.append(PUBLISHED)
    assert check(record) == []


@every(
    "entries",
    [
        BOTH[:1],
        BOTH[1:],
        (BOTH[0], BOTH[1]._replace(seq=3)),
        BOTH[::-1],
        (BOTH[1]._replace(seq=1), BOTH[0]._replace(seq=2)),
        (BOTH[0], BOTH[1]._replace(payload=FORGED, digest_after=digest(TWO, FORGED))),
        (BOTH[0], BOTH[1]._replace(digest_before=7)),
    ],
)
def test_a_log_of_two_batches_is_checked_at_every_place(entries: Any):
    cut = cut_of(1, source_snapshot(1), loop_snapshot(1, 3, 0, [TWO, ONE]))
    assert check_cut(cut, DEPLOYMENT) == []
    wrong = with_input(cut, replace(input_of(cut, BACK), log=entries))
    assert {violation.statement for violation in check_cut(wrong, DEPLOYMENT)} == {LOGGED}


def test_a_channel_within_an_actor_is_counted_and_has_no_digest():
    within, cut = expand(PLAN, 1), good_cuts()[Epoch(1)]
    plain = tuple(entry._replace(digest_before=0, digest_after=0) for entry in input_of(cut, BACK).log)
    assert check_cut(with_input(cut, replace(input_of(cut, BACK), log=plain)), within) == []
    found = check_cut(with_input(cut, replace(input_of(cut, BACK), log=())), within)
    assert {violation.statement for violation in found} == {LOGGED}


@pytest.mark.parametrize(
    "changes",
    [{"log": ()}, {"consumed": 1, "digest": digest(TWO)}, {"log": log([ONE], 1)}, {"digest": 5}],
    ids=["nothing", "consumed", "another batch", "another digest"],
)
def test_the_log_of_a_restored_channel_is_the_rest_of_what_was_restored(changes: dict[str, Any]):
    cut = restored_record(0).cuts[Epoch(2)]
    wrong = with_input(cut, replace(input_of(cut, RESTORED), **changes))
    found = check_cut(wrong, DEPLOYMENT, restored={RESTORED: (TWO,)})
    assert {violation.statement for violation in found} == {LOGGED}


def test_a_cycle_without_a_back_edge_is_found():
    forward = Edge("down.again->in.in", "down", "again", "in", "in")
    found = check_cover(replace(PLAN, edges=(*PLAN.edges, forward)))
    assert [violation.statement for violation in found] == [COVERED]
    assert "down, in, out" in found[0].story


def test_a_damaged_batch_behind_a_right_cut_is_no_fault_of_the_cut_if_the_attempt_was_given_up():
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
    assert theorem(record, 1) == [LEGAL]


def test_a_replay_that_leaves_out_the_restored_log_is_found():
    record = restored_record(1)
    record.trace = [event for event in record.trace if not (isinstance(event, Took) and event.channel == RESTORED)]
    assert theorem(record, 2) == [LEGAL]


def test_the_lineage_of_a_cut_leads_through_what_its_attempt_was_restored_from():
    record = restored_record(0)
    assert [cut.attempt for cut in lineage(record.cuts[Epoch(2)], record.cuts, walk(record))] == [FIRST]


def test_positions_that_count_bytes_are_not_taken_for_records():
    bytes_read = {"in": OperatorState(splits={"orders.jsonl": pickle.dumps(4_096)}, records=1)}
    record = good_record()
    assert list(check_counts(record, with_states(record.cuts[LAST], IN, bytes_read), [])) == []


# -- output, kept values, conservation ---------------------------------------------------------------------------


@every("finished", [True, False])
@every(("found", "is_lost", "is_surplus"), [([], True, False), ([0], False, False), ([0, 0], False, True)])
def test_a_run_may_lack_output_until_it_is_finished_and_never_have_too_much(
    found: list[int], is_lost: bool, is_surplus: bool, finished: bool
):
    record = published({TRANSACTION: ("out", found)})()
    record.finished = finished
    assert output(record) == [OUTPUT] * (is_surplus or (is_lost and finished))


def test_values_that_are_not_those_of_the_plain_interpreter_are_found_at_the_end():
    record = kept(3, DOWN, "down", state_of(7))()
    assert output(record) == [KEPT]
    record.finished = False
    assert output(record) == []


def test_a_run_that_finishes_with_a_cut_in_the_middle_is_found():
    record = good_record()
    del record.cuts[LAST]
    assert output(record) == [KEPT]


def conserved(record: Record, epoch: int) -> list[str]:
    found = check_conservation(record, record.cuts[Epoch(epoch)], [], ONE_EACH)
    return [violation.statement for violation in found]


def test_a_record_that_is_nowhere_in_a_cut_is_found_wherever_it_could_be():
    lost = received(1, BACK, log=())
    assert conserved(lost(), 1) == [CONSERVED]
    rounds = RoundsSnapshot((0,), Phase.ROUND, (), {}, {BACK: (batch(2, hops=1),)}, {}, {}, False)
    for edit in (
        lambda cut: with_states(cut, IN, {"in": source(0)}),
        lambda cut: with_states(cut, DOWN, {"down": replace(state_of(3), pending=(pickle.dumps((2, 1), 5),))}),
        lambda cut: with_snapshot(cut, replace(cut.snapshots[DOWN], rounds=rounds)),
    ):
        record = lost()
        record.cuts[Epoch(1)] = edit(record.cuts[Epoch(1)])
        assert conserved(record, 1) == []


def test_output_counts_from_the_cut_that_lists_it_on():
    record = good_record()
    record.committed = {}
    assert CONSERVED in conserved(record, 3)
    record.prepared = {TRANSACTION: ("out", [0])}
    assert conserved(record, 3) == []

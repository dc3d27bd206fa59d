"""The life of a run: attempts are claimed in a numbered chain, and nothing runs before everything is restored.

A supervisor dies, and a successor of its run takes over; or it only slept, and finds that out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from backedge.engine.io.later_output import LaterOutput
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.protocol.effects import Acknowledge
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import (
    AppendEntry,
    Entry,
    FailRun,
    Fenced,
    Manifest,
    Numbered,
    Order,
    ReplaceOutput,
    RestoreTasks,
    StartTasks,
    Sweep,
)
from backedge.recovery.protocol.restarts import RestartOptions
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from backedge.recovery.protocol.supervisor import Beginning, Stage, Supervisor
from backedge.recovery.restore.outline import CutOutline, OperatorOutline, TaskOutline
from tests.every import every
from tests.protocol.bench_of_cores import graph
from tests.protocol.chains import OURS, SUCCESSOR, THEIRS, claimed, manifest, numbered, start
from tests.protocol.desk import report

A, B = TaskId("a", 0), TaskId("b", 0)
TWO_CUTS = (start(1), manifest(3), manifest(5))


def claim(number: int, attempt: int, restored: int | None = None, claimant: str = OURS) -> list[Order]:
    return [AppendEntry(number, start(attempt, restored, claimant))]


def running(chain: list[Entry]) -> Supervisor:
    supervisor, _ = claimed(chain)
    supervisor.on_placed([A, B])
    for task in (A, B):
        supervisor.on_restored(task, supervisor.attempt)
    assert supervisor.stage is Stage.RUNNING
    return supervisor


OF_FIRST = (start(1), manifest(2), start(2, 2, OURS), manifest(5, 2, OURS))
CLAIMS: dict[str, tuple[str, tuple[Entry, ...], dict[str, Any], list[Order]]] = {
    "from the latest cut": (OURS, TWO_CUTS, {}, claim(4, 2, 5)),
    "from an earlier cut if it is asked for": (OURS, TWO_CUTS, {"epoch": Epoch(3)}, claim(4, 2, 3)),
    "beyond all attempts of the chain": (OURS, (start(4), start(9), manifest(2, 4)), {}, claim(4, 10, 2)),
    "of the first run": (OURS, (), {"anew": True}, claim(1, 1)),
    "not of a run that was to begin anew where another one was faster": (
        *(OURS, (start(1),), {"anew": True}),
        [Fenced(1)],
    ),
    "of a successor of a run that was to begin anew": (
        *(SUCCESSOR, (start(1, None, OURS), manifest(4, 1, OURS)), {"anew": True}),
        claim(3, 2, 4, SUCCESSOR),
    ),
    "of a successor, which does not go back again to the cut that its run began with": (
        *(SUCCESSOR, OF_FIRST, {"epoch": Epoch(2)}),
        claim(5, 3, 5, SUCCESSOR),
    ),
    "of a successor of a supervisor that died unclaimed, as the run was asked to": (
        *(SUCCESSOR, TWO_CUTS, {"epoch": Epoch(3)}),
        claim(4, 2, 3, SUCCESSOR),
    ),
    "not of such a successor of a run that was to begin anew": (SUCCESSOR, TWO_CUTS, {"anew": True}, [Fenced(1)]),
    "not of a successor whose run has lost the job": (
        *(SUCCESSOR, (start(1, None, OURS), manifest(1, 1, OURS), start(2, 1)), {}),
        [Fenced(3)],
    ),
}


@every(("claimant", "chain", "wishes", "orders"), CLAIMS.values())
def test_a_claim_is_an_entry_of_the_chain_and_names_the_cut_it_starts_from(
    claimant: str, chain: tuple[Entry, ...], wishes: dict[str, Any], orders: list[Order]
):
    supervisor = Supervisor(claimant)
    assert supervisor.begin(numbered(*chain), Beginning(**wishes)) == orders
    assert (supervisor.stage is Stage.OVER) == isinstance(orders[0], Fenced)


@pytest.mark.parametrize("happens", ["taken", "failure", "resume"])
def test_a_supervisor_that_slept_through_a_takeover_is_fenced_by_its_successor(happens: str):
    sleeper, _ = claimed([])
    chain = numbered(start(1, None, OURS), start(2, None, SUCCESSOR))
    orders: Callable[[], Any] = {
        "taken": lambda: sleeper.on_taken(AppendEntry(2, start(1, None, OURS)), chain),
        "failure": lambda: sleeper.on_failure("a process died", chain, 0),
        "resume": lambda: sleeper.resume(chain),
    }[happens]
    assert orders() == [Fenced(2)] and sleeper.stage is Stage.OVER


def test_a_claim_of_a_dead_predecessor_that_lands_late_is_continued():
    """The predecessor's claim was under way when the successor read the chain."""
    successor = Supervisor(SUCCESSOR)
    successor.begin(numbered(*TWO_CUTS), Beginning(Epoch(3)))
    landed = numbered(*TWO_CUTS, start(2, 3, OURS))
    assert successor.on_taken(AppendEntry(4, start(1)), landed) == claim(5, 3, 3, SUCCESSOR)


def test_a_run_that_fails_before_a_task_ran_does_not_change_what_is_latest():
    chain: list[Entry] = [*TWO_CUTS]
    supervisor, _ = claimed(chain, 3)
    assert supervisor.on_failure("a process died", numbered(*chain), 0) == claim(5, 3, 3), "it keeps to its cut"
    chain.append(start(3, 3, OURS))
    supervisor.on_appended(chain[-1])
    assert supervisor.hand_back() == claim(6, 4, 5)
    chain.append(start(4, 5, OURS))
    assert Supervisor("the next").begin(numbered(*chain)) == claim(7, 5, 5, "the next")


def test_a_run_whose_tasks_ran_goes_back_again_if_it_is_continued():
    supervisor, _ = claimed([*TWO_CUTS], 3)
    supervisor.on_placed([A])
    supervisor.on_restored(A, supervisor.attempt)
    assert supervisor.hand_back() == []


def test_a_run_hands_nothing_back_that_it_did_not_move():
    unclaimed = Supervisor(OURS)
    unclaimed.begin(numbered(*TWO_CUTS), Beginning(Epoch(3)))
    # The later cut of the last one is dead.
    replacing, _ = claimed([*TWO_CUTS], 3, replaces_output=True)
    for supervisor in (claimed([*TWO_CUTS])[0], claimed([])[0], unclaimed, replacing):
        assert supervisor.hand_back() == []


def test_output_of_the_latest_cut_is_published_first_unless_its_sink_is_dropped():
    listed = {A: ("kept.0.attempt-1.epoch-5", "also.0.attempt-1.epoch-5")}
    for dropped in ([], ["also"]):
        chain: list[Entry] = [start(1), manifest(3), manifest(5, transactions=listed)]
        supervisor, orders = claimed(chain, 3, supervisor=Supervisor(OURS, dropped=frozenset(dropped)))
        assert supervisor.chain.published_before(Epoch(3)).keys() == {"kept", "also"}
        assert supervisor.chain.published_before(Epoch(5)) == {}
        names = sorted(name for name in listed[A] if name.split(".")[0] not in dropped)
        assert orders[-1] == RestoreTasks(Attempt(2), Epoch(3), tuple(names))


def test_no_task_runs_before_all_are_restored():
    supervisor, _ = claimed([])
    supervisor.on_placed([A, B])
    assert supervisor.on_restored(A, Attempt(1)) == []
    assert supervisor.on_restored(A, Attempt(1)) == []
    assert supervisor.on_restored(B, Attempt(2)) == [] and supervisor.stage is Stage.RESTORING
    assert supervisor.on_restored(B, Attempt(1)) == [StartTasks(Attempt(1))]


# -- claims that fail, or whose place is taken ---------------------------------------------------------------------


def test_a_claim_whose_place_is_taken_is_tried_behind_it():
    supervisor = Supervisor(OURS)
    supervisor.begin(numbered(start(1)))
    taken = numbered(start(1), start(2), manifest(1, attempt=2))
    assert supervisor.on_taken(AppendEntry(2, start(1)), taken) == claim(4, 3, 1)


def test_a_run_that_is_to_begin_anew_does_not_take_over_one_that_was_faster():
    supervisor = Supervisor(OURS)
    supervisor.begin([], Beginning(anew=True))
    assert supervisor.on_taken(AppendEntry(1, start(1)), numbered(start(1))) == [Fenced(1)]
    assert supervisor.stage is Stage.OVER


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_claim_from_an_earlier_cut_that_is_tried_again_keeps_to_that_cut(is_taken: bool):
    supervisor = Supervisor(OURS)
    supervisor.begin(numbered(*TWO_CUTS), Beginning(Epoch(3)))
    if is_taken:
        again = supervisor.on_taken(AppendEntry(4, start(1)), numbered(*TWO_CUTS, start(2, 5)))
    else:
        again = supervisor.on_failure("the disk is full", numbered(*TWO_CUTS), 0)
    assert again == claim(5 if is_taken else 4, 3, 3)


@pytest.mark.parametrize(
    ("later", "orders"),
    [
        ((start(1), manifest(1)), claim(3, 3, 1)),
        # Its own claim is there, and others have built on it.
        ((start(1), start(2, None, OURS), start(3)), [Fenced(3)]),
    ],
    ids=["a claim that failed", "a claim that was created unnoticed"],
)
def test_a_run_that_begins_is_fenced_by_what_others_append_behind_its_claim_alone(
    later: tuple[Entry, ...], orders: list[Order]
):
    supervisor = Supervisor(OURS)
    supervisor.begin(numbered(start(1)))
    assert supervisor.on_failure("no reply came", numbered(*later), 0) == orders


def test_a_claim_of_its_own_that_landed_late_does_not_keep_a_run_from_beginning_anew():
    supervisor = Supervisor(OURS)
    supervisor.begin([], Beginning(anew=True))
    landed = numbered(start(1, None, OURS))
    assert supervisor.on_failure("the claim could not be recorded", landed, 0) == claim(2, 2)


def test_an_equal_claim_of_another_supervisor_is_not_taken_for_ours():
    """Both want the start of attempt 2 from cut 1: but for the claimant their entries would be equal bytes."""
    ours, theirs = (
        Supervisor(claimant).begin(numbered(start(1, None, "first"), manifest(1, 1, "first")))
        for claimant in (OURS, THEIRS)
    )
    assert (ours, theirs) == (claim(3, 2, 1), claim(3, 2, 1, THEIRS))


def test_a_manifest_whose_creation_was_never_confirmed_is_seen_by_the_next_attempt():
    chain: list[Entry] = []
    supervisor = running(chain)
    chain.append(manifest(8, 1, OURS))
    assert supervisor.on_failure("a process died", numbered(*chain), 0) == claim(3, 2, 8)


def test_a_run_that_went_back_continues_from_its_own_cuts_once_it_has_some():
    chain: list[Entry] = [*TWO_CUTS]
    supervisor, _ = claimed(chain, 3)
    assert supervisor.chain.next_epoch == 6
    chain.append(manifest(6, 2, OURS))
    supervisor.on_appended(chain[-1])
    assert supervisor.on_failure("a process died", numbered(*chain), 0) == claim(6, 3, 6)


def test_too_many_deaths_fail_the_run_with_the_last_reason():
    supervisor = Supervisor(OURS, RestartOptions(restarts_max=2, window_ms=60_000))
    supervisor.begin([])
    for _ in range(2):
        (order,) = supervisor.on_failure("a process died", [], 0)
        assert not isinstance(order, FailRun)
    assert supervisor.on_failure("out of memory", [], 0) == [
        FailRun("restarted 2 times within 60 s, as often as max_restarts allows, and then: out of memory")
    ]
    assert supervisor.stage is Stage.OVER


def test_entries_that_are_gone_keep_their_numbers():
    chain = [Numbered(1, start(1)), Numbered(40, manifest(30)), Numbered(41, manifest(31))]
    supervisor = Supervisor(OURS)
    assert supervisor.begin(chain) == claim(42, 2, 31)
    assert supervisor.chain.next_epoch == 32
    supervisor.on_appended(start(2, 31, OURS))
    # Others have gone on, and most of what they did is gone, too.
    gone_on = [*chain, Numbered(50, start(3)), Numbered(99, manifest(80, 3))]
    assert supervisor.on_failure("its files were gone", gone_on, 0)
    assert supervisor.stage is Stage.OVER


# -- which cuts there are ------------------------------------------------------------------------------------------


def check_fails(orders: list[Order], epoch: int, there: str) -> None:
    """A run that is to begin from a cut that is gone ends in words, and claims nothing."""
    (fail,) = orders
    assert isinstance(fail, FailRun) and f"epoch {epoch} " in fail.reason and there in fail.reason


def test_only_the_cuts_that_the_last_manifest_keeps_can_be_restored():
    chain: list[Entry] = [*TWO_CUTS, manifest(7, kept=(Epoch(5), Epoch(7)))]
    assert running(chain).chain.cuts == [5, 7]
    refused = Supervisor(OURS)
    check_fails(refused.begin(numbered(*chain), Beginning(Epoch(3))), 3, "(5, 7)")
    assert refused.stage is Stage.OVER


def test_a_cut_that_another_run_drops_while_it_is_asked_for_fails_the_run_in_words():
    supervisor = Supervisor(OURS)
    supervisor.begin(numbered(*TWO_CUTS), Beginning(Epoch(3)))
    later = numbered(*TWO_CUTS, start(2, 5), manifest(7, attempt=2, kept=(Epoch(7),)))
    check_fails(supervisor.on_taken(AppendEntry(4, start(1)), later), 3, "(7)")


def test_a_manifest_keeps_the_savepoints_of_earlier_attempts():
    supervisor = running([start(1), manifest(2, savepoint="mine"), manifest(3)])
    supervisor.snapshots = SnapshotOptions(keep=1)
    supervisor.on_started(graph("a -> b"), 0)
    coordinator: Any = supervisor.coordinator
    coordinator.start(Mode.ALIGNED, 0)
    written = Acknowledge(Epoch(4), report())
    (append,) = [order for task in (A, B) for order in coordinator.on_report(task, supervisor.attempt, written, 0)]
    assert append.entry.kept == (2, 4)


# -- what is removed ---------------------------------------------------------------------------------------------


def listing(epoch: int, *names: str, kept: tuple[int, ...] | None = None) -> Manifest:
    return manifest(epoch, transactions={A: names}, kept=None if kept is None else tuple(map(Epoch, kept)))


def swept(chain: list[Entry], epoch: int | None = None) -> tuple[Sweep, RestoreTasks]:
    """What a supervisor has removed that begins, and what it restores."""
    _, (sweep, restore) = claimed([*chain], epoch)
    assert isinstance(sweep, Sweep) and isinstance(restore, RestoreTasks)
    return sweep, restore


def test_a_supervisor_removes_nothing_of_later_attempts_however_late_it_does():
    """It has claimed attempt 2 and stalls; whatever attempt 3 writes, it does not know."""
    sweep, _ = swept([start(1), listing(1, "done.0.attempt-1.epoch-1")])
    later = Attempt(3)
    assert not sweep.removes_epoch(Epoch(2), later)
    assert not sweep.removes_last_states(later)
    assert not sweep.forgets("done.0.attempt-3.epoch-2")
    for late in (sweep, replace(sweep, is_over=True)):
        assert not late.removes_open(later) and not late.removes("done.0.attempt-3.epoch-2")


def test_a_supervisor_removes_what_earlier_attempts_left_and_no_cut_names():
    listed, aborted = "done.0.attempt-1.epoch-1", "done.0.attempt-1.epoch-2"
    sweep, _ = swept([start(1), listing(1, listed)])
    first, own = Attempt(1), Attempt(2)
    assert sweep.removes_epoch(Epoch(2), first) and not sweep.removes_epoch(Epoch(1), first)
    assert sweep.removes(aborted) and not sweep.removes(listed)
    assert sweep.removes_open(first) and sweep.removes_last_states(first)
    assert not sweep.removes_open(own) and not sweep.removes_epoch(Epoch(2), own)
    assert replace(sweep, is_over=True).removes_open(own)


def test_of_its_own_epochs_and_notes_an_attempt_removes_those_that_no_later_cut_can_name():
    supervisor = running([start(1)])
    supervisor.on_appended(manifest(5, 2, OURS))
    sweep, own = supervisor.sweep(), Attempt(2)
    assert [sweep.removes_epoch(Epoch(epoch), own) for epoch in (4, 5, 6)] == [True, False, False]
    # Epoch 0: what a task wrote that has ended.
    notes = [sweep.forgets(f"done.0.attempt-2.epoch-{epoch}") for epoch in (5, 6, 0)]
    assert notes == [True, False, False]


def test_a_note_stays_as_long_as_a_cut_that_can_be_restored_lists_its_transaction():
    old, new = "done.0.attempt-1.epoch-1", "done.0.attempt-1.epoch-2"
    first, second = listing(1, old, kept=(1,)), listing(2, new, kept=(1, 2))
    sweep, _ = swept([start(1), first, second])
    assert sweep.noted == {old, new}
    sweep, _ = swept([start(1), first, replace(second, kept=(Epoch(2),))])
    assert sweep.noted == {new} and sweep.forgets(old)


def test_a_run_that_goes_back_publishes_first_what_the_last_cut_lists():
    old, new = "done.0.attempt-1.epoch-1", "done.0.attempt-1.epoch-2"
    chain: list[Entry] = [start(1), listing(1, old), listing(2, new)]
    sweep, restore = swept(chain, 1)
    assert restore == RestoreTasks(Attempt(2), Epoch(1), (new,))
    assert sweep.prepared == {old, new}
    _, restore = swept([*chain, start(2, 1, "died")])
    assert restore == RestoreTasks(Attempt(3), Epoch(1), (new,)), "the one before may not have come to it"
    sweep, restore = swept(chain)
    assert restore == RestoreTasks(Attempt(2), Epoch(2)) and sweep.prepared == {new}


# -- replaced output ---------------------------------------------------------------------------------------------


def test_a_run_that_replaces_output_says_so_in_its_claim_and_removes_it_before_anything_is_swept_or_restored():
    old, new = "done.0.attempt-1.epoch-1", "done.0.attempt-1.epoch-2"
    chain: list[Entry] = [start(1), listing(1, old), listing(2, new)]
    orders: Any
    supervisor, orders = claimed(chain, 1, replaces_output=True)
    replace_output, sweep, restore = orders
    assert chain[-1] == start(2, 1, OURS, replaces=Epoch(1))
    assert replace_output == ReplaceOutput(Attempt(2), Epoch(1))
    assert [sweep.removes(name) for name in (old, new)] == [False, True]
    assert restore == RestoreTasks(Attempt(2), Epoch(1)), "nothing of the later cut is published"
    assert supervisor.chain.cuts == [1] and supervisor.chain.next_epoch == 3


def test_another_run_finishes_what_the_one_that_replaced_output_has_begun():
    chain: list[Entry] = [start(1), manifest(2), manifest(4), manifest(6)]
    claimed(chain, 4, replaces_output=True)
    _, orders = claimed(chain, 2, supervisor=Supervisor("another"))
    assert chain[-1] == start(3, 2, "another", replaces=Epoch(4))
    assert orders[0] == ReplaceOutput(Attempt(3), Epoch(4))


class TakenCut(NamedTuple):
    outline: CutOutline
    attempt: Attempt


def test_what_tasks_published_that_ended_before_a_rescale_is_not_later_than_a_cut_after_it():
    tasks = {TaskId("out", index): TaskOutline(index == 0, {"out": OperatorOutline()}) for index in range(2)}
    later = LaterOutput.than(TakenCut(CutOutline(Epoch(6), "", {"out": 2}, tasks), Attempt(2)), Attempt(4))
    assert not any(later.removes(f"out.{index}.attempt-1.epoch-0") for index in range(4))
    assert not later.removes("out.0.attempt-2.epoch-0") and later.removes("out.1.attempt-2.epoch-0")
    assert later.removes("out.0.attempt-3.epoch-0")


def test_what_says_which_output_can_be_removed_stays_as_long_as_a_run_can_go_back_to_before_it():
    supervisor = running([start(1), manifest(2), manifest(6)])

    def settled(sweep: Sweep, *epochs: int) -> list[bool]:
        return [sweep.is_settled(f"done.0.attempt-1.epoch-{epoch}") for epoch in epochs]

    # Epoch 0: what a task wrote that has ended.
    assert settled(supervisor.sweep(), 2, 3, 0) == [True, False, False]
    order: Any
    (order,) = supervisor.on_appended(manifest(7, 2, OURS))
    assert not order.settles, "the first cut is still the same"
    claimed = next(order for order in supervisor.on_appended(start(3, 7, OURS)) if isinstance(order, Sweep))
    assert not claimed.settles, "an old savepoint may be kept, and there may be as many files as the job has published"
    (order,) = supervisor.on_appended(manifest(8, 2, OURS, kept=(Epoch(7), Epoch(8))))
    assert settled(order, 7, 8) == [True, False]
    (order,) = supervisor.on_finished(is_restorable=False)
    assert settled(order, 7, 0) == [True, True]

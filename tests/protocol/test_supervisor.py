"""The life of a run: attempts are claimed in a numbered chain, and nothing runs before everything is restored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from backedge.engine.io.output_sweep import LaterOutput
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.protocol.coordinator import SnapshotOptions
from backedge.recovery.protocol.effects import Acknowledge
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import (
    AppendEntry,
    AttemptStart,
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
from backedge.recovery.protocol.supervisor import RestartOptions, Stage, Supervisor
from backedge.recovery.restore.outline import CutOutline, OperatorOutline, TaskOutline
from tests.protocol.bench_of_cores import graph
from tests.protocol.desk import report

A, B = TaskId("a", 0), TaskId("b", 0)
OURS, THEIRS = "ours", "theirs"


def manifest(epoch: int, attempt: int = 1, claimant: str = THEIRS) -> Manifest:
    return Manifest(Epoch(epoch), Attempt(attempt), Mode.ALIGNED, {}, {}, claimant=claimant)


def start(attempt: int, restored: int | None = None, claimant: str = THEIRS) -> AttemptStart:
    return AttemptStart(Attempt(attempt), None if restored is None else Epoch(restored), claimant)


def ours(entry: Entry) -> Entry:
    return replace(entry, claimant=OURS)


def numbered(entries: Iterable[Entry]) -> list[Numbered]:
    return [Numbered(number, entry) for number, entry in enumerate(entries, 1)]


def claimed(chain: list[Entry]) -> tuple[Supervisor, list[Order]]:
    """A supervisor that has just won its attempt."""
    supervisor = Supervisor(OURS)
    (append,) = supervisor.begin(numbered(chain))
    assert isinstance(append, AppendEntry) and append.number == len(chain) + 1
    chain.append(append.entry)
    sweep, *orders = supervisor.on_appended(append.entry)
    assert isinstance(sweep, Sweep)
    return supervisor, orders


def running(chain: list[Entry]) -> Supervisor:
    supervisor, _ = claimed(chain)
    supervisor.on_placed([A, B])
    for task in (A, B):
        supervisor.on_restored(task, supervisor.attempt)
    assert supervisor.stage is Stage.RUNNING
    return supervisor


def test_a_claim_is_an_entry_of_the_chain_and_names_the_cut_it_starts_from():
    chain: list[Entry] = [start(1), manifest(3), manifest(5)]
    assert Supervisor(OURS).begin(numbered(chain)) == [AppendEntry(4, ours(start(2, restored=5)))]


def test_an_earlier_cut_is_restored_if_it_is_asked_for_and_numbers_still_grow():
    supervisor = Supervisor(OURS)
    assert supervisor.begin(numbered([start(1), manifest(3), manifest(5)]), Epoch(3)) == [
        AppendEntry(4, ours(start(2, restored=3)))
    ]
    assert supervisor.next_epoch == 6


def check_refused(chain: list[Entry], epoch: Epoch, there: str) -> None:
    """A run that is to begin from a cut that is gone ends in words, and claims nothing."""
    supervisor = Supervisor(OURS)
    (fail,) = supervisor.begin(numbered(chain), epoch)
    assert isinstance(fail, FailRun) and f"epoch {epoch} " in fail.reason and there in fail.reason
    assert supervisor.stage is Stage.OVER


def went_back(chain: list[Entry], *, dropped: Iterable[str] = ()) -> tuple[Supervisor, list[Order]]:
    """A supervisor that has claimed an attempt from cut 3, and what it orders."""
    supervisor = Supervisor(OURS, dropped=frozenset(dropped))
    (append,) = supervisor.begin(numbered(chain), Epoch(3))
    assert isinstance(append, AppendEntry)
    chain.append(append.entry)
    return supervisor, supervisor.on_appended(append.entry)


def test_a_run_that_fails_before_a_task_ran_does_not_change_what_is_latest():
    chain: list[Entry] = [start(1), manifest(3), manifest(5)]
    supervisor, _ = went_back(chain)
    (again,) = supervisor.on_failure("a process died", numbered(chain), 0)
    assert again == AppendEntry(5, ours(start(3, restored=3))), "the run itself keeps to its cut"
    chain.append(ours(start(3, restored=3)))
    supervisor.on_appended(chain[-1])
    (append,) = supervisor.hand_back()
    assert append == AppendEntry(6, ours(start(4, restored=5)))
    chain.append(ours(start(4, restored=5)))
    assert Supervisor("the next").begin(numbered(chain)) == [
        AppendEntry(7, replace(start(5, restored=5), claimant="the next"))
    ]


def test_a_run_whose_tasks_ran_goes_back_again_if_it_is_continued():
    chain: list[Entry] = [start(1), manifest(3), manifest(5)]
    supervisor, _ = went_back(chain)
    supervisor.on_placed([A])
    supervisor.on_restored(A, supervisor.attempt)
    assert supervisor.hand_back() == []


def test_a_run_hands_nothing_back_that_it_did_not_move():
    latest, _ = claimed([start(1), manifest(3), manifest(5)])
    assert latest.hand_back() == [] and claimed([])[0].hand_back() == []
    unclaimed = Supervisor(OURS)
    unclaimed.begin(numbered([start(1), manifest(3), manifest(5)]), Epoch(3))
    assert unclaimed.hand_back() == []
    replacing = Supervisor(OURS)
    (append,) = replacing.begin(numbered([start(1), manifest(3), manifest(5)]), Epoch(3), replaces_output=True)
    assert isinstance(append, AppendEntry)
    replacing.on_appended(append.entry)
    assert replacing.hand_back() == [], "the later cut is dead"


def test_output_of_the_latest_cut_is_published_first_unless_its_sink_is_dropped():
    listed = {A: ("kept.0.attempt-1.epoch-5", "also.0.attempt-1.epoch-5")}
    for dropped in ([], ["also"]):
        chain: list[Entry] = [start(1), manifest(3), replace(manifest(5), transactions=listed)]
        supervisor, orders = went_back(chain, dropped=dropped)
        assert supervisor.published_before(Epoch(3)).keys() == {"kept", "also"}
        assert supervisor.published_before(Epoch(5)) == {}
        names = sorted(name for name in listed[A] if name.split(".")[0] not in dropped)
        assert orders[-1] == RestoreTasks(Attempt(2), Epoch(3), tuple(names))


def test_no_task_runs_before_all_are_restored():
    supervisor, _ = claimed([])
    supervisor.on_placed([A, B])
    assert supervisor.on_restored(A, Attempt(1)) == []
    assert supervisor.on_restored(A, Attempt(1)) == []
    assert supervisor.on_restored(B, Attempt(2)) == [] and supervisor.stage is Stage.RESTORING
    assert supervisor.on_restored(B, Attempt(1)) == [StartTasks(Attempt(1))]


def test_a_claim_whose_place_is_taken_is_tried_behind_it():
    supervisor = Supervisor(OURS)
    supervisor.begin(numbered([start(1)]))
    orders = supervisor.on_taken(AppendEntry(2, start(1)), numbered([start(1), start(2), manifest(1, attempt=2)]))
    assert orders == [AppendEntry(4, ours(start(3, restored=1)))]


def test_a_run_that_is_to_begin_anew_does_not_take_over_one_that_was_faster():
    supervisor = Supervisor(OURS)
    assert supervisor.begin(numbered([]), anew=True) == [AppendEntry(1, ours(start(1)))]
    assert supervisor.on_taken(AppendEntry(1, start(1)), numbered([start(1)])) == [Fenced(1)]
    assert supervisor.stage is Stage.OVER
    assert Supervisor(OURS).begin(numbered([start(1)]), anew=True) == [Fenced(1)], "nor where it sees that at once"


def test_a_claim_from_an_earlier_cut_that_is_tried_again_keeps_to_that_cut():
    supervisor = Supervisor(OURS)
    chain: list[Entry] = [start(1), manifest(3), manifest(5)]
    supervisor.begin(numbered(chain), Epoch(3))
    assert supervisor.on_taken(AppendEntry(4, start(1)), numbered([*chain, start(2, 5)])) == [
        AppendEntry(5, ours(start(3, restored=3)))
    ]


def test_a_run_that_begins_is_not_fenced_by_what_others_append_while_its_claim_fails():
    supervisor = Supervisor(OURS)
    supervisor.begin(numbered([start(1)]))
    late = numbered([start(1), manifest(1)])
    assert supervisor.on_failure("the disk was full", late, 0) == [AppendEntry(3, ours(start(3, restored=1)))]


def test_a_run_whose_claim_was_created_unnoticed_is_fenced_by_what_others_append_behind_it():
    supervisor = Supervisor(OURS)
    supervisor.begin(numbered([start(1)]))
    taken_over = numbered([start(1), ours(start(2)), start(3)])
    assert supervisor.on_failure("no reply came", taken_over, 0) == [Fenced(3)]


def test_a_manifest_whose_creation_was_never_confirmed_is_seen_by_the_next_attempt():
    chain: list[Entry] = []
    supervisor = running(chain)
    chain.append(ours(manifest(8)))
    assert supervisor.on_failure("a process died", numbered(chain), 0) == [AppendEntry(3, ours(start(2, restored=8)))]


def test_too_many_deaths_fail_the_run_with_the_last_reason():
    chain: list[Entry] = []
    supervisor = Supervisor(OURS, RestartOptions(restarts_max=2, window_ms=60_000))
    supervisor.begin(numbered(chain))
    for _ in range(2):
        assert not any(
            isinstance(order, FailRun) for order in supervisor.on_failure("a process died", numbered(chain), 0)
        )
    assert supervisor.on_failure("out of memory", numbered(chain), 0) == [
        FailRun("restarted 2 times within 60 s, as often as max_restarts allows, and then: out of memory")
    ]
    assert supervisor.stage is Stage.OVER


def test_attempt_numbers_grow_beyond_all_that_the_chain_knows():
    assert Supervisor(OURS).begin(numbered([start(4), start(9), manifest(2, attempt=4)])) == [
        AppendEntry(4, ours(start(10, restored=2)))
    ]


def test_entries_that_are_gone_keep_their_numbers():
    chain = [Numbered(1, start(1)), Numbered(40, manifest(30)), Numbered(41, manifest(31))]
    supervisor = Supervisor(OURS)
    assert supervisor.begin(chain) == [AppendEntry(42, ours(start(2, restored=31)))]
    assert supervisor.next_epoch == 32
    supervisor.on_appended(ours(start(2, restored=31)))
    # Others have gone on, and most of what they did is gone, too.
    assert supervisor.on_failure(
        "its files were gone", [*chain, Numbered(50, start(3)), Numbered(99, manifest(80, 3))], 0
    )
    assert supervisor.stage is Stage.OVER


def test_only_the_cuts_that_the_last_manifest_keeps_can_be_restored():
    chain: list[Entry] = [start(1), manifest(3), manifest(5), replace(manifest(7), kept=(Epoch(5), Epoch(7)))]
    supervisor = running(chain)
    assert supervisor.cuts == [5, 7]
    check_refused(chain, Epoch(3), there="(5, 7)")


def test_a_manifest_keeps_the_savepoints_of_earlier_attempts():
    chain: list[Entry] = [start(1), replace(manifest(2), savepoint="mine"), manifest(3)]
    supervisor = running(chain)
    supervisor.snapshots = SnapshotOptions(keep=1)
    supervisor.on_started(graph("a -> b"), 0)
    coordinator = supervisor.coordinator
    assert coordinator is not None
    coordinator.request(Mode.ALIGNED, 0)
    written = Acknowledge(Epoch(4), report())
    (append,) = [order for task in (A, B) for order in coordinator.on_report(task, supervisor.attempt, written, 0)]
    assert isinstance(append, AppendEntry) and isinstance(append.entry, Manifest)
    assert append.entry.kept == (2, 4)


def test_a_cut_that_another_run_drops_while_it_is_asked_for_fails_the_run_in_words():
    chain: list[Entry] = [start(1), manifest(2), manifest(6)]
    supervisor = Supervisor(OURS)
    supervisor.begin(numbered(chain), Epoch(2))
    chain += [start(2, restored=6), replace(manifest(7, attempt=2), kept=(Epoch(7),))]
    (fail,) = supervisor.on_taken(AppendEntry(4, start(1)), numbered(chain))
    assert isinstance(fail, FailRun) and "epoch 2 " in fail.reason and "(7)" in fail.reason


# -- what is removed ---------------------------------------------------------------------------------------------


def listing(epoch: int, *names: str, attempt: int = 1, kept: tuple[int, ...] | None = None) -> Manifest:
    """A cut that lists transactions."""
    cuts = None if kept is None else tuple(map(Epoch, kept))
    return replace(manifest(epoch, attempt), transactions={A: names}, kept=cuts)


def swept(chain: list[Entry], epoch: int | None = None) -> tuple[Sweep, RestoreTasks]:
    """What a supervisor has removed that begins, and what it restores."""
    supervisor = Supervisor(OURS)
    (append,) = supervisor.begin(numbered(chain), None if epoch is None else Epoch(epoch))
    assert isinstance(append, AppendEntry)
    sweep, restore = supervisor.on_appended(append.entry)
    assert isinstance(sweep, Sweep) and isinstance(restore, RestoreTasks)
    return sweep, restore


def test_a_supervisor_removes_nothing_of_later_attempts_however_late_it_does():
    """It has claimed attempt 2 and stalls; whatever attempt 3 writes, it does not know."""
    sweep, _ = swept([start(1), listing(1, "done.0.attempt-1.epoch-1")])
    later = Attempt(3)
    assert not sweep.removes_epoch(Epoch(2), later)
    assert not sweep.removes_last_states(later)
    assert not sweep.removes_open(later)
    assert not sweep.removes_prepared("done.0.attempt-3.epoch-2", later)
    assert not sweep.removes_note("done.0.attempt-3.epoch-2", later, Epoch(2))
    over = replace(sweep, is_over=True)
    assert not over.removes_open(later) and not over.removes_prepared("done.0.attempt-3.epoch-2", later)


def test_a_supervisor_removes_what_earlier_attempts_left_and_no_cut_names():
    listed, aborted = "done.0.attempt-1.epoch-1", "done.0.attempt-1.epoch-2"
    sweep, _ = swept([start(1), listing(1, listed)])
    first, own = Attempt(1), Attempt(2)
    assert sweep.removes_epoch(Epoch(2), first) and not sweep.removes_epoch(Epoch(1), first)
    assert sweep.removes_prepared(aborted, first) and not sweep.removes_prepared(listed, first)
    assert sweep.removes_open(first) and sweep.removes_last_states(first)
    assert not sweep.removes_open(own) and not sweep.removes_epoch(Epoch(2), own)
    assert replace(sweep, is_over=True).removes_open(own)


def test_of_its_own_epochs_an_attempt_removes_those_that_can_no_longer_complete():
    supervisor = running([start(1)])
    supervisor.on_appended(ours(manifest(5, attempt=2)))
    sweep = supervisor.sweep()
    assert sweep.removes_epoch(Epoch(4), Attempt(2))
    assert not sweep.removes_epoch(Epoch(5), Attempt(2)) and not sweep.removes_epoch(Epoch(6), Attempt(2))


def test_a_note_stays_as_long_as_a_cut_that_can_be_restored_lists_its_transaction():
    old, new = "done.0.attempt-1.epoch-1", "done.0.attempt-1.epoch-2"
    first, second = listing(1, old, kept=(1,)), listing(2, new, kept=(1, 2))
    sweep, _ = swept([start(1), first, second])
    assert sweep.noted == {old, new}
    sweep, _ = swept([start(1), first, replace(second, kept=(Epoch(2),))])
    assert sweep.noted == {new} and sweep.removes_note(old, Attempt(1), Epoch(1))


def test_of_its_own_notes_an_attempt_removes_none_that_a_later_cut_may_list():
    supervisor = running([start(1)])
    supervisor.on_appended(ours(manifest(5, attempt=2)))
    sweep, own = supervisor.sweep(), Attempt(2)
    assert sweep.removes_note("done.0.attempt-2.epoch-5", own, Epoch(5))
    assert not sweep.removes_note("done.0.attempt-2.epoch-6", own, Epoch(6))
    assert not sweep.removes_note("done.0.attempt-2.epoch-0", own, Epoch(0)), "what a task wrote that has ended"


def test_a_run_that_goes_back_publishes_first_what_the_last_cut_lists():
    old, new = "done.0.attempt-1.epoch-1", "done.0.attempt-1.epoch-2"
    chain: list[Entry] = [start(1), listing(1, old), listing(2, new)]
    sweep, restore = swept(chain, 1)
    assert restore == RestoreTasks(Attempt(2), Epoch(1), (new,))
    assert sweep.prepared == {old, new}
    chain.append(replace(start(2, restored=1), claimant="died"))
    _, restore = swept(chain)
    assert restore == RestoreTasks(Attempt(3), Epoch(1), (new,)), "the one before may not have come to it"
    sweep, restore = swept(chain[:3])
    assert restore == RestoreTasks(Attempt(2), Epoch(2)) and sweep.prepared == {new}


# -- replaced output ---------------------------------------------------------------------------------------------


def replacing(chain: list[Entry], epoch: int) -> tuple[Supervisor, list[Order]]:
    """A supervisor that goes back and replaces output, and what it orders when it has its claim."""
    supervisor = Supervisor(OURS)
    (append,) = supervisor.begin(numbered(chain), Epoch(epoch), replaces_output=True)
    assert isinstance(append, AppendEntry)
    chain.append(append.entry)
    return supervisor, supervisor.on_appended(append.entry)


def test_a_run_that_replaces_output_says_so_in_its_claim_and_removes_it_before_anything_is_swept_or_restored():
    old, new = "done.0.attempt-1.epoch-1", "done.0.attempt-1.epoch-2"
    chain: list[Entry] = [start(1), listing(1, old), listing(2, new)]
    supervisor, (replace_output, sweep, restore) = replacing(chain, 1)
    assert chain[-1] == ours(replace(start(2, restored=1), replaces=Epoch(1)))
    assert replace_output == ReplaceOutput(Attempt(2), Epoch(1))
    assert (
        isinstance(sweep, Sweep)
        and sweep.removes_prepared(new, Attempt(1))
        and not sweep.removes_prepared(old, Attempt(1))
    )
    assert restore == RestoreTasks(Attempt(2), Epoch(1)), "nothing of the later cut is published"
    assert supervisor.cuts == [1] and supervisor.next_epoch == 3


def test_another_run_finishes_what_the_one_that_replaced_output_has_begun():
    chain: list[Entry] = [start(1), manifest(2), manifest(4), manifest(6)]
    replacing(chain, 4)
    other = Supervisor("another")
    (append,) = other.begin(numbered(chain), Epoch(2))
    assert isinstance(append, AppendEntry)
    assert append.entry == replace(start(3, restored=2, claimant="another"), replaces=Epoch(4))
    assert other.on_appended(append.entry)[0] == ReplaceOutput(Attempt(3), Epoch(4))


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
    sweep = supervisor.sweep()
    assert sweep.is_settled(Epoch(2), Attempt(1)) and not sweep.is_settled(Epoch(3), Attempt(1))
    assert not sweep.is_settled(Epoch(0), Attempt(1)), "what a task wrote that has ended"
    (same,) = supervisor.on_appended(ours(manifest(7, attempt=2)))
    assert isinstance(same, Sweep) and not same.settles, "the first cut is still the same"
    (later,) = supervisor.on_appended(ours(replace(manifest(8, attempt=2), kept=(Epoch(7), Epoch(8)))))
    assert (
        isinstance(later, Sweep)
        and later.is_settled(Epoch(7), Attempt(1))
        and not later.is_settled(Epoch(8), Attempt(1))
    )
    (over,) = supervisor.on_finished(is_restorable=False)
    assert isinstance(over, Sweep) and over.is_settled(Epoch(7), Attempt(1)) and over.is_settled(Epoch(0), Attempt(1))


def test_a_claim_of_its_own_that_landed_late_does_not_keep_a_run_from_beginning_anew():
    supervisor = Supervisor(OURS)
    assert supervisor.begin([], anew=True) == [AppendEntry(1, ours(start(1)))]
    landed = numbered([ours(start(1))])
    assert supervisor.on_failure("the claim could not be recorded", landed, 0) == [AppendEntry(2, ours(start(2)))]


def test_an_equal_claim_of_another_supervisor_is_not_taken_for_ours():
    """Both want the start of attempt 2 from cut 1: but for the claimant their entries would be equal bytes."""
    mine, other = Supervisor(OURS), Supervisor(THEIRS)
    chain = numbered([start(1, claimant="first"), manifest(1, claimant="first")])
    (append,), (theirs,) = mine.begin(chain), other.begin(chain)
    assert isinstance(append, AppendEntry) and isinstance(theirs, AppendEntry)
    assert append != theirs and replace(append.entry, claimant=THEIRS) == theirs.entry


# -- where a run continues ---------------------------------------------------------------------------------------


def resumed(epoch: int, chain: list[Entry]) -> Supervisor:
    """A supervisor that was asked to go back to a cut, and has its claim."""
    supervisor = Supervisor(OURS)
    (append,) = supervisor.begin(numbered(chain), Epoch(epoch))
    assert isinstance(append, AppendEntry)
    chain.append(append.entry)
    supervisor.on_appended(append.entry)
    return supervisor


def test_a_run_that_went_back_continues_from_its_own_cuts_once_it_has_some():
    chain: list[Entry] = [start(1), manifest(2), manifest(6)]
    supervisor = resumed(2, chain)
    assert supervisor.next_epoch == 7
    chain.append(ours(manifest(7, attempt=2)))
    supervisor.on_appended(chain[-1])
    (append,) = supervisor.on_failure("a process died", numbered(chain), 0)
    assert append == AppendEntry(6, ours(start(3, restored=7)))


def test_a_wish_for_an_older_cut_outlives_a_claim_that_could_not_be_recorded():
    chain = numbered([start(1), manifest(2), manifest(6)])
    supervisor = Supervisor(OURS)
    supervisor.begin(chain, Epoch(2))
    assert supervisor.on_failure("the disk is full", chain, 0) == [AppendEntry(4, ours(start(3, restored=2)))]

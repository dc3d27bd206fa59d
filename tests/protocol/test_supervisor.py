"""The life of a run: attempts are claimed in a numbered chain, and nothing runs before everything is restored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from graphs.ids import Attempt, Epoch, TaskId
from recovery.messages import Mode
from recovery.orders import (
    AppendEntry,
    AttemptStart,
    Entry,
    FailRun,
    Fenced,
    Manifest,
    Numbered,
    Order,
    RestoreTasks,
    StartTasks,
)
from recovery.supervisor import Stage, Supervisor

A, B = TaskId("a", 0), TaskId("b", 0)


def manifest(epoch: int, attempt: int = 1) -> Manifest:
    return Manifest(Epoch(epoch), Attempt(attempt), Mode.ALIGNED, {}, {})


def start(attempt: int, restored: int | None = None) -> AttemptStart:
    return AttemptStart(Attempt(attempt), None if restored is None else Epoch(restored))


def numbered(entries: Iterable[Entry]) -> list[Numbered]:
    return [Numbered(number, entry) for number, entry in enumerate(entries, 1)]


def claimed(chain: list[Entry]) -> tuple[Supervisor, list[Order]]:
    """A supervisor that has just won its attempt."""
    supervisor = Supervisor()
    (append,) = supervisor.begin(numbered(chain))
    assert isinstance(append, AppendEntry) and append.number == len(chain) + 1
    chain.append(append.entry)
    return supervisor, supervisor.on_appended(append.entry)


def running(chain: list[Entry]) -> Supervisor:
    supervisor, _ = claimed(chain)
    supervisor.on_placed([A, B])
    for task in (A, B):
        supervisor.on_restored(task, supervisor.attempt)
    assert supervisor.stage is Stage.RUNNING
    return supervisor


def test_the_first_attempt_starts_from_nothing():
    supervisor, orders = claimed([])
    assert orders == [RestoreTasks(Attempt(1), None)]
    assert supervisor.next_epoch == 1


def test_a_claim_is_an_entry_of_the_chain_and_names_the_cut_it_starts_from():
    chain: list[Entry] = [start(1), manifest(3), manifest(5)]
    assert Supervisor().begin(numbered(chain)) == [AppendEntry(4, start(2, restored=5))]


def test_the_latest_cut_is_restored_and_numbers_go_on_behind_it():
    supervisor, orders = claimed([start(1), manifest(3), manifest(5)])
    assert orders == [RestoreTasks(Attempt(2), Epoch(5))]
    assert supervisor.next_epoch == 6


def test_an_earlier_cut_is_restored_if_it_is_asked_for_and_numbers_still_grow():
    supervisor = Supervisor()
    assert supervisor.begin(numbered([start(1), manifest(3), manifest(5)]), Epoch(3)) == [
        AppendEntry(4, start(2, restored=3))
    ]
    assert supervisor.next_epoch == 6


def test_a_cut_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match=r"epoch 4 is no complete cut of this job; there are \[3, 5\]"):
        Supervisor().begin(numbered([start(1), manifest(3), manifest(5)]), Epoch(4))


def test_no_task_runs_before_all_are_restored():
    supervisor, _ = claimed([])
    supervisor.on_placed([A, B])
    assert supervisor.on_restored(A, Attempt(1)) == []
    assert supervisor.on_restored(A, Attempt(1)) == []
    assert supervisor.on_restored(B, Attempt(1)) == [StartTasks(Attempt(1))]


def test_a_task_that_was_restored_for_an_earlier_attempt_does_not_count():
    chain: list[Entry] = [start(1)]
    supervisor, _ = claimed(chain)
    supervisor.on_placed([A, B])
    supervisor.on_restored(A, Attempt(2))
    assert supervisor.on_restored(B, Attempt(1)) == []
    assert supervisor.stage is Stage.RESTORING


def test_a_claim_whose_place_is_taken_is_tried_behind_it():
    supervisor = Supervisor()
    supervisor.begin(numbered([start(1)]))
    orders = supervisor.on_taken(2, numbered([start(1), start(2), manifest(1, attempt=2)]))
    assert orders == [AppendEntry(4, start(3, restored=1))]


def test_a_run_that_is_to_begin_anew_does_not_take_over_one_that_was_faster():
    supervisor = Supervisor()
    assert supervisor.begin(numbered([]), anew=True) == [AppendEntry(1, start(1))]
    (fail,) = supervisor.on_taken(1, numbered([start(1)]))
    assert isinstance(fail, FailRun) and "another run of this job has begun" in fail.reason
    assert supervisor.stage is Stage.OVER
    (fail,) = Supervisor().begin(numbered([start(1)]), anew=True)
    assert isinstance(fail, FailRun), "nor does it where it sees that at once"


def test_a_claim_from_an_earlier_cut_that_is_tried_again_keeps_to_that_cut():
    supervisor = Supervisor()
    chain: list[Entry] = [start(1), manifest(3), manifest(5)]
    supervisor.begin(numbered(chain), Epoch(3))
    assert supervisor.on_taken(4, numbered([*chain, start(2, 5)])) == [AppendEntry(5, start(3, restored=3))]


def test_a_coordinator_that_wakes_late_finds_its_place_taken_and_stops():
    chain: list[Entry] = []
    supervisor = running(chain)
    assert supervisor.append(manifest(1)) == [AppendEntry(2, manifest(1))]
    assert supervisor.on_taken(2, numbered([*chain, start(2)])) == [Fenced(2)]
    assert supervisor.stage is Stage.OVER
    assert supervisor.on_failure("a process died", numbered(chain)) == []


def test_a_failure_behind_a_takeover_does_not_take_the_job_back():
    chain: list[Entry] = []
    supervisor = running(chain)
    chain += [start(2), manifest(1, attempt=2)]
    assert supervisor.on_failure("its files were gone", numbered(chain)) == [Fenced(2)]
    assert supervisor.stage is Stage.OVER


def test_a_takeover_between_a_failure_and_its_claim_fences_the_claim():
    chain: list[Entry] = []
    supervisor = running(chain)
    assert supervisor.on_failure("a process died", numbered(chain)) == [AppendEntry(2, start(2))]
    assert supervisor.on_taken(2, numbered([*chain, start(2)])) == [Fenced(2)]


def test_a_manifest_that_is_appended_is_where_the_next_attempt_starts():
    chain: list[Entry] = []
    supervisor = running(chain)
    assert supervisor.on_appended(manifest(1)) == []
    chain.append(manifest(1))
    assert supervisor.on_failure("a process died", numbered(chain)) == [AppendEntry(3, start(2, restored=1))]


def test_savepoints_of_earlier_attempts_are_not_for_retention_to_drop():
    chain: list[Entry] = [start(1), replace(manifest(2), savepoint="mine"), manifest(3)]
    supervisor = running(chain)
    assert supervisor.cuts == [2, 3]
    assert supervisor.periodic_cuts() == [3]


def test_a_manifest_that_others_appended_is_seen_by_the_next_attempt():
    chain: list[Entry] = []
    supervisor = running(chain)
    chain.append(manifest(8))
    assert supervisor.on_failure("a process died", numbered(chain)) == [AppendEntry(3, start(2, restored=8))]


def test_a_death_during_the_restore_claims_another_attempt():
    chain: list[Entry] = []
    supervisor, _ = claimed(chain)
    supervisor.on_placed([A, B])
    assert supervisor.on_failure("a process died", numbered(chain)) == [AppendEntry(2, start(2))]
    assert supervisor.on_restored(A, Attempt(1)) == []


def test_too_many_deaths_fail_the_run_with_the_last_reason():
    chain: list[Entry] = []
    supervisor = Supervisor(restarts_max=2)
    supervisor.begin(numbered(chain))
    for _ in range(2):
        assert not any(isinstance(order, FailRun) for order in supervisor.on_failure("a process died", numbered(chain)))
    assert supervisor.on_failure("out of memory", numbered(chain)) == [
        FailRun("restarted 2 times, and then: out of memory")
    ]
    assert supervisor.stage is Stage.OVER


def test_attempt_numbers_grow_beyond_all_that_the_chain_knows():
    assert Supervisor().begin(numbered([start(4), start(9), manifest(2, attempt=4)])) == [
        AppendEntry(4, start(10, restored=2))
    ]


def test_entries_that_are_gone_keep_their_numbers():
    chain = [Numbered(1, start(1)), Numbered(40, manifest(30)), Numbered(41, manifest(31))]
    supervisor = Supervisor()
    assert supervisor.begin(chain) == [AppendEntry(42, start(2, restored=31))]
    assert supervisor.next_epoch == 32
    supervisor.on_appended(start(2, restored=31))
    # Others have gone on, and most of what they did is gone, too.
    assert supervisor.on_failure("its files were gone", [*chain, Numbered(50, start(3)), Numbered(99, manifest(80, 3))])
    assert supervisor.stage is Stage.OVER


def test_a_cut_that_was_dropped_is_not_to_be_dropped_again():
    chain: list[Entry] = [start(1), manifest(3), manifest(5)]
    supervisor = running(chain)
    supervisor.on_dropped(Epoch(3))
    assert supervisor.periodic_cuts() == [5]
    assert supervisor.restored_from == 5

"""A supervisor dies, and a successor of its run takes over; or it only slept, and finds that out."""

from __future__ import annotations

import pytest

from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import AppendEntry, AttemptStart, Entry, Fenced, Manifest, Numbered
from backedge.recovery.protocol.supervisor import Stage, Supervisor, claimant_of

FIRST, SECOND, OTHER = claimant_of("run", "1"), claimant_of("run", "2"), claimant_of("other", "3")


def start(attempt: int, claimant: str, restored: int | None = None) -> AttemptStart:
    return AttemptStart(Attempt(attempt), None if restored is None else Epoch(restored), claimant)


def manifest(epoch: int, attempt: int, claimant: str) -> Manifest:
    return Manifest(Epoch(epoch), Attempt(attempt), Mode.ALIGNED, {}, {}, claimant=claimant)


def numbered(*entries: Entry) -> list[Numbered]:
    return [Numbered(number, entry) for number, entry in enumerate(entries, 1)]


def test_a_successor_of_a_run_that_was_to_begin_anew_continues_it():
    chain = numbered(start(1, FIRST), manifest(4, 1, FIRST))
    assert Supervisor(SECOND).begin(chain, anew=True) == [AppendEntry(3, start(2, SECOND, restored=4))]


def test_a_successor_does_not_go_back_again_to_the_cut_that_its_run_began_with():
    chain = numbered(start(1, OTHER), manifest(2, 1, OTHER), start(2, FIRST, restored=2), manifest(5, 2, FIRST))
    assert Supervisor(SECOND).begin(chain, Epoch(2)) == [AppendEntry(5, start(3, SECOND, restored=5))]


def test_a_successor_of_a_supervisor_that_died_unclaimed_begins_as_the_run_was_asked_to():
    chain = numbered(start(1, OTHER), manifest(2, 1, OTHER), manifest(3, 1, OTHER))
    assert Supervisor(SECOND).begin(chain, Epoch(2)) == [AppendEntry(4, start(2, SECOND, restored=2))]
    assert Supervisor(SECOND).begin(chain, anew=True) == [Fenced(1)]


@pytest.mark.parametrize("happens", ["taken", "failure", "resume"])
def test_a_supervisor_that_slept_through_a_takeover_is_fenced_by_its_successor(happens: str):
    sleeper = Supervisor(FIRST)
    (claim,) = sleeper.begin([])
    sleeper.on_appended(claim.entry)
    chain = numbered(start(1, FIRST), start(2, SECOND))
    orders = {
        "taken": lambda: sleeper.on_taken(AppendEntry(2, start(1, FIRST)), chain),
        "failure": lambda: sleeper.on_failure("a process died", chain, 0),
        "resume": lambda: sleeper.resume(chain),
    }[happens]()
    assert orders == [Fenced(2)] and sleeper.stage is Stage.OVER


def test_a_successor_does_not_take_the_job_back_from_another_run():
    chain = numbered(start(1, FIRST), manifest(1, 1, FIRST), start(2, OTHER, restored=1))
    assert Supervisor(SECOND).begin(chain) == [Fenced(3)]


def test_a_claim_of_a_dead_predecessor_that_lands_late_is_continued():
    """The predecessor's claim was under way when the successor read the chain."""
    successor = Supervisor(SECOND)
    chain = numbered(start(1, OTHER), manifest(2, 1, OTHER), manifest(3, 1, OTHER))
    successor.begin(chain, Epoch(2))
    landed = [*chain, Numbered(4, start(2, FIRST, restored=2))]
    assert successor.on_taken(AppendEntry(4, start(1, FIRST)), landed) == [AppendEntry(5, start(3, SECOND, restored=2))]

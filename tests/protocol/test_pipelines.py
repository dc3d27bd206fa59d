"""Pipelines of a job have one chain: each reads its own entries, and another run fences all of them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.protocol.chain_view import needed
from backedge.recovery.protocol.orders import AppendEntry, AttemptStart, Entry, Fenced, FileId, Numbered, Sweep, Trigger
from backedge.recovery.protocol.pipelines import Pipeline
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from backedge.recovery.protocol.supervisor import Beginning, Stage, Supervisor
from tests.protocol import chains
from tests.protocol.bench_of_cores import LOOP
from tests.protocol.chains import OURS, SUCCESSOR, claimed, manifest, numbered

ORDERS, PRICES = Pipeline("orders", 0, 2), Pipeline("prices", 1, 2)
TASK = TaskId("count", 0)


def start(pipeline: Pipeline, attempt: int, restored: int | None = None, claimant: str = OURS) -> AttemptStart:
    return chains.start(attempt, restored, claimant, pipeline=pipeline.name)


def cut(pipeline: Pipeline, epoch: int, attempt: int, claimant: str = OURS):
    return manifest(epoch, attempt, claimant, files={TASK: Epoch(epoch)}, pipeline=pipeline.name)


def running(pipeline: Pipeline, *chain: Entry) -> tuple[Supervisor, Any]:
    supervisor, (sweep, _) = claimed([*chain], supervisor=Supervisor(OURS, pipeline=pipeline))
    return supervisor, sweep


def appended(supervisor: Supervisor, entry: Entry) -> Any:
    (append,) = supervisor.append(entry)
    return append


def test_a_supervisor_that_never_heard_of_its_claim_finds_its_successor_in_a_short_chain():
    chain = numbered(
        start(PRICES, 1, claimant=OURS), start(PRICES, 2, claimant=SUCCESSOR), start(ORDERS, 3, None, SUCCESSOR)
    )
    supervisor = Supervisor(OURS, pipeline=ORDERS)
    assert supervisor.begin(needed(chain, (), ())) == [Fenced(2)]


def test_each_pipeline_continues_from_its_own_last_entry():
    chain = (start(ORDERS, 1), start(PRICES, 2), cut(ORDERS, 2, 1), cut(PRICES, 3, 2), cut(ORDERS, 4, 1))
    for pipeline, epoch in ((ORDERS, 4), (PRICES, 3)):
        supervisor = Supervisor(SUCCESSOR, pipeline=pipeline)
        assert supervisor.begin(numbered(*chain)) == [AppendEntry(6, start(pipeline, 3, epoch, SUCCESSOR))]


def test_an_entry_of_another_pipeline_moves_an_entry_to_the_next_number_and_changes_no_attempt():
    supervisor, _ = running(ORDERS)
    append = appended(supervisor, cut(ORDERS, 2, 1))
    assert append.number == 2
    chain = numbered(start(ORDERS, 1), start(PRICES, 2), cut(PRICES, 3, 2))
    assert supervisor.on_taken(append, chain) == [AppendEntry(4, append.entry)]
    assert supervisor.attempt == 1 and supervisor.chain.cuts == []


def test_an_entry_moves_behind_entries_of_another_pipeline_whose_cuts_were_removed():
    """The entries of removed cuts may be missing when the chain is read, but not the last one."""
    supervisor, _ = running(ORDERS)
    append = appended(supervisor, cut(ORDERS, 2, 1))
    chain = [Numbered(1, start(ORDERS, 1)), Numbered(4, cut(PRICES, 5, 2))]
    assert supervisor.on_taken(append, chain) == [AppendEntry(5, append.entry)]


def test_another_run_that_claims_one_pipeline_fences_all():
    claimed = numbered(start(ORDERS, 1), start(PRICES, 2), start(PRICES, 3, claimant="another run"))
    orders, _ = running(ORDERS)
    assert orders.on_taken(AppendEntry(3, cut(ORDERS, 2, 1)), claimed) == [Fenced(3)]
    orders, _ = running(ORDERS)
    assert orders.on_failure("a process died", claimed, 0) == [Fenced(3)]


def test_a_pipeline_that_has_not_claimed_yet_is_fenced_when_its_run_has_lost_the_job():
    chain = numbered(start(ORDERS, 1), start(ORDERS, 2, claimant="another run"))
    assert Supervisor(OURS, pipeline=PRICES).begin(chain) == [Fenced(2)]


def test_of_two_runs_that_race_one_loses_all_pipelines_and_the_other_none():
    first = numbered(start(ORDERS, 1, claimant="first run"), start(ORDERS, 2, claimant="second run"))
    assert Supervisor("first run", pipeline=PRICES).begin(first) == [Fenced(2)]
    second = Supervisor("second run", pipeline=PRICES)
    assert second.begin(first) == [AppendEntry(3, start(PRICES, 3, claimant="second run"))]


def test_a_successor_continues_what_a_pipeline_has_begun_and_begins_the_others_as_the_run_was_asked_to():
    earlier = [start(ORDERS, 1), start(PRICES, 2), *(cut(ORDERS, e, 1) for e in (2, 4)), cut(PRICES, 3, 2)]
    earlier = [replace(entry, claimant="earlier") for entry in (*earlier, cut(PRICES, 5, 2))]
    chain = numbered(*earlier, start(ORDERS, 3, 2), cut(ORDERS, 6, 3))
    orders = Supervisor(SUCCESSOR, pipeline=ORDERS)
    assert orders.begin(chain, Beginning(Epoch(2))) == [AppendEntry(9, start(ORDERS, 4, 6, SUCCESSOR))]
    prices = Supervisor(SUCCESSOR, pipeline=PRICES)
    behind = [*chain, Numbered(9, start(ORDERS, 4, 6, SUCCESSOR))]
    assert prices.begin(behind, Beginning(Epoch(3))) == [AppendEntry(10, start(PRICES, 5, 3, SUCCESSOR))]


def test_a_pipeline_that_fails_again_continues_although_others_have_claimed_for_the_run():
    """The claim of one pipeline says nothing about where another one is to continue."""
    chain = numbered(start(PRICES, 1, 3), cut(PRICES, 5, 1), start(ORDERS, 2, claimant=SUCCESSOR))
    prices = Supervisor(SUCCESSOR, pipeline=PRICES)
    assert prices.begin(chain, Beginning(Epoch(3))) == [AppendEntry(4, start(PRICES, 3, 5, SUCCESSOR))]


def test_a_pipeline_removes_nothing_of_the_attempts_of_others():
    chain = (start(ORDERS, 1), start(PRICES, 2), cut(PRICES, 3, 2), start(ORDERS, 3))
    _, sweep = running(ORDERS, *chain)
    assert sweep.attempt == 4 and sweep.others == {2}
    for attempt, is_removed in ((1, True), (2, False), (3, True)):
        assert sweep.removes_file(FileId(Attempt(attempt), Epoch(9), TASK)) is is_removed
        assert sweep.removes_epoch(Epoch(9), Attempt(attempt)) is is_removed
        transaction = f"done.0.attempt-{attempt}.epoch-9"
        assert sweep.removes(transaction) is is_removed and sweep.forgets(transaction) is is_removed


def test_pipelines_are_dealt_the_numbers_of_epochs_in_turns():
    chain = numbered(start(ORDERS, 1), start(PRICES, 2), cut(PRICES, 7, 2))
    numbers: dict[str, list[Epoch]] = {}
    for pipeline in (ORDERS, PRICES):
        snapshots = SnapshotOptions(interval_ms=10, open_epochs_max=3)
        supervisor = Supervisor("", pipeline=pipeline, snapshots=snapshots)
        supervisor.read(chain)
        supervisor.on_started(LOOP, 0)
        coordinator: Any = supervisor.coordinator
        orders = [order for now_ms in (10, 20) for order in coordinator.on_tick(now_ms)]
        triggers = {order.epoch: None for order in orders if isinstance(order, Trigger)}
        numbers[str(pipeline.name)] = list(triggers)
    assert numbers == {"orders": [8, 10], "prices": [9, 11]}


def test_a_cut_of_another_pipeline_completes_no_epoch_and_answers_no_request():
    supervisor, _ = running(ORDERS)
    supervisor.read([Numbered(2, start(PRICES, 2)), Numbered(3, replace(cut(PRICES, 3, 2), request="a1"))])
    assert supervisor.requests.recorded == {} and supervisor.chain.last_cut is None
    assert supervisor.chain.next_epoch == 4


def test_a_pipeline_that_was_given_up_begins_from_the_beginning_once_a_cut_says_so():
    chain = [start(PRICES, 1), cut(PRICES, 3, 1), start(ORDERS, 2)]
    only = Supervisor(OURS, pipeline=ORDERS._replace(gives_up=frozenset({"prices"})))
    only.read(numbered(*chain))
    only.attempt = Attempt(2)
    named = appended(only, cut(ORDERS, 4, 2)).entry
    assert named.given_up == ("prices",)
    assert only.sweep().others == {1}, "the run may still fail"
    assert not any(order.others for order in only.on_appended(named) if isinstance(order, Sweep))
    for before, restored in ((chain, 3), ([*chain, named], None)):
        again = Supervisor("another run", pipeline=PRICES)
        claim = AppendEntry(len(before) + 1, start(PRICES, 3, restored, "another run"))
        assert again.begin(numbered(*before)) == [claim]
        assert again.chain.cuts == ([] if restored is None else [3])


def test_every_later_run_names_a_pipeline_that_was_given_up_until_it_begins_again():
    chain = [start(PRICES, 1), cut(PRICES, 3, 1), start(ORDERS, 2), replace(cut(ORDERS, 4, 2), given_up=("prices",))]
    later = Supervisor("another run", pipeline=ORDERS)
    later.read(numbered(*chain))
    later.stage = Stage.RUNNING
    append = appended(later, cut(ORDERS, 6, 3))
    assert append.entry.given_up == ("prices",)
    begun = Numbered(5, start(PRICES, 4, claimant="another run"))
    moved: Any
    (moved,) = later.on_taken(append, [*numbered(*chain), begun])
    assert moved.entry.given_up == ()
    assert later.sweep().others == {4}

"""What the store of a job says about its runs: the chain counts, and what was kept adds to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from backedge.engine.simulation.world.world import World
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.orders import AttemptStart, Manifest
from backedge.recovery.stores import chain
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.documents import sealed
from backedge.recovery.stores.names import STATUS
from backedge.recovery.stores.run_status import (
    REMEMBERED_MAX,
    EpochStatus,
    FailureStatus,
    OperatorStatus,
    RunStatus,
    TaskStatus,
)
from backedge.recovery.stores.stored_status import UNFINISHED, stored_status
from proof.runner import run_seed
from tests.spark.simulated import write_run
from tests.stores.snapshots import append, begin, complete, manifest_for

NOW_S = 2_000_000_000.0


@pytest.fixture(scope="module")
def finished() -> World:
    return run_seed(3, 2)[1]


def kept(store: CutStore, **changed: object) -> RunStatus:
    """A status that a supervisor of attempt 1 could have kept."""
    status = RunStatus("job", "4f", "running", True, NOW_S - 9, 5.0, store.root, 1, 1, 1, records=70)
    return replace(status, **changed)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> CutStore:
    store = CutStore(str(tmp_path), "job")
    begin(store)
    return store


def test_without_a_kept_status_the_graph_and_the_cuts_are_told(finished: World, tmp_path: Path):
    write_run(finished, tmp_path, keep=2)
    store = CutStore(str(tmp_path), "job")
    status = stored_status(store, NOW_S)
    cuts = [entry for entry in store.chain() if isinstance(entry, Manifest)]
    assert (status.state, status.is_live, status.cuts) == ("finished", False, len(cuts))
    last = finished.record.cuts[max(finished.record.cuts)]
    assert {operator.name for operator in status.operators} == {task.name for task in last.snapshots}
    assert {loop.name for loop in status.loops} == {edge.loop for edge in finished.plan.edges if edge.loop}
    assert [epoch.is_kept for epoch in status.epochs] == [False] * (len(cuts) - 2) + [True] * 2
    assert all(epoch.written_bytes for epoch in status.epochs if epoch.is_kept)


def test_a_run_whose_end_was_kept_has_ended_that_way(store: CutStore):
    store.keep_status(kept(store, state="stopped", failures=(FailureStatus(1, 1.0, "died"),)))
    status = stored_status(store, NOW_S)
    assert (status.state, status.records, status.is_live) == ("stopped", 70, False)
    assert status.failures == (FailureStatus(1, 1.0, "died"),)


def test_a_run_that_has_ended_has_totals_and_no_present_pace(store: CutStore):
    task = TaskStatus(0, "a", 12_000, 5, 30.0, 1.0, 0.5, 0.25, busy_s=4.0)
    running = (OperatorStatus("rank", ("rank",), False, False, (task,)),)
    store.keep_status(kept(store, operators=running))
    assert stored_status(store, NOW_S).operators == running, "the last that was heard of a run that died"
    store.keep_status(kept(store, operators=running, state="finished"))
    ((ended,),) = (operator.tasks for operator in stored_status(store, NOW_S).operators)
    assert ended == TaskStatus(0, "a", 12_000, 5, busy_s=4.0)


def test_a_run_that_was_running_when_it_was_heard_of_last_is_unfinished(store: CutStore):
    store.keep_status(kept(store))
    assert stored_status(store, NOW_S).state == UNFINISHED


def test_an_attempt_that_began_later_counts_more_than_a_kept_end(store: CutStore):
    store.keep_status(kept(store, state="cancelled"))
    append(store, AttemptStart(Attempt(2), None))
    status = stored_status(store, NOW_S)
    assert (status.state, status.attempt) == (UNFINISHED, 2)


def test_only_the_chain_makes_an_epoch_a_cut(store: CutStore):
    known = (EpochStatus(1, 1, "aligned", "open", began_s=5.0), EpochStatus(2, 1, "aligned", "open"))
    complete_cut(store, 1)
    store.keep_status(kept(store, epochs=known))
    told = {epoch.epoch: epoch for epoch in stored_status(store, NOW_S).epochs}
    assert (told[1].state, told[1].is_kept) == ("complete", True)
    assert told[2].state == "given up" and "ended before" in told[2].reason


def complete_cut(store: CutStore, epoch: int) -> None:
    complete(store, epoch)
    store.describe_graph("abc", {"name": "job", "operators": [], "edges": []})


def test_what_was_measured_of_a_cut_stays_after_it_was_dropped(store: CutStore):
    measured = EpochStatus(1, 1, "aligned", "complete", align_s=0.5, is_kept=True)
    complete_cut(store, 1)
    complete_cut(store, 2)
    store.keep_status(kept(store, epochs=(measured,)))
    store.drop(Epoch(1))
    assert stored_status(store, NOW_S).epochs[0] == replace(measured, is_kept=False)


@pytest.mark.slow
def test_of_a_long_chain_the_last_epochs_are_told_and_every_cut_that_exists(
    store: CutStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(chain, "ENTRIES_KEPT", 2 * REMEMBERED_MAX)
    complete(store, 1)
    for epoch in range(2, 2 * REMEMBERED_MAX):
        append(store, manifest_for({}, epoch), {})
        store.drop(Epoch(epoch))
    complete(store, 2 * REMEMBERED_MAX)
    store.keep_status(kept(store, operators=(OperatorStatus("out", ("out",), False, True, ()),)))
    told = [epoch.epoch for epoch in stored_status(store, NOW_S).epochs]
    assert told == [1, *range(REMEMBERED_MAX + 1, 2 * REMEMBERED_MAX + 1)]


def test_a_damaged_status_hides_nothing_that_the_chain_knows(store: CutStore):
    complete_cut(store, 1)
    Path(store.path, STATUS).write_text("{")
    status = stored_status(store, NOW_S)
    assert (status.cuts, status.last_epoch) == (1, 1)
    assert "status.json is torn" in status.reason


def test_a_status_of_another_job_or_key_is_not_believed(tmp_path: Path):
    key = b"a secret of 22 bytes.."
    store = CutStore(str(tmp_path), "signed", key)
    begin(store)
    store.keep_status(kept(store))
    assert stored_status(store, NOW_S).records == 70
    unsigned = sealed({"job_id": store.job_id, "status": kept(store, records=10**9).to_json()}, None)
    Path(store.path, STATUS).write_bytes(unsigned)
    status = stored_status(store, NOW_S)
    assert (status.records, "not signed" in status.reason) == (0, True)
    foreign = sealed({"job_id": "0" * 32, "status": kept(store).to_json()}, key)
    Path(store.path, STATUS).write_bytes(foreign)
    assert "another job" in stored_status(store, NOW_S).reason

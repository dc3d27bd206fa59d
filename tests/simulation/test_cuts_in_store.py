"""Schedules whose chain and cuts are in a real store: deltas, compactions, lost replies and removals included."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from backedge.engine.simulation.world.cuts_in_store import CutsInStore
from backedge.engine.simulation.world.world_options import Parts
from backedge.recovery.stores import chain
from backedge.recovery.stores.folder_store import FolderStore
from proof.runner import case_of, compacts, run_case


@pytest.mark.slow
def test_generated_flows_restore_from_a_store_what_they_have_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Their chains are shortened all the time."""
    monkeypatch.setattr(chain, "ENTRIES_KEPT", 1)
    shortened = 0
    store, happened, faults = FolderStore(str(tmp_path)), Counter[str](), Counter[str]()
    # Most of them are about compactions.
    for seed in [*range(6), *[seed for seed in range(100) if compacts(seed)][:8]]:
        case = case_of(seed)
        parts = Parts(store=partial(CutsInStore, store=store, job=f"seed-{seed}", plan=case.plan))
        outcome, world = run_case(case, seed, crashes=3, parts=parts)
        assert outcome.violations == [], seed
        shortened += len(store.list(f"seed-{seed}/past")) > 1
        world.store.close()
        happened += world.counts
        faults += outcome.faults
    assert list(store.list()) == [] and shortened > 5
    assert {"restored_from_deltas", "restored_from_compactions", "cuts_with_compactions"} <= (+happened).keys()
    assert {"lose_append_reply", "hang_append", "superseded_removal", "crash"} <= (+faults).keys()

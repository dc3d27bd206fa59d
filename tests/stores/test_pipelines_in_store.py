"""A store keeps the cuts of several pipelines of a job: each has its own retention, and entries name their pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from graphs.ids import Attempt, Epoch
from recovery.orders import AttemptStart, Manifest
from recovery.stores.cut_store import CutStore
from recovery.stores.manifests import entry_document, entry_in
from recovery.stores.store_errors import NoSuchCutError
from recovery.supervisor import Supervisor, read_pipelines
from tests.stores.snapshots import DEPLOYMENT, manifest_for, snapshots_of, write


def start(attempt: int, pipeline: str | None) -> AttemptStart:
    return AttemptStart(Attempt(attempt), None, pipeline=pipeline)


def complete(store: CutStore, epoch: int, attempt: int, pipeline: str, kept: tuple[int, ...]) -> Manifest:
    files = write(store, snapshots_of(epoch, attempt))
    entry = replace(manifest_for(files, epoch, attempt), pipeline=pipeline, kept=tuple(map(Epoch, kept)))
    assert store.create(len(store.chain()) + 1, entry, files, DEPLOYMENT)
    return entry


def test_entries_name_their_pipeline_and_those_of_an_undivided_job_are_as_they_always_were(tmp_path: Path):
    store = CutStore(str(tmp_path), "job")
    entries = [start(1, "a"), start(2, "b")]
    assert all(store.create(number, entry) for number, entry in enumerate(entries, 1))
    entries += [complete(store, 2, 1, "a", (2,)), complete(store, 3, 2, "b", (3,))]
    assert CutStore(str(tmp_path), "job").chain() == entries
    for entry in entries:
        assert entry_in(json.loads(json.dumps(entry_document(entry)))) == entry
        assert "pipeline" not in entry_document(replace(entry, pipeline=None))


def test_the_retention_of_a_pipeline_removes_only_its_own_cuts(tmp_path: Path):
    store = CutStore(str(tmp_path), "job")
    for number, entry in enumerate((start(1, "a"), start(2, "b")), 1):
        store.create(number, entry)
    complete(store, 2, 1, "a", (2,))
    complete(store, 3, 2, "b", (3,))
    complete(store, 4, 1, "a", (4,))
    store.drop(Epoch(2))
    assert store.cuts() == [3, 4]
    for epoch in (3, 4):
        store.verify(Epoch(epoch))
    with pytest.raises(NoSuchCutError):
        store.verify(Epoch(2))


def test_the_sweep_of_a_pipeline_spares_the_attempts_of_others(tmp_path: Path):
    store = CutStore(str(tmp_path), "job")
    for number, entry in enumerate((start(1, "a"), start(2, "b")), 1):
        store.create(number, entry)
    complete(store, 2, 1, "a", (2,))
    write(store, snapshots_of(5, 2))  # the other pipeline is about to complete this
    write(store, snapshots_of(6, 1))  # this attempt has failed
    store.create(4, start(3, "a"))
    readers = read_pipelines(store.numbered())
    assert isinstance(readers["a"], Supervisor) and readers["a"].others == {2}
    readers["a"].attempt = Attempt(3)
    store.sweep(readers["a"].sweep())
    there = {path.parent.parent.name for path in tmp_path.rglob("epoch=*/attempt=*/table=*")}
    assert there == {"epoch=2", "epoch=5"}

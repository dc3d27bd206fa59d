"""Looks up the cut to resume from, before the run starts or leaves anything behind."""

from __future__ import annotations

from graphs.ids import Epoch
from graphs.naming import check_name
from recovery.stores.cut_store import CutStore
from recovery.stores.manifests import CutDescription
from recovery.stores.names import JOB
from recovery.stores.store_calls import exists
from recovery.stores.store_errors import NoSuchCutError
from recovery.stores.store_schemes import store_at
from recovery.supervisor import Supervisor


def last_cut(store: CutStore) -> Epoch | None:
    """The cut from which `resume="latest"` resumes; None if there is none."""
    return _read(store).continues_from


def _read(store: CutStore) -> Supervisor:
    reader = Supervisor("")
    reader.read(store.numbered())
    return reader


def find_cut(root: str, job: str, epoch: int, key: bytes | None = None) -> CutDescription:
    """The description of the cut to resume from. Unlike opening a store, creates nothing if there is no such job."""
    if not exists(store_at(root).below(check_name(job, "job")), JOB):
        raise NoSuchCutError(
            f"{root} contains no run of {job!r}, so there is no cut {epoch} to resume from: give that run's folder, "
            "or resume from another cut; `backedge snapshots list` shows the cuts of a folder"
        )
    store = CutStore(root, job, key)
    kept = set(store.cuts())
    there = [str(cut) for cut in _read(store).cuts if cut in kept]
    if str(epoch) not in there:
        others = f"resume from one of {', '.join(there)}" if there else "it has none, so resume from latest to begin"
        raise NoSuchCutError(f"epoch {epoch} is not a complete cut in {store.path}: {others}")
    return store.manifest_of(Epoch(epoch))

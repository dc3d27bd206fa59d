"""Looks up the cut to resume from, before the run starts or leaves anything behind."""

from __future__ import annotations

import os

from graphs.ids import Epoch
from graphs.naming import check_name
from recovery.stores.local import LocalStore
from recovery.stores.manifests import CutDescription
from recovery.stores.names import JOB, epoch_folder
from recovery.stores.store_errors import NoSuchCutError
from recovery.supervisor import Supervisor


def last_cut(store: LocalStore) -> Epoch | None:
    """The cut from which `resume="latest"` resumes; None if there is none."""
    return _read(store).continues_from


def _read(store: LocalStore) -> Supervisor:
    reader = Supervisor("")
    reader.read(store.numbered())
    return reader


def find_cut(root: str, job: str, epoch: int, key: bytes | None = None) -> CutDescription:
    """The description of the cut to resume from. Unlike opening a store, creates nothing if there is no such job."""
    if not os.path.isfile(os.path.join(root, check_name(job, "job"), JOB)):
        raise NoSuchCutError(
            f"{root} contains no run of {job!r}, so there is no cut {epoch} to resume from: give that run's folder, "
            "or resume from another cut; `backedge snapshots list` shows the cuts of a folder"
        )
    store = LocalStore(root, job, key)
    there = [str(cut) for cut in _read(store).cuts if os.path.isdir(os.path.join(store.path, epoch_folder(cut)))]
    if str(epoch) not in there:
        others = f"resume from one of {', '.join(there)}" if there else "it has none, so resume from latest to begin"
        raise NoSuchCutError(f"epoch {epoch} is not a complete cut in {store.path}: {others}")
    return store.manifest_of(Epoch(epoch))

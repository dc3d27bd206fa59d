"""Looks up the cut to resume from, before the run starts or leaves anything behind."""

from __future__ import annotations

from backedge.graphs.ids import Epoch
from backedge.graphs.naming import check_name
from backedge.recovery.protocol.chain_view import read_pipelines
from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.manifests import CutDescription
from backedge.recovery.stores.names import JOB
from backedge.recovery.stores.older_cuts import with_older_cut
from backedge.recovery.stores.store_calls import exists
from backedge.recovery.stores.store_errors import NoSuchCutError, SnapshotCorruptError
from backedge.recovery.stores.store_schemes import store_at


def last_cuts(store: CutStore) -> dict[str | None, Epoch]:
    """The cut from which `resume="latest"` resumes each pipeline; those without one are left out."""
    readers = read_pipelines(store.numbered())
    cuts = {name: reader.continues_from for name, reader in readers.items()}
    return {name: epoch for name, epoch in cuts.items() if epoch is not None}


def cuts_with(store: CutStore, epoch: Epoch) -> dict[str | None, Epoch]:
    """The cut of this epoch, and those that the same request took of other pipelines and that still exist."""
    entries = [entry for entry in store.chain() if isinstance(entry, Manifest)]
    cut = next(entry for entry in entries if entry.epoch == epoch)
    cuts = {cut for reader in read_pipelines(store.numbered()).values() for cut in reader.cuts}
    taken = (e for e in entries if e.request is not None and e.request == cut.request)
    return {**{e.pipeline: e.epoch for e in taken if e.epoch in cuts and store.keeps(e)}, cut.pipeline: epoch}


def find_cut(root: str, job: str, epoch: int, key: bytes | None = None) -> CutDescription:
    """The description of the cut to resume from. Unlike opening a store, creates nothing if there is no such job."""
    if not exists(store_at(root).below(check_name(job, "job")), JOB):
        raise NoSuchCutError(
            f"{root} contains no run of {job!r}, so there is no cut {epoch} to resume from: give that run's folder, "
            "or resume from another cut; `backedge snapshots list` shows the cuts of a folder"
        )
    store = CutStore(root, job, key)
    kept = set(store.cuts())
    readers = read_pipelines(store.numbered()).values()
    there = [str(cut) for cut in sorted(cut for reader in readers for cut in reader.cuts) if cut in kept]
    if str(epoch) not in there:
        others = f"resume from one of {', '.join(there)}" if there else "it has none, so resume from latest to begin"
        raise NoSuchCutError(f"epoch {epoch} is not a complete cut in {store.path}: {others}")
    return read_cut(store, Epoch(epoch))


def read_cut(store: CutStore, epoch: Epoch) -> CutDescription:
    """The description of a cut. If it is damaged, the error names an older cut to resume from, if there is one."""
    try:
        return store.manifest_of(epoch)
    except SnapshotCorruptError as fault:
        readers = read_pipelines(store.numbered()).values()
        cuts = [cut for reader in readers if epoch in reader.cuts for cut in reader.cuts]
        raise with_older_cut(fault, epoch, cuts, store.manifest_of) from fault

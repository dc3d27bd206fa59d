"""Finds jobs: in the store where they keep their cuts, and on the Ray cluster where they run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backedge.engine.on_ray.attaching import named_address
from backedge.flows import WrongCallError
from backedge.graphs.ids import Epoch
from backedge.graphs.naming import check_name
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import local_path
from backedge.recovery.stores.job_identity import is_job, jobs_in
from backedge.recovery.stores.manifests import CutDescription
from backedge.recovery.stores.run_status import RunStatus
from backedge.recovery.stores.store_errors import StoreError
from backedge.recovery.stores.store_schemes import scheme_of, store_at
from backedge.recovery.stores.stored_status import stored_status


@dataclass(frozen=True, slots=True)
class Jobs:
    """Where to look for jobs: a folder or URI, and the runs that are alive, or None if no cluster was asked."""

    snapshots: str | None
    key: bytes | None = None
    living: Sequence[RunStatus] | None = None

    def all(self) -> tuple[list[RunStatus], list[Exception]]:
        """Every job that is found, by name; and why others could not be read."""
        found = {(status.job, status.snapshots): status for status in self.living or ()}
        faults: list[Exception] = []
        for job in [] if self.snapshots is None else self.stored():
            try:
                store = CutStore(self.snapshots or "", job, self.key)
                if (job, store.root) not in found:
                    found[job, store.root] = stored_status(store, time.time())
            except (StoreError, OSError) as fault:
                # The other jobs are no worse for it.
                faults.append(fault)
        return sorted(found.values(), key=lambda status: (status.job, status.snapshots or "")), faults

    def one(self, job: str) -> RunStatus:
        """The status of a job: of its living run, or else what its store knows."""
        alive = self._alive(job)
        if len(alive) > 1:
            where = ", ".join(status.snapshots or "no folder" for status in alive)
            raise WrongCallError(f"several runs of {job!r} are alive, with cuts in {where}: give --snapshots of one")
        return alive[0] if alive else stored_status(self.store(job), time.time())

    def is_alive(self, job: str, store: CutStore) -> RunStatus | None:
        """The living run of a job that keeps its cuts in this store.

        The run may know the folder by another name, that of a link or of another host. Then its status is kept there.
        """
        alive = [status for status in self.living or () if status.job == job]
        here = [status for status in alive if status.snapshots == store.root]
        if alive and not here:
            kept = store.kept_status()
            here = [status for status in alive if kept is not None and status.run == kept.run]
        return here[0] if here else None

    def _alive(self, job: str) -> list[RunStatus]:
        return kept_at(self.snapshots, [status for status in self.living or () if status.job == job])

    def stored(self) -> list[str]:
        return jobs_in(store_at(self.snapshots or ""))

    def store(self, job: str) -> CutStore:
        """The store of a job. Unlike opening one directly, creates nothing."""
        check_name(job, "job")
        snapshots = self.snapshots
        if snapshots is None:
            alive = self._alive(job)
            snapshots = alive[0].snapshots if len(alive) == 1 else None
        if snapshots is None:
            others = ", ".join(sorted(status.job for status in self.living or ())) or "none"
            raise WrongCallError(
                f"no run of {job!r} that keeps cuts is alive on a cluster; those that are alive: {others}; give "
                "--snapshots, the folder or URI of its cuts"
            )
        check_folder(snapshots)
        if not is_job(store_at(snapshots).below(job)):
            there = ", ".join(Jobs(snapshots).stored())
            raise WrongCallError(f"job {job!r} is not in {snapshots}: it holds {there or 'no job'}")
        return CutStore(snapshots, job, self.key)


def check_folder(snapshots: str | None) -> None:
    """Raise if this is a local folder that does not exist: it is probably misspelt. Object stores have no folders."""
    if snapshots is not None and scheme_of(snapshots) == "file" and not os.path.isdir(path := local_path(snapshots)):
        raise WrongCallError(f"{path} is not a folder: give the folder or URI that runs keep their cuts in")


def kept_at(snapshots: str | None, runs: Sequence[RunStatus]) -> list[RunStatus]:
    """Those of the runs that keep their cuts in this folder or URI, and those that keep none; without one, all."""
    if snapshots is None:
        return list(runs)
    location = store_at(snapshots).location
    return [status for status in runs if status.snapshots in (None, location)]


def cut_of(
    store: CutStore, epoch: int | None, is_meant: Callable[[CutDescription], bool] = lambda _: True
) -> CutDescription:
    """The cut of an epoch, or the last one; of several pipelines, the last one that is meant."""
    kept = store.cuts()
    if not kept:
        raise WrongCallError(f"no cut is complete in {store.path}")
    if epoch is not None and epoch not in kept:
        raise WrongCallError(f"epoch {epoch} is not a cut in {store.path}: it holds {', '.join(map(str, kept))}")
    if epoch is not None:
        return store.manifest_of(Epoch(epoch))
    last = [store.manifest_of(cut) for cut in kept_by_pipeline(store)]
    return next(filter(is_meant, last), last[0])


def kept_by_pipeline(store: CutStore) -> list[Epoch]:
    """The last cut of each pipeline that still exists, newest first."""
    there = store.existing()
    last = {entry.pipeline: number for number, entry in enumerate(there)}
    return [there[number].epoch for number in sorted(last.values(), reverse=True)]


def living(*, is_needed: bool, is_searched: bool = False) -> Sequence[RunStatus] | None:
    """The runs that are alive on the cluster; None if there is none. Raises if a cluster `is_needed`, or was named.

    One that is neither needed nor named is joined only if it `is_searched` for.
    """
    try:
        found = _runs_on_the_cluster(is_needed=is_needed, is_searched=is_searched)
    except ConnectionError as error:
        raise WrongCallError(str(error)) from error
    if found is None and is_needed:
        raise WrongCallError("no Ray cluster is running: give --snapshots, the folder or URI of the cuts")
    return found


def _runs_on_the_cluster(*, is_needed: bool, is_searched: bool) -> Sequence[RunStatus] | None:
    """None if no cluster is running.

    A cluster that is named and does not answer is a `ConnectionError`. So is one that is needed and refuses the token,
    and so are several of which one is needed.
    """
    # Ray is imported by the commands that need it.
    from backedge.engine.on_ray import cluster
    from backedge.engine.on_ray.api.living_runs import living_runs

    if not (cluster.is_connected() or is_needed or is_searched or named_address()):
        return None
    with cluster.left_as_found():
        try:
            cluster.connect(must_exist=True)
        except cluster.ClusterError as error:
            there_is_one = isinstance(error, cluster.TokenRefusedError | cluster.SeveralClustersError)
            if named_address() or (is_needed and there_is_one):
                raise
            if isinstance(error, cluster.SeveralClustersError):
                print(f"backedge: no cluster was asked for living runs: {error}", file=sys.stderr)
            return None
        return living_runs()

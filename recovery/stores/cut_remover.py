"""Removes cuts that retention drops, and files of attempts that no restore will need.

- Removing a cut begins with its manifest, so that no half of a cut looks complete.
- The keyed state of a task may be in a list of files, of which the cut's own is the last (rule 14). A file is removed
  only if no cut that the chain keeps names it.
- Constants and versions are shared by cuts, and removed with the last one that names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.chain_view import run_of
from backedge.recovery.protocol.orders import CutId, FileId, Manifest, Sweep
from backedge.recovery.stores.cut_reader import CutReader, followed, kept_in
from backedge.recovery.stores.names import (
    Parts,
    attempt_folder,
    attempt_of_version,
    epoch_folder,
    first_part,
    is_unfinished,
    number_in,
    path_of,
    run_of_constant,
    task_file,
)
from backedge.recovery.stores.store_calls import each, remove_below
from backedge.recovery.stores.store_errors import StoreError
from backedge.recovery.stores.store_protocol import Store
from backedge.recovery.stores.task_files import StoredFile

_Place = tuple[Epoch | None, Attempt]
"""Where the tasks of an attempt write for an epoch; None is for their last states."""


class CutRemover(CutReader):
    """What the folder of a job holds, and what of it may go."""

    def __init__(self, store: Store, job: str, job_id: str, key: bytes | None) -> None:
        super().__init__(store, job, job_id, key)
        # The constants and versions of cuts that this process has written or looked at, by epoch.
        self._named: dict[Epoch, frozenset[StoredFile]] = {}
        # Those of dropped cuts that are not removed yet.
        self._left: set[StoredFile] = set()
        # Whether tasks of this run keep their inputs, and whether inputs of earlier runs may be there.
        self.keeps_inputs = True
        self._may_have_inputs = True
        # The attempt whose first sweep is done.
        self._swept: Attempt | None = None

    # -- cuts ----------------------------------------------------------------------------------------------------

    def drop(self, epoch: Epoch) -> None:
        """Remove the files of a complete cut, and the earlier ones that no other cut needs.

        Last states stay while a later cut may name them. Raises `NoSuchCutError` if the chain knows no such cut.
        """
        link = self._chain.find(epoch)
        entry = link.entry
        if not isinstance(entry, Manifest):
            return
        self._left |= self._shared_of(entry) or frozenset()
        self._store.remove([link.manifest_name])
        self._drop_files(entry)
        self._drop_last_states(entry)
        with suppress(OSError):  # a full disk, perhaps; the next drop does it
            self._drop_inputs(entry.pipeline)
            self._drop_shared(entry)
            self.answers.remove(self._oldest_restore())
            self._chain.shorten(lambda: {cut.epoch for cut in self._there(self._kept())})

    def _oldest_restore(self) -> Epoch:
        """The oldest cut that may be restored. 0: a pipeline of this run has none, and would begin from nothing."""
        entries, kept = [link.entry for link in self._chain.known()], self._kept()
        run = run_of(entries[-1].claimant)
        begun = {entry.pipeline for entry in entries if run_of(entry.claimant) == run}
        return Epoch(0) if begun - {cut.pipeline for cut in kept} else min(cut.epoch for cut in kept)

    def _drop_files(self, dropped: Manifest) -> None:
        """Remove what the tasks have written for a cut, and earlier files that it needs, unless another cut needs them.

        What the others name is known without a look at the store: a later cut names no more of the keyed state than the
        cut that it is based on. And no cut names a file that is later than itself: there may be a thousand savepoints.
        """
        oldest = min((file.epoch for file in dropped.named if file.epoch is not None), default=dropped.epoch)
        others: set[FileId] = set()
        for cut in self._kept(besides=dropped.epoch):
            if cut.epoch >= oldest:
                others |= cut.named
        places = {(dropped.epoch, dropped.attempt)}
        places |= {(file.epoch, file.attempt) for file in dropped.named - others if file.epoch is not None}
        each(self._store.reads_at_once, lambda place: self._remove_unnamed(*place, others), places)

    def _drop_inputs(self, pipeline: str | None) -> None:
        """Remove the kept inputs of a pipeline that follow no cut that still exists."""
        self._may_have_inputs = self.inputs.has_some() if self._may_have_inputs or self.keeps_inputs else False
        if not self._may_have_inputs:
            return  # to look for each cut takes long
        chain = self.chain()
        attempts = {entry.attempt for entry in chain if entry.pipeline == pipeline}
        kept = {entry.epoch for entry in chain if isinstance(entry, Manifest) and self.keeps(entry)}
        self.inputs.remove(lambda epoch, attempt: attempt in attempts and followed(chain, epoch, attempt) not in kept)

    def _shared_of(self, entry: Manifest) -> frozenset[StoredFile] | None:
        """The constants and versions that a cut names; None if its manifest cannot be read."""
        if entry.epoch not in self._named:
            try:
                self._named[entry.epoch] = frozenset(self.manifest_of(entry.epoch).shared)
            except (StoreError, OSError):
                return None
        return self._named[entry.epoch]

    def _drop_shared(self, entry: Manifest) -> None:
        """Remove the constants and versions of dropped cuts that no other cut names, if all others can be read."""
        self._named.pop(entry.epoch, None)
        last = max((cut.epoch for cut in self._manifests() if cut.pipeline == entry.pipeline), default=entry.epoch)
        self._left -= self._named.get(last, frozenset())
        if not self._left:
            return
        # Other pipelines may name them, too.
        self._chain.links_by_name()
        kept = self._kept(besides=entry.epoch)
        others = [self._shared_of(cut) for cut in kept]
        self._named = {cut.epoch: self._named[cut.epoch] for cut in kept if cut.epoch in self._named}
        if None not in others:
            self.constants.remove(self._left.difference(*(other for other in others if other is not None)))
            self._left.clear()

    def _manifests(self) -> list[Manifest]:
        """The complete cuts that are known of the chain."""
        return [link.entry for link in self._chain.known() if isinstance(link.entry, Manifest)]

    def _kept(self, besides: Epoch | None = None) -> list[Manifest]:
        """The cuts that the last known manifest of each pipeline keeps, if none gives it up."""
        return [cut for cut in kept_in(self._manifests()) if cut.epoch != besides]

    def _drop_last_states(self, dropped: Manifest) -> None:
        if None not in dropped.files.values():
            return
        entries = [link.entry for link in self._chain.known()]
        if max(entry.attempt for entry in entries if entry.pipeline == dropped.pipeline) == dropped.attempt:
            return
        of_attempt = [e for e in entries if isinstance(e, Manifest) and e.attempt == dropped.attempt]
        kept = _last_states(entry for entry in of_attempt if self.keeps(entry))
        self._remove_files(attempt_folder(dropped.attempt, None), lambda name: first_part(name) not in kept)

    # -- attempts ------------------------------------------------------------------------------------------------

    def sweep(self, sweep: Sweep) -> None:
        """Remove files of attempts that no restore will need. Goes on where something cannot be removed.

        The first sweep of an attempt and the last one of a run look into all folders. The others look only into those
        of which no cut needs anything: what else is there was written by this attempt, and is dropped by name.

        Raises the first `OSError` when the rest is done.
        """
        is_first = self._swept != sweep.attempt or sweep.is_over
        named: dict[_Place, set[FileId]] = {}
        for file in sweep.files:
            named.setdefault((file.epoch, file.attempt), set()).add(file)
        needed = {epoch for epoch, _ in named} | {cut.epoch for cut in sweep.cuts}
        needed |= {file.epoch for cut in self._kept() if cut.attempt in sweep.others for file in cut.named}

        def is_looked_into(folder: str) -> bool:
            epoch = number_in(folder, "epoch")
            if is_first:
                return epoch is not None or folder == epoch_folder(None)
            return epoch is not None and epoch not in needed and epoch < (sweep.last or 0)

        folders = [folder for folder in self._store.folders() if is_looked_into(folder)]
        found = each(self._store.reads_at_once, partial(self._sweep_epoch, sweep, named), folders)
        errors = [error for of_epoch in found for error in of_epoch]
        if is_first:
            try:
                self._sweep_shared(sweep)
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        self._swept = sweep.attempt

    def _sweep_shared(self, sweep: Sweep) -> None:
        """Remove constants of dead runs and versions of dead attempts that no cut names, if all cuts can be read.

        A run is dead for good if the run of this attempt has claimed the job after it. What a process has left that
        died while it wrote one goes, too: one that is still writing finds it gone, and writes it again.
        """
        runs = [run_of(link.entry.claimant) for link in self._chain.known() if link.entry.attempt <= sweep.attempt]
        dead = set(runs[: runs.index(runs[-1])]) - {""} if runs else set[str]()

        def is_dead(name: str) -> bool:
            if is_unfinished(name):
                return True
            attempt = attempt_of_version(name)
            return run_of_constant(name) in dead if attempt is None else sweep.removes_last_states(attempt)

        if not (found := self.constants.of(is_dead)):
            return
        self._chain.links_by_name()
        named = [self._shared_of(cut) for cut in self._kept()]
        if None not in named:
            spared = {file.name for of_cut in named for file in of_cut or ()}
            self._store.remove([name for name in found if name not in spared])

    def _sweep_epoch(self, sweep: Sweep, named: Mapping[_Place, Iterable[FileId]], folder: str) -> list[OSError]:
        number = number_in(folder, "epoch")
        epoch = None if number is None else Epoch(number)
        errors: list[OSError] = []
        try:
            attempts = list(self._store.folders(folder))
        except OSError as error:
            return [error]
        for name in attempts:
            attempt = number_in(name, "attempt")
            if attempt is None:
                continue
            place = epoch, Attempt(attempt)
            try:
                self._sweep_one(sweep, (folder, name), *place, named.get(place, ()))
            except OSError as error:
                errors.append(error)
        return errors

    def _sweep_one(
        self, sweep: Sweep, folder: Parts, epoch: Epoch | None, attempt: Attempt, kept: Iterable[FileId]
    ) -> None:
        if epoch is not None:
            if sweep.removes_epoch(epoch, attempt):
                self._remove_unnamed(epoch, attempt, kept)
        elif sweep.removes_last_states(attempt):
            entries = [link.entry for link in self._chain.links()]
            of_attempt = (entry for entry in entries if isinstance(entry, Manifest) and entry.attempt == attempt)
            named = _last_states(entry for entry in of_attempt if CutId(entry.epoch, attempt) in sweep.cuts)
            self._remove_files(folder, lambda name: first_part(name) not in named)

    def _remove_unnamed(self, epoch: Epoch, attempt: Attempt, named: Iterable[FileId]) -> None:
        """Remove what an attempt wrote for an epoch, except for the keyed state that other cuts name."""
        tasks = {task_file(file.task) for file in named if (file.attempt, file.epoch) == (attempt, epoch)}
        folder = attempt_folder(attempt, epoch)
        if tasks:
            self._remove_files(folder, lambda name: first_part(name) not in tasks)
        else:
            remove_below(self._store, path_of(folder))

    def _remove_files(self, folder: Parts, which: Callable[[str], bool]) -> None:
        names = self._store.list(path_of(folder))
        self._store.remove([name for name in names if which(name.rsplit("/", 1)[-1])])


def _last_states(manifests: Iterable[Manifest]) -> set[str]:
    return {task_file(task) for entry in manifests for task, epoch in entry.files.items() if epoch is None}

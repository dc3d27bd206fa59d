"""The store of a job in a local folder. See `recovery.stores` for where things lie in it.

- Tasks write their own files, the coordinator the chain; a store may be used by many threads and processes at once.
- A cut is complete when the entry of its manifest is in the chain. The manifest is durable before, with all that it
  names; so a death between the two leaves a cut that is not complete, and an entry never names what is not there.
- On one host tasks may leave it to the coordinator to settle the little that they have written, with the manifest.
- What is read is verified first: entry, then manifest, then each file's size and SHA-256. Only then is it decoded, and
  what does not hold is an error that names its path. Nothing is read in its place.
- Removing a cut begins with its manifest, so that half a cut is none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from graphs.deployment import Deployment
from graphs.ids import Attempt, Epoch, TaskId
from recovery.cut import Cut, TaskSnapshot
from recovery.messages import Mode
from recovery.orders import CutId, Entry, Manifest, Numbered, Sweep
from recovery.stores.chain import Chain
from recovery.stores.documents import Document, opened, sealed, sha256
from recovery.stores.folder import Folder, Write
from recovery.stores.keys import checked_key
from recovery.stores.links import Link, ManifestFile
from recovery.stores.manifests import CutDescription, description_in, manifest_document
from recovery.stores.names import (
    MANIFEST,
    Parts,
    attempt_folder,
    epoch_folder,
    first_part,
    graph_file,
    number_in,
    parts_of,
    path_of,
    task_file,
)
from recovery.stores.opening import identity_of, make_folders
from recovery.stores.record_tables import records_in_batch
from recovery.stores.schema import GRAPH
from recovery.stores.schema import MANIFEST as MANIFEST_SHAPE
from recovery.stores.shapes import shown
from recovery.stores.store_errors import NoSuchCutError, OutcomeUnknownError, SnapshotAuthError, SnapshotCorruptError
from recovery.stores.task_files import CountRecords, StoredCut, StoredFile, TaskFiles, TaskReader, write_files


class LocalStore:
    """What is durable of one job, in the folder ROOT/JOB."""

    def __init__(self, root: str, job: str, key: bytes | None = None, *, write: Write = os.write) -> None:
        """Opens the job's folder, or makes it. With a key everything is signed, and nothing unsigned is read.

        Without a key, a folder into which another user can write is refused.
        """
        if key is not None:
            checked_key(key, "the key of a store")
        self._folder = Folder(make_folders(root, job), write, must_be_own=key is None)
        self._key = key
        self.job = job
        self.job_id = identity_of(self._folder, job, key)
        self._chain = Chain(self._folder, self.job_id, key)
        # Numbers of the chain under which an entry of ours may or may not exist.
        self._unknown: set[int] = set()

    def __repr__(self) -> str:
        return f"LocalStore({self._folder.path!r})"

    @property
    def path(self) -> str:
        """The folder of the job."""
        return self._folder.path

    # -- the chain -----------------------------------------------------------------------------------------------

    @property
    def holds_a_run(self) -> bool:
        """Whether a run of this job has begun here."""
        return not self._chain.is_empty()

    def chain(self) -> list[Entry]:
        """The entries that are there, verified, in order; of a long chain those that nobody needs are gone."""
        return [link.entry for link in self._chain.links()]

    def numbered(self) -> list[Numbered]:
        """The same, each with its number."""
        return [Numbered(link.number, link.entry) for link in self._chain.links()]

    def create(
        self,
        number: int,
        entry: Entry,
        files: Mapping[TaskId, TaskFiles] | None = None,
        deployment: Deployment | None = None,
    ) -> bool:
        """Create an entry of the chain exclusively; False if another has its number.

        For a manifest, `files` are what `write_task` gave for each task of the deployment. The cut is complete when
        this returns True. After an `OSError` there is no such entry, unless it is an `OutcomeUnknownError`: then there
        may be one, nothing it names is removed, and the same entry is to be created again until the answer is known.
        """
        if number not in self._unknown and self._chain.is_taken(number):
            return False
        if isinstance(entry, Manifest) and deployment is None:
            raise ValueError(
                f"the manifest of epoch {entry.epoch} is created without a deployment: give the one it is of"
            )
        try:
            is_ours = self._create(number, entry, files or {}, deployment)
        except OutcomeUnknownError:
            self._unknown.add(number)
            raise
        except OSError as error:
            if number in self._unknown:
                raise OutcomeUnknownError(error.errno, f"whether entry {number} exists is unknown ({error})") from error
            self._remove_manifest(entry)
            raise
        self._unknown.discard(number)
        # Of an entry that is past others have gone on, and may have the cut still.
        if not is_ours and not self._chain.is_past(number):
            self._remove_manifest(entry)
        return is_ours

    def _create(
        self, number: int, entry: Entry, files: Mapping[TaskId, TaskFiles], deployment: Deployment | None
    ) -> bool:
        parent = self._chain.parent_of(number)
        manifest = None
        if isinstance(entry, Manifest) and deployment is not None:
            document = manifest_document(entry, files, deployment)
            manifest = self._write_manifest(number, entry, document, parent, self._unsettled(files.values()))
        return self._chain.create(number, entry, parent, manifest)

    def _remove_manifest(self, entry: Entry) -> None:
        """Remove a manifest that no entry stands for. If that fails too, the next attempt forgets it."""
        if isinstance(entry, Manifest):
            with suppress(OSError):
                self._folder.remove(_manifest_file(entry))

    def _write_manifest(
        self,
        number: int,
        entry: Manifest,
        document: Document,
        parent: str | None,
        unsettled: Sequence[Parts],
    ) -> ManifestFile:
        document["job"], document["job_id"] = self.job, self.job_id
        document["parent"] = {"number": number - 1, "sha256": parent}
        data = sealed(document, self._key)
        self._folder.write({_manifest_file(entry): data})
        self._folder.settle([*unsettled, _manifest_file(entry)])
        return ManifestFile(path_of(_manifest_file(entry)), len(data), sha256(data))

    def _unsettled(self, written: Iterable[TaskFiles]) -> list[Parts]:
        return [self._checked(file.name) for of_task in written if not of_task.is_settled for file in of_task.files]

    # -- graphs --------------------------------------------------------------------------------------------------

    def describe_graph(self, graph_hash: str, description: Any) -> None:
        """Keep what a graph was, as JSON. The first description of a hash stays."""
        if self._folder.exists(graph_file(graph_hash)):
            return
        document = {"job_id": self.job_id, "graph_hash": graph_hash, "graph": description}
        self._folder.create(graph_file(graph_hash), sealed(document, self._key))

    def graph(self, graph_hash: str) -> Any:
        """What was kept of a graph."""
        path = self._folder.full(graph_file(graph_hash))
        try:
            document = opened(self._folder.read(graph_file(graph_hash)), self._key, path, GRAPH)
        except FileNotFoundError as error:
            raise _missing(path, "the description of a graph") from error
        if (document["job_id"], document["graph_hash"]) != (self.job_id, graph_hash):
            raise SnapshotCorruptError(f"{path} is of another job or graph: bring back what was here")
        return document["graph"]

    # -- what tasks do -------------------------------------------------------------------------------------------

    def write_task(
        self,
        attempt: Attempt,
        epoch: Epoch | None,
        snapshot: TaskSnapshot,
        *,
        loops: Mapping[str, str] | None = None,
        kinds: Mapping[str, str] | None = None,
        count_records: CountRecords = records_in_batch,
        left_bytes_max: int = 0,
    ) -> TaskFiles:
        """Write the part of one task; `epoch` None is its last state. A full disk is an `OSError`.

        `loops` tells the loop of each back edge, whose log is filed under it; `kinds` what kind each operator is.
        Up to `left_bytes_max` are left to whoever creates the entry of the manifest, on this host, to be made durable.
        """
        described = write_files(attempt, epoch, snapshot, loops or {}, kinds or {}, count_records, self._folder.write)
        is_left = sum(file.size for file in described.files) <= left_bytes_max
        if not is_left:
            self._folder.settle([self._checked(file.name) for file in described.files])
        return replace(described, is_settled=not is_left)

    def discard_task(self, attempt: Attempt, epoch: Epoch | None, task: TaskId) -> None:
        """Remove the files of one task in an epoch that was aborted. No harm if there are none."""
        self._remove_files(attempt_folder(attempt, epoch), lambda name: first_part(name) == task_file(task))

    # -- what a cut holds ----------------------------------------------------------------------------------------

    def manifest_of(self, epoch: Epoch) -> CutDescription:
        """What the manifest of a complete cut tells, verified."""
        link = self._chain.find(epoch)
        entry, manifest = link.entry, link.manifest
        if not isinstance(entry, Manifest) or manifest is None:
            raise SnapshotCorruptError(
                f"entry {link.number} of the chain in {self._folder.path} records epoch {epoch} and names no manifest: "
                "read it with the version that wrote it"
            )
        parts = self._checked(manifest.name, link)
        if parts != _manifest_file(entry):
            raise SnapshotCorruptError(
                f"entry {link.number} of the chain in {self._folder.path} records epoch {epoch} and names "
                f"{shown(manifest.name)}, which is not its manifest: it is forged; bring it back from a copy"
            )
        path = self._folder.full(parts)
        try:
            data = self._read_manifest(parts, manifest)
        except FileNotFoundError as error:
            raise NoSuchCutError(
                f"{path} is missing, though the chain records epoch {epoch}: retention has dropped the cut, or "
                "somebody removed the file; bring it back from a copy, or restore another cut"
            ) from error
        document = opened(data, self._key, path, MANIFEST_SHAPE)
        described = description_in(document, path)
        found = (document["job_id"], described.epoch, described.attempt, described.mode, described.savepoint)
        if found != (self.job_id, entry.epoch, entry.attempt, entry.mode, entry.savepoint):
            raise SnapshotCorruptError(
                f"{path} is the manifest of another cut than entry {link.number} of the chain records: bring back what "
                "was here"
            )
        return described

    def cut(self, epoch: Epoch) -> Cut:
        """A complete cut. All of its files are verified before one is decoded."""
        described = self.manifest_of(epoch)
        verified = {file: self._verified(file) for file in described.files}
        readers = {task: TaskReader(files, verified.__getitem__) for task, files in described.tasks.items()}
        return Cut(
            epoch=described.epoch,
            attempt=described.attempt,
            graph_hash=described.graph_hash,
            policy=described.policy,
            between_rounds=described.mode is Mode.BETWEEN_ROUNDS,
            snapshots={task: reader.snapshot() for task, reader in readers.items()},
            parallelism=described.parallelism,
        )

    def verify(self, epoch: Epoch) -> None:
        """Compare every file of a complete cut with its manifest. None of them is decoded."""
        for file in self.manifest_of(epoch).files:
            parts = self._checked(file.name)
            try:
                found = self._folder.sha256(parts, file.size)
            except FileNotFoundError as error:
                raise _missing(self._folder.full(parts), "a file of the cut") from error
            if found != file.sha256:
                raise _changed(self._folder.full(parts))

    def task_snapshot(self, epoch: Epoch, task: TaskId) -> TaskSnapshot:
        """The part of one task, read and verified without the others'."""
        described = self.manifest_of(epoch)
        if task not in described.tasks:
            raise NoSuchCutError(
                f"the cut of epoch {epoch} holds nothing of task {task}: it was taken with the tasks "
                f"{', '.join(map(str, described.tasks))}; read the whole cut to restore with others"
            )
        return TaskReader(described.tasks[task], self._verified).snapshot()

    def files_of(self, tasks: Mapping[TaskId, TaskFiles]) -> StoredCut:
        """What these tasks of a cut have left, read part by part. A file is verified before it is decoded."""
        return StoredCut(tasks, self._verified)

    def _verified(self, file: StoredFile) -> bytes:
        parts = self._checked(file.name)
        path = self._folder.full(parts)
        try:
            data = self._folder.read(parts, file.size)
        except FileNotFoundError as error:
            raise _missing(path, "a file of the cut") from error
        if sha256(data) != file.sha256:
            raise _changed(path)
        return data

    def _read_manifest(self, parts: Parts, manifest: ManifestFile) -> bytes:
        try:
            data = self._folder.read(parts, manifest.size)
        except SnapshotCorruptError:
            data = b""
        if sha256(data) == manifest.sha256:
            return data
        raise (SnapshotCorruptError if self._key is None else SnapshotAuthError)(
            f"{self._folder.full(parts)} is not the manifest that the chain records: it is torn, was changed, or is "
            "forged; nothing of it is read; bring it back from a copy, or restore another cut"
        )

    def _checked(self, name: str, link: Link | None = None) -> Parts:
        parts = parts_of(name)
        if parts is None:
            where = "a manifest" if link is None else f"entry {link.number} of the chain"
            raise SnapshotCorruptError(
                f"{where} in {self._folder.path} names the file {name!r}, which is outside of it: it is forged; "
                "nothing of it is read"
            )
        return parts

    # -- removing ------------------------------------------------------------------------------------------------

    def drop(self, epoch: Epoch) -> None:
        """Remove the files of a complete cut. Last states stay while a later one may name them."""
        entry = self._chain.find(epoch).entry
        if not isinstance(entry, Manifest) or not self._folder.exists((epoch_folder(epoch),)):
            return
        self._folder.unlink(_manifest_file(entry))
        self._drop_last_states(entry)
        self._folder.remove_folder((epoch_folder(epoch),))
        with suppress(OSError):  # a full disk, perhaps; the next time it is done
            self._chain.shorten(lambda entry: self._folder.exists(_manifest_file(entry)))

    def _drop_last_states(self, dropped: Manifest) -> None:
        if None not in dropped.files.values():
            return
        entries = [link.entry for link in self._chain.links()]
        if max(entry.attempt for entry in entries) == dropped.attempt:
            return
        of_attempt = [e for e in entries if isinstance(e, Manifest) and e.attempt == dropped.attempt]
        kept = _last_states(entry for entry in of_attempt if self._folder.exists(_manifest_file(entry)))
        self._remove_files(attempt_folder(dropped.attempt, None), lambda name: first_part(name) not in kept)

    def sweep(self, sweep: Sweep) -> None:
        """Remove what attempts have left behind and no restore will need. Goes on where something cannot be removed.

        Raises the first `OSError` when the rest is done.
        """
        errors: list[OSError] = []
        for epoch_name in self._folder.names():
            epoch = number_in(epoch_name, "epoch")
            if epoch is None and epoch_name != epoch_folder(None):
                continue
            for name in self._folder.names((epoch_name,)):
                number = number_in(name, "attempt")
                if number is None:
                    continue
                try:
                    self._sweep_one(sweep, (epoch_name, name), None if epoch is None else Epoch(epoch), Attempt(number))
                except OSError as error:
                    errors.append(error)
        if errors:
            raise errors[0]

    def _sweep_one(self, sweep: Sweep, folder: Parts, epoch: Epoch | None, attempt: Attempt) -> None:
        if epoch is not None:
            if sweep.removes_epoch(epoch, attempt):
                self._folder.remove_folder(folder)
        elif sweep.removes_last_states(attempt):
            entries = [link.entry for link in self._chain.links()]
            of_attempt = (entry for entry in entries if isinstance(entry, Manifest) and entry.attempt == attempt)
            named = _last_states(entry for entry in of_attempt if CutId(entry.epoch, attempt) in sweep.cuts)
            self._remove_files(folder, lambda name: first_part(name) not in named)

    def _remove_files(self, folder: Parts, which: Callable[[str], bool]) -> None:
        for parts in list(self._folder.walk(folder)):
            if which(parts[-1]):
                self._folder.remove(parts)


def _manifest_file(entry: Manifest) -> Parts:
    return (*attempt_folder(entry.attempt, entry.epoch), MANIFEST)


def _last_states(manifests: Iterable[Manifest]) -> set[str]:
    return {task_file(task) for entry in manifests for task, epoch in entry.files.items() if epoch is None}


def _missing(path: str, what: str) -> SnapshotCorruptError:
    return SnapshotCorruptError(
        f"{path} is missing, {what}: bring it back from a copy, or restore another cut; none is taken in its place"
    )


def _changed(path: str) -> SnapshotCorruptError:
    return SnapshotCorruptError(
        f"{path} was changed: its SHA-256 is not the one in the manifest, and nothing of it is decoded; bring it back "
        "from a copy, or restore another cut"
    )

"""The cuts of a job as they are read: the chain, manifests, the files of tasks, and what is kept beside them.

- Everything that is read is verified first: the entry, then the manifest, then size and digest of each file. Only then
  is it decoded. A file that does not match is an error that names it; no other one is read instead.
- Files are read by name. A list of files is used for clean-up alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.cut.cut import Cut
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import Entry, Manifest, Numbered
from backedge.recovery.stores.answer_journal import AnswerJournal
from backedge.recovery.stores.chain import Chain
from backedge.recovery.stores.constants import StoredConstants
from backedge.recovery.stores.documents import Document, opened, sha256
from backedge.recovery.stores.input_pieces import NO_CUT, InputPieces, Piece
from backedge.recovery.stores.links import Link, ManifestFile
from backedge.recovery.stores.manifests import CutDescription, description_in
from backedge.recovery.stores.manifests_of_format_12 import upgraded
from backedge.recovery.stores.names import STATUS, graph_file, parts_of, path_of
from backedge.recovery.stores.run_status import RunStatus, status_in
from backedge.recovery.stores.schema import GRAPH, MANIFEST_SHAPE, STATUS_SHAPE
from backedge.recovery.stores.shapes import shown
from backedge.recovery.stores.store_calls import (
    changed,
    each,
    exists,
    full_name,
    has_content,
    missing,
    read_document,
    read_sized,
    read_verified,
)
from backedge.recovery.stores.store_errors import NoSuchCutError, SnapshotAuthError, SnapshotCorruptError
from backedge.recovery.stores.store_protocol import FileFacts, Store
from backedge.recovery.stores.task_files import StoredFile, TaskFiles

if TYPE_CHECKING:
    # Imported when a cut is read: it needs pyarrow, for which no run waits before its first record.
    from backedge.recovery.stores.task_tables import StoredCut, TaskReader

_FILE = "a file of the cut"
_FIX = "restore it from a backup, or restore another cut; none is taken in its place"


class CutReader:
    """What the folder of a job holds. With a key, nothing unsigned is read."""

    def __init__(self, store: Store, job: str, job_id: str, key: bytes | None) -> None:
        self._store = store
        self._key = key
        self.job = job
        self.job_id = job_id
        self._chain = Chain(store, job_id, key)
        self.inputs = InputPieces(store, job_id, key)
        self.answers = AnswerJournal(store, job_id, key)
        self.constants = StoredConstants(store)

    @property
    def path(self) -> str:
        """Where the files of the job are."""
        return self._store.location

    # -- the chain -----------------------------------------------------------------------------------------------

    def links(self) -> list[Link]:
        """The verified entries in order; of a long chain, the first ones that are no longer needed are gone."""
        return self._chain.links()

    def chain(self) -> list[Entry]:
        """The same, without their numbers."""
        return [link.entry for link in self.links()]

    def numbered(self) -> list[Numbered]:
        """The verified entries, each with its number."""
        return [Numbered(link.number, link.entry) for link in self.links()]

    def cuts(self) -> list[Epoch]:
        """The complete cuts that still exist, in order. The chain also records those that retention has dropped."""
        return [entry.epoch for entry in self.existing()]

    def existing(self) -> list[Manifest]:
        """The entries of these. Only what the chain keeps is looked for: it may be long."""
        return self._there(kept_in([entry for entry in self.chain() if isinstance(entry, Manifest)]))

    def _there(self, cuts: Sequence[Manifest]) -> list[Manifest]:
        """Those of the cuts that exist: one may have been removed by hand."""
        found = each(self._store.reads_at_once, self.keeps, cuts)
        return [cut for cut, is_there in zip(cuts, found, strict=True) if is_there]

    def keeps(self, entry: Manifest) -> bool:
        """Whether a complete cut still exists. Retention removes its manifest first."""
        return exists(self._store, self._chain.find(entry.epoch).manifest_name)

    def written_s(self, entry: Manifest) -> float | None:
        """When the manifest of a cut was written, in seconds since 1970; None if the store does not keep it."""
        facts = self._store.facts(self._chain.find(entry.epoch).manifest_name)
        return None if facts is None else facts.written_s

    def facts_of(self, file: StoredFile) -> FileFacts | None:
        """Size and time of a file of a cut; None if it is missing."""
        return None if parts_of(file.name) is None else self._store.facts(file.name)

    # -- manifests -----------------------------------------------------------------------------------------------

    def manifest_of(self, epoch: Epoch) -> CutDescription:
        """The verified manifest of a complete cut."""
        link = self._chain.find(epoch)
        entry, manifest = link.entry, link.manifest
        if not isinstance(entry, Manifest) or manifest is None or manifest.name != link.manifest_name:
            raise SnapshotCorruptError(
                f"entry {link.number} of the chain in {self.path} records epoch {epoch} and names "
                f"{shown(manifest and manifest.name)}, which is not its manifest: it is forged; restore it from a "
                "backup"
            )
        path = full_name(self._store, manifest.name)
        try:
            document = self.opened_manifest(link, manifest)
        except FileNotFoundError as error:
            raise NoSuchCutError(
                f"{path} is missing, though the chain records epoch {epoch}: retention has dropped the cut, or "
                "the file was removed by hand; restore it from a backup, or restore another cut"
            ) from error
        described = description_in(document, path)
        found = (described.epoch, described.attempt, described.mode, described.savepoint)
        if found != (entry.epoch, entry.attempt, entry.mode, entry.savepoint):
            raise SnapshotCorruptError(
                f"{path} is the manifest of another cut than entry {link.number} of the chain records: restore the "
                "original file"
            )
        return described

    def opened_manifest(self, link: Link, manifest: ManifestFile) -> Document:
        """The manifest of an entry, which the entry says is this file; verified, and of this job."""
        path = full_name(self._store, link.manifest_name)
        try:
            data = read_sized(self._store, link.manifest_name, manifest.size)
        except SnapshotCorruptError:
            data = b""
        if sha256(data) != manifest.sha256:
            raise (SnapshotCorruptError if self._key is None else SnapshotAuthError)(
                f"{path} is not the manifest of {manifest.size} bytes that the chain records: it is torn, was changed, "
                "or is forged; nothing of it is read; restore it from a backup, or restore another cut"
            )
        document = opened(data, self._key, path, MANIFEST_SHAPE)
        if document["job_id"] != self.job_id:
            raise SnapshotCorruptError(f"{path} is the manifest of another job: restore the original file")
        return upgraded(document)

    # -- files of tasks ------------------------------------------------------------------------------------------

    def cut(self, epoch: Epoch) -> Cut:
        """Read a complete cut. All files of its tasks are verified before the first is decoded."""
        described = self.manifest_of(epoch)
        verified = {file: self._verified(file) for file in described.of_tasks}
        from backedge.recovery.stores.task_tables import TaskReader

        readers = {task: TaskReader(files, verified.__getitem__) for task, files in described.tasks.items()}
        return Cut(
            epoch=described.epoch,
            attempt=described.attempt,
            graph_hash=described.graph_hash,
            policy=described.mode.value,
            between_rounds=described.mode is Mode.BETWEEN_ROUNDS,
            snapshots={task: reader.snapshot() for task, reader in readers.items()},
            parallelism=described.parallelism,
        )

    def verify(self, epoch: Epoch) -> None:
        """Compare every file of a complete cut with its manifest. Nothing is decoded."""
        for file in self.manifest_of(epoch).files:
            name = self._checked(file.name)
            try:
                is_sound = has_content(self._store, name, file.size, file.digest)
            except FileNotFoundError as error:
                raise missing(full_name(self._store, name), _FILE, _FIX) from error
            if not is_sound:
                raise changed(full_name(self._store, name), _FILE, _FIX)

    def files_of(self, tasks: Mapping[TaskId, TaskFiles]) -> StoredCut:
        """The files of these tasks, read part by part. A file is verified before it is decoded."""
        from backedge.recovery.stores.task_tables import StoredCut

        return StoredCut(tasks, self._verified)

    def reader_of(self, files: TaskFiles) -> TaskReader:
        from backedge.recovery.stores.task_tables import TaskReader

        return TaskReader(files, self._verified)

    def _verified(self, file: StoredFile) -> bytes:
        self._checked(file.name)
        return read_verified(self._store, file, _FILE, _FIX)

    def _checked(self, name: str) -> str:
        if parts_of(name) is None:
            raise SnapshotCorruptError(
                f"a manifest in {self.path} names the file {name!r}, which is outside of it: it is forged; nothing of "
                "it is read"
            )
        return name

    # -- beside the cuts -----------------------------------------------------------------------------------------

    def graph(self, graph_hash: str) -> Any:
        name = path_of(graph_file(graph_hash))
        path = full_name(self._store, name)
        try:
            document = opened(read_document(self._store, name), self._key, path, GRAPH)
        except FileNotFoundError as error:
            raise missing(path, "the description of a graph", _FIX) from error
        if (document["job_id"], document["graph_hash"]) != (self.job_id, graph_hash):
            raise SnapshotCorruptError(f"{path} belongs to another job or graph: restore the original file")
        return document["graph"]

    def kept_status(self) -> RunStatus | None:
        """What was known about the run when it was last kept; None if it never was."""
        path = full_name(self._store, STATUS)
        try:
            document = opened(read_document(self._store, STATUS), self._key, path, STATUS_SHAPE)
        except FileNotFoundError:
            return None
        if document["job_id"] != self.job_id:
            raise SnapshotCorruptError(f"{path} belongs to another job: remove it, nothing else depends on it")
        return status_in(document["status"])

    def inputs_after(self, epoch: Epoch) -> list[Piece]:
        """The first piece of the inputs of each task and attempt that went on from a cut, later attempts first."""
        chain = self.chain()
        pieces = self.inputs.first_after(epoch)
        return [piece for piece in pieces if followed(chain, epoch, piece.id.attempt) == epoch]


def followed(chain: Sequence[Entry], epoch: Epoch, attempt: Attempt) -> Epoch:
    """The last complete cut that an attempt has taken up to an epoch, or that it restored; 0 if there is none.

    Another attempt may have taken a cut of the same number: numbers of epochs that none has completed come again.
    """
    found = NO_CUT
    for entry in chain:
        if entry.attempt == attempt:
            if isinstance(entry, Manifest):
                found = entry.epoch if entry.epoch <= epoch else found
            else:
                found = entry.restored or NO_CUT
    return found


def kept_in(cuts: Sequence[Manifest]) -> list[Manifest]:
    """Of the cuts of a chain, those that the last manifest of each pipeline keeps, if none gives the pipeline up."""
    kept = {cut.pipeline: cut.kept for cut in cuts}
    dead = {name: number for number, cut in enumerate(cuts) for name in cut.given_up}
    live = (cut for number, cut in enumerate(cuts) if number > dead.get(cut.pipeline or "", -1))
    return [cut for cut in live if cut.epoch in (kept[cut.pipeline] or (cut.epoch,))]

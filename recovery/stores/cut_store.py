"""The store of a job: its chain, its cuts, and the files of its tasks. `backedge.recovery.stores` shows where they are.

- Tasks write their own files, the coordinator the chain. Many threads and processes may use a store at once.
- A cut is complete when the entry of its manifest is in the chain. The manifest and all files that it names are durable
  before. So a death between the two leaves a cut that is not complete, and an entry never names a missing file.
- Tasks on the coordinator's host may leave it to the coordinator to make small files durable, with the manifest.
- Everything that is read is verified first: the entry, then the manifest, then size and digest of each file. Only then
  is it decoded. A file that does not match is an error that names it; no other one is read instead.
- The keyed state of a task may be in a list of files, of which the cut's own is the last (rule 14). The manifest names
  all of them, and a file is removed only if no cut that the chain keeps names it.
- Removing a cut begins with its manifest, so that no half of a cut looks complete.
- Files are read by name. A list of files is used for clean-up alone.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.naming import check_name
from backedge.recovery.cut.cut import Cut, TaskSnapshot
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import CutId, Entry, FileId, Manifest, Numbered, Sweep
from backedge.recovery.protocol.supervisor import run_of
from backedge.recovery.stores.chain import Chain
from backedge.recovery.stores.constants import StoredConstants
from backedge.recovery.stores.digests import has_digest
from backedge.recovery.stores.documents import Document, opened, sealed, sha256
from backedge.recovery.stores.input_pieces import NO_CUT, InputPieces, Piece
from backedge.recovery.stores.job_identity import identity_of
from backedge.recovery.stores.keys import checked_key
from backedge.recovery.stores.links import Link, ManifestFile
from backedge.recovery.stores.manifests import CutDescription, description_in, manifest_document
from backedge.recovery.stores.names import (
    STATUS,
    Parts,
    attempt_folder,
    epoch_folder,
    first_part,
    graph_file,
    manifest_file,
    number_in,
    parts_of,
    path_of,
    task_file,
)
from backedge.recovery.stores.run_status import RunStatus, status_in
from backedge.recovery.stores.schema import GRAPH
from backedge.recovery.stores.schema import MANIFEST as MANIFEST_SHAPE
from backedge.recovery.stores.schema import STATUS as STATUS_SHAPE
from backedge.recovery.stores.settling import Settling
from backedge.recovery.stores.shapes import shown
from backedge.recovery.stores.store_calls import (
    create_exclusively,
    each,
    exists,
    full_name,
    has_content,
    read_document,
    read_sized,
    remove_below,
    written_to,
)
from backedge.recovery.stores.store_errors import (
    NoSuchCutError,
    OutcomeUnknownError,
    SnapshotAuthError,
    SnapshotCorruptError,
    StoreError,
)
from backedge.recovery.stores.store_guarantees import probe_store
from backedge.recovery.stores.store_protocol import FileFacts, Store
from backedge.recovery.stores.store_schemes import store_at
from backedge.recovery.stores.task_files import (
    StateLayer,
    StoredFile,
    TaskFiles,
)

if TYPE_CHECKING:
    # Imported when a cut is written or read: it needs pyarrow, for which no run waits before its first record.
    from backedge.recovery.stores.task_tables import StoredCut, TaskReader


class Place(NamedTuple):
    """Where the tasks of an attempt write for an epoch; None is for their last states."""

    epoch: Epoch | None
    attempt: Attempt


Layers = dict[FileId, StateLayer]
"""What tasks have written of their keyed state, each by its name."""


class CutStore:
    """The durable part of one job, below ROOT/JOB."""

    def __init__(self, root: str | Store, job: str, key: bytes | None = None) -> None:
        """Open the job in a store, or in the store of a location. With a key, everything is signed, and nothing
        unsigned is read. Without one, a local folder that other users may write to is refused.
        """
        if key is not None:
            checked_key(key, "the key of a store")
        whole = root if isinstance(root, Store) else store_at(root)
        self.root = whole.location
        self._store = whole.below(check_name(job, "job"))
        self._store.prepare(is_signed=key is not None)
        self._key = key
        self.job = job
        self.job_id = identity_of(self._store, job, key)
        self._chain = Chain(self._store, self.job_id, key)
        self.inputs = InputPieces(self._store, self.job_id, key)
        self.constants = StoredConstants(self._store)
        # The constants of cuts that this process has written or looked at, by epoch.
        self._named: dict[Epoch, frozenset[StoredFile]] = {}
        # Whether tasks of this run keep their inputs, and whether inputs of earlier runs may be there.
        self.keeps_inputs = True
        self._may_have_inputs = True
        # The attempt whose first sweep is done.
        self._swept: Attempt | None = None
        # Numbers of the chain under which an entry of ours may or may not exist.
        self._unknown: set[int] = set()
        # Pipeline -> kept cut -> what its manifest names of keyed state: a later cut may name it again.
        self._layers: dict[str | None, dict[Epoch, Layers]] = {}
        # Task -> the files of its latest compaction.
        self._compacted: dict[TaskId, TaskFiles] = {}

    def __repr__(self) -> str:
        return f"CutStore({self._store.location!r})"

    @property
    def path(self) -> str:
        """Where the files of the job are."""
        return self._store.location

    def probe(self) -> None:
        """Check that the store gives the guarantees that a run relies on. `StoreContractError` if it does not."""
        with written_to(self._store):
            probe_store(self._store)

    # -- the chain -----------------------------------------------------------------------------------------------

    @property
    def holds_a_run(self) -> bool:
        """Whether a run of this job has begun here."""
        return not self._chain.is_empty()

    def chain(self) -> list[Entry]:
        """The verified entries in order; of a long chain, the first ones that are no longer needed are gone."""
        return [link.entry for link in self._chain.links()]

    def numbered(self) -> list[Numbered]:
        """The verified entries, each with its number."""
        return [Numbered(link.number, link.entry) for link in self._chain.links()]

    def create(
        self,
        number: int,
        entry: Entry,
        files: Mapping[TaskId, TaskFiles] | None = None,
        deployment: Deployment | None = None,
        constants: Mapping[str, StoredFile] | None = None,
        dropped: Collection[str] = (),
    ) -> bool:
        """Create an entry of the chain exclusively. False if another entry has its number.

        For a manifest, `files` is what `write_task` returned for each task of the deployment, and `constants` has the
        files of the run's constants, by name. `dropped`: what the run gave up the state of when it began. The cut is
        complete when this returns True. After an `OSError` there is no such entry, unless it is an
        `OutcomeUnknownError`: then there may be one. Nothing that it names is removed; create the same entry again
        until the answer is known.
        """
        if number not in self._unknown and self._chain.is_taken(number):
            return False
        if isinstance(entry, Manifest) and deployment is None:
            raise ValueError(
                f"the manifest of epoch {entry.epoch} is created without a deployment: give the deployment of its run"
            )
        try:
            is_ours = self._create(number, entry, files or {}, deployment, constants or {}, dropped)
        except OutcomeUnknownError:
            self._unknown.add(number)
            raise
        except OSError as error:
            if number in self._unknown:
                raise OutcomeUnknownError(error.errno, f"whether entry {number} exists is unknown ({error})") from error
            self._remove_manifest(number, entry)
            raise
        self._unknown.discard(number)
        # If the entry is in the shortened part of the chain, later entries build on it, and the cut may still be kept.
        if not is_ours and not self._chain.is_past(number):
            self._remove_manifest(number, entry)
        return is_ours

    def _create(
        self,
        number: int,
        entry: Entry,
        files: Mapping[TaskId, TaskFiles],
        deployment: Deployment | None,
        constants: Mapping[str, StoredFile],
        dropped: Collection[str],
    ) -> bool:
        parent = self._chain.parent_of(number)
        manifest = None
        if isinstance(entry, Manifest) and deployment is not None:
            # The newest cut first, which knows most: there may be thousands.
            cuts = reversed(self._layers.get(entry.pipeline, {}).values())
            known = ChainMap(_layers_of(self._compacted), *cuts)
            files = {task: replace(of, below=self._below(of, entry, known)) for task, of in files.items()}
            document = manifest_document(entry, files, deployment, constants, dropped)
            manifest = self._write_manifest(number, entry, document, parent, self._unsettled(files.values()))
            self._named[entry.epoch] = frozenset(constants.values())
        is_ours = self._chain.create(number, entry, parent, manifest)
        if is_ours and isinstance(entry, Manifest):
            # Not before: if this cut is given up, the next one builds on those that it would have dropped.
            self._keep_layers(entry, files)
        return is_ours

    def _keep_layers(self, entry: Manifest, files: Mapping[TaskId, TaskFiles]) -> None:
        layers = {**self._layers.get(entry.pipeline, {}), entry.epoch: _layers_of(files)}
        kept = layers if entry.kept is None else frozenset(entry.kept)
        self._layers[entry.pipeline] = {cut: of_cut for cut, of_cut in layers.items() if cut in kept}

    def _below(self, files: TaskFiles, entry: Manifest, known: ChainMap[FileId, StateLayer]) -> tuple[StateLayer, ...]:
        """What the manifest names of a task's keyed state besides the cut's own files."""
        task = files.task
        names = [FileId(file.attempt, file.epoch, task) for file in entry.states.get(task, ())[:-1]]
        if files.base is not None and not all(name in known for name in names):
            # It is the cut that the attempt has restored: the other tasks have theirs from its manifest, too.
            known.maps.append(_layers_of(self.manifest_of(files.base).tasks))
        # If one is unknown all the same, the list has a gap, and the manifest is refused.
        return tuple(known[name] for name in names if name in known)

    def on_compacted(self, files: TaskFiles) -> None:
        """A compaction has written these files: the manifest of a later cut may name them."""
        self._compacted[files.task] = files

    def _remove_manifest(self, number: int, entry: Entry) -> None:
        """Remove a manifest without an entry. If that fails too, a later sweep removes it."""
        if isinstance(entry, Manifest):
            with suppress(OSError):
                self._store.remove([path_of(manifest_file(entry.attempt, entry.epoch, number))])

    def _write_manifest(
        self,
        number: int,
        entry: Manifest,
        document: Document,
        parent: str | None,
        unsettled: Sequence[str],
    ) -> ManifestFile:
        document["job"], document["job_id"] = self.job, self.job_id
        document["parent"] = {"number": number - 1, "sha256": parent}
        data = sealed(document, self._key, MANIFEST_SHAPE)
        name = path_of(manifest_file(entry.attempt, entry.epoch, number))
        self._store.write({name: data})
        self._store.make_durable([*unsettled, name])
        return ManifestFile(name, len(data), sha256(data))

    def _unsettled(self, written: Iterable[TaskFiles]) -> list[str]:
        return [self._checked(file.name) for of_task in written if not of_task.is_settled for file in of_task.files]

    # -- graphs --------------------------------------------------------------------------------------------------

    def describe_graph(self, graph_hash: str, description: Any) -> None:
        """Keep the description of a graph, as JSON. The first one for a hash stays."""
        name = path_of(graph_file(graph_hash))
        if exists(self._store, name):
            return
        document = {"job_id": self.job_id, "graph_hash": graph_hash, "graph": description}
        create_exclusively(self._store, name, sealed(document, self._key, GRAPH))

    def graph(self, graph_hash: str) -> Any:
        name = path_of(graph_file(graph_hash))
        path = full_name(self._store, name)
        try:
            document = opened(read_document(self._store, name), self._key, path, GRAPH)
        except FileNotFoundError as error:
            raise _missing(path, "the description of a graph") from error
        if (document["job_id"], document["graph_hash"]) != (self.job_id, graph_hash):
            raise SnapshotCorruptError(f"{path} belongs to another job or graph: restore the original file")
        return document["graph"]

    # -- the status of the run -----------------------------------------------------------------------------------

    def keep_status(self, status: RunStatus) -> None:
        """Keep what is known about the run, in place of what was kept before. It is information: nothing is restored
        from it, and a supervisor that has lost the job unnoticed may replace a newer one.
        """
        document = {"job_id": self.job_id, "status": status.to_json()}
        self._store.write({STATUS: sealed(document, self._key, STATUS_SHAPE)})

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

    # -- files of tasks ------------------------------------------------------------------------------------------

    def write_task(
        self,
        attempt: Attempt,
        epoch: Epoch | None,
        snapshot: TaskSnapshot,
        *,
        loops: Mapping[str, str] | None = None,
        kinds: Mapping[str, str] | None = None,
        left_bytes_max: int = 0,
    ) -> TaskFiles:
        """Write the snapshot of one task. `epoch` is None for its last state. A full disk is an `OSError`.

        `loops` names the loop of each edge in one, `kinds` the kind of each operator. Up to `left_bytes_max` bytes are
        not made durable here: the process on this host that creates the manifest does it.
        """
        from backedge.recovery.stores.task_tables import write_files

        with Settling(self._store, left_bytes_max) as settling:

            def write(files: Mapping[Parts, bytes]) -> None:
                settling.write({path_of(parts): data for parts, data in files.items()})

            def write_pieces(parts: Parts, pieces: Iterable[bytes]) -> None:
                settling.write_pieces(path_of(parts), pieces)

            described = write_files(attempt, epoch, snapshot, loops or {}, kinds or {}, write, write_pieces)
            return replace(described, is_settled=settling.finish())

    def discard_task(self, attempt: Attempt, epoch: Epoch | None, task: TaskId) -> None:
        """Remove the files of one task in an aborted epoch. No harm if there are none."""
        self._remove_files(attempt_folder(attempt, epoch), lambda name: first_part(name) == task_file(task))

    # -- reading cuts --------------------------------------------------------------------------------------------

    def manifest_of(self, epoch: Epoch) -> CutDescription:
        """The verified manifest of a complete cut."""
        link = self._chain.find(epoch)
        entry, manifest = link.entry, link.manifest
        if not isinstance(entry, Manifest) or manifest is None:
            raise SnapshotCorruptError(
                f"entry {link.number} of the chain in {self._store.location} records epoch {epoch} and names no "
                "manifest: read it with the version that wrote it"
            )
        name = self._checked(manifest.name, link)
        if name != link.manifest_name:
            raise SnapshotCorruptError(
                f"entry {link.number} of the chain in {self._store.location} records epoch {epoch} and names "
                f"{shown(manifest.name)}, which is not its manifest: it is forged; restore it from a backup"
            )
        path = full_name(self._store, name)
        try:
            data = self._read_manifest(name, manifest)
        except FileNotFoundError as error:
            raise NoSuchCutError(
                f"{path} is missing, though the chain records epoch {epoch}: retention has dropped the cut, or "
                "the file was removed by hand; restore it from a backup, or restore another cut"
            ) from error
        document = opened(data, self._key, path, MANIFEST_SHAPE)
        described = description_in(document, path)
        found = (document["job_id"], described.epoch, described.attempt, described.mode, described.savepoint)
        if found != (self.job_id, entry.epoch, entry.attempt, entry.mode, entry.savepoint):
            raise SnapshotCorruptError(
                f"{path} is the manifest of another cut than entry {link.number} of the chain records: restore the "
                "original file"
            )
        return described

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
            policy=described.policy,
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
                raise _missing(full_name(self._store, name), "a file of the cut") from error
            if not is_sound:
                raise _changed(full_name(self._store, name))

    def files_of(self, tasks: Mapping[TaskId, TaskFiles]) -> StoredCut:
        """The files of these tasks, read part by part. A file is verified before it is decoded."""
        from backedge.recovery.stores.task_tables import StoredCut

        return StoredCut(tasks, self._verified)

    def reader_of(self, files: TaskFiles) -> TaskReader:
        from backedge.recovery.stores.task_tables import TaskReader

        return TaskReader(files, self._verified)

    def _verified(self, file: StoredFile) -> bytes:
        name = self._checked(file.name)
        path = full_name(self._store, name)
        try:
            data = read_sized(self._store, name, file.size)
        except FileNotFoundError as error:
            raise _missing(path, "a file of the cut") from error
        if not has_digest(data, file.digest):
            raise _changed(path)
        return data

    def _read_manifest(self, name: str, manifest: ManifestFile) -> bytes:
        try:
            data = read_sized(self._store, name, manifest.size)
        except SnapshotCorruptError:
            data = b""
        if sha256(data) == manifest.sha256:
            return data
        raise (SnapshotCorruptError if self._key is None else SnapshotAuthError)(
            f"{full_name(self._store, name)} is not the manifest that the chain records: it is torn, was changed, or "
            "is forged; nothing of it is read; restore it from a backup, or restore another cut"
        )

    def _checked(self, name: str, link: Link | None = None) -> str:
        if parts_of(name) is None:
            where = "a manifest" if link is None else f"entry {link.number} of the chain"
            raise SnapshotCorruptError(
                f"{where} in {self._store.location} names the file {name!r}, which is outside of it: it is forged; "
                "nothing of it is read"
            )
        return name

    def cuts(self) -> list[Epoch]:
        """The complete cuts that still exist, in order. The chain also records those that retention has dropped."""
        return [entry.epoch for entry in self.chain() if isinstance(entry, Manifest) and self.keeps(entry)]

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

    def inputs_after(self, epoch: Epoch) -> list[Piece]:
        """The first piece of the inputs of each task and attempt that went on from a cut, later attempts first."""
        chain = self.chain()
        pieces = self.inputs.first_after(epoch)
        return [piece for piece in pieces if _followed(chain, epoch, piece.id.attempt) == epoch]

    # -- removing ------------------------------------------------------------------------------------------------

    def drop(self, epoch: Epoch) -> None:
        """Remove the files of a complete cut, and the earlier ones that no other cut needs.

        Last states stay while a later cut may name them. Raises `NoSuchCutError` if the chain knows no such cut.
        """
        link = self._chain.find(epoch)
        entry = link.entry
        if not isinstance(entry, Manifest):
            return
        constants = self._constants_of(entry)
        self._store.remove([link.manifest_name])
        self._drop_files(entry)
        self._drop_last_states(entry)
        with suppress(OSError):  # a full disk, perhaps; the next drop does it
            self._drop_inputs(entry.pipeline)
            self._drop_constants(entry, constants)
            kept = {CutId(cut.epoch, cut.attempt) for cut in self._kept()}
            self._chain.shorten(lambda cut: CutId(cut.epoch, cut.attempt) in kept and self.keeps(cut))

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
        self.inputs.remove(lambda epoch, attempt: attempt in attempts and _followed(chain, epoch, attempt) not in kept)

    def _constants_of(self, entry: Manifest) -> frozenset[StoredFile] | None:
        """The constants that a cut names; None if its manifest cannot be read."""
        if entry.epoch not in self._named:
            try:
                self._named[entry.epoch] = frozenset(self.manifest_of(entry.epoch).constants.values())
            except (StoreError, OSError):
                return None
        return self._named[entry.epoch]

    def _drop_constants(self, entry: Manifest, dropped: frozenset[StoredFile] | None) -> None:
        """Remove those of a dropped cut's constants that no other cut names, if all of these can be read."""
        self._named.pop(entry.epoch, None)
        last = max((cut.epoch for cut in self._manifests() if cut.pipeline == entry.pipeline), default=entry.epoch)
        if not dropped or dropped <= self._named.get(last, frozenset()):
            return
        # Other pipelines may name them, too.
        self._chain.links_by_name()
        kept = self._kept(besides=entry.epoch)
        others = [self._constants_of(cut) for cut in kept]
        self._named = {cut.epoch: self._named[cut.epoch] for cut in kept if cut.epoch in self._named}
        if None not in others:
            self.constants.remove(dropped.difference(*(other for other in others if other is not None)))

    def _manifests(self) -> list[Manifest]:
        """The complete cuts that are known of the chain."""
        return [link.entry for link in self._chain.known() if isinstance(link.entry, Manifest)]

    def _kept(self, besides: Epoch | None = None) -> list[Manifest]:
        """The cuts that the last known manifest of each pipeline keeps, if none gives it up."""
        cuts = self._manifests()
        kept = {cut.pipeline: cut.kept for cut in cuts}
        dead = {name: number for number, cut in enumerate(cuts) for name in cut.given_up}
        live = (cut for number, cut in enumerate(cuts) if number > dead.get(cut.pipeline or "", -1))
        return [cut for cut in live if cut.epoch != besides and cut.epoch in (kept[cut.pipeline] or (cut.epoch,))]

    def _drop_last_states(self, dropped: Manifest) -> None:
        if None not in dropped.files.values():
            return
        entries = [link.entry for link in self._chain.known()]
        if max(entry.attempt for entry in entries if entry.pipeline == dropped.pipeline) == dropped.attempt:
            return
        of_attempt = [e for e in entries if isinstance(e, Manifest) and e.attempt == dropped.attempt]
        kept = _last_states(entry for entry in of_attempt if self.keeps(entry))
        self._remove_files(attempt_folder(dropped.attempt, None), lambda name: first_part(name) not in kept)

    def sweep(self, sweep: Sweep) -> None:
        """Remove files of attempts that no restore will need. Goes on where something cannot be removed.

        The first sweep of an attempt and the last one of a run look into all folders. The others look only into those
        of which no cut needs anything: what else is there was written by this attempt, and is dropped by name.

        Raises the first `OSError` when the rest is done.
        """
        is_first = self._swept != sweep.attempt or sweep.is_over
        named: dict[Place, set[FileId]] = {}
        for file in sweep.files:
            named.setdefault(Place(file.epoch, file.attempt), set()).add(file)
        needed = {place.epoch for place in named} | {cut.epoch for cut in sweep.cuts}
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
                self._sweep_constants(sweep.attempt)
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        self._swept = sweep.attempt

    def _sweep_constants(self, attempt: Attempt) -> None:
        """Remove the constants of runs that have died before their first cut, if the other cuts can be read.

        A run is dead for good if the run of this attempt has claimed the job after it.
        """
        runs = [run_of(link.entry.claimant) for link in self._chain.known() if link.entry.attempt <= attempt]
        dead = set(runs[: runs.index(runs[-1])]) - {""} if runs else set[str]()
        if not dead or not (found := self.constants.of_runs(dead)):
            return
        named = [self._constants_of(cut) for cut in self._kept()]
        if None not in named:
            spared = {file.name for of_cut in named for file in of_cut or ()}
            self._store.remove([name for name in found if name not in spared])

    def _sweep_epoch(self, sweep: Sweep, named: Mapping[Place, Iterable[FileId]], folder: str) -> list[OSError]:
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
            place = Place(epoch, Attempt(attempt))
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


def _layers_of(tasks: Mapping[TaskId, TaskFiles]) -> Layers:
    """What the files of these tasks hold of their keyed state."""
    return {
        FileId(layer.attempt, layer.filed, task): layer
        for task, files in tasks.items()
        for layer in (*files.below, files.layer)
    }


def _followed(chain: Sequence[Entry], epoch: Epoch, attempt: Attempt) -> Epoch:
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


def _last_states(manifests: Iterable[Manifest]) -> set[str]:
    return {task_file(task) for entry in manifests for task, epoch in entry.files.items() if epoch is None}


def _missing(path: str, what: str) -> SnapshotCorruptError:
    return SnapshotCorruptError(
        f"{path} is missing, {what}: restore it from a backup, or restore another cut; none is taken in its place"
    )


def _changed(path: str) -> SnapshotCorruptError:
    return SnapshotCorruptError(
        f"{path} was changed: its digest is not the one in the manifest, so nothing of it is decoded; restore it from "
        "a backup, or restore another cut"
    )

"""The store of a job: its chain, its cuts, and the files of its tasks. `backedge.recovery.stores` shows where they are.

`cut_reader.py` reads them, `cut_remover.py` removes them, and this file writes them.

- Tasks write their own files, the coordinator the chain. Many threads and processes may use a store at once.
- A cut is complete when the entry of its manifest is in the chain. The manifest and all files that it names are durable
  before. So a death between the two leaves a cut that is not complete, and an entry never names a missing file.
- Tasks on the coordinator's host may leave it to the coordinator to make small files durable, with the manifest.
- The keyed state of a task may be in a list of files, of which the cut's own is the last (rule 14). The manifest names
  all of them.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.naming import check_name
from backedge.recovery.cut.cut import TaskSnapshot
from backedge.recovery.protocol.orders import Entry, FileId, Manifest
from backedge.recovery.stores.cut_remover import CutRemover
from backedge.recovery.stores.documents import Document, sealed, sha256
from backedge.recovery.stores.job_identity import identity_of
from backedge.recovery.stores.keys import checked_key
from backedge.recovery.stores.links import ManifestFile
from backedge.recovery.stores.manifests import manifest_document, shared_files
from backedge.recovery.stores.names import (
    STATUS,
    attempt_folder,
    first_part,
    graph_file,
    manifest_file,
    path_of,
    task_file,
)
from backedge.recovery.stores.run_status import RunStatus
from backedge.recovery.stores.schema import GRAPH, MANIFEST_SHAPE, STATUS_SHAPE
from backedge.recovery.stores.settling import Settling
from backedge.recovery.stores.store_calls import create_exclusively, exists, written_to
from backedge.recovery.stores.store_errors import OutcomeUnknownError
from backedge.recovery.stores.store_guarantees import probe_store
from backedge.recovery.stores.store_protocol import Store
from backedge.recovery.stores.store_schemes import store_at
from backedge.recovery.stores.task_files import StateLayer, StoredFile, TaskFiles

Layers = dict[FileId, StateLayer]
"""What tasks have written of their keyed state, each by its name."""


class CutStore(CutRemover):
    """The durable part of one job, below ROOT/JOB."""

    def __init__(self, root: str | Store, job: str, key: bytes | None = None) -> None:
        """Open the job in a store, or in the store of a location. With a key, everything is signed, and nothing
        unsigned is read. Without one, a local folder that other users may write to is refused.
        """
        if key is not None:
            checked_key(key, "the key of a store")
        whole = root if isinstance(root, Store) else store_at(root)
        self.root = whole.location
        store = whole.below(check_name(job, "job"))
        store.prepare(is_signed=key is not None)
        super().__init__(store, job, identity_of(store, job, key), key)
        # Numbers of the chain under which an entry of ours may or may not exist, with the manifest that it names.
        self._unknown: dict[int, ManifestFile | None] = {}
        # Pipeline -> kept cut -> what its manifest names of keyed state: a later cut may name it again.
        self._layers: dict[str | None, dict[Epoch, Layers]] = {}
        # Task -> the files of its latest compaction.
        self._compacted: dict[TaskId, TaskFiles] = {}

    def __repr__(self) -> str:
        return f"CutStore({self.path!r})"

    def probe(self) -> None:
        """Check that the store gives the guarantees that a run relies on. `StoreContractError` if it does not."""
        with written_to(self._store):
            probe_store(self._store)

    # -- the chain -----------------------------------------------------------------------------------------------

    @property
    def holds_a_run(self) -> bool:
        """Whether a run of this job has begun here."""
        return self._chain.is_taken(1)

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
        files, constants = files or {}, constants or {}
        manifest = None
        try:
            parent = self._chain.parent_of(number)
            if isinstance(entry, Manifest) and deployment is not None:
                files = self._with_layers(entry, files)
                document = manifest_document(entry, files, deployment, constants, dropped)
                manifest = self._write_manifest(number, entry, parent, document, files.values())
            is_ours = self._chain.create(number, entry, parent, manifest)
        except OutcomeUnknownError:
            self._unknown[number] = manifest
            raise
        except OSError as error:
            if number in self._unknown:
                raise OutcomeUnknownError(error.errno, f"whether entry {number} exists is unknown ({error})") from error
            self._remove_manifest(number, entry)
            raise
        self._unknown.pop(number, None)
        if is_ours and isinstance(entry, Manifest):
            # Not before: if this cut is given up, the next one builds on those that it would have dropped, and another
            # cut may get its number.
            self._keep_layers(entry, files)
            self._named[entry.epoch] = frozenset(shared_files(constants, files))
        # If the entry is in the shortened part of the chain, later entries build on it, and the cut may still be kept.
        if not is_ours and not self._chain.is_past(number):
            self._remove_manifest(number, entry)
        return is_ours

    def _keep_layers(self, entry: Manifest, files: Mapping[TaskId, TaskFiles]) -> None:
        layers = {**self._layers.get(entry.pipeline, {}), entry.epoch: _layers_of(files)}
        kept = layers if entry.kept is None else frozenset(entry.kept)
        self._layers[entry.pipeline] = {cut: of_cut for cut, of_cut in layers.items() if cut in kept}

    def _with_layers(self, entry: Manifest, files: Mapping[TaskId, TaskFiles]) -> dict[TaskId, TaskFiles]:
        # The newest cut first, which knows most: there may be thousands.
        cuts = reversed(self._layers.get(entry.pipeline, {}).values())
        known = ChainMap(_layers_of(self._compacted), *cuts)
        return {task: replace(of, below=self._below(of, entry, known)) for task, of in files.items()}

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
        self, number: int, entry: Manifest, parent: str | None, document: Document, written: Iterable[TaskFiles]
    ) -> ManifestFile:
        document["job"], document["job_id"] = self.job, self.job_id
        document["parent"] = {"number": number - 1, "sha256": parent}
        data = sealed(document, self._key, MANIFEST_SHAPE)
        name = path_of(manifest_file(entry.attempt, entry.epoch, number))
        manifest = ManifestFile(name, len(data), sha256(data))
        if self._unknown.get(number) == manifest:
            return manifest  # It is durable, and would not be while it is replaced; an entry may name it.
        unsettled = self._unsettled(written)
        self._store.write({name: data})
        self._store.make_durable([*unsettled, name])
        return manifest

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

    def keep_status(self, status: RunStatus) -> None:
        """Keep what is known about the run, in place of what was kept before. It is information: nothing is restored
        from it, and a supervisor that has lost the job unnoticed may replace a newer one.
        """
        document = {"job_id": self.job_id, "status": status.to_json()}
        self._store.write({STATUS: sealed(document, self._key, STATUS_SHAPE)})

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
        not made durable here: the process on this host that creates the manifest does it. Where a write is durable when
        it returns, nothing is left to that process.
        """
        # It needs pyarrow, for which no run waits before its first record.
        from backedge.recovery.stores.task_tables import write_files

        writes_durably = type(self._store).make_durable is Store.make_durable
        if writes_durably or any(state.versions for state in snapshot.operators.values()):
            left_bytes_max = -1  # versions are too large for another process to sync them
        with Settling(self._store, left_bytes_max) as settling:
            in_files = self.constants.keep_versions(attempt, snapshot, settling)
            described = write_files(attempt, epoch, in_files, loops or {}, kinds or {}, settling)
            described = replace(described, is_settled=settling.finish())
        self.constants.have_kept(attempt, in_files)
        return described

    def discard_task(self, attempt: Attempt, epoch: Epoch | None, task: TaskId) -> None:
        """Remove the files of one task in an aborted epoch. No harm if there are none."""
        self._remove_files(attempt_folder(attempt, epoch), lambda name: first_part(name) == task_file(task))


def _layers_of(tasks: Mapping[TaskId, TaskFiles]) -> Layers:
    """What the files of these tasks hold of their keyed state."""
    return {
        FileId(layer.attempt, layer.filed, task): layer
        for task, files in tasks.items()
        for layer in (*files.below, files.layer)
    }

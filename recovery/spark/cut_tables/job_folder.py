"""Read-only access to the job in a folder or another store: its chain, manifests and graphs. Needs no Spark.

Everything is verified before it is parsed, by the same rules as in a store: each entry by its successor, manifests by
the SHA-256 in the chain, graphs by their seal; with a key, also by signature.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from backedge.graphs.ids import Epoch
from backedge.graphs.wording import one_line
from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.spark.spark_errors import UnreadableError
from backedge.recovery.stores.answer_journal import AnswerGroup
from backedge.recovery.stores.cut_reader import CutReader
from backedge.recovery.stores.digests import digest_of_constant
from backedge.recovery.stores.documents import opened
from backedge.recovery.stores.folder_store import FolderStore, local_path
from backedge.recovery.stores.job_identity import jobs_in
from backedge.recovery.stores.links import Link
from backedge.recovery.stores.manifests import check_codecs
from backedge.recovery.stores.names import JOB, has_manifest_name, number_in, parts_of, path_of
from backedge.recovery.stores.schema import IDENTITY, IDENTITY_BYTES_MAX, MANIFEST_SHAPE
from backedge.recovery.stores.shapes import ShapeError
from backedge.recovery.stores.store_calls import exists, full_name, read_document
from backedge.recovery.stores.store_errors import StoreError
from backedge.recovery.stores.store_protocol import Store
from backedge.recovery.stores.store_schemes import scheme_of, store_at

T = TypeVar("T")

Epochs = Literal["latest", "all"] | Sequence[int]


class Unrecorded(NamedTuple):
    """An attempt's folder that no chain entry names. `follows` is the number of its manifest's parent entry."""

    epoch: int
    attempt: int
    follows: int | None


class AnswerFile(NamedTuple):
    """A verified group of answers that a restore of the cut `epoch` reads."""

    epoch: int
    name: str
    size: int
    digest: str
    operator: str
    segment: Epoch
    attempt: int

    @staticmethod
    def of(group: AnswerGroup) -> AnswerFile:
        name, segment, operator, attempt, content = group
        return AnswerFile(segment, name, len(content), digest_of_constant(content), operator, segment, attempt)


class MalformedDocumentError(UnreadableError):
    """A document with a valid seal but malformed content: the `fault`, and its `place` in the document."""

    def __init__(self, error: StoreError, reason: ShapeError) -> None:
        super().__init__(one_line(error))
        self.place = reason.place.lstrip(".")
        self.fault = reason.fault


class JobFolder:
    """The files that a run left in ROOT/JOB."""

    def __init__(self, store: Store, job: str, job_id: str, key: bytes | None) -> None:
        self._store = store
        self._key = key
        self._cuts = CutReader(store, job, job_id, key)
        self.job = job
        self.job_id = job_id

    @staticmethod
    def open(path: str, key: bytes | None = None) -> JobFolder:
        """Open the job in ROOT/JOB, or in ROOT if it holds a single job. Nothing is created or changed."""
        store = _read(path, lambda: _store_of_job(path))
        path = full_name(store, JOB)
        document = _read(path, lambda: opened(read_document(store, JOB, IDENTITY_BYTES_MAX), key, path, IDENTITY))
        return JobFolder(store, document["job"], document["job_id"], key)

    def __repr__(self) -> str:
        return f"JobFolder({self.path!r})"

    @property
    def path(self) -> str:
        """The folder, as an absolute path or a URI."""
        return self._store.location

    def links(self) -> list[Link]:
        return _read(self.path, self._cuts.links)

    def cuts(self) -> list[int]:
        """The complete epochs that still exist, in order."""
        return sorted({int(entry.epoch) for entry in self._existing()})

    def last_cuts(self) -> dict[str | None, int]:
        """The last cut of each pipeline that still exists."""
        return {entry.pipeline: int(entry.epoch) for entry in self._existing()}

    def chosen(self, epochs: Epochs) -> list[int]:
        """These cuts: the last one of each pipeline, all, or those of some epochs."""
        if not isinstance(epochs, str):
            return sorted({int(epoch) for epoch in epochs})
        self.latest()
        return self.cuts() if epochs == "all" else sorted(self.last_cuts().values())

    def latest(self) -> int:
        """The last complete epoch."""
        cuts = self.cuts()
        if not cuts:
            raise UnreadableError(
                f"job {self.job} in {self.path} has no complete cut: run it with snapshots until one completes"
            )
        return cuts[-1]

    def manifest(self, epoch: int) -> dict[str, Any]:
        link = next((link for link in self._recorded() if link.entry.epoch == epoch), None)
        if link is None or link.manifest is None or not self._is_there(link):
            state = "is not complete" if link is None else "was removed"
            there = ", ".join(map(str, self.cuts())) or "none"
            raise UnreadableError(
                f"epoch {epoch} of job {self.job} in {self.path} {state}: choose an existing epoch ({there})"
            )
        path, recorded = full_name(self._store, link.manifest_name), link.manifest
        document = _read(path, lambda: self._cuts.opened_manifest(link, recorded))
        _read(path, lambda: check_codecs(document, path))
        return document

    def graph(self, graph_hash: str) -> dict[str, Any]:
        return _read(self.path, lambda: self._cuts.graph(graph_hash))

    def answers(self, epochs: Iterable[int]) -> list[AnswerFile]:
        """The groups of answers that a restore of each of these cuts reads. All of them are verified."""
        cuts, journal = sorted(map(Epoch, epochs)), self._cuts.answers
        found = _read(self.path, lambda: journal.each_group(cuts[0], AnswerFile.of)) if cuts else []
        return [
            file._replace(epoch=cut) for cut in cuts for file in found if journal.segments.are_read(file.segment, cut)
        ]

    def foreign_file(self, name: str) -> str | None:
        """The reason why no store can have written this file (a link, say); None if there is none or it is missing."""
        # Other stores have no links, and may have to fetch a file to open it.
        if parts_of(name) is None or not isinstance(self._store, FolderStore):
            return None
        try:
            with self._store.open(name):
                return None
        except StoreError as error:
            return one_line(error)
        except OSError:
            return None  # reported when the file is read

    def unrecorded(self) -> list[Unrecorded]:
        """The folders of attempts in epochs that no entry of the chain names.

        Call this before reading the chain for anything else: a live run writes a manifest before its chain entry.
        """
        known = {(entry.epoch, entry.attempt) for entry in (link.entry for link in self._recorded())}
        found: list[Unrecorded] = []
        for epoch_name in _read(self.path, self._store.folders):
            epoch = number_in(epoch_name, "epoch")
            attempts: Iterable[str] = ()
            if epoch is not None:
                attempts = _read(self.path, lambda name=epoch_name: self._store.folders(name))
            for name in attempts:
                attempt = number_in(name, "attempt")
                if epoch is not None and attempt is not None and (epoch, attempt) not in known:
                    found.append(Unrecorded(epoch, attempt, self._follows(path_of((epoch_name, name)))))
        return found

    def _follows(self, folder: str) -> int | None:
        """The last entry that a manifest in the folder of an attempt follows."""
        found: list[int] = []
        for name in _read(self.path, lambda: self._store.list(folder)):
            if not has_manifest_name(name.rsplit("/", 1)[-1]):
                continue
            path = full_name(self._store, name)
            try:
                document = opened(read_document(self._store, name), self._key, path, MANIFEST_SHAPE)
            except (StoreError, OSError):
                continue  # missing or torn by a crash, so it has no entry
            if document["job_id"] == self.job_id:
                found.append(document["parent"]["number"])
        return max(found, default=None)

    def _existing(self) -> list[Manifest]:
        return _read(self.path, self._cuts.existing)

    def _recorded(self) -> list[Any]:
        return [link for link in self.links() if isinstance(link.entry, Manifest)]

    def _is_there(self, link: Any) -> bool:
        name: str = link.manifest_name
        return _read(full_name(self._store, name), lambda: exists(self._store, name))


def _store_of_job(location: str) -> Store:
    """The store of the job at a path or URI: ROOT/JOB, or ROOT if it holds a single job."""
    store = FolderStore(_folder_at(location)) if scheme_of(location) == "file" else store_at(location)
    if exists(store, JOB):
        return store
    jobs = jobs_in(store)
    if len(jobs) == 1:
        return store.below(jobs[0])
    found = f"{len(jobs)} jobs ({', '.join(jobs)})" if jobs else "no job"
    raise UnreadableError(f"{store.location} holds {found}: give the location of one, SNAPSHOTS/JOB")


def _folder_at(location: str) -> str:
    path = os.path.realpath(local_path(location))
    try:
        found = None if stat.S_ISDIR(os.stat(path).st_mode) else "is a file"
    except (FileNotFoundError, NotADirectoryError):
        found = "does not exist"
    if found is not None:
        raise UnreadableError(f"{path} {found}: give the folder with a run's snapshots, SNAPSHOTS/JOB")
    return path


def _read(path: str, read: Callable[[], T]) -> T:
    """The result of `read`; errors of the store or the disk become `UnreadableError`."""
    try:
        return read()
    except StoreError as error:
        if isinstance(error.__cause__, ShapeError):
            raise MalformedDocumentError(error, error.__cause__) from error
        raise UnreadableError(one_line(error)) from error
    except FileNotFoundError as error:
        raise UnreadableError(f"{path} is missing: restore it from a backup") from error
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read ({error.strerror}): grant this user read access") from error

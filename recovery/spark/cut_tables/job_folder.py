"""The folder of a job, read and never written: its chain, its manifests, its graphs. No Spark in it.

Everything is verified before it is parsed, by the same rules as a store: entries by what follows them, manifests by
the SHA-256 that the chain records, graphs by their seal; with a key, by signature too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from graphs.wording import one_line
from recovery.orders import Manifest
from recovery.spark.spark_errors import UnreadableError
from recovery.stores.chain import Chain
from recovery.stores.documents import Document, opened, sha256
from recovery.stores.folder import Folder
from recovery.stores.links import Link
from recovery.stores.manifests import check_codecs
from recovery.stores.names import JOB, MANIFEST, Parts, attempt_folder, graph_file, number_in, parts_of
from recovery.stores.schema import GRAPH, IDENTITY, IDENTITY_BYTES_MAX
from recovery.stores.schema import MANIFEST as MANIFEST_SHAPE
from recovery.stores.shapes import ShapeError
from recovery.stores.store_errors import StoreError

T = TypeVar("T")


class Unrecorded(NamedTuple):
    """The folder of an attempt in an epoch that no entry names. `follows`: the entry that its manifest comes after."""

    epoch: int
    attempt: int
    follows: int | None


class MalformedDocumentError(UnreadableError):
    """A document that is sealed and not as this version writes it: `place` in it, and the `fault` there."""

    def __init__(self, error: StoreError, reason: ShapeError) -> None:
        super().__init__(one_line(error))
        self.place = reason.place.lstrip(".")
        self.fault = reason.fault


class JobFolder:
    """What a run left behind in ROOT/JOB."""

    def __init__(self, folder: Folder, job: str, job_id: str, key: bytes | None) -> None:
        self._folder = folder
        self._key = key
        self._chain = Chain(folder, job_id, key)
        self.job = job
        self.job_id = job_id

    @staticmethod
    def open(path: str, key: bytes | None = None) -> JobFolder:
        """The job in a folder: ROOT/JOB, or ROOT if there is one job in it. Nothing is made or changed."""
        folder = Folder(_job_path(_local(path)))
        path = folder.full((JOB,))
        document = _told(path, lambda: opened(folder.read((JOB,), bytes_max=IDENTITY_BYTES_MAX), key, path, IDENTITY))
        return JobFolder(folder, document["job"], document["job_id"], key)

    def __repr__(self) -> str:
        return f"JobFolder({self.path!r})"

    @property
    def path(self) -> str:
        """The folder, as an absolute path."""
        return self._folder.path

    def links(self) -> list[Link]:
        """The entries of the chain, verified, in order."""
        return _told(self.path, self._chain.links)

    def cuts(self) -> list[int]:
        """The epochs that are complete and still there, in order."""
        return sorted({int(link.entry.epoch) for link in self._recorded() if self._is_there(link)})

    def latest(self) -> int:
        """The last of them."""
        cuts = self.cuts()
        if not cuts:
            raise UnreadableError(
                f"job {self.job} in {self.path} has no complete cut: let it run with snapshots until there is one"
            )
        return cuts[-1]

    def manifest(self, epoch: int) -> dict[str, Any]:
        """What the manifest of a complete cut says, verified."""
        link = next((link for link in self._recorded() if link.entry.epoch == epoch), None)
        if link is None or link.manifest is None or not self._is_there(link):
            state = "is not complete" if link is None else "was removed"
            there = ", ".join(map(str, self.cuts())) or "none"
            raise UnreadableError(
                f"epoch {epoch} of job {self.job} in {self.path} {state}: give one of those that are there ({there})"
            )
        parts = _manifest_file(link)
        path, expected = self._folder.full(parts), link.manifest
        data = _told(path, lambda: self._folder.read(parts, expected.size))
        if sha256(data) != expected.sha256:
            raise UnreadableError(
                f"{path} is not the manifest that the chain records: it was changed or exchanged; bring it back from "
                "a copy"
            )
        document = _told(path, lambda: opened(data, self._key, path, MANIFEST_SHAPE))
        _told(path, lambda: check_codecs(document, path))
        if document["job_id"] != self.job_id:
            raise UnreadableError(f"{path} is of another job: bring back what was here")
        return document

    def graph(self, graph_hash: str) -> dict[str, Any]:
        """What was kept of a graph: its operators and edges."""
        parts = graph_file(graph_hash)
        path = self._folder.full(parts)
        document: Document = _told(path, lambda: opened(self._folder.read(parts), self._key, path, GRAPH))
        if (document["job_id"], document["graph_hash"]) != (self.job_id, graph_hash):
            raise UnreadableError(f"{path} is of another job or graph: bring back what was here")
        return document["graph"]

    def foreign_file(self, name: str) -> str | None:
        """Why a file is not one that a store makes: a link, or no regular file. Whether it is there is not asked."""
        parts = parts_of(name)
        if parts is None:
            return None
        try:
            with self._folder.open(parts):
                return None
        except StoreError as error:
            return one_line(error)
        except OSError:
            return None  # whoever reads it says so

    def unrecorded(self) -> list[Unrecorded]:
        """The folders of attempts in epochs that no entry of the chain names.

        Ask before the chain is read for anything else: a run that goes on writes a manifest before its entry.
        """
        known = {(entry.epoch, entry.attempt) for entry in (link.entry for link in self._recorded())}
        found: list[Unrecorded] = []
        for epoch_name in _told(self.path, self._folder.names):
            epoch = number_in(epoch_name, "epoch")
            for name in [] if epoch is None else _told(self.path, lambda name=epoch_name: self._folder.names((name,))):
                attempt = number_in(name, "attempt")
                if epoch is not None and attempt is not None and (epoch, attempt) not in known:
                    found.append(Unrecorded(epoch, attempt, self._follows((epoch_name, name, MANIFEST))))
        return found

    def _follows(self, parts: Parts) -> int | None:
        path = self._folder.full(parts)
        try:
            document = opened(self._folder.read(parts), self._key, path, MANIFEST_SHAPE)
        except (StoreError, OSError):
            return None  # torn by a crash, or not there: no entry stands for it
        return document["parent"]["number"] if document["job_id"] == self.job_id else None

    def _recorded(self) -> list[Any]:
        return [link for link in self.links() if isinstance(link.entry, Manifest)]

    def _is_there(self, link: Any) -> bool:
        parts = _manifest_file(link)
        return _told(self._folder.full(parts), lambda: self._folder.exists(parts))


def _manifest_file(link: Any) -> Parts:
    return (*attempt_folder(link.entry.attempt, link.entry.epoch), MANIFEST)


def _local(path: str) -> str:
    """The path, for people and programs that write it as a URI."""
    url = urlsplit(path)
    if url.scheme == "file" and url.netloc in {"", "localhost"}:
        return os.path.realpath(unquote(url.path))
    if "://" in path:
        raise UnreadableError(
            f"snapshots are read from folders, and {path} is none: copy the folder of the job to a disk that all "
            "processes of Spark see, and give its path"
        )
    return os.path.realpath(path)


def _job_path(path: str) -> str:
    if not os.path.isdir(path):
        found = "is a file" if os.path.exists(path) else "does not exist"
        raise UnreadableError(f"{path} {found}: give the folder that a run keeps its snapshots in, SNAPSHOTS/JOB")
    if os.path.isfile(os.path.join(path, JOB)):
        return path
    jobs = sorted(entry.name for entry in os.scandir(path) if os.path.isfile(os.path.join(entry.path, JOB)))
    if len(jobs) == 1:
        return os.path.join(path, jobs[0])
    if jobs:
        raise UnreadableError(f"{path} holds {len(jobs)} jobs: give the folder of one ({', '.join(jobs)})")
    raise UnreadableError(
        f"there is no job in {path}: give the folder that a run keeps its snapshots in, SNAPSHOTS/JOB"
    )


def _told(path: str, read: Callable[[], T]) -> T:
    """What is read of a path, an error of the store or of the disk told as ours."""
    try:
        return read()
    except StoreError as error:
        if isinstance(error.__cause__, ShapeError):
            raise MalformedDocumentError(error, error.__cause__) from error
        raise UnreadableError(one_line(error)) from error
    except FileNotFoundError as error:
        raise UnreadableError(f"{path} is missing: bring it back from a copy") from error
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read ({error.strerror}): let this user read it") from error

"""The folder of a job, read and never written: its chain, its manifests, its graphs. No Spark in it.

Everything is verified before it is parsed, by the same rules as a store: entries by what follows them, manifests by
the SHA-256 that the chain records, graphs by their seal; with a key, by signature too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from recovery.orders import Manifest
from recovery.spark.errors import UnreadableError
from recovery.stores.chain import Chain
from recovery.stores.documents import Document, opened, sha256
from recovery.stores.errors import StoreError
from recovery.stores.folder import Folder
from recovery.stores.links import Link
from recovery.stores.manifests import description_in
from recovery.stores.names import JOB, MANIFEST, Parts, attempt_folder, graph_file

T = TypeVar("T")


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
        document = _told(folder.full((JOB,)), lambda: opened(folder.read((JOB,)), key, folder.full((JOB,))))
        return JobFolder(folder, str(document.get("job")), str(document.get("job_id")), key)

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
        document = _told(path, lambda: opened(data, self._key, path))
        _told(path, lambda: description_in(document, path))
        return document

    def graph(self, graph_hash: str) -> dict[str, Any]:
        """What was kept of a graph: its operators and edges."""
        parts = graph_file(graph_hash)
        path = self._folder.full(parts)
        document: Document = _told(path, lambda: opened(self._folder.read(parts), self._key, path))
        if (document.get("job_id"), document.get("graph_hash")) != (self.job_id, graph_hash):
            raise UnreadableError(f"{path} is of another job or graph: bring back what was here")
        return document["graph"]

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
        raise UnreadableError(" ".join(str(error).split())) from error
    except FileNotFoundError as error:
        raise UnreadableError(f"{path} is missing: bring it back from a copy") from error
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read ({error.strerror}): let this user read it") from error

"""The chain of a job: starts of attempts and manifests, one file each, numbered without a gap.

- An entry is created exclusively, and it alone makes its cut complete: a manifest.json that no entry names is nothing.
- Each names the entry before it with its SHA-256, and the job. So an entry that was changed, exchanged or brought from
  elsewhere is found, and a gap is an error.
- An entry never changes once it is there. What was verified is not read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from graphs.ids import Epoch
from recovery.orders import Entry, Manifest
from recovery.stores.documents import Document, opened, sealed, sha256
from recovery.stores.errors import NoSuchCutError, SnapshotCorruptError, StoreError
from recovery.stores.folder import Folder
from recovery.stores.manifests import entry_document, entry_in
from recovery.stores.names import CHAIN, entry_file, entry_number


class ManifestFile(NamedTuple):
    """The manifest.json that an entry stands for."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Link:
    """An entry of the chain, verified by itself; `parent` is the SHA-256 of the one before it."""

    number: int
    entry: Entry
    parent: str | None
    sha256: str
    manifest: ManifestFile | None


class Chain:
    """The entries of one job."""

    def __init__(self, folder: Folder, job_id: str, key: bytes | None) -> None:
        self._folder = folder
        self._job_id = job_id
        self._key = key
        # It only grows, or is exchanged as a whole: threads may read it at any time.
        self._known: list[Link] = []
        self._by_epoch: dict[Epoch, Link] = {}

    def links(self) -> list[Link]:
        """All entries, in order. One that is torn, changed or missing is an error."""
        numbers = self._numbers()
        known = list(self._known)
        if numbers != list(range(1, len(numbers) + 1)) or len(numbers) < len(known):
            last = max(numbers[-1] if numbers else 0, len(known))
            missing = min(set(range(1, last + 1)) - set(numbers))
            raise SnapshotCorruptError(
                f"{self._path(missing)} is missing, and the chain of the job goes on to {last}: bring it back "
                "from a copy"
            )
        for number in numbers[len(known) :]:
            link = self._read(number)
            if link.parent != (known[-1].sha256 if known else None):
                raise SnapshotCorruptError(
                    f"{self._path(number)} follows another entry than {number - 1}: one of the two was exchanged; "
                    "bring the chain back from a copy"
                )
            known.append(link)
        self._by_epoch.update({link.entry.epoch: link for link in known if isinstance(link.entry, Manifest)})
        self._known = known
        return known

    def find(self, epoch: Epoch) -> Link:
        """The entry of a complete cut. Reads from the end, so that a task finds the latest without reading them all."""
        if epoch in self._by_epoch:
            return self._by_epoch[epoch]
        for number in reversed(self._numbers()):
            link = self._read(number)
            if isinstance(link.entry, Manifest) and link.entry.epoch == epoch:
                return link
        raise NoSuchCutError(
            f"epoch {epoch} is no complete cut in {self._folder.path}: no entry of the chain records it; restore one "
            "that is recorded"
        )

    def is_empty(self) -> bool:
        """Whether nothing has happened yet."""
        return not self._numbers()

    def is_taken(self, number: int) -> bool:
        """Whether there is an entry of this number."""
        if number < 1:
            raise ValueError(f"an entry of a chain cannot have number {number}: they begin with 1")
        return self._folder.exists(entry_file(number))

    def parent_of(self, number: int) -> str | None:
        """The SHA-256 of the entry that one of this number follows; None for the first."""
        if number == 1:
            return None
        if not self.is_taken(number - 1):
            raise StoreError(
                f"{self._path(number)} cannot be created: there is no entry {number - 1} for it to follow; read the "
                "chain anew"
            )
        return self._read(number - 1).sha256

    def create(self, number: int, entry: Entry, parent: str | None, manifest: ManifestFile | None) -> bool:
        """Create one entry exclusively; False if its place is taken."""
        document: Document = {
            **entry_document(entry),
            "number": number,
            "job_id": self._job_id,
            "parent": parent,
            "manifest": manifest and manifest._asdict(),
        }
        data = sealed(document, self._key)
        is_ours = self._folder.create(entry_file(number), data)
        if is_ours and number == len(self._known) + 1:
            link = Link(number, entry, parent, sha256(data), manifest)
            self._known.append(link)
            if isinstance(entry, Manifest):
                self._by_epoch[entry.epoch] = link
        return is_ours

    def _numbers(self) -> list[int]:
        numbers = (entry_number(name) for name in self._folder.names((CHAIN,)))
        return sorted(number for number in numbers if number is not None)

    def _read(self, number: int) -> Link:
        if number <= len(self._known):
            return self._known[number - 1]
        data, path = self._folder.read(entry_file(number)), self._path(number)
        document = opened(data, self._key, path)
        if (document.get("job_id"), document.get("number")) != (self._job_id, number):
            raise SnapshotCorruptError(
                f"{path} is entry {document.get('number')} of job {document.get('job_id')}, and this is job "
                f"{self._job_id}: it was brought from elsewhere; bring back what was here"
            )
        manifest: Any = document.get("manifest")
        entry = entry_in(document, path)
        file = ManifestFile(*(manifest[name] for name in ManifestFile._fields)) if manifest else None
        return Link(number, entry, document.get("parent"), sha256(data), file)

    def _path(self, number: int) -> str:
        return self._folder.full(entry_file(number))

"""The chain of a job: starts of attempts and manifests, one file each, numbered without a gap.

- An entry is created exclusively, and it alone makes its cut complete: a manifest.json that no entry names is nothing.
- Each names the entry before it with its SHA-256, and the job. So an entry that was changed, exchanged or brought from
  elsewhere is found, and a gap is an error.
- An entry never changes once it is there. What was verified is not read again.
- A long chain is shortened: what is still needed of the first entries goes into a file of its own, their past; then
  they are removed. No number is given twice for that: a past is there before the first of its entries goes, and stays
  until a later one is there. So whoever has created an entry looks for a past that covers its number, and finds one
  if there ever was another entry of that number.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

from graphs.ids import Epoch
from recovery.orders import Entry, Manifest
from recovery.stores.documents import Document, opened, sealed, sha256
from recovery.stores.folder import Folder
from recovery.stores.links import (
    NOTHING_PAST,
    Link,
    ManifestFile,
    Past,
    link_document,
    link_in,
    needed,
    past_document,
    past_in,
)
from recovery.stores.names import CHAIN, PAST, Parts, entry_file, entry_number, past_file
from recovery.stores.schema import ENTRY
from recovery.stores.schema import PAST as PAST_SHAPE
from recovery.stores.shapes import Shape, shown
from recovery.stores.store_errors import NoSuchCutError, SnapshotCorruptError, StoreError

ENTRIES_KEPT = 256
"""So many of the last entries are left alone when a chain of twice as many is shortened."""

T = TypeVar("T")


class _Known(NamedTuple):
    """What was verified: what is past, and the entries after it."""

    past: Past
    links: list[Link]

    @property
    def last(self) -> int:
        return self.past.number + len(self.links)


class Chain:
    """The entries of one job."""

    def __init__(self, folder: Folder, job_id: str, key: bytes | None) -> None:
        self._folder = folder
        self._job_id = job_id
        self._key = key
        # Its list only grows, or all is exchanged as a whole: threads may read it at any time.
        self._known = _Known(NOTHING_PAST, [])
        self._by_epoch: dict[Epoch, Link] = {}

    def links(self) -> list[Link]:
        """The entries that are there, in order. One that is torn, changed or missing is an error."""
        return self._know(self._until_nothing_goes(self._read_on))

    def find(self, epoch: Epoch) -> Link:
        """The entry of a complete cut. Reads from the end, so that a task finds the latest without reading them all."""
        if epoch in self._by_epoch:
            return self._by_epoch[epoch]

        def find(past: Past) -> Link | None:
            for number in reversed(self._numbers(CHAIN)):
                if number > past.number and _is_cut(link := self._read(number), epoch):
                    return link
            return next((link for link in past.links if _is_cut(link, epoch)), None)

        link = self._until_nothing_goes(find)
        if link is None:
            raise NoSuchCutError(
                f"epoch {epoch} is no complete cut in {self._folder.path}: no entry of the chain records it; restore "
                "one that is recorded"
            )
        return link

    def is_empty(self) -> bool:
        """Whether nothing has happened yet."""
        return not self._numbers(CHAIN) and not self._numbers(PAST)

    def is_taken(self, number: int) -> bool:
        """Whether there is an entry of this number, or was."""
        if number < 1:
            raise ValueError(f"an entry of a chain cannot have number {number}: they begin with 1")
        return self.is_past(number) or self._folder.exists(entry_file(number))

    def is_past(self, number: int) -> bool:
        """Whether the entry of this number is of those that may be gone."""
        return number <= self._past().number

    def parent_of(self, number: int) -> str | None:
        """The SHA-256 of the entry that one of this number follows; None for the first."""
        past = self._past()
        if number - 1 == past.number:
            return past.sha256
        if number - 1 > past.number and not self._folder.exists(entry_file(number - 1)):
            raise StoreError(
                f"{self._path(entry_file(number))} cannot be created: there is no entry {number - 1} for it to follow; "
                "read the chain anew"
            )
        return self._read(number - 1).sha256

    def create(self, number: int, entry: Entry, parent: str | None, manifest: ManifestFile | None) -> bool:
        """Create one entry exclusively; False if its place is taken, or somebody has gone on from it long since."""
        document = {**link_document(number, entry, parent, manifest), "job_id": self._job_id}
        data = sealed(document, self._key)
        if not self._folder.create(entry_file(number), data) or self.is_past(number):
            return False
        if number == self._known.last + 1:
            link = Link(number, entry, parent, sha256(data), manifest)
            self._known.links.append(link)
            if isinstance(entry, Manifest):
                self._by_epoch[entry.epoch] = link
        return True

    # -- a long chain --------------------------------------------------------------------------------------------

    def shorten(self, is_there: Callable[[Manifest], bool]) -> None:
        """Remove the first entries of a long chain but for what is needed of them; `is_there` tells of a cut."""
        past, links = self._known
        if len(links) < 2 * ENTRIES_KEPT:
            return
        gone, rest = links[:-ENTRIES_KEPT], links[-ENTRIES_KEPT:]
        last = gone[-1]
        shorter = Past(last.number, last.sha256, needed([*past.links, *gone], rest, is_there))
        document: Document = {**past_document(shorter), "job_id": self._job_id}
        self._folder.create(past_file(last.number), sealed(document, self._key))
        self._know(_Known(shorter, rest))
        for number in self._numbers(CHAIN):
            if number <= last.number:
                self._folder.remove(entry_file(number))
        for number in self._numbers(PAST):
            if number < last.number:
                self._folder.remove(past_file(number))

    def _know(self, known: _Known) -> list[Link]:
        links = [*known.past.links, *known.links]
        self._by_epoch = {link.entry.epoch: link for link in links if isinstance(link.entry, Manifest)}
        self._known = known
        return links

    def _past(self) -> Past:
        """What is past by now."""
        past = self._known.past
        while (number := max(self._numbers(PAST), default=0)) > past.number:
            with suppress(FileNotFoundError):  # there is a later one meanwhile
                parts = past_file(number)
                document, _ = self._opened(parts, number, PAST_SHAPE)
                return past_in(document)
        return past

    def _until_nothing_goes(self, read: Callable[[Past], T]) -> T:
        """What is read after what is past; once more if the chain was shortened meanwhile."""
        past = self._past()
        while True:
            try:
                return read(past)
            except (SnapshotCorruptError, FileNotFoundError):
                last, past = past.number, self._past()
                if past.number == last:
                    raise

    # -- reading -------------------------------------------------------------------------------------------------

    def _read_on(self, past: Past) -> _Known:
        links = [link for link in self._known.links if link.number > past.number]
        numbers = [number for number in self._numbers(CHAIN) if number > past.number]
        first = past.number + 1
        if numbers != list(range(first, first + len(numbers))) or len(numbers) < len(links):
            last = max(numbers[-1] if numbers else 0, past.number + len(links))
            missing = min(set(range(first, last + 1)) - set(numbers))
            raise SnapshotCorruptError(
                f"{self._path(entry_file(missing))} is missing, and the chain of the job goes on to {last}: bring it "
                "back from a copy"
            )
        parent = links[-1].sha256 if links else past.sha256
        for number in numbers[len(links) :]:
            link = self._read(number)
            if link.parent != parent:
                raise SnapshotCorruptError(
                    f"{self._path(entry_file(number))} follows another entry than {number - 1}: one of the two was "
                    "exchanged; bring the chain back from a copy"
                )
            links.append(link)
            parent = link.sha256
        return _Known(past, links)

    def _numbers(self, folder: str) -> list[int]:
        numbers = (entry_number(name) for name in self._folder.names((folder,)))
        return sorted(number for number in numbers if number is not None)

    def _read(self, number: int) -> Link:
        known = self._known
        if known.past.number < number <= known.last:
            return known.links[number - known.past.number - 1]
        parts = entry_file(number)
        document, digest = self._opened(parts, number, ENTRY)
        return link_in(document, digest)

    def _opened(self, parts: Parts, number: int, shape: Shape) -> tuple[Document, str]:
        """The document of a file, verified, and the SHA-256 of the file."""
        data, path = self._folder.read(parts), self._path(parts)
        document = opened(data, self._key, path, shape)
        if (document["job_id"], document["number"]) != (self._job_id, number):
            raise SnapshotCorruptError(
                f"{path} is entry {document['number']} of job {shown(document['job_id'])}, and this is job "
                f"{self._job_id}: it was brought from elsewhere; bring back what was here"
            )
        return document, sha256(data)

    def _path(self, parts: Parts) -> str:
        return self._folder.full(parts)


def _is_cut(link: Link, epoch: Epoch) -> bool:
    return isinstance(link.entry, Manifest) and link.entry.epoch == epoch

"""The chain of a job: starts of attempts and manifests, one file each, numbered without a gap.

- An entry is created exclusively, and it alone makes its cut complete: a manifest without an entry means nothing.
- Each entry names the entry before it by its SHA-256, and the job. So an entry that was changed, exchanged or copied
  from another job is found, and a gap is an error.
- An entry never changes. What was verified is not read again.
- A long chain is shortened: what is still needed of the first entries goes into a file of its own, their past; then
  they are removed. No number is ever used twice: after creating an entry, a process looks for a past that covers its
  number, and finds one if there ever was another entry of that number.
- All of this is read by name; a store need not list its files completely. Pasts are numbered, and a few stay that
  lead to the last one from any earlier one (`landmarks`), however long the chain is. The list finds
  entries to remove, and gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import takewhile
from threading import Lock
from typing import Any, NamedTuple, TypeVar, cast

from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.chain_view import needed
from backedge.recovery.protocol.orders import Entry, Manifest
from backedge.recovery.stores.documents import Document, opened, sealed, sha256
from backedge.recovery.stores.links import (
    NOTHING_PAST,
    Link,
    ManifestFile,
    Past,
    link_document,
    link_in,
    past_document,
    past_in,
)
from backedge.recovery.stores.names import CHAIN, PAST, Parts, entry_file, entry_number, past_file, path_of
from backedge.recovery.stores.schema import ENTRY, PAST_SHAPE
from backedge.recovery.stores.shapes import Shape, shown
from backedge.recovery.stores.store_calls import create_exclusively, exists, full_name, read_document
from backedge.recovery.stores.store_errors import (
    NoSuchCutError,
    OutcomeUnknownError,
    SnapshotCorruptError,
    StoreError,
)
from backedge.recovery.stores.store_protocol import Store

ENTRIES_KEPT = 64
"""A chain of twice as many entries is shortened to this number."""

T = TypeVar("T")


class _Known(NamedTuple):
    """The verified part of the chain: its past, and the entries after it."""

    past: Past
    links: list[Link]

    @property
    def last(self) -> int:
        return self.past.number + len(self.links)


class Chain:
    """The entries of one job."""

    def __init__(self, store: Store, job_id: str, key: bytes | None) -> None:
        self._store = store
        self._job_id = job_id
        self._key = key
        # Threads may read it at any time: its list only grows, or it is replaced as a whole. One thread may create
        # entries while another one shortens the chain: the lock keeps each from undoing what the other has noted.
        self._known = _Known(NOTHING_PAST, [])
        self._lock = Lock()
        self._by_epoch: dict[Epoch, Link] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Chain, (self._store, self._job_id, self._key)

    def links(self) -> list[Link]:
        """The entries in order. An entry that is torn, changed or missing is an error."""
        return self._know(self._while_unshortened(self._read_on))

    def links_by_name(self) -> list[Link]:
        """The entries up to the first that is missing. Like `links`, but nothing is listed: this takes much less."""
        return self._know(self._while_unshortened(partial(self._read_on, finds_gaps=False)))

    def known(self) -> list[Link]:
        """The entries that were read last, and those that were created since. Only if there are none, they are read."""
        past, links = self._known
        return [*past.links, *links] or self.links_by_name()

    def find(self, epoch: Epoch) -> Link:
        """The entry of a complete cut. Reads from the end, so that a task need not read the whole chain."""
        if epoch in self._by_epoch:
            return self._by_epoch[epoch]

        def find(past: Past) -> Link | None:
            for number in range(self._last(past), past.number, -1):
                if _is_cut(link := self._read(number), epoch):
                    return link
            return next((link for link in past.links if _is_cut(link, epoch)), None)

        link = self._while_unshortened(find)
        if link is None:
            raise NoSuchCutError(
                f"epoch {epoch} is not a complete cut in {self._store.location}: no entry of the chain records it; "
                "choose one that is recorded"
            )
        return link

    def is_taken(self, number: int) -> bool:
        """Whether there is an entry of this number, or was."""
        if number < 1:
            raise ValueError(f"an entry of a chain cannot have number {number}: they begin with 1")
        # The past is looked up last: it is there before an entry is removed.
        return self._exists(entry_file(number)) or self.is_past(number)

    def is_past(self, number: int) -> bool:
        """Whether the entry of this number is in the shortened part of the chain."""
        return number <= self._past().number

    def parent_of(self, number: int) -> str | None:
        """The SHA-256 of the entry that one of this number follows; None for the first."""
        if (link := self._known_link(number - 1)) is not None:
            return link.sha256
        past = self._past()
        if number - 1 == past.number:
            return past.sha256
        if number - 1 > past.number and not self._exists(entry_file(number - 1)):
            raise StoreError(
                f"{self._path(entry_file(number))} cannot be created: there is no entry {number - 1} for it to follow; "
                "read the chain again"
            )
        return self._read(number - 1).sha256

    def create(self, number: int, entry: Entry, parent: str | None, manifest: ManifestFile | None) -> bool:
        """Create one entry exclusively. False if its number is taken, or is in the shortened part of the chain."""
        document = {**link_document(number, entry, parent, manifest), "job_id": self._job_id}
        data = sealed(document, self._key, ENTRY)
        if not create_exclusively(self._store, path_of(entry_file(number)), data):
            return False
        try:
            if self.is_past(number):
                return False
        except OSError as error:
            # The entry is there, so nothing that it names may be given up.
            path = self._path(entry_file(number))
            raise OutcomeUnknownError(error.errno, f"whether {path} counts is unknown ({error})") from error
        link = Link(number, entry, parent, sha256(data), manifest)
        with self._lock:
            if number == self._known.last + 1:
                self._known.links.append(link)
                if isinstance(entry, Manifest):
                    self._by_epoch[entry.epoch] = link
        return True

    # -- a long chain --------------------------------------------------------------------------------------------

    def shorten(self, existing: Callable[[], Collection[Epoch]]) -> None:
        """Remove the first entries of a long chain, except for those still needed. `existing`: the cuts that exist."""
        # A copy: another thread may create entries meanwhile.
        past, links = self._known.past, [*self._known.links]
        if len(links) < 2 * ENTRIES_KEPT:
            return
        gone, rest = links[:-ENTRIES_KEPT], links[-ENTRIES_KEPT:]
        last = gone[-1]
        shorter = Past(past.ordinal + 1, last.number, last.sha256, needed([*past.links, *gone], rest, existing()))
        document: Document = {**past_document(shorter), "job_id": self._job_id}
        data = sealed(document, self._key, PAST_SHAPE)
        if not create_exclusively(self._store, path_of(past_file(shorter.ordinal)), data):
            # Another process has shortened it, or this one has, and never heard that. The next time begins from there.
            self.links_by_name()
            return
        with self._lock:
            rest = [link for link in self._known.links if link.number > shorter.number]
            self._note(_Known(shorter, rest))
        stay = landmarks(shorter.ordinal)
        entries = [entry_file(n) for n in self._listed(CHAIN) if n <= last.number]
        pasts = [past_file(n) for n in self._listed(PAST) if n < shorter.ordinal and n not in stay]
        self._store.remove([path_of(parts) for parts in (*entries, *pasts)])

    def _know(self, known: _Known) -> list[Link]:
        with self._lock:
            # Entries that another thread has created since they were read.
            later = [link for link in self._known.links if link.number > known.last]
            return self._note(_Known(known.past, [*known.links, *later]))

    def _note(self, known: _Known) -> list[Link]:
        links = [*known.past.links, *known.links]
        self._by_epoch = {link.entry.epoch: link for link in links if isinstance(link.entry, Manifest)}
        self._known = known
        return links

    def _past(self) -> Past:
        """The past of the chain as it is now."""
        past, links = self._known
        # A first look need not begin with the first of them: of one that is listed, it or a later one is there.
        listed = 0 if past.ordinal or links else max(self._listed(PAST), default=0)
        while (ordinal := self._last_past(max(listed, past.ordinal))) > past.ordinal:
            with suppress(FileNotFoundError):  # there is a later one meanwhile
                document, _ = self._opened(past_file(ordinal), "ordinal", ordinal, PAST_SHAPE)
                return past_in(document)
        return past

    def _last_past(self, known: int) -> int:
        """The ordinal of the last past, from a known one; 0 if there is none.

        If there is a later one, one of `_next_landmarks` exists. They are tried in ascending order: a past that
        disappears meanwhile does so for one that is tried later.
        """
        while (later := next((n for n in _next_landmarks(known) if self._exists(past_file(n))), None)) is not None:
            known = later
        return known

    def _while_unshortened(self, read: Callable[[Past], T]) -> T:
        """The result of `read`, which gets the past of the chain. Repeated if the chain was shortened meanwhile."""
        past = self._past()
        while True:
            found, fault = None, None
            try:
                found = read(past)
            except (SnapshotCorruptError, FileNotFoundError) as error:
                fault = error
            last, past = past.number, self._past()
            if past.number == last:
                if fault is not None:
                    raise fault
                return cast(T, found)

    # -- reading -------------------------------------------------------------------------------------------------

    def _read_on(self, past: Past, *, finds_gaps: bool = True) -> _Known:
        links = [link for link in self._known.links if link.number > past.number]
        parent = links[-1].sha256 if links else past.sha256
        number = past.number + len(links) + 1
        ahead: list[Link] = []
        count = 1
        while True:
            if not ahead:
                ahead = self._read_ahead(number, count)
                # A chain that was read before has few new entries, a long one is opened many at a time.
                count = min(2 * count, self._store.reads_at_once)
            if not ahead:
                if not finds_gaps or self._ends_before(number, past):
                    return _Known(past, links)
                continue
            link = ahead.pop(0)
            if link.parent != parent:
                raise SnapshotCorruptError(
                    f"{self._path(entry_file(number))} does not follow entry {number - 1}: one of the two was "
                    "exchanged; restore the chain from a backup"
                )
            links.append(link)
            parent = link.sha256
            number += 1

    def _read_ahead(self, number: int, count: int) -> list[Link]:
        """The entries from `number` on, at most `count` of them, up to the first that is missing."""

        def read(wanted: int) -> Link | None:
            try:
                return self._read(wanted)
            except FileNotFoundError:
                return None

        numbers = range(number, number + count)
        if count == 1:
            found = map(read, numbers)
        else:
            with ThreadPoolExecutor(count) as pool:
                found = pool.map(read, numbers)
        return [link for link in takewhile(lambda link: link is not None, found) if link is not None]

    def _ends_before(self, number: int, past: Past) -> bool:
        """Whether the chain ends before `number`, which was not found. Raises if an entry is missing."""
        listed = set(self._listed(CHAIN))
        last = max(listed, default=0)
        for known in range(past.number + 1, number):
            if known not in listed and not self._exists(entry_file(known)):
                raise self._missing(known, max(last, number - 1))
        if self._exists(entry_file(number)):
            return False  # it was created meanwhile
        if last > number:
            raise self._missing(number, last)
        return True

    def _missing(self, number: int, last: int) -> SnapshotCorruptError:
        return SnapshotCorruptError(
            f"{self._path(entry_file(number))} is missing, and the chain of the job goes on to {last}: restore it from "
            "a backup"
        )

    def _last(self, past: Past) -> int:
        """The number of the last entry. The list says where to begin to look for it."""
        number = max([past.number, *self._listed(CHAIN)])
        while self._exists(entry_file(number + 1)):
            number += 1
        return number

    def _listed(self, folder: str) -> list[int]:
        numbers = (entry_number(name.rsplit("/", 1)[-1]) for name in self._store.list(folder))
        return [number for number in numbers if number is not None]

    def _exists(self, parts: Parts) -> bool:
        return exists(self._store, path_of(parts))

    def _read(self, number: int) -> Link:
        if (link := self._known_link(number)) is not None:
            return link
        parts = entry_file(number)
        document, digest = self._opened(parts, "number", number, ENTRY)
        return link_in(document, digest)

    def _known_link(self, number: int) -> Link | None:
        known = self._known
        return known.links[number - known.past.number - 1] if known.past.number < number <= known.last else None

    def _opened(self, parts: Parts, field: str, number: int, shape: Shape) -> tuple[Document, str]:
        """The verified document of a file, and the SHA-256 of the file."""
        data, path = read_document(self._store, path_of(parts)), self._path(parts)
        document = opened(data, self._key, path, shape)
        what = "entry" if field == "number" else "past"
        if (document["job_id"], document[field]) != (self._job_id, number):
            raise SnapshotCorruptError(
                f"{path} is {what} {document[field]} of job {shown(document['job_id'])}, and this is job "
                f"{self._job_id}: it was copied from elsewhere; restore the original file"
            )
        return document, sha256(data)

    def _path(self, parts: Parts) -> str:
        return full_name(self._store, path_of(parts))


def _is_cut(link: Link, epoch: Epoch) -> bool:
    return isinstance(link.entry, Manifest) and link.entry.epoch == epoch


def landmarks(last: int) -> set[int]:
    """The pasts by which the search finds past `last`: all powers of two up to it, and the sums on the way to it.

    >>> sorted(landmarks(13))
    [1, 2, 4, 8, 12, 13]
    """
    powers = {1 << bit for bit in range(last.bit_length())}
    return powers | {last >> bit << bit for bit in range(last.bit_length())}


def _next_landmarks(known: int) -> list[int]:
    """Of each past that may follow a known one, the first landmark after that one, in ascending order.

    >>> _next_landmarks(0), _next_landmarks(12), _next_landmarks(15)
    ([1], [13, 14, 16], [16])
    """
    bits = known.bit_length()
    return [(known >> bit | 1) << bit for bit in range(bits + 1) if not known >> bit & 1]

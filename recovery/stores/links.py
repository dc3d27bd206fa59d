"""The links of a chain, as documents and back, and those that are still needed when a chain is shortened."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.chain_view import run_of
from backedge.recovery.protocol.orders import AttemptStart, Entry, Manifest
from backedge.recovery.stores.documents import Document
from backedge.recovery.stores.manifests import entry_document, entry_in
from backedge.recovery.stores.names import manifest_file, path_of


class ManifestFile(NamedTuple):
    """The manifest that an entry names."""

    name: str
    size: int
    sha256: str


class Link(Struct, frozen=True):
    """A verified entry of the chain. `parent` is the SHA-256 of the entry before it."""

    number: int
    entry: Entry
    parent: str | None
    sha256: str
    manifest: ManifestFile | None

    @property
    def manifest_name(self) -> str:
        """Where the manifest of its cut is."""
        if not isinstance(self.entry, Manifest):
            raise ValueError(f"entry {self.number} of the chain is no cut, so it has no manifest")
        return path_of(manifest_file(self.entry.attempt, self.entry.epoch, self.number))


class Past(NamedTuple):
    """The shortened part of a chain: its ordinal, its last entry's number and SHA-256, and the entries still needed."""

    ordinal: int
    number: int
    sha256: str | None
    links: tuple[Link, ...]


NOTHING_PAST = Past(0, 0, None, ())


def link_document(number: int, entry: Entry, parent: str | None, manifest: ManifestFile | None) -> Document:
    """The document of a link, without its job and its own SHA-256."""
    return {**entry_document(entry), "number": number, "parent": parent, "manifest": manifest and manifest._asdict()}


def link_in(document: Document, sha256: str) -> Link:
    manifest: Any = document["manifest"]
    file = None if manifest is None else ManifestFile(**manifest)
    return Link(document["number"], entry_in(document), document["parent"], sha256, file)


def past_document(past: Past) -> Document:
    links = [
        {**link_document(link.number, link.entry, link.parent, link.manifest), "sha256": link.sha256}
        for link in past.links
    ]
    return {"ordinal": past.ordinal, "number": past.number, "sha256": past.sha256, "links": links}


def past_in(document: Document) -> Past:
    links = tuple(link_in(link, link["sha256"]) for link in document["links"])
    return Past(document["ordinal"], document["number"], document["sha256"], links)


def needed(gone: Sequence[Link], rest: Iterable[Link], there: Collection[Epoch]) -> tuple[Link, ...]:
    """The links among the first ones that are still needed, if these cuts exist. However often a job was restarted:

    - the cuts that exist, each with the link of its pipeline before it; the last link of each pipeline, because the
      rest follows it; and the last one that gives a pipeline up;
    - the starts of the attempts of all these, and of those whose files the cuts name: what another pipeline has written
      is not removed;
    - the starts that restored a cut that exists: inputs that are kept may follow it;
    - the last start of each run: one that has lost the job finds that out, whenever its supervisor is replaced.
    """
    links = {gone[-1].number: gone[-1]}
    last: dict[str | None, Link] = {}
    gives_up: dict[str, Link] = {}
    starts: dict[str, Link] = {}
    for link in gone:
        entry = link.entry
        before = last.get(entry.pipeline, link)
        last[entry.pipeline] = link
        if isinstance(entry, AttemptStart):
            starts[run_of(entry.claimant)] = link
            if entry.restored in there:
                links[link.number] = link
        else:
            gives_up |= dict.fromkeys(entry.given_up, link)
            if entry.epoch in there:
                links |= {before.number: before, link.number: link}
    starts.pop("", None)  # no other supervisor belongs to such a run
    links |= {link.number: link for link in (*last.values(), *gives_up.values(), *starts.values())}
    attempts = {link.entry.attempt for link in links.values()}
    existing = (link.entry for link in (*gone, *rest) if isinstance(link.entry, Manifest) and link.entry.epoch in there)
    attempts |= {file.attempt for cut in existing for file in cut.named}
    return tuple(
        link
        for link in gone
        if link.number in links or (isinstance(link.entry, AttemptStart) and link.entry.attempt in attempts)
    )

"""The links of a chain, as documents and back."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import Struct

from backedge.recovery.protocol.orders import Entry, Manifest
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

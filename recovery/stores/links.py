"""The links of a chain, as documents and back, and what is left of the first ones when a chain gets long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from recovery.orders import AttemptStart, Entry, Manifest
from recovery.stores.documents import Document
from recovery.stores.manifests import entry_document, entry_in


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


class Past(NamedTuple):
    """What is left of the first entries: the number and the SHA-256 of the last of them, and those still needed."""

    number: int
    sha256: str | None
    links: tuple[Link, ...]


NOTHING_PAST = Past(0, None, ())


def link_document(number: int, entry: Entry, parent: str | None, manifest: ManifestFile | None) -> Document:
    """What a link tells, but whose job it is of and its own SHA-256."""
    return {**entry_document(entry), "number": number, "parent": parent, "manifest": manifest and manifest._asdict()}


def link_in(document: Document, sha256: str) -> Link:
    """The link that a document tells."""
    manifest: Any = document["manifest"]
    file = None if manifest is None else ManifestFile(**manifest)
    return Link(document["number"], entry_in(document), document["parent"], sha256, file)


def past_document(past: Past) -> Document:
    """What is told of the first entries."""
    links = [
        {**link_document(link.number, link.entry, link.parent, link.manifest), "sha256": link.sha256}
        for link in past.links
    ]
    return {"number": past.number, "sha256": past.sha256, "links": links}


def past_in(document: Document) -> Past:
    """What a document tells of the first entries."""
    links = tuple(link_in(link, link["sha256"]) for link in document["links"])
    return Past(document["number"], document["sha256"], links)


def needed(gone: Sequence[Link], rest: Iterable[Link], is_there: Callable[[Manifest], bool]) -> tuple[Link, ...]:
    """Those of the first links that are still needed.

    The starts of attempts and the cuts that they restored; the cuts that are there, and before each the one that its
    attempt took before it; and the last one, for it stands before the rest.
    """
    starts = (link.entry for link in (*gone, *rest) if isinstance(link.entry, AttemptStart))
    restored = {start.restored for start in starts}
    numbers = {gone[-1].number}
    for before, link in pairwise([gone[0], *gone]):
        entry = link.entry
        if isinstance(entry, AttemptStart):
            numbers.add(link.number)
        elif entry.epoch in restored or is_there(entry):
            numbers |= {before.number, link.number}
    return tuple(link for link in gone if link.number in numbers)

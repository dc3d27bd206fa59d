"""Opens the store of a URI. The scheme selects the store, and any installed distribution can register one:

    [project.entry-points."backedge.stores"]
    sqlite = "their_package:SqliteStore"

An entry names a callable that takes the URI and returns a `Store`. The schemes of our own are entries of the same kind,
listed here so that they need no metadata: Spark's executors get our packages without it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from backedge.recovery.stores.store_errors import StoreError, UnknownStoreError
from backedge.recovery.stores.store_protocol import Store

GROUP = "backedge.stores"
"""The group of entry points that register schemes."""

StoreOpener = Callable[[str], Store]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# In brackets: the extra of our package that has what it needs.
_OURS: Mapping[str, str] = {
    "az": "backedge.recovery.stores.object_store:ObjectStore [objects]",
    "file": "backedge.recovery.stores.folder_store:FolderStore",
    "gs": "backedge.recovery.stores.object_store:ObjectStore [objects]",
    "s3": "backedge.recovery.stores.object_store:ObjectStore [s3]",
}


def scheme_of(location: str) -> str:
    """The scheme of a location; a path has that of local folders.

    >>> scheme_of("s3://bucket/cuts"), scheme_of("/data/cuts")
    ('s3', 'file')
    """
    found = _SCHEME.match(location)
    return found[1].lower() if found else "file"


def store_opener(location: str) -> StoreOpener:
    """What opens the stores of this scheme. `UnknownStoreError` if nothing does, or if a package is missing."""
    scheme = scheme_of(location)
    entry = _entry(scheme)
    if entry is None:
        known = ", ".join(f"{name}://" for name in sorted({*_OURS, *_registered()}))
        raise UnknownStoreError(
            f"{location} cannot be opened: no installed package registers {scheme}:// as a store (known: {known}); "
            f'install one that has an entry point of that name in the group "{GROUP}", here and on all hosts of the '
            "cluster"
        )
    try:
        opener: Any = entry.load()
    except ModuleNotFoundError as error:
        wanted = entry.dist.name if entry.dist is not None else f"backedge[{','.join(entry.extras)}]"
        raise UnknownStoreError(
            f"{location} cannot be opened: the store for {scheme}:// needs the package {error.name!r}; install "
            f"{wanted} on all hosts"
        ) from error
    return opener


def store_at(location: str | os.PathLike[str]) -> Store:
    """Open the store of a URI, or of the path of a local folder."""
    place = os.fspath(location)
    store: Any = store_opener(place)(place)
    if not isinstance(store, Store):
        raise StoreError(
            f"{place} cannot be opened: what is registered for {scheme_of(place)}:// returned {store!r}, which is not "
            "a Store; return an instance of a subclass of backedge.Store"
        )
    return store


def _entry(scheme: str) -> EntryPoint | None:
    # Looking for those of others reads a file of each installed distribution.
    target = _OURS.get(scheme)
    return EntryPoint(scheme, target, GROUP) if target is not None else _registered().get(scheme)


def _registered() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}

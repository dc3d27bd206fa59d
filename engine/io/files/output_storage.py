"""Where a sink of files publishes: a local folder, or a place in an object store.

    NAME                    published: a consumer sees it
    _staging/owner.json     the run to which this place belongs
    _staging/JOB/SINK/NAME  staged: what waits, and what is known of what was published (`staging.py`)

The two differ in what takes one step. A folder renames and links, and its lists are complete. An object store writes,
creates and copies whole objects; a list may miss some, so that it serves only to remove what is dead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from pathlib import Path

from backedge.engine.io.files.disk import Disk
from backedge.recovery.stores.store_protocol import Store

STAGING = "_staging"
"""The folder for unpublished output; readers ignore it because of its name."""


class OutputStorage(ABC):
    """The storage of one task of a sink. Staged files are named below the staging of the sink.

    Each call may be repeated, and may be late. When one returns, its effect is durable, except for that of `remove`.
    """

    fetched_at_once = 1
    """How many staged files to fetch at once."""

    location: str
    """The place, for people to read."""

    staging_location: str
    """The staging of the sink, for people to read."""

    disk: Disk
    """Where local files are written."""

    claims: Store
    """The store of the claim to this place."""

    @abstractmethod
    def try_out(self, sink: str) -> None:
        """Raise unless files can be published here and are never put over others. Make what must be there."""

    def make_claimable(self) -> None:  # noqa: B027  # object stores have nothing to make
        """Make what must be there before the place is claimed."""

    @abstractmethod
    def published(self) -> list[str]:
        """What is listed as published."""

    # -- local files -----------------------------------------------------------------------------------------------

    @abstractmethod
    def new_part(self) -> Path:
        """A path for a new local file."""

    @abstractmethod
    def stage(self, part: Path, name: str) -> int:
        """Move a local file that is closed to a staged name. Returns its size in bytes."""

    def unfinished(self) -> Iterable[str]:
        """Local files of all tasks that a sweep may remove, as staged names."""
        return ()

    # -- staged files ----------------------------------------------------------------------------------------------

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether a staged file is there."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of a staged file."""

    @abstractmethod
    def fetch(self, name: str, to: Path) -> Path:
        """A local file with the content of a staged one; its copy, if one is needed, is written to `to`."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Create a staged file exclusively. False if the name holds something else."""

    def make_durable(self, names: Collection[str]) -> None:  # noqa: B027  # object stores write durably
        """Make it durable that another process has created or removed staged files."""

    @abstractmethod
    def list(self, folder: str) -> list[str]:
        """The names in a folder of the staging that are listed, sorted."""

    @abstractmethod
    def remove(self, names: Collection[str]) -> None:
        """Remove staged files, in this order. If one cannot be removed, go on, then raise."""

    def remove_empty_folders(self) -> None:  # noqa: B027  # object stores have none
        """The run has ended: remove the folders of the staging that are empty."""

    # -- publishing ------------------------------------------------------------------------------------------------

    @abstractmethod
    def publish(self, staged: str, target: str) -> bool:
        """Make a staged file visible under a name that is free. Whether that name now holds the same bytes."""

    @abstractmethod
    def note(self, staged: str, note: str) -> None:
        """Create a note, as a staged file, that this one was published, which may go with that."""

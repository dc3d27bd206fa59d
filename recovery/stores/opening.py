"""How a store is opened: its folder, and the identity of the job that it belongs to.

The identity is made once, exclusively, before anything else is there. So where there is something else and no
identity, the identity was lost, and no new one is made: entries that name the old one would be taken for foreign.
"""

from __future__ import annotations

import os
import secrets

from graphs.naming import check_name
from recovery.stores.documents import opened, sealed
from recovery.stores.folder import FOLDER_MODE, Folder, sync_folder
from recovery.stores.names import JOB
from recovery.stores.schema import IDENTITY, IDENTITY_BYTES_MAX
from recovery.stores.shapes import shown
from recovery.stores.store_errors import SnapshotCorruptError, StoreError

_IDENTITY = (JOB,)


def make_folders(root: str, job: str) -> str:
    """ROOT/JOB, a folder that can be written to. If it is missing it is made, for this user alone."""
    path = os.path.join(os.path.abspath(root), check_name(job, "job"))
    try:
        _make(path, FOLDER_MODE)
    except (FileExistsError, NotADirectoryError) as error:
        raise StoreError(
            f"snapshots of job {job!r} cannot be kept in {path}: {_no_folder(path)} is a file; give another folder"
        ) from error
    except OSError as error:
        raise StoreError(
            f"snapshots of job {job!r} cannot be kept in {path}: it cannot be made ({error.strerror}); make it, or "
            "give a folder that this user may write to"
        ) from error
    if not os.path.isdir(path) or os.path.islink(path):
        found = "a symbolic link" if os.path.islink(path) else "a file"
        raise StoreError(
            f"snapshots of job {job!r} cannot be kept in {path}: it is {found}; remove it, or give another folder"
        )
    if not os.access(path, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise StoreError(
            f"snapshots of job {job!r} cannot be kept in {path}: this user may not write there; change its rights, or "
            "give another folder"
        )
    return path


def identity_of(folder: Folder, job: str, key: bytes | None) -> str:
    """The id of the job, made up if there is none yet."""
    if not folder.exists(_IDENTITY):
        others = [name for name in folder.names() if not name.startswith(".")]
        if others and not folder.exists(_IDENTITY):
            raise SnapshotCorruptError(
                f"{folder.full(_IDENTITY)} is missing, and {', '.join(others)} of the job is there: bring it back from "
                "a copy, or remove the folder to start the job anew"
            )
        folder.create(_IDENTITY, sealed({"job": job, "job_id": secrets.token_hex(16)}, key))
    path = folder.full(_IDENTITY)
    document = opened(folder.read(_IDENTITY, bytes_max=IDENTITY_BYTES_MAX), key, path, IDENTITY)
    if document["job"] != job:
        raise StoreError(
            f"{path} says that the folder is of job {shown(document['job'])}, and it is opened as {job!r}: rename the "
            "folder, or open it under its own name"
        )
    return document["job_id"]


def _no_folder(path: str) -> str:
    """What stands where a folder should be: the topmost of its kind."""
    above = os.path.dirname(path)
    return path if above == path or os.path.isdir(above) else _no_folder(above)


def _make(path: str, mode: int = 0o777) -> None:
    """Make a folder of this mode and those above it, each durable in the one above."""
    if os.path.lexists(path):
        return
    above = os.path.dirname(path)
    _make(above)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    sync_folder(above)

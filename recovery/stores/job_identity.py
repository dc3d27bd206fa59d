"""The identity of a job: a random id in job.json, which every document of the job names.

It is created once, exclusively, before any other file. So if there are other files and no identity, it was lost, and no
new one is made: entries that name the old one would be taken for foreign.
"""

from __future__ import annotations

import secrets

from backedge.graphs.naming import name_fault
from backedge.recovery.stores.documents import opened, sealed
from backedge.recovery.stores.names import JOB
from backedge.recovery.stores.schema import IDENTITY, IDENTITY_BYTES_MAX
from backedge.recovery.stores.shapes import shown
from backedge.recovery.stores.store_calls import create_exclusively, exists, full_name, read_document, written_to
from backedge.recovery.stores.store_errors import SnapshotCorruptError, StoreError
from backedge.recovery.stores.store_protocol import Store


def jobs_in(root: Store) -> list[str]:
    """The names of the jobs in a store. Each has a folder of its name; a folder whose name no job can have is none."""
    return [name for name in root.folders() if name_fault(name) is None and is_job(root.below(name))]


def is_job(folder: Store) -> bool:
    """Whether this is the folder of a job. One that this user may not look into may be one."""
    try:
        return exists(folder, JOB)
    except PermissionError:
        return True  # opening it says what is wrong


def identity_of(store: Store, job: str, key: bytes | None) -> str:
    """The id of the job. Created if there is none yet."""
    if not exists(store, JOB):
        others = sorted({top for name in store.list() if not (top := name.split("/")[0]).startswith(".")})
        if others and not exists(store, JOB):
            raise SnapshotCorruptError(
                f"{full_name(store, JOB)} is missing, and {', '.join(others)} of the job exists: restore it from a "
                "backup, or remove the folder to start the job from nothing"
            )
        with written_to(store):
            create_exclusively(store, JOB, sealed({"job": job, "job_id": secrets.token_hex(16)}, key, IDENTITY))
    path = full_name(store, JOB)
    document = opened(read_document(store, JOB, IDENTITY_BYTES_MAX), key, path, IDENTITY)
    if document["job"] != job:
        raise StoreError(
            f"{path} says that the folder belongs to job {shown(document['job'])}, and it is opened as {job!r}: rename "
            "the folder, or open it under its own name"
        )
    return document["job_id"]

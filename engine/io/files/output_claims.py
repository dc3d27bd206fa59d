"""The output place of a sink: whose output it holds, and which run has claimed it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from backedge.engine.io.files.file_errors import OutputError
from backedge.engine.io.files.output_storage import OutputStorage
from backedge.graphs.wording import counted
from backedge.recovery.stores.store_calls import create_exclusively, exists
from backedge.recovery.stores.store_protocol import Store

OWNER = "owner.json"
"""The file in the staging that names the job and run which write to this place."""


def refuse_other_output(sink: str, output: str, found: Sequence[str]) -> None:
    """Raise an `OutputError` if output was found where a fresh run would write."""
    if found:
        raise OutputError(
            f"sink {sink!r} would write to {output}, which already contains {counted(len(found), 'file')}, such as "
            f"{found[0]!r}: remove what is there, give another folder, or resume the run that wrote them"
        )


def claim_place(sink: str, storage: OutputStorage, job: str, run: str) -> bool:
    """Claim an output place for this run. Returns False if the run already has it.

    A claim is created exclusively, before anything starts. It is valid for the run and for runs that resume it, which
    have the same name. If two jobs wrote to one place, readers would see a mixture of both.
    """
    staging, output = storage.claims, storage.location
    try:
        storage.make_claimable()
        had_one = exists(staging, OWNER)
        is_ours = create_exclusively(staging, OWNER, _claim(job, run))
    except OSError as error:
        raise OutputError(f"sink {sink!r} cannot claim {output} ({error}): try again") from error
    if not is_ours:
        raise OutputError(
            f"sink {sink!r} would write to {output}, to which {_owner(staging)} writes: give another "
            f"folder, or, if that run is over and will not be resumed, remove {staging.location}, with all output that "
            "still waits there to be published"
        )
    return not had_one


def release(storage: OutputStorage, job: str, run: str) -> None:
    """Release the claim of a run that will never be resumed."""
    if is_claimed(storage.claims, job, run):
        storage.claims.remove([OWNER])
        storage.remove_empty_folders()


def is_claimed(staging: Store, job: str, run: str) -> bool:
    return exists(staging, OWNER) and staging.read(OWNER) == _claim(job, run)


def _claim(job: str, run: str) -> bytes:
    return json.dumps({"job": job, "run": run}).encode() + b"\n"


def _owner(staging: Store) -> str:
    try:
        claim: Any = json.loads(staging.read(OWNER))
        return f"job {claim['job']!r} (run {claim['run']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another job"

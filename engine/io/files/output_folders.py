"""The output folder of a sink: whether it can be written to, and which run has claimed it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.file_errors import OutputError
from backedge.graphs.wording import counted
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.store_calls import create_exclusively, exists
from backedge.recovery.stores.store_protocol import Store

STAGING = "_staging"
"""The folder within an output folder for unpublished output; readers ignore it because of its name."""

OWNER = "owner.json"
"""The file in it that names the job and run which write to this output folder."""


def check_output_folder(sink: str, folder: Path, fresh: bool) -> None:
    """Create the folder; `OutputError` if it is not writable, or if it contains files and the run is fresh."""
    disk = Disk()
    if folder.exists() and not folder.is_dir():
        raise OutputError(
            f"sink {sink!r} writes a folder of files, but {folder} is a file: give another path, or remove the file"
        )
    try:
        disk.make_folder(folder)
        disk.try_out(folder)
        found = [name for name in disk.names(folder) if name[0] not in "._"]
    except OSError as error:
        raise OutputError(
            f"sink {sink!r} cannot write to {folder} ({error}): make it writable, or give another path"
        ) from error
    if fresh:
        refuse_other_output(sink, str(folder), found)


def refuse_other_output(sink: str, output: str, found: Sequence[str]) -> None:
    """Raise an `OutputError` if output was found where a fresh run would write."""
    if found:
        raise OutputError(
            f"sink {sink!r} would write to {output}, which already contains {counted(len(found), 'file')}, such as "
            f"{found[0]!r}: remove what is there, give another folder, or resume the run that wrote them"
        )


def claim_folder(sink: str, folder: Path, job: str, run: str) -> bool:
    """Claim an output folder as `claim_place` does."""
    staging = folder / STAGING
    try:
        Disk().make_folder(staging)
    except OSError as error:
        raise OutputError(f"sink {sink!r} cannot claim {folder} ({error}): try again") from error
    return claim_place(sink, str(folder), FolderStore(str(staging)), job, run)


def claim_place(sink: str, output: str, staging: Store, job: str, run: str) -> bool:
    """Claim an output place for this run, in its staging. Returns False if the run already has it.

    A claim is created exclusively, before anything starts. It is valid for the run and for runs that resume it, which
    have the same name. If two jobs wrote to one place, readers would see a mixture of both.
    """
    try:
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


def release_folder(folder: Path, job: str, run: str) -> None:
    """Release the claim of a run that will never be resumed."""
    staging = folder / STAGING
    release_place(FolderStore(str(staging)), job, run)
    Disk().remove_empty(staging)


def release_place(staging: Store, job: str, run: str) -> None:
    """Release the claim of a run that will never be resumed."""
    if is_claimed(staging, job, run):
        staging.remove([OWNER])


def is_claimed(staging: Store, job: str, run: str) -> bool:
    """Whether this run has claimed the place with this staging."""
    return exists(staging, OWNER) and staging.read(OWNER) == _claim(job, run)


def output_folder(sink: str, path: str) -> Path:
    """The local folder of a sink of files."""
    if path.startswith("file:///"):
        path = path.removeprefix("file://")
    if "://" in path:
        raise OutputError(
            f"sink {sink!r} would write to {path}, where files cannot be published in one step: give a local folder, "
            "or s3://, gs:// or az://"
        )
    return Path(path).absolute()


def _claim(job: str, run: str) -> bytes:
    return json.dumps({"job": job, "run": run}).encode() + b"\n"


def _owner(staging: Store) -> str:
    try:
        claim: Any = json.loads(staging.read(OWNER))
        return f"job {claim['job']!r} (run {claim['run']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another job"

"""The output folder of a sink: whether it can be written to, and which run has claimed it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.files.disk import Disk
from engine.files.file_errors import OutputError
from recovery.stores.folder_store import FolderStore
from recovery.stores.store_calls import create_exclusively

STAGING = "_staging"
"""The folder within an output folder for unpublished output; readers ignore it because of its name."""

OWNER = "owner.json"
"""The file in it that names the job and run which write to this output folder."""


def check_output_folder(sink: str, folder: Path, published: Path, fresh: bool) -> None:
    """Create the folder; `OutputError` if it is not writable, or if `published` contains files and the run is fresh."""
    disk = Disk()
    if folder.exists() and not folder.is_dir():
        raise OutputError(
            f"sink {sink!r} writes a folder of files, but {folder} is a file: give another path, or remove the file"
        )
    try:
        disk.make_folder(folder)
        disk.try_out(folder)
        found = [name for name in disk.names(published) if name[0] not in "._"]
    except OSError as error:
        raise OutputError(
            f"sink {sink!r} cannot write to {folder} ({error}): make it writable, or give another path"
        ) from error
    if fresh and found:
        raise OutputError(
            f"sink {sink!r} would write to {published}, which already contains {len(found)} files, such as "
            f"{found[0]!r}: remove them, give another folder, or resume the run that wrote them"
        )


def claim_folder(sink: str, folder: Path, job: str, run: str) -> bool:
    """Claim an output folder for this run. Returns False if the run already has it. `OutputError` names another owner.

    A claim is created exclusively, before anything starts. It is valid for the run and for runs that resume it, which
    have the same name. If two jobs wrote to one folder, readers would see a mixture of both.
    """
    staging = folder / STAGING
    had_one = (staging / OWNER).exists()
    try:
        Disk().make_folder(staging)
        is_ours = create_exclusively(FolderStore(str(staging)), OWNER, _claim(job, run))
    except OSError as error:
        raise OutputError(f"sink {sink!r} cannot claim {folder} ({error}): try again") from error
    if not is_ours:
        raise OutputError(
            f"sink {sink!r} would write to {folder}, to which {_owner(staging)} writes: give another "
            f"folder, or, if that run is over and will not be resumed, remove {staging}, with all output that still "
            "waits there to be published"
        )
    return not had_one


def release_folder(folder: Path, job: str, run: str) -> None:
    """Release the claim of a run that will never be resumed."""
    claim = folder / STAGING / OWNER
    if claim.exists() and claim.read_bytes() == _claim(job, run):
        Disk().remove(claim)
        Disk().remove_empty(claim.parent)


def output_folder(sink: str, path: str) -> Path:
    """The local folder of a sink of files."""
    if path.startswith("file:///"):
        path = path.removeprefix("file://")
    if "://" in path:
        raise OutputError(
            f"sink {sink!r} would write to {path}, where files cannot be renamed, so not published in one step: "
            "give a local folder, and copy its content when the run is over"
        )
    return Path(path).absolute()


def _claim(job: str, run: str) -> bytes:
    return json.dumps({"job": job, "run": run}).encode() + b"\n"


def _owner(staging: Path) -> str:
    try:
        claim: Any = json.loads((staging / OWNER).read_bytes())
        return f"job {claim['job']!r} (run {claim['run']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another job"

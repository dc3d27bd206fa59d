"""The folder that a sink writes to: whether it can be written, and which run has claimed it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.files.disk import Disk
from engine.files.file_errors import OutputError
from recovery.stores.folder import Folder

STAGING = "_staging"
"""The folder within an output folder that holds what is not published; readers pass over it, for its name."""

OWNER = "owner.json"
"""The file in it that says which job and run write to this output folder."""


def check_output_folder(sink: str, folder: Path, published: Path, fresh: bool) -> None:
    """Make the folder; `OutputError` if it cannot be written to, or if `published` holds files and the run is fresh."""
    disk = Disk()
    if folder.exists() and not folder.is_dir():
        raise OutputError(
            f"sink {sink!r} writes a folder of files, and {folder} is a file: give another path, or remove it"
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
            f"sink {sink!r} is to write to {published}, which holds {len(found)} files already, such as "
            f"{found[0]!r}: remove them, give another folder, or resume the run that wrote them"
        )


def claim_folder(sink: str, folder: Path, job: str, run: str) -> bool:
    """Claim an output folder for this run. False: it has it already. `OutputError` names the job that has it.

    A claim is created exclusively, before anything starts. It is for the run and those that resume it, which have its
    name: two jobs that write to one folder would leave readers a mixture of both.
    """
    staging = folder / STAGING
    had_one = (staging / OWNER).exists()
    try:
        Disk().make_folder(staging)
        is_ours = Folder(str(staging)).create((OWNER,), _claim(job, run))
    except OSError as error:
        raise OutputError(f"sink {sink!r} cannot claim {folder} ({error}): try again") from error
    if not is_ours:
        raise OutputError(
            f"sink {sink!r} is to write to {folder}, which {_owner(staging)} writes to: give another "
            f"folder, or, if that run is over and will not be resumed, remove {staging}"
        )
    return not had_one


def release_folder(folder: Path, job: str, run: str) -> None:
    """Give up the claim of a run that nothing will ever resume."""
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
            f"sink {sink!r} is to write to {path}, where files cannot be renamed, and so not be published in one step: "
            "give a local folder, and copy what it holds when the run is over"
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

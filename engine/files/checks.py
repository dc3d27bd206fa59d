"""What is looked at before anything runs: whether there is input, and whether output can be written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import copy
from pathlib import Path
from typing import Any

from engine.files.disk import Disk
from engine.files.file_errors import NoInputError, OutputError
from engine.files.file_formats import CSV, JsonLines, Parquet
from engine.files.names import path_name
from engine.task_errors import TaskError, describe
from graphs.io import Call, Collect, Print, Source
from graphs.plan import Operator
from recovery.stores.folder import Folder

STAGING = "_staging"
"""The folder within an output folder that holds what is not published; readers pass over it, for its name."""

OWNER = "owner.json"
"""The file in it that says which job and run write to this output folder."""


def check_source(operator: Operator) -> tuple[str, ...] | None:
    """The names of the splits of a source, None where every task names its own; `NoInputError` without any input.

    What it returns is the input of the run: given to `FileServices`, all tasks share in the same splits, even when
    files come or go meanwhile.

    >>> from graphs.kinds import Read
    >>> check_source(Operator("orders", Read(JsonLines("no/such/folder"))))
    Traceback (most recent call last):
    engine.files.file_errors.NoInputError: no/such/folder is not there: give the path of a file or a folder that exists
    """
    source: Source[Any] = copy(operator.function)
    try:
        source.validate()
        splits = source.splits()
    except TaskError:
        raise
    except Exception as error:
        raise NoInputError(
            f"source {operator.name!r} cannot read {operator.function!r}: {describe(error)}; make it readable, or read "
            "something else"
        ) from error
    if splits is None:
        return None
    if len(set(splits)) < len(splits):
        raise NoInputError(f"source {operator.name!r} has splits of one name in {list(splits)}: name each differently")
    return tuple(splits)


def check_sink(operator: Operator, fresh: bool = False, staging: str | None = None) -> None:
    """Make the folder of a sink; `OutputError` when it cannot be written to.

    A `fresh` run, which continues no other, is refused a folder that already holds output: readers could not tell the
    two apart. `staging` is the folder that `FileServices` gets.
    """
    sink: Any = operator.function
    if isinstance(sink, JsonLines | CSV | Parquet):
        folder = published = output_folder(operator.name, sink.path)
    elif not isinstance(sink, Collect | Print | Call):
        raise OutputError(
            f"sink {operator.name!r} writes {sink!r}, which nothing here writes: give one of JsonLines, CSV, Parquet, "
            "Collect, Print, Call"
        )
    elif staging is None:
        return
    else:
        folder = Path(staging, path_name(operator.name))
        published = folder / "committed"
    disk = Disk()
    if folder.exists() and not folder.is_dir():
        raise OutputError(
            f"sink {operator.name!r} writes a folder of files, and {folder} is a file: give another path, or remove it"
        )
    try:
        disk.make_folder(folder)
        disk.try_out(folder)
        found = [name for name in disk.names(published) if name[0] not in "._"]
    except OSError as error:
        raise OutputError(
            f"sink {operator.name!r} cannot write to {folder} ({error}): make it writable, or give another path"
        ) from error
    if fresh and found:
        raise OutputError(
            f"sink {operator.name!r} is to write to {published}, which holds {len(found)} files already, such as "
            f"{found[0]!r}: remove them, give another folder, or resume the run that wrote them"
        )


def claim_output(operators: Iterable[Operator], job: str, run: str) -> None:
    """Claim the folders of all sinks of files for this run; `OutputError` names the job that has one already.

    A claim is created exclusively, before anything starts. It is for the run and those that resume it, which have its
    name: two jobs that write to one folder would leave readers a mixture of both.
    """
    claimed: list[Path] = []
    for operator in operators:
        sink: Any = operator.function
        if not isinstance(sink, JsonLines | CSV | Parquet):
            continue
        staging = output_folder(operator.name, sink.path) / STAGING
        had_one = (staging / OWNER).exists()
        try:
            Disk().make_folder(staging)
            is_ours = Folder(str(staging)).create((OWNER,), _claim(job, run))
        except OSError as error:
            raise OutputError(f"sink {operator.name!r} cannot claim {staging.parent} ({error}): try again") from error
        if is_ours:
            claimed += [] if had_one else [staging]
            continue
        for folder in claimed:
            release_output(folder.parent, job, run)
        raise OutputError(
            f"sink {operator.name!r} is to write to {staging.parent}, which {_owner(staging)} writes to: give another "
            f"folder, or, if that run is over and will not be resumed, remove {staging}"
        )


def release_output(folder: Path, job: str, run: str) -> None:
    """Give up the claim of a run that nothing will ever resume."""
    claim = folder / STAGING / OWNER
    if claim.exists() and claim.read_bytes() == _claim(job, run):
        Disk().remove(claim)
        Disk().remove_empty(claim.parent)


def _claim(job: str, run: str) -> bytes:
    return json.dumps({"job": job, "run": run}).encode() + b"\n"


def _owner(staging: Path) -> str:
    try:
        claim: Any = json.loads((staging / OWNER).read_bytes())
        return f"job {claim['job']!r} (run {claim['run']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another job"


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

"""Manifests of cuts and entries of the chain, converted to documents and back.

A document was checked against its shape when it was opened (`schema.py`), so it is indexed here without further checks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import asdict

from backedge.graphs.deployment import Deployment
from backedge.graphs.describing import describe_deployment
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import AttemptStart, Entry, Manifest
from backedge.recovery.restore.outline import CutOutline
from backedge.recovery.stores.documents import Document
from backedge.recovery.stores.shapes import converted, shown
from backedge.recovery.stores.store_errors import SnapshotCorruptError
from backedge.recovery.stores.task_files import LogFigures, StateLayer, StoredFile, TaskFiles, VersionFile

CODECS: Mapping[str, int] = {"state": 3, "log": 2, "transactions": 2, "rounds": 2}
"""Version of each table: of its columns and of the values pickled in them. These are those of Backedge 0.1, and stay
readable: what changes a table gives it another number, and reads this one as well."""


class CutDescription(Struct, frozen=True):
    """A cut, as its manifest describes it. `dropped`: the names whose state its run gave up when it began."""

    epoch: Epoch
    attempt: Attempt
    mode: Mode
    savepoint: str | None
    graph_hash: str
    parallelism: Mapping[str, int]
    tasks: Mapping[TaskId, TaskFiles]
    transactions: Mapping[TaskId, tuple[str, ...]]
    constants: Mapping[str, StoredFile] = {}
    dropped: frozenset[str] = frozenset()

    @property
    def outline(self) -> CutOutline:
        """The facts from which a restore is planned."""
        tasks = {task: files.outline for task, files in self.tasks.items()}
        return CutOutline(self.epoch, self.graph_hash, self.parallelism, tasks, given_up=self.dropped)

    @property
    def files(self) -> tuple[StoredFile, ...]:
        return (*self.of_tasks, *self.shared)

    @property
    def shared(self) -> tuple[StoredFile, ...]:
        """The files that other cuts may name, too: those of constants and of versions, each once."""
        return shared_files(self.constants, self.tasks)

    @property
    def versions(self) -> tuple[VersionFile, ...]:
        return tuple(version for files in self.tasks.values() for version in files.versions)

    @property
    def of_tasks(self) -> tuple[StoredFile, ...]:
        return tuple(file for task in self.tasks.values() for file in task.all_files)

    @property
    def size(self) -> int:
        """Total size of the files, in bytes."""
        return sum(file.size for file in self.files)

    @property
    def records_in_logs(self) -> int:
        """Number of records in all logs. A loop whose records cannot be counted adds none."""
        return sum(log.records or 0 for log in self.logs.values())

    @property
    def logs(self) -> dict[str, LogFigures]:
        """Figures of each loop's log, summed over all tasks."""
        found: dict[str, LogFigures] = {}
        for log in (log for task in self.tasks.values() for log in task.logs):
            other = found.get(log.loop, LogFigures(log.loop, 0, 0, 0))
            known = log.records is not None and other.records is not None
            records = (log.records or 0) + (other.records or 0) if known else None
            found[log.loop] = LogFigures(log.loop, log.batches + other.batches, log.size + other.size, records)
        return found


def shared_files(constants: Mapping[str, StoredFile], tasks: Mapping[TaskId, TaskFiles]) -> tuple[StoredFile, ...]:
    """The files of constants and of the versions that tasks have published, each once."""
    versions = (version.file for files in tasks.values() for version in files.versions)
    return tuple(dict.fromkeys((*constants.values(), *versions)))


# -- the entries of a chain --------------------------------------------------------------------------------------

_BY_TASK = ("files", "transactions", "states")
"""Fields of a manifest's entry that are mappings by task. In a document they are rows: name, index and value."""


def entry_document(entry: Entry) -> Document:
    """Convert an entry of the chain to a document. `links.py` adds its number, its parent and its manifest."""
    if isinstance(entry, AttemptStart):
        return {"kind": "attempt", **asdict(entry)}
    rows = {name: _rows(getattr(entry, name)) for name in _BY_TASK}
    return {"kind": "manifest", **asdict(entry), **rows, "mode": entry.mode.value}


def entry_in(document: Document) -> Entry:
    if document["kind"] == "attempt":
        return converted(document, AttemptStart)
    return converted({**document, **{name: _by_task(document[name]) for name in _BY_TASK}}, Manifest)


# -- manifests ---------------------------------------------------------------------------------------------------


def manifest_document(
    entry: Manifest,
    files: Mapping[TaskId, TaskFiles],
    deployment: Deployment,
    constants: Mapping[str, StoredFile],
    dropped: Collection[str] = (),
) -> Document:
    """Build the manifest of a cut of `deployment`. Raises `ValueError` if `entry` does not match `files`."""
    for task, epoch in entry.files.items():
        found = files.get(task)
        if found is None or (found.task, found.attempt, found.filed) != (task, entry.attempt, epoch):
            what = (
                "no file" if found is None else f"files of {found.task}, attempt {found.attempt}, epoch {found.filed}"
            )
            raise ValueError(
                f"epoch {entry.epoch} of attempt {entry.attempt} cannot be recorded: for task {task} it names epoch "
                f"{epoch}, but was given {what}; pass what write_task returned for it"
            )
        if not is_a_list((*found.below, found.layer)):
            raise ValueError(
                f"epoch {entry.epoch} of attempt {entry.attempt} cannot be recorded: task {task} has written what "
                f"changed since {found.base}, and the files below do not lead there; name them in the entry's states"
            )
    return {
        "constants": to_builtins(dict(constants)),
        "dropped": sorted(dropped),
        "epoch": entry.epoch,
        "attempt": entry.attempt,
        "mode": entry.mode.value,
        "savepoint": entry.savepoint,
        "graph_hash": deployment.plan.hash,
        "parallelism": dict(deployment.parallelism),
        "deployment": describe_deployment(deployment),
        "codecs": dict(CODECS),
        "tasks": [_task_document(files[task]) for task in entry.files],
        "transactions": _rows(entry.transactions),
    }


def is_a_list(layers: Sequence[StateLayer]) -> bool:
    """Whether the first layer is complete, and each later one holds what changed since the cut of the one before it.

    It may hold what changed before that cut, too.
    """
    return layers[0].base is None and all(
        later.base is not None and later.base <= layer.epoch < later.epoch for layer, later in pairwise(layers)
    )


def _task_document(files: TaskFiles) -> Document:
    document = to_builtins(files)
    del document["is_settled"]  # with its manifest, everything is
    return document


def description_in(document: Document, path: str) -> CutDescription:
    check_codecs(document, path)
    files = {of_task.task: of_task for of_task in converted(document["tasks"], list[TaskFiles])}
    if len(files) < len(document["tasks"]):
        raise SnapshotCorruptError(
            f"{path} lists a task twice: it is forged; restore it from a backup, or restore another cut"
        )
    by_task = {"tasks": files, "transactions": _by_task(document["transactions"])}
    return converted({**document, **by_task}, CutDescription)


def check_codecs(document: Document, path: str) -> None:
    """Refuse a manifest whose tables have other versions than this code reads."""
    codecs = document["codecs"]
    if codecs != CODECS:
        raise SnapshotCorruptError(
            f"{path} names tables of versions {_versions(codecs)}, and this version reads "
            f"{_versions(CODECS)}: read it with the version that wrote it, or a later one"
        )


def _versions(codecs: Mapping[str, int]) -> str:
    return ", ".join(f"{shown(table)} {version}" for table, version in sorted(codecs.items())) or "none"


def _rows(by_task: Mapping[TaskId, Any]) -> list[Any]:
    return [[*task, value] for task, value in by_task.items()]


def _by_task(rows: list[Any]) -> dict[TaskId, Any]:
    return {TaskId(name, index): value for name, index, value in rows}

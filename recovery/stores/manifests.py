"""The manifest of a cut, and the entries of a chain, as documents and back.

A document that is sealed right and reads wrong is of another version, or of somebody who knows the key: it is refused
like a damaged one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from graphs.deployment import Deployment
from graphs.describing import describe_deployment
from graphs.ids import Attempt, ChannelId, Epoch, TaskId
from recovery.messages import Mode
from recovery.orders import AttemptStart, Entry, Manifest
from recovery.stores.documents import Document
from recovery.stores.errors import SnapshotCorruptError
from recovery.stores.task_files import ChannelFigures, LogFigures, OperatorFacts, StoredFile, TaskFiles

CODECS: Mapping[str, int] = {"state": 1, "log": 1, "transactions": 2, "rounds": 1}
"""The version of each table's columns, and of what is pickled in them."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CutDescription:
    """What a manifest tells of a cut."""

    epoch: Epoch
    attempt: Attempt
    mode: Mode
    savepoint: str | None
    graph_hash: str
    parallelism: Mapping[str, int]
    tasks: Mapping[TaskId, TaskFiles]
    transactions: Mapping[TaskId, tuple[str, ...]]

    @property
    def policy(self) -> str:
        """How the cut was taken."""
        return self.mode.value

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """Every file of the cut."""
        return tuple(file for task in self.tasks.values() for file in task.files)

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def logs(self) -> dict[str, LogFigures]:
        """What the log of each loop holds, over all tasks."""
        found: dict[str, LogFigures] = {}
        for log in (log for task in self.tasks.values() for log in task.logs):
            other = found.get(log.loop, LogFigures(log.loop, 0, 0, 0))
            known = log.records is not None and other.records is not None
            records = (log.records or 0) + (other.records or 0) if known else None
            found[log.loop] = LogFigures(log.loop, log.batches + other.batches, log.size + other.size, records)
        return found


# -- the entries of a chain --------------------------------------------------------------------------------------


def entry_document(entry: Entry) -> Document:
    """What the chain tells of an entry; the place in it and what holds it there are the chain's."""
    if isinstance(entry, AttemptStart):
        return {"kind": "attempt", "attempt": entry.attempt, "restored": entry.restored}
    return {
        "kind": "manifest",
        "epoch": entry.epoch,
        "attempt": entry.attempt,
        "mode": entry.mode.value,
        "savepoint": entry.savepoint,
        "files": [[*task, epoch] for task, epoch in entry.files.items()],
        "transactions": _by_task(entry.transactions),
    }


def entry_in(document: Document, path: str) -> Entry:
    """The entry that a document tells."""
    return read_as(_entry, document, path)


def _entry(document: Document) -> Entry:
    attempt = Attempt(int(document["attempt"]))
    if document["kind"] == "attempt":
        return AttemptStart(attempt, _epoch(document["restored"]))
    return Manifest(
        epoch=Epoch(int(document["epoch"])),
        attempt=attempt,
        mode=Mode(document["mode"]),
        files={TaskId(name, index): _epoch(epoch) for name, index, epoch in document["files"]},
        transactions=_tasks(document["transactions"]),
        savepoint=document["savepoint"],
    )


# -- manifests ---------------------------------------------------------------------------------------------------


def manifest_document(entry: Manifest, files: Mapping[TaskId, TaskFiles], deployment: Deployment) -> Document:
    """The manifest of a cut of that deployment. An entry that names other files than there are is refused."""
    for task, epoch in entry.files.items():
        found = files.get(task)
        if found is None or (found.task, found.attempt, found.filed) != (task, entry.attempt, epoch):
            what = (
                "no file" if found is None else f"files of {found.task}, attempt {found.attempt}, epoch {found.filed}"
            )
            raise ValueError(
                f"epoch {entry.epoch} of attempt {entry.attempt} cannot be recorded: for task {task} it names epoch "
                f"{epoch}, and given is {what}; give what write_task returned for it"
            )
    return {
        "epoch": entry.epoch,
        "attempt": entry.attempt,
        "mode": entry.mode.value,
        "savepoint": entry.savepoint,
        "graph_hash": deployment.plan.hash,
        "parallelism": dict(deployment.parallelism),
        "deployment": describe_deployment(deployment),
        "codecs": dict(CODECS),
        "tasks": [_task_document(files[task]) for task in entry.files],
        "transactions": _by_task(entry.transactions),
    }


def _task_document(files: TaskFiles) -> Document:
    return {
        "task": files.task.name,
        "index": files.task.index,
        "attempt": files.attempt,
        "filed": files.filed,
        "epoch": files.epoch,
        "ended": files.ended,
        "operators": [_operator_document(facts) for facts in files.operators],
        "files": [file._asdict() for file in files.files],
        "transactions": list(files.transactions),
        "channels": [_channel_document(figures) for figures in files.channels],
        "logs": [figures._asdict() for figures in files.logs],
        "state_rows": files.state_rows,
    }


def _operator_document(facts: OperatorFacts) -> Document:
    return {**facts._asdict(), "splits": [[split, position.hex()] for split, position in facts.splits]}


def _channel_document(figures: ChannelFigures) -> Document:
    channel = figures.channel
    ends = {"edge": channel.edge, "sender": [*channel.sender], "receiver": [*channel.receiver]}
    return {**figures._asdict(), "channel": {**ends, "restored": channel.restored}}


def description_in(document: Document, path: str) -> CutDescription:
    """What a manifest tells."""
    return read_as(_description, document, path)


def _description(document: Document) -> CutDescription:
    if document["codecs"] != CODECS:
        raise ValueError(f"its tables are of versions {document['codecs']}, and this version reads {CODECS}")
    tasks = [_task_files(task) for task in document["tasks"]]
    return CutDescription(
        epoch=Epoch(int(document["epoch"])),
        attempt=Attempt(int(document["attempt"])),
        mode=Mode(document["mode"]),
        savepoint=document["savepoint"],
        graph_hash=document["graph_hash"],
        parallelism=dict(document["parallelism"]),
        tasks={files.task: files for files in tasks},
        transactions=_tasks(document["transactions"]),
    )


def _task_files(document: Document) -> TaskFiles:
    return TaskFiles(
        task=TaskId(document["task"], document["index"]),
        attempt=Attempt(int(document["attempt"])),
        filed=_epoch(document["filed"]),
        epoch=Epoch(int(document["epoch"])),
        ended=document["ended"],
        operators=tuple(map(_operator_facts, document["operators"])),
        files=tuple(StoredFile(**file) for file in document["files"]),
        transactions=tuple(document["transactions"]),
        channels=tuple(_channel_figures(figures) for figures in document["channels"]),
        logs=tuple(LogFigures(**figures) for figures in document["logs"]),
        state_rows=document["state_rows"],
    )


def _operator_facts(document: Document) -> OperatorFacts:
    splits = tuple((split, bytes.fromhex(position)) for split, position in document["splits"])
    facts: dict[str, Any] = {**document, "splits": splits}
    return OperatorFacts(**facts)


def _channel_figures(document: Document) -> ChannelFigures:
    ends = document["channel"]
    channel = ChannelId(ends["edge"], TaskId(*ends["sender"]), TaskId(*ends["receiver"]), ends["restored"])
    facts: dict[str, Any] = {**document, "channel": channel}
    return ChannelFigures(**facts)


def _epoch(value: Any) -> Epoch | None:
    return None if value is None else Epoch(int(value))


def _by_task(transactions: Mapping[TaskId, tuple[str, ...]]) -> list[Any]:
    return [[*task, list(names)] for task, names in transactions.items()]


def _tasks(rows: list[Any]) -> dict[TaskId, tuple[str, ...]]:
    return {TaskId(name, index): tuple(names) for name, index, names in rows}


def read_as(make: Callable[[Document], T], document: Document, path: str) -> T:
    """What is made of a sealed document; one that does not read as we write it is damaged."""
    try:
        return make(document)
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotCorruptError(
            f"{path} is sealed, and does not read as this version writes it ({type(error).__name__}: {error}): read "
            "it with the version that wrote it, or restore another cut"
        ) from error

"""What a run keeps: cuts and chain in a folder, or the chain alone in memory, for a run that cannot be restored."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from engine.files.services import FileServices
from engine.moving import move_whole
from engine.on_ray.transport.control_messages import TaskOptions
from engine.rerouting import reroute
from graphs.deployment import Deployment
from graphs.describing import describe_plan
from graphs.ids import Attempt, Epoch, TaskId
from graphs.plan import Plan
from recovery.cut import TaskSnapshot
from recovery.orders import Entry, Manifest, Numbered, Sweep
from recovery.rescale import RestorePlan
from recovery.restored import TaskRestore
from recovery.stores.keys import derived_key
from recovery.stores.local import LocalStore
from recovery.stores.manifests import CutDescription
from recovery.stores.task_files import TaskFiles
from recovery.taking_back import CutFiles, take_back

LEFT_BYTES_MAX = 1_000_000
RUN_LETTERS = 16


class JobStore(Protocol):
    """The durable part of a run, as the supervisor uses it."""

    def describe(self, plan: Plan) -> None:
        """Keep what the graph is, for those who look at the cuts."""
        ...

    def chain(self) -> list[Numbered]:
        """Attempt starts and manifests, in order."""
        ...

    def create(self, number: int, entry: Entry, files: Mapping[TaskId, Any], deployment: Deployment) -> bool:
        """Create one entry; False if its place is taken."""
        ...

    def manifest(self, epoch: Epoch) -> CutDescription:
        """What the manifest of a complete cut tells, verified."""
        ...

    def files(self, cut: CutDescription) -> CutFiles:
        """What its tasks have left, read part by part."""
        ...

    def drop(self, epoch: Epoch) -> None:
        """Remove a cut that retention no longer keeps."""
        ...

    def sweep(self, sweep: Sweep) -> None:
        """Remove the files that no restore will need. Raises the first `OSError` when all else is done."""
        ...


class ChainInMemory:
    """The chain of a run that keeps no snapshots."""

    def __init__(self) -> None:
        self._entries: list[Numbered] = []

    def describe(self, plan: Plan) -> None:
        """Nobody will look at cuts."""

    def chain(self) -> list[Numbered]:
        """Attempt starts and manifests, in order."""
        return list(self._entries)

    def create(self, number: int, entry: Entry, files: Mapping[TaskId, Any], deployment: Deployment) -> bool:
        """Create one entry; nobody else does."""
        self._entries.append(Numbered(number, entry))
        return True

    def manifest(self, epoch: Epoch) -> CutDescription:
        """There are none."""
        raise LookupError(f"epoch {epoch} is in no store: this run keeps no snapshots")

    def files(self, cut: CutDescription) -> CutFiles:
        """There are none."""
        raise LookupError(f"epoch {cut.epoch} is in no store: this run keeps no snapshots")

    def drop(self, epoch: Epoch) -> None:
        """There is nothing to remove."""

    def sweep(self, sweep: Sweep) -> None:
        """There is nothing to remove."""


class ChainInFolder:
    """Chain and cuts below a folder."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def describe(self, plan: Plan) -> None:
        """Keep what the graph is, for those who look at the cuts."""
        self._store.describe_graph(plan.hash, describe_plan(plan))

    def chain(self) -> list[Numbered]:
        """Attempt starts and manifests, in order."""
        return self._store.numbered()

    def create(self, number: int, entry: Entry, files: Mapping[TaskId, Any], deployment: Deployment) -> bool:
        """Create one entry; False if its place is taken."""
        if not isinstance(entry, Manifest):
            return self._store.create(number, entry)
        return self._store.create(number, entry, files, deployment)

    def manifest(self, epoch: Epoch) -> CutDescription:
        """What the manifest of a complete cut tells, verified."""
        return self._store.manifest_of(epoch)

    def files(self, cut: CutDescription) -> CutFiles:
        """What its tasks have left, read part by part."""
        return self._store.files_of(cut.tasks)

    def drop(self, epoch: Epoch) -> None:
        """Remove a cut that retention no longer keeps."""
        self._store.drop(epoch)

    def sweep(self, sweep: Sweep) -> None:
        """Remove the files that no restore will need. Raises the first `OSError` when all else is done."""
        self._store.sweep(sweep)


class TasksInFolder:
    """Where the tasks of a run write their snapshots, and take them back from.

    Beside the supervisor they leave it to that process to have the disk keep small ones: it does so for all of a cut at
    once. With large ones it would have time for nothing else.
    """

    def __init__(self, store: LocalStore, plan: Plan, is_beside: bool) -> None:
        self._store = store
        self._is_beside = is_beside
        self._loops = {edge.name: edge.loop for edge in plan.edges if edge.loop is not None}
        self._kinds = {name: operator.kind.word for name, operator in plan.operators.items()}

    def write_task(self, attempt: Attempt, epoch: Epoch | None, snapshot: TaskSnapshot) -> TaskFiles:
        """Write a snapshot; says what its files are. A last state is durable at once: many cuts may name it."""
        left = LEFT_BYTES_MAX if self._is_beside and epoch is not None else 0
        return self._store.write_task(
            attempt, epoch, snapshot, loops=self._loops, kinds=self._kinds, left_bytes_max=left
        )

    def discard_task(self, attempt: Attempt, epoch: Epoch, task: TaskId) -> None:
        """Remove the files of an aborted epoch."""
        self._store.discard_task(attempt, epoch, task)

    def take_back(self, plan: RestorePlan, tasks: Mapping[TaskId, TaskFiles], deployment: Deployment) -> TaskRestore:
        """What the task of a plan takes back from the files of former tasks."""
        return take_back(plan, self._store.files_of(tasks), deployment, reroute, move_whole)


def open_store(options: TaskOptions, plan: Plan, is_beside: bool) -> TasksInFolder | None:
    """Where the tasks of a run write their snapshots; None if it keeps none.

    `is_beside` says whether this process is on the supervisor's host.
    """
    if options.root is None:
        return None
    return TasksInFolder(LocalStore(options.root, options.job, options.key), plan, is_beside)


def has_records_in_loops(files: Mapping[TaskId, TaskFiles | None]) -> bool:
    """Whether what the tasks have written of a cut includes logged records. Markers of rounds are none."""
    return any(log.records for of_task in files.values() if of_task is not None for log in of_task.logs)


def open_chain(options: TaskOptions) -> JobStore:
    """The chain of a run."""
    if options.root is None:
        return ChainInMemory()
    return ChainInFolder(LocalStore(options.root, options.job, options.key))


def open_services(
    options: TaskOptions, deliver: Callable[[str, str, list[Any]], None], attempt: Attempt
) -> FileServices:
    """What sources read and sinks write in an attempt."""
    key, staging = derived_key(options.key, "output"), staging_of(options)
    return FileServices(options.job, staging, deliver, run=options.run, attempt=attempt, splits=options.splits, key=key)


def run_name(options: TaskOptions) -> str:
    """What names a run and all that resume it: its store has a name; a run without one is drawn a name."""
    if options.root is None:
        return secrets.token_hex(RUN_LETTERS // 2)
    return LocalStore(options.root, options.job, options.key).job_id[:RUN_LETTERS]


def staging_of(options: TaskOptions) -> str | None:
    """Where output waits that belongs to the run itself: what is collected and printed."""
    return None if options.root is None else f"{options.root}/{options.job}/output"

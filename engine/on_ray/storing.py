"""What a run keeps: cuts and chain in a folder, or the chain alone in memory, for a run that cannot be restored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from engine.files.services import FileServices
from engine.on_ray.control import TaskOptions
from graphs.deployment import Deployment
from graphs.describing import describe_plan
from graphs.ids import Attempt, Epoch, TaskId
from graphs.plan import Plan
from recovery.cut import Cut, TaskSnapshot
from recovery.orders import Entry, Manifest, Numbered
from recovery.stores.local import LocalStore
from recovery.stores.task_files import TaskFiles

LEFT_BYTES_MAX = 1_000_000


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

    def cut(self, epoch: Epoch) -> Cut:
        """A complete cut, verified."""
        ...

    def drop(self, epoch: Epoch) -> None:
        """Remove a cut that retention no longer keeps."""
        ...

    def forget_incomplete(self, attempt: Attempt) -> None:
        """Remove what attempts before this one wrote for cuts that were never complete."""
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

    def cut(self, epoch: Epoch) -> Cut:
        """There are none."""
        raise LookupError(f"epoch {epoch} is in no store: this run keeps no snapshots")

    def drop(self, epoch: Epoch) -> None:
        """There is nothing to remove."""

    def forget_incomplete(self, attempt: Attempt) -> None:
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

    def cut(self, epoch: Epoch) -> Cut:
        """A complete cut, verified."""
        return self._store.cut(epoch)

    def drop(self, epoch: Epoch) -> None:
        """Remove a cut that retention no longer keeps."""
        self._store.drop(epoch)

    def forget_incomplete(self, attempt: Attempt) -> None:
        """Remove what attempts before this one wrote for cuts that were never complete."""
        self._store.forget_incomplete(attempt)


class TasksInFolder:
    """Where the tasks of a run write their snapshots.

    Beside the supervisor they leave it to that process to have the disk keep small ones: it does so for all of a cut at
    once. With large ones it would have time for nothing else.
    """

    def __init__(self, store: LocalStore, plan: Plan, is_beside: bool) -> None:
        self._store = store
        self._is_beside = is_beside
        self._loops = {edge.name: edge.loop for edge in plan.edges if edge.loop is not None}
        self._kinds = {name: operator.kind.value for name, operator in plan.operators.items()}

    def write_task(self, attempt: Attempt, epoch: Epoch | None, snapshot: TaskSnapshot) -> TaskFiles:
        """Write a snapshot; says what its files are. A last state is durable at once: many cuts may name it."""
        left = LEFT_BYTES_MAX if self._is_beside and epoch is not None else 0
        return self._store.write_task(
            attempt, epoch, snapshot, loops=self._loops, kinds=self._kinds, left_bytes_max=left
        )

    def discard_task(self, attempt: Attempt, epoch: Epoch, task: TaskId) -> None:
        """Remove the files of an aborted epoch."""
        self._store.discard_task(attempt, epoch, task)


def open_store(options: TaskOptions, plan: Plan, is_beside: bool) -> TasksInFolder | None:
    """Where the tasks of a run write their snapshots; None if it keeps none.

    `is_beside` says whether this process is on the supervisor's host.
    """
    if options.root is None:
        return None
    return TasksInFolder(LocalStore(options.root, options.job), plan, is_beside)


def open_chain(options: TaskOptions) -> JobStore:
    """The chain of a run."""
    return ChainInMemory() if options.root is None else ChainInFolder(LocalStore(options.root, options.job))


def open_services(options: TaskOptions, deliver: Callable[[str, str, list[Any]], None]) -> FileServices:
    """What sources read and sinks write."""
    return FileServices(options.job, staging_of(options), deliver, splits=options.splits)


def staging_of(options: TaskOptions) -> str | None:
    """Where output waits that belongs to the run itself: what is collected and printed."""
    return None if options.root is None else f"{options.root}/{options.job}/output"

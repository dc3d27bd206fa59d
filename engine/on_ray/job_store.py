"""The storage of a run: cuts and chain in a folder, or only the chain, in memory, for a run that cannot be restored."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from backedge.engine.io.files.services import FileServices
from backedge.engine.on_ray.transport.control_messages import TaskOptions
from backedge.engine.operators.rerouting import reroute
from backedge.engine.state.compaction import cut_of, put_together
from backedge.engine.state.split_own_state import move_whole
from backedge.engine.state.upgrade import upgraded
from backedge.graphs.deployment import Deployment
from backedge.graphs.describing import describe_plan
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.plan import Plan, loops_of_edges
from backedge.recovery.cut.cut import TaskSnapshot
from backedge.recovery.protocol.orders import Compact, Entry, Manifest, Numbered, Sweep
from backedge.recovery.protocol.restored import TaskRestore
from backedge.recovery.restore.plan import RestorePlan
from backedge.recovery.restore.restore_task import CutFiles, take_back
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.keys import derived_key
from backedge.recovery.stores.manifests import CutDescription
from backedge.recovery.stores.run_status import RunStatus
from backedge.recovery.stores.store_errors import NoSuchCutError
from backedge.recovery.stores.store_protocol import Store
from backedge.recovery.stores.store_schemes import store_at
from backedge.recovery.stores.task_files import StoredFile, TaskFiles, VersionFile

STORE_PATIENCE_S = 600.0
STORE_PAUSE_S = 1.0
LEFT_BYTES_MAX = 1_000_000
RUN_LETTERS = 16
SWEEP_PAUSE_S = 1.0
SWEEP_PAUSES = 100
"""The next sweep waits a hundred times as long as one took, and at least a second: it lists the folders of the cuts."""


class ChainInMemory:
    """The chain of a run that keeps no snapshots."""

    def __init__(self) -> None:
        self._entries: list[Numbered] = []

    def describe(self, plan: Plan) -> None:
        """Do nothing: there are no cuts to describe."""

    def keep_status(self, status: RunStatus) -> None:
        """Do nothing: there is no place for it."""

    def kept_status(self) -> RunStatus | None:
        return None

    def chain(self) -> list[Numbered]:
        return list(self._entries)

    def create(self, number: int, entry: Entry, files: Mapping[TaskId, Any], deployment: Deployment) -> bool:
        """Create an entry; no other process does."""
        self._entries.append(Numbered(number, entry))
        return True

    def manifest(self, epoch: Epoch) -> CutDescription:
        raise LookupError(f"epoch {epoch} is not stored: this run keeps no snapshots")

    def files(self, cut: CutDescription) -> CutFiles:
        raise LookupError(f"epoch {cut.epoch} is not stored: this run keeps no snapshots")

    def on_compacted(self, files: TaskFiles) -> None:
        raise LookupError(f"task {files.task} has written files: this run keeps no snapshots")

    def drop(self, epoch: Epoch) -> None:
        """Do nothing: there is nothing to remove."""

    def sweep(self, sweep: Sweep) -> None:
        """Do nothing: there is nothing to remove."""


class ChainInFolder:
    """Chain and cuts in a folder. `constants` are the files of the run's constants, `dropped` what it gave up.

    `CutStore` explains the methods that it takes over unchanged.
    """

    def __init__(
        self,
        store: CutStore,
        constants: Mapping[str, StoredFile] | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        dropped: frozenset[str] = frozenset(),
    ) -> None:
        self._store = store
        self.keep_status, self.kept_status = store.keep_status, store.kept_status
        self.chain, self.manifest, self.on_compacted = store.numbered, store.manifest_of, store.on_compacted
        self._constants = constants
        self._dropped = dropped
        self._clock_s = clock_s
        # The attempt of the last sweep, and when the next one may begin.
        self._swept: tuple[Attempt, float] | None = None

    def describe(self, plan: Plan) -> None:
        """Store a description of the graph, for readers of the cuts."""
        self._store.describe_graph(plan.hash, describe_plan(plan))

    def create(self, number: int, entry: Entry, files: Mapping[TaskId, Any], deployment: Deployment) -> bool:
        """Create an entry, in which `files` describes those of a cut; return False if its number is taken."""
        if not isinstance(entry, Manifest):
            return self._store.create(number, entry)
        return self._store.create(number, entry, files, deployment, self._constants, self._dropped)

    def files(self, cut: CutDescription) -> CutFiles:
        """The files of its tasks, read part by part."""
        return self._store.files_of(cut.tasks)

    def drop(self, epoch: Epoch) -> None:
        """Remove a cut that retention no longer keeps."""
        # It may have been removed by hand, and the chain shortened since.
        with suppress(NoSuchCutError):
            self._store.drop(epoch)

    def sweep(self, sweep: Sweep) -> None:
        """Remove files that no restore will need, unless the last sweep of the attempt was just before.

        What is dead stays dead, so the sweep after a later cut removes it. The last one of the run does not wait.
        Raises the first `OSError` after removing everything else.
        """
        began_s = self._clock_s()
        if self._swept is not None and not sweep.is_over:
            attempt, next_s = self._swept
            if attempt == sweep.attempt and began_s < next_s:
                return
        self._store.sweep(sweep)
        ended_s = self._clock_s()
        self._swept = sweep.attempt, ended_s + max(SWEEP_PAUSE_S, SWEEP_PAUSES * (ended_s - began_s))


JobStore = ChainInMemory | ChainInFolder
"""The durable part of a run, as the supervisor uses it."""


class TasksInFolder:
    """Writes the snapshots of a run's tasks, and restores them. `inputs`, `answers`: what is kept beside the cuts.

    On the supervisor's host, small files are fsynced by the supervisor, once per cut. Large files would keep it from
    its other work, so the tasks fsync those themselves.
    """

    def __init__(self, store: CutStore, plan: Plan, is_beside: bool) -> None:
        self._store = store
        self.inputs = store.inputs
        self.answers = store.answers
        self._is_beside = is_beside
        self._loops = loops_of_edges(plan.edges)
        self._kinds = {name: operator.kind.word for name, operator in plan.operators.items()}

    def write_task(self, attempt: Attempt, epoch: Epoch | None, snapshot: TaskSnapshot) -> TaskFiles:
        """Write a snapshot; describe its files. A last state is durable at once: many cuts may name it."""
        left = LEFT_BYTES_MAX if self._is_beside and epoch is not None else 0
        return self._store.write_task(
            attempt, epoch, snapshot, loops=self._loops, kinds=self._kinds, left_bytes_max=left
        )

    def read_version(self, version: VersionFile) -> bytes:
        """The verified bytes of a version that a cut names."""
        return self._store.constants.read_version(version)

    def discard_task(self, attempt: Attempt, epoch: Epoch, task: TaskId) -> None:
        self._store.discard_task(attempt, epoch, task)

    def compact(self, attempt: Attempt, order: Compact) -> tuple[TaskFiles, int]:
        """Put the keyed state of a task into one file; return what describes it, and how many entries it has."""
        cut = cut_of(order)
        files = self._store.manifest_of(cut).tasks[order.task]
        base = (*files.below, files.layer)[order.left].base
        found = self._store.files_of({order.task: replace(files, below=files.below[order.left :])})
        operators = {facts.name: found.state(order.task, facts.name) for facts in files.operators}
        states, keys = put_together(operators, is_delta=order.left > 0)
        compacted = TaskSnapshot(order.task, cut, attempt, states, (), (), base=base)
        return self._store.write_task(attempt, order.epoch, compacted, kinds=self._kinds), keys

    def take_back(self, plan: RestorePlan, tasks: Mapping[TaskId, TaskFiles], deployment: Deployment) -> TaskRestore:
        """Restore the task of a plan from the files of former tasks."""
        files = upgraded(self._store.files_of(tasks), plan, deployment.plan)
        return take_back(plan, files, deployment, reroute, move_whole)


def open_store(options: TaskOptions, plan: Plan, is_beside: bool) -> TasksInFolder | None:
    """The storage for the snapshots of a run's tasks; None if the run keeps none.

    `is_beside`: whether this process is on the supervisor's host.
    """
    if options.root is None:
        return None
    return TasksInFolder(CutStore(options.root, options.job, options.key), plan, is_beside)


def has_records_in_loops(files: Mapping[TaskId, TaskFiles | None], plan: Plan) -> bool:
    """Whether the files of a cut contain logged records that are in a loop. Round markers do not count."""
    loops = {edge.loop for edge in plan.edges}
    logs = [log for of_task in files.values() if of_task is not None for log in of_task.logs]
    return any(log.records for log in logs if log.loop in loops)


def open_chain(options: TaskOptions) -> JobStore:
    """The chain of a run."""
    if options.root is None:
        return ChainInMemory()
    store = CutStore(options.root, options.job, options.key)
    store.keeps_inputs = bool(options.keep_inputs)
    return ChainInFolder(store, options.constants, dropped=options.dropped)


def await_store(options: TaskOptions, patience_s: float = STORE_PATIENCE_S, pause_s: float = STORE_PAUSE_S) -> None:
    """Wait until the store of a run answers, for ten minutes at most.

    A supervisor that fails to open it is not started again: that would end the run.
    """
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        try:
            open_chain(options)
            return
        except OSError:
            time.sleep(pause_s)


def open_services(
    options: TaskOptions, deliver: Callable[[str, str, list[Any]], None], attempt: Attempt
) -> FileServices:
    """The services for the sources and sinks of an attempt."""
    # The name of the run is part of the key: no output of another run is taken for output of this one.
    key, kept_at = derived_key(options.key, f"output of run {options.run}"), _output_of(options)
    return FileServices(options.job, kept_at, deliver, run=options.run, attempt=attempt, splits=options.splits, key=key)


def run_name(options: TaskOptions) -> str:
    """The name of a run and of all runs that resume it: that of its store; random for a run without a store."""
    if options.root is None:
        return secrets.token_hex(RUN_LETTERS // 2)
    return CutStore(options.root, options.job, options.key).job_id[:RUN_LETTERS]


def _output_of(options: TaskOptions) -> Store | None:
    """The place of output that the run itself keeps, collected and printed records: within that of the job's cuts."""
    if options.root is None:
        return None
    job = store_at(options.root).below(options.job)
    job.prepare(is_signed=options.key is not None)
    return job.below("output")

"""Keeps the chain and the cuts of a simulated run in a `Store`, so that its schedules test the store.

What a run restores comes from the store alone: the chain, the outline of a cut and the files of each task, verified as
on a cluster. The copy in memory is for the checker. A file that should be in the store and is not fails the run.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from io import BufferedIOBase

from msgspec import structs

from backedge.engine.simulation.world.simulated_store import CreateFault, SimulatedCut, SimulatedStore
from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.plan import Plan, loops_of_edges
from backedge.recovery.cut.cut import Cut, OperatorState, TaskSnapshot
from backedge.recovery.protocol.orders import AppendEntry, FileId, Manifest, Numbered, Sweep
from backedge.recovery.protocol.rounds import RoundsSnapshot
from backedge.recovery.protocol.versions import Name
from backedge.recovery.restore.restore_task import CutFiles, Logs
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.store_calls import remove_below
from backedge.recovery.stores.store_errors import NoSuchCutError, OutcomeUnknownError
from backedge.recovery.stores.store_protocol import FileFacts, Store
from backedge.recovery.stores.task_files import TaskFiles
from backedge.recovery.stores.task_tables import StoredCut


@dataclass
class CreateFaults:
    """How exclusive creations fail.

    - due: the fault of the next one. hung: those that may still take effect.
    - lost: how many replies were lost. is_away: the store answers nothing more to the process that creates an entry.
    """

    due: CreateFault | None = None
    lost: int = 0
    is_away: bool = False
    hung: list[Callable[[], bool]] = field(default_factory=list[Callable[[], bool]])


class FaultyStore(Store):
    """A store whose exclusive creations fail when the schedule says so."""

    def __init__(self, store: Store, faults: CreateFaults) -> None:
        self._store = store
        self._faults = faults
        self.reads_at_once = store.reads_at_once

    @property
    def location(self) -> str:
        return self._store.location

    def below(self, folder: str) -> FaultyStore:
        return FaultyStore(self._store.below(folder), self._faults)

    def prepare(self, is_signed: bool) -> None:
        self._store.prepare(is_signed)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self._look()
        return self._store.read(name, start, length)

    @contextmanager
    def open(self, name: str) -> Generator[BufferedIOBase]:
        with self._store.open(name) as file:
            yield file

    def facts(self, name: str) -> FileFacts | None:
        self._look()
        return self._store.facts(name)

    def write(self, files: Mapping[str, bytes]) -> None:
        self._store.write(files)

    def create(self, name: str, data: bytes) -> bool:
        """Create a file exclusively, or fail."""
        fault, self._faults.due = self._faults.due, None
        match fault:
            case None:
                return self._store.create(name, data)
            case CreateFault.FAILS:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case CreateFault.HANGS:
                self._faults.hung.append(partial(self._store.create, name, data))
            case CreateFault.LOSES_REPLY:
                self._faults.lost += 1
                is_ours = self._store.create(name, data)
                if self._faults.lost % 2:
                    # This reply arrives. It is the next one that is lost.
                    self._faults.is_away = True
                    return is_ours
        raise OutcomeUnknownError(errno.EIO, f"no reply came for {name}")

    def _look(self) -> None:
        if self._faults.is_away:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def make_durable(self, names: Collection[str]) -> None:
        self._store.make_durable(names)

    def list(self, folder: str = "") -> Iterable[str]:
        return self._store.list(folder)

    def folders(self, folder: str = "") -> Iterable[str]:
        return self._store.folders(folder)

    def remove(self, names: Collection[str]) -> None:
        self._store.remove(names)


@dataclass(frozen=True)
class ReadOnce:
    """Files of a cut, read when a task asks for them: the checker looks at what was restored when they may be gone."""

    files: StoredCut

    def state(self, task: TaskId, operator: str, groups: range | None = None) -> OperatorState:
        state = self.files.state(task, operator, groups)
        return structs.replace(state, keyed=tuple(state.keyed), deltas=tuple(map(tuple, state.deltas)))

    def logs(self, task: TaskId) -> Logs:
        return self.files.logs(task)

    def rounds(self, task: TaskId) -> RoundsSnapshot | None:
        return self.files.rounds(task)


class CutsInStore(SimulatedStore):
    """The durable part of one simulated run, below the folder `job` of a store.

    - written: what tasks have written, as manifests describe it.
    """

    def __init__(self, failed: Counter[str], store: Store, job: str, plan: Plan) -> None:
        super().__init__(failed)
        self.written: dict[FileId, TaskFiles] = {}
        self._store = store
        self._job = job
        self._faults = CreateFaults()
        self._loops = loops_of_edges(plan.edges)
        self._kinds = {name: operator.kind.word for name, operator in plan.operators.items()}
        self._cuts = self._opened()

    def _opened(self) -> CutStore:
        return CutStore(FaultyStore(self._store, self._faults), self._job)

    def reopen(self) -> None:
        """Another supervisor uses it, which knows nothing of what the one before has read and written."""
        self._cuts = self._opened()

    def close(self) -> None:
        """Remove everything."""
        remove_below(self._store, self._job)

    # -- the chain -----------------------------------------------------------------------------------------------

    def read_chain(self) -> list[Numbered]:
        super().read_chain()
        return self._cuts.numbered()

    def try_to_create(self, append: AppendEntry, deployment: Deployment) -> bool:
        number, entry = append
        files: dict[TaskId, TaskFiles] = {}
        if isinstance(entry, Manifest):
            files = {task: self.written[FileId(entry.attempt, epoch, task)] for task, epoch in entry.files.items()}
        self._faults.due, self.create_fault = self.create_fault, None
        self._count_failed_claim(append, self._faults.due)
        known = len(self._faults.hung)
        try:
            is_ours = self._cuts.create(number, entry, files, deployment)
        except OSError:
            if self._faults.is_away:
                self.create(number, entry)
            raise
        finally:
            self._faults.due, self._faults.is_away = None, False
            self.hanging += [append] * (len(self._faults.hung) - known)
        return is_ours and self.create(number, entry)

    def land(self, index: int) -> None:
        create, append = self._faults.hung.pop(index), self.hanging.pop(index)
        if create():
            self.create(*append)

    # -- files ---------------------------------------------------------------------------------------------------

    def write(self, attempt: Attempt, epoch: Epoch | None, snapshot: TaskSnapshot) -> None:
        super().write(attempt, epoch, snapshot)
        written = self._cuts.write_task(attempt, epoch, snapshot, loops=self._loops, kinds=self._kinds)
        self.written[FileId(attempt, epoch, snapshot.task)] = written

    def discard(self, attempt: Attempt, epoch: Epoch, task: TaskId) -> None:
        super().discard(attempt, epoch, task)
        self._cuts.discard_task(attempt, epoch, task)

    def on_compacted(self, name: FileId) -> None:
        self._cuts.on_compacted(self.written[name])

    def read_cut(self, epoch: Epoch) -> SimulatedCut:
        cut = super().read_cut(epoch)
        return replace(cut, outline=self._cuts.manifest_of(epoch).outline)

    def files_of(self, cut: Cut, tasks: Iterable[TaskId]) -> CutFiles:
        described = self._cuts.manifest_of(cut.epoch).tasks
        return ReadOnce(self._cuts.files_of({task: described[task] for task in tasks}))

    def versions_of(self, cut: Cut, task: TaskId, operator: str) -> dict[Name, bytes]:
        versions = self._cuts.manifest_of(cut.epoch).tasks[task].versions_of(operator)
        return {(version.of, version.number): self._cuts.constants.read_version(version) for version in versions}

    # -- removals ------------------------------------------------------------------------------------------------

    def drop(self, epoch: Epoch) -> None:
        super().drop(epoch)
        with suppress(NoSuchCutError):  # a late removal: the chain was shortened since, and sweeps find the files
            self._cuts.drop(epoch)

    def sweep(self, sweep: Sweep) -> None:
        super().sweep(sweep)
        self._cuts.sweep(sweep)

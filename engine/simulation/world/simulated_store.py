"""The durable part of a simulated run: the chain of the job, and the files of its cuts. Schedules make it fail."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.cut.cut import Cut, TaskSnapshot, stacked
from backedge.recovery.protocol.chain_view import needed
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import (
    AppendEntry,
    AttemptStart,
    Entry,
    FileId,
    Manifest,
    Numbered,
    StateFile,
    Sweep,
)
from backedge.recovery.protocol.versions import Name
from backedge.recovery.restore.outline import CutOutline, outline_of
from backedge.recovery.restore.restore_task import CutFiles, SnapshotsInMemory
from backedge.recovery.stores.store_errors import OutcomeUnknownError

ManifestName = tuple[Attempt, Epoch, int]
"""The name of a manifest: the attempt and the epoch of its cut, and the number of its entry in the chain."""


class CreateFault(Enum):
    """How the creation of an entry fails: certainly, after the deed, or so that the entry may appear at any time."""

    FAILS = "fails"
    LOSES_REPLY = "loses reply"
    HANGS = "hangs"


@dataclass(frozen=True, slots=True)
class SimulatedCut:
    """A cut that was read from the store."""

    cut: Cut
    outline: CutOutline
    attempt: Attempt


class SimulatedStore:
    """What survives every crash.

    - history: all entries that were ever created; those of dropped cuts can no longer be read.
    - create_fault: what happens to the next creation. hanging: creations that may still take effect.
    - unreadable_chains, unreadable_cuts: how many of the next readings of the chain, or of a cut, fail.
    - withdrawn: removals of manifests whose entry another one came before. They may be carried out at any time.
    - failed: how often each fault has happened.
    """

    def __init__(self, failed: Counter[str]) -> None:
        self.history: list[Numbered] = []
        self.create_fault: CreateFault | None = None
        self.hanging: list[AppendEntry] = []
        self.unreadable_chains = 0
        self.unreadable_cuts = 0
        self.withdrawn: list[ManifestName] = []
        self.failed = failed
        self.dropped: set[Epoch] = set()
        self.files: dict[FileId, TaskSnapshot] = {}
        self.deployments: dict[Attempt, Deployment] = {}

    @property
    def chain(self) -> list[Numbered]:
        """The entries that can be read: not those of cuts that were dropped."""
        return [
            one for one in self.history if isinstance(one.entry, AttemptStart) or one.entry.epoch not in self.dropped
        ]

    def read_chain(self) -> list[Numbered]:
        """Read the chain, which may fail. It is as short as it may be."""
        if self.unreadable_chains:
            self.unreadable_chains -= 1
            self.failed["unreadable_chain"] += 1
            raise _disk_error(errno.EIO)
        there = {entry.epoch for entry in self.manifests()}
        return list(needed(self.history, (), there))

    def read_cut(self, epoch: Epoch) -> SimulatedCut:
        """Read a complete cut, which may fail."""
        if self.unreadable_cuts:
            self.unreadable_cuts -= 1
            self.failed["unreadable_cut"] += 1
            raise _disk_error(errno.EIO)
        cut = self.cut(self.manifest(epoch))
        return SimulatedCut(cut, outline_of(cut), cut.attempt)

    def versions_of(self, cut: Cut, task: TaskId, operator: str) -> dict[Name, bytes]:
        """The bytes of the versions that an operator keeps in a complete cut."""
        versions = cut.snapshots[task].operators[operator].versions
        return {(version.of, version.number): bytes(version.data) for version in versions}

    def make_reliable(self) -> None:
        """Let nothing fail from now on that has not failed yet."""
        self.create_fault, self.unreadable_chains, self.unreadable_cuts = None, 0, 0

    def reopen(self) -> None:
        """Another supervisor uses it."""

    def close(self) -> None:
        """The run is over."""

    def try_to_create(self, append: AppendEntry, deployment: Deployment) -> bool:
        """Create an entry, which may fail."""
        fault, self.create_fault = self.create_fault, None
        self._count_failed_claim(append, fault)
        if fault is None:
            return self.create(append.number, append.entry)
        if fault is CreateFault.FAILS:
            raise _disk_error(errno.ENOSPC)
        if fault is CreateFault.HANGS:
            self.hanging.append(append)
        else:
            self.create(append.number, append.entry)
        raise OutcomeUnknownError(errno.EIO, f"no reply came for entry {append.number}")

    def _count_failed_claim(self, append: AppendEntry, fault: CreateFault | None) -> None:
        self.failed["failed_claim"] += fault is CreateFault.FAILS and isinstance(append.entry, AttemptStart)

    def land(self, index: int) -> None:
        """Carry out a creation that hung."""
        self.create(*self.hanging.pop(index))

    def create(self, number: int, entry: Entry) -> bool:
        """Create an entry exclusively; False if another entry has its number. To repeat this changes nothing."""
        if number > len(self.history) + 1:
            raise LookupError(f"entry {number} of the chain would follow entry {len(self.history)}")
        if number == len(self.history) + 1:
            self.history.append(Numbered(number, entry))
        is_ours = self.history[number - 1].entry == entry
        if isinstance(entry, Manifest) and not is_ours:
            self.withdrawn.append(self.name_of_manifest(number, entry))
        return is_ours

    def name_of_manifest(self, number: int, manifest: Manifest) -> ManifestName:
        """The name of the manifest of a cut, which is written before its entry is created."""
        return (manifest.attempt, manifest.epoch, number)

    def withdraw(self, index: int) -> None:
        """Carry out the removal of a manifest that no entry names."""
        name = self.withdrawn.pop(index)
        for number, entry in self.chain:
            if isinstance(entry, Manifest) and self.name_of_manifest(number, entry) == name:
                raise LookupError(f"the manifest of the complete cut {entry.epoch} has been removed")

    def manifest(self, epoch: Epoch) -> Manifest:
        for entry in reversed(self.manifests()):
            if entry.epoch == epoch:
                return entry
        raise LookupError(f"the chain keeps no cut of epoch {epoch}")

    def cut(self, manifest: Manifest) -> Cut:
        """The cut that a manifest describes. The protocol guarantees that the files it names exist."""
        for name in manifest.named - self.files.keys():
            raise LookupError(
                f"the manifest of epoch {manifest.epoch} names a file of task {name.task} that is not durable"
            )
        snapshots = {task: self.snapshot(task, files) for task, files in manifest.states.items()}
        deployment = self.deployments[manifest.attempt]
        return Cut(
            manifest.epoch,
            manifest.attempt,
            deployment.plan.hash,
            manifest.mode.value,
            manifest.mode is Mode.BETWEEN_ROUNDS,
            snapshots,
            deployment.parallelism,
        )

    def write(self, attempt: Attempt, epoch: Epoch | None, snapshot: TaskSnapshot) -> None:
        self.files[FileId(attempt, epoch, snapshot.task)] = snapshot

    def discard(self, attempt: Attempt, epoch: Epoch, task: TaskId) -> None:
        """Remove the file of an aborted epoch."""
        self.files.pop(FileId(attempt, epoch, task), None)

    def on_compacted(self, name: FileId) -> None:
        """The supervisor hears of a compaction: the manifest of a later cut may name its file."""

    def files_of(self, cut: Cut, tasks: Iterable[TaskId]) -> CutFiles:
        """The files that these tasks wrote for a cut."""
        return SnapshotsInMemory({task: cut.snapshots[task] for task in tasks})

    def snapshot(self, task: TaskId, files: Sequence[StateFile]) -> TaskSnapshot:
        """The snapshot of a task that these files make up, oldest first."""
        return stacked([self.files[FileId(file.attempt, file.epoch, task)] for file in files])

    def drop(self, epoch: Epoch) -> None:
        """Remove the entry of a cut, and the files that no other cut names. Later cuts name last states, too."""
        self.dropped.add(epoch)
        named = self.named()
        for name in [name for name in self.files if name.epoch == epoch and name not in named]:
            del self.files[name]

    def sweep(self, sweep: Sweep) -> None:
        self.files = {name: file for name, file in self.files.items() if not sweep.removes_file(name)}

    def named(self) -> frozenset[FileId]:
        """The files that manifests name."""
        return frozenset[FileId]().union(*(manifest.named for manifest in self.manifests()))

    def manifests(self) -> list[Manifest]:
        """Those of the cuts that can be read."""
        return [entry for _, entry in self.chain if isinstance(entry, Manifest)]


def _disk_error(code: int) -> OSError:
    return OSError(code, os.strerror(code))

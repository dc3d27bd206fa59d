"""The durable world of a simulated run: the chain of the job, and the files of its cuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphs.deployment import Deployment
from graphs.ids import Attempt, Epoch, TaskId
from recovery.cut import Cut, TaskSnapshot, stacked
from recovery.messages import Mode
from recovery.orders import AttemptStart, Entry, FileId, Manifest, Numbered, StateFile, Sweep


class SimulatedStore:
    """What survives every crash."""

    def __init__(self) -> None:
        self.history: list[Numbered] = []
        self.dropped: set[Epoch] = set()
        self.files: dict[FileId, TaskSnapshot] = {}
        self.parallelism: dict[Attempt, dict[str, int]] = {}

    @property
    def chain(self) -> list[Numbered]:
        """The entries that are there: not those of cuts that were dropped."""
        return [
            one for one in self.history if isinstance(one.entry, AttemptStart) or one.entry.epoch not in self.dropped
        ]

    def create(self, number: int, entry: Entry) -> bool:
        """Create one entry of the chain; False if another has its number. Asked for twice, it is the same entry."""
        if number > len(self.history) + 1:
            raise LookupError(f"entry {number} of the chain would follow entry {len(self.history)}")
        if number == len(self.history) + 1:
            self.history.append(Numbered(number, entry))
        return self.history[number - 1].entry == entry

    def manifest(self, epoch: Epoch) -> Manifest:
        """The manifest of a complete cut."""
        for entry in reversed(self._manifests()):
            if entry.epoch == epoch:
                return entry
        raise LookupError(f"the chain keeps no cut of epoch {epoch}")

    def cut(self, manifest: Manifest, graph_hash: str) -> Cut:
        """The cut that a manifest describes. A file that it names and that is not there is an error of the protocol."""
        for name in manifest.named - self.files.keys():
            raise LookupError(
                f"the manifest of epoch {manifest.epoch} names a file of task {name.task} that is not durable"
            )
        snapshots = {task: self.snapshot(task, files) for task, files in manifest.states.items()}
        return Cut(
            manifest.epoch,
            manifest.attempt,
            graph_hash,
            manifest.mode.value,
            manifest.mode is Mode.BETWEEN_ROUNDS,
            snapshots,
            self.parallelism[manifest.attempt],
        )

    def snapshot(self, task: TaskId, files: Sequence[StateFile]) -> TaskSnapshot:
        """The snapshot of a task that these files make up, oldest first."""
        return stacked([self.files[FileId(file.attempt, file.epoch, task)] for file in files])

    def drop(self, epoch: Epoch) -> None:
        """Remove the entry of a cut, and the files that no other needs. Last states stay: later cuts name them too."""
        self.dropped.add(epoch)
        named = self._named()
        for name in [name for name in self.files if name.epoch == epoch and name not in named]:
            del self.files[name]

    def sweep(self, sweep: Sweep) -> None:
        """Remove the files that a sweep removes."""
        self.files = {name: file for name, file in self.files.items() if not sweep.removes_file(name)}

    def forget_incomplete(self) -> None:
        """Remove the files that no manifest names: no one will ever read them."""
        named = self._named()
        self.files = {name: file for name, file in self.files.items() if name in named}

    def forget_complete(self, attempt: Attempt) -> None:
        """Remove what no restore will need, because none will come before the next cut of this attempt."""
        named = {name for name in self._named() if name.epoch is not None}
        self.files = {name: f for name, f in self.files.items() if name.attempt == attempt and name not in named}
        self.history = [
            Numbered(n, replace(e, files={}, transactions={}, states={})) if isinstance(e, Manifest) else Numbered(n, e)
            for n, e in self.history
        ]

    def _named(self) -> frozenset[FileId]:
        return frozenset[FileId]().union(*(manifest.named for manifest in self._manifests()))

    def _manifests(self) -> list[Manifest]:
        return [entry for _, entry in self.chain if isinstance(entry, Manifest)]

    def note_parallelism(self, attempt: Attempt, deployment: Deployment) -> None:
        """Remember how wide the operators of an attempt are."""
        self.parallelism[attempt] = dict(deployment.parallelism)

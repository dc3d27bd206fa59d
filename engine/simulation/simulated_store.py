"""The durable world of a simulated run: the chain of the job, and the files of its cuts."""

from __future__ import annotations

from dataclasses import replace

from graphs.deployment import Deployment
from graphs.ids import Attempt, Epoch, TaskId
from recovery.cut import Cut, TaskSnapshot
from recovery.messages import Mode
from recovery.orders import AttemptStart, Entry, Manifest, Numbered, Sweep

FileName = tuple[Attempt, Epoch | None, TaskId]


class SimulatedStore:
    """What survives every crash."""

    def __init__(self) -> None:
        self.history: list[Numbered] = []
        self.dropped: set[Epoch] = set()
        self.files: dict[FileName, TaskSnapshot] = {}
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
        snapshots: dict[TaskId, TaskSnapshot] = {}
        for task, epoch in manifest.files.items():
            name = (manifest.attempt, epoch, task)
            if name not in self.files:
                raise LookupError(
                    f"the manifest of epoch {manifest.epoch} names a file of task {task} that is not durable"
                )
            snapshots[task] = self.files[name]
        return Cut(
            manifest.epoch,
            manifest.attempt,
            graph_hash,
            manifest.mode.value,
            manifest.mode is Mode.BETWEEN_ROUNDS,
            snapshots,
            self.parallelism[manifest.attempt],
        )

    def drop(self, epoch: Epoch) -> None:
        """Remove the files of a cut, and its entry; last states stay, for later cuts name them too."""
        self.dropped.add(epoch)
        for name in [name for name in self.files if name[1] == epoch]:
            del self.files[name]

    def sweep(self, sweep: Sweep) -> None:
        """Remove the files that a sweep removes."""
        kept = [e for _, e in self.history if isinstance(e, Manifest) and (e.epoch, e.attempt) in sweep.cuts]
        last_states = {(e.attempt, task) for e in kept for task, epoch in e.files.items() if epoch is None}
        for name in list(self.files):
            attempt, epoch, task = name
            if epoch is not None:
                goes = sweep.removes_epoch(epoch, attempt)
            else:
                goes = sweep.removes_last_states(attempt) and (attempt, task) not in last_states
            if goes:
                del self.files[name]

    def forget_incomplete(self) -> None:
        """Remove the files that no manifest names: no one will ever read them."""
        named = {(e.attempt, epoch, t) for e in self._manifests() for t, epoch in e.files.items()}
        self.files = {name: file for name, file in self.files.items() if name in named}

    def forget_complete(self, attempt: Attempt) -> None:
        """Remove what no restore will need, because none will come before the next cut of this attempt."""
        named = {(e.attempt, epoch, t) for e in self._manifests() for t, epoch in e.files.items()}
        named -= {name for name in named if name[1] is None}
        self.files = {name: f for name, f in self.files.items() if name[0] == attempt and name not in named}
        self.history = [
            Numbered(n, replace(e, files={}, transactions={})) if isinstance(e, Manifest) else Numbered(n, e)
            for n, e in self.history
        ]

    def _manifests(self) -> list[Manifest]:
        return [entry for _, entry in self.chain if isinstance(entry, Manifest)]

    def note_parallelism(self, attempt: Attempt, deployment: Deployment) -> None:
        """Remember how wide the operators of an attempt are."""
        self.parallelism[attempt] = dict(deployment.parallelism)

"""Runs of the simulator, written down as a job keeps them: cuts of every kind of graph, under crashes, in no time."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from backedge.engine.simulation.world.world import World
from backedge.graphs.deployment import Deployment
from backedge.graphs.describing import describe_plan
from backedge.graphs.ids import Epoch, TaskId
from backedge.graphs.plan import loops_of_edges
from backedge.recovery.cut.cut import Cut, OperatorState, TaskSnapshot, layers
from backedge.recovery.protocol.orders import AttemptStart, FileId, Manifest, StateFile
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.task_files import TaskFiles


def write_run(
    world: World,
    root: Path,
    name: str = "job",
    keep: int | None = None,
    key: bytes | None = None,
    first: int | None = None,
) -> Path:
    """The folder of the job, with its chain and its cuts.

    `keep`: the last so many of them. `first`: as it was when there were so many of them.
    """
    store = CutStore(str(root), name, key)
    for deployment in world.store.deployments.values():
        store.describe_graph(deployment.plan.hash, describe_plan(deployment.plan))
    written, cuts = WrittenFiles(store, world), 0
    for _, entry in world.store.history:
        number = len(store.chain()) + 1
        if isinstance(entry, AttemptStart):
            _expect(store.create(number, entry))
            continue
        if cuts == first:
            break
        cuts += 1
        cut = world.record.cuts[entry.epoch]
        deployment = world.store.deployments[cut.attempt]
        files = written.cut(entry, cut, deployment)
        # Whatever the run has kept: these are there.
        told = replace(
            entry,
            kept=None,
            files={task: written.filed for task, written in files.items()},
            transactions={task: written.transactions for task, written in files.items() if written.transactions},
        )
        _expect(store.create(number, told, files, deployment))
    manifests = [entry for entry in store.chain() if isinstance(entry, Manifest)]
    for entry in manifests[:-keep] if keep else ():
        store.drop(entry.epoch)
    return Path(store.path)


class WrittenFiles:
    """Writes the files of simulated cuts, each once, with the deltas and compactions that their manifests name.

    In a simulated cut the files of a task are put on top of each other.
    """

    def __init__(self, store: CutStore, world: World) -> None:
        self._compacted, self._bases = world.compacted, world.bases
        self.with_deltas = self.with_compactions = 0
        self._store = store
        self._known: dict[FileId, TaskFiles] = {}
        # A list of files -> the cut whose list it is.
        self._epochs: dict[tuple[TaskId, tuple[StateFile, ...]], Epoch] = {}

    def cut(self, entry: Manifest, cut: Cut, deployment: Deployment) -> dict[TaskId, TaskFiles]:
        """The files that the tasks have written for a cut."""
        return {task: self._task(entry, task, snapshot, deployment) for task, snapshot in cut.snapshots.items()}

    def _task(self, entry: Manifest, task: TaskId, snapshot: TaskSnapshot, deployment: Deployment) -> TaskFiles:
        files = entry.states[task]
        for place, file in enumerate(files):
            name = FileId(file.attempt, file.epoch, task)
            if name in self._known:
                continue
            of_place = {operator: layers(state)[place] for operator, state in snapshot.operators.items()}
            if place < len(files) - 1:
                states = {operator: OperatorState(groups) for operator, groups in of_place.items()}
                epoch = self._epochs[task, self._compacted[name]]
                part = TaskSnapshot(task, epoch, name.attempt, states, (), (), base=self._bases[name])
                self._store.on_compacted(self._write(name, part, deployment))
                self.with_compactions += 1
            else:
                states = {
                    operator: replace(state, keyed=of_place[operator], deltas=())
                    for operator, state in snapshot.operators.items()
                }
                self._write(name, replace(snapshot, operators=states, base=self._bases[name]), deployment)
        self.with_deltas += len(files) > 1
        self._epochs[task, files] = entry.epoch
        return self._known[FileId(files[-1].attempt, files[-1].epoch, task)]

    def _write(self, name: FileId, snapshot: TaskSnapshot, deployment: Deployment) -> TaskFiles:
        plan = deployment.plan
        kinds = {operator: found.kind.word for operator, found in plan.operators.items()}
        files = self._store.write_task(
            name.attempt, name.epoch, snapshot, loops=loops_of_edges(plan.edges), kinds=kinds
        )
        self._known[name] = files
        return files


def _expect(is_ours: bool) -> None:
    # Not an assertion: under -O the entry would not be created.
    if not is_ours:
        raise LookupError("the place of the entry is taken")

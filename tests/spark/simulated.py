"""Runs of the simulator, written down as a job keeps them: cuts of every kind of graph, under crashes, in no time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine.simulation.world import World
from graphs.deployment import Deployment
from graphs.describing import describe_plan
from graphs.ids import TaskId
from recovery.cut import Cut
from recovery.orders import AttemptStart, Manifest
from recovery.stores.cut_store import CutStore
from recovery.stores.task_files import TaskFiles
from tests.stores.snapshots import whole


def write_run(world: World, root: Path, name: str = "job", keep: int | None = None, key: bytes | None = None) -> Path:
    """The folder of the job, with its chain and its cuts; with `keep`, the last so many of them."""
    store = CutStore(str(root), name, key)
    store.describe_graph(world.plan.hash, describe_plan(world.plan))
    for _, entry in world.store.history:
        number = len(store.chain()) + 1
        if isinstance(entry, AttemptStart):
            _expect(store.create(number, entry))
            continue
        cut = world.record.cuts[entry.epoch]
        deployment = _deployment(world, cut)
        files = _write_cut(store, cut, deployment)
        told = replace(
            entry,
            files={task: written.filed for task, written in files.items()},
            transactions={task: written.transactions for task, written in files.items() if written.transactions},
        )
        _expect(store.create(number, told, files, deployment))
    manifests = [entry for entry in store.chain() if isinstance(entry, Manifest)]
    for entry in manifests[:-keep] if keep else ():
        store.drop(entry.epoch)
    return Path(store.path)


def _deployment(world: World, cut: Cut) -> Deployment:
    """What the cut was taken with: where the tasks were is not in it."""
    widths = {1, world.options.parallelism, *cut.parallelism.values()}
    made = (world.placement.deployment(width) for width in sorted(widths))
    return next(found for found in made if dict(found.parallelism) == dict(cut.parallelism))


def _write_cut(store: CutStore, cut: Cut, deployment: Deployment) -> dict[TaskId, TaskFiles]:
    plan = deployment.plan
    loops = {edge.name: edge.loop for edge in plan.edges if edge.loop is not None}
    kinds = {name: operator.kind.word for name, operator in plan.operators.items()}
    return {
        task: store.write_task(
            cut.attempt, None if snapshot.ended else cut.epoch, whole(snapshot), loops=loops, kinds=kinds
        )
        for task, snapshot in cut.snapshots.items()
    }


def _expect(is_ours: bool) -> None:
    # Not an assertion: under -O the entry would not be created.
    if not is_ours:
        raise LookupError("the place of the entry is taken")

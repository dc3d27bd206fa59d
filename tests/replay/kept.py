"""Simulated runs whose tasks keep their inputs in a store, and replays of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle

from backedge import Flow
from backedge.engine.batches.batch import Batch
from backedge.engine.io.memory import MemoryServices
from backedge.engine.on_ray.job_store import TasksInFolder
from backedge.engine.operators.runtime import TaskRuntime
from backedge.engine.replay.replay import Replayed, replay
from backedge.engine.simulation.world.calling import Calls
from backedge.engine.simulation.world.cuts_in_store import CutsInStore
from backedge.engine.simulation.world.rehearsal import SimulatedServices
from backedge.engine.simulation.world.world import World
from backedge.engine.simulation.world.world_options import Parts
from backedge.engine.task.kept_inputs import Journal, KeepingRuntime, KeepingServices, entries_in
from backedge.graphs.deployment import Deployment, Task
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.pipelines import pipelines_of
from backedge.graphs.plan import Plan
from backedge.graphs.task_errors import TaskError
from backedge.recovery.protocol.orders import AttemptStart
from backedge.recovery.restore.plan import plan_restore
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.input_pieces import NO_CUT, PieceId
from backedge.recovery.stores.task_files import StoredFile

FLOW = "0" * 64
STEP_S = 0.3


def keeping_parts(root: Path, job: str, plan: Plan) -> Parts:
    """The parts of a world that keeps its cuts in a folder, and the inputs of all tasks."""
    store = FolderStore(str(root))

    def runtime(task: Task, deployment: Deployment, services: SimulatedServices, **options: Any) -> TaskRuntime:
        cuts = CutStore(str(root), job)
        [start] = [e for e in cuts.chain() if isinstance(e, AttemptStart) and e.attempt == services.attempt]
        seconds = itertools.count()  # a piece holds a few calls
        journal = Journal(
            task.id, start.attempt, start.restored or NO_CUT, cuts.inputs, FLOW, lambda: next(seconds) * STEP_S
        )
        return KeepingRuntime(journal, task, deployment, KeepingServices(services, journal), **options)

    return Parts(store=partial(CutsInStore, store=store, job=job, plan=plan), runtime=runtime)


class OneReplay(NamedTuple):
    """A replay of one task from one cut, and the words of the calls that it made."""

    id: PieceId
    found: Replayed
    words: list[str]


def replays_of(world: World, root: Path, job: str) -> Iterator[OneReplay]:
    """A replay for everything that a run has kept."""
    cuts = CutStore(str(root), job)
    for epoch in (NO_CUT, *cuts.cuts()):
        for piece in cuts.inputs_after(epoch):
            deployment = world.record.deployments[piece.id.attempt]
            entries = list(entries_in(cuts.inputs, piece.id.task, piece.id.attempt, epoch))
            restored = None if epoch == NO_CUT else state_in(cuts, epoch, deployment.tasks[piece.id.task], deployment)
            found = replay(deployment.tasks[piece.id.task], deployment, restored, entries, world.options.seed)
            yield OneReplay(piece.id, found, [entry[1] for entry in entries if entry[0] == "ran"])


def state_in(cuts: CutStore, epoch: Epoch, task: Task, deployment: Deployment) -> Any:
    cut = cuts.manifest_of(epoch)
    plan = plan_restore(cut.outline, deployment)[task.id]
    return TasksInFolder(cuts, deployment.plan, is_beside=False).take_back(plan, cut.tasks, deployment).operators


def ran_by_hand(
    root: Path,
    flow: Flow,
    operator: str,
    batches: Iterable[list[Any]],
    key: bytes | None = None,
    constants: Mapping[str, StoredFile] | None = None,
) -> CutStore:
    """A task that got these batches from the beginning of its run, kept them, and was closed.

    The last of its calls is answered first. `constants` are the files of those of the run.
    """
    cuts = CutStore(str(root), "job", key)
    [plan] = [part for part in pipelines_of(flow.plan()) if operator in part.operators]
    deployment = expand(plan)
    [task] = [task for task in deployment.tasks.values() if operator in task.operators]
    digest = cuts.inputs.keep_flow(cloudpickle.dumps((deployment, 0, constants or {})))
    journal = Journal(task.id, Attempt(1), NO_CUT, cuts.inputs, digest)
    runtime = KeepingRuntime(journal, task, deployment, KeepingServices(MemoryServices({}), journal))
    runtime.open(None)
    with suppress(TaskError):
        for batch in batches:
            runtime.process(task.inputs[0], Batch(batch), now_ms=0)
            for call in reversed(runtime.unanswered):
                runtime.on_answer(call, *Calls().answer(runtime.call(call)))
        runtime.end(now_ms=0)
    runtime.close()
    return cuts

"""`backedge replay`: what a task of a run got after a cut, run again in this process, under a debugger if wanted.

0: it sends what it sent in the run. 1: it does not, or a function raises. 2: there is nothing to replay.
"""

from __future__ import annotations

import argparse
import json
import pdb
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from backedge.arguments import key_from
from backedge.engine.batches.constant_bytes import constant_in
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.job_store import TasksInFolder
from backedge.engine.replay.replay import NOTHING, Difference, Replayed, replay
from backedge.engine.task.kept_inputs import Entry, entries_in
from backedge.flows import WrongCallError, flow_at, settings_in, told_in_a_line
from backedge.graphs.constant import share
from backedge.graphs.deployment import Deployment
from backedge.graphs.expansion import expand, resized
from backedge.graphs.ids import Epoch
from backedge.graphs.pipelines import pipelines_of
from backedge.graphs.plan import Plan
from backedge.graphs.task_errors import show
from backedge.graphs.wording import counted
from backedge.inspecting.jobs import Jobs, living
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.restore.plan import plan_restore
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.input_pieces import NO_CUT
from backedge.recovery.stores.task_files import StoredFile

SAME, DIFFERS = range(2)
CAUSES = (
    "the function has changed since the run, or it depends on more than its input and its state: on time, random "
    "numbers, the order of a set, or the outside. ctx.now and ctx.random replay"
)


def replay_task(options: argparse.Namespace) -> int:
    """Replay the task that the command line names, and say whether it sends the same again."""
    if options.settings and options.flow is None:
        raise WrongCallError(f"--set {options.settings[0]} is for the function of a flow: name that with --flow")
    alive = living(is_needed=True) if options.snapshots is None else None
    store = Jobs(options.snapshots, key_from(options.key_file), alive).store(options.job)
    kept = KeptTask(store, Epoch(options.epoch), options.operator, options.task, options.attempt)
    if options.flow is not None:
        kept.use(flow_at(options.flow, settings_in(options.settings)).plan())
    kept.share_constants()
    found = replay(kept.task, kept.deployment, kept.state(), kept.entries(), kept.seed)
    print(json.dumps(_facts(kept, found)) if options.json else _told(kept, found))
    if found.error is not None and options.pdb:
        error = found.error.__cause__ or found.error
        pdb.post_mortem(error.__traceback__)
    return SAME if found.is_same and found.error is None else DIFFERS


class KeptTask:
    """What was kept of one task after a cut. Raises `WrongCallError` if there is nothing.

    - attempt: the last one that went on from the cut, unless another one is wanted.
    - deployment, seed, constants: the flow that it ran, the seed of its random numbers, and the files of its constants.
    """

    def __init__(self, store: CutStore, epoch: Epoch, operator: str, index: int, attempt: int | None) -> None:
        self._store = store
        self.epoch = epoch
        if epoch != NO_CUT and epoch not in (cuts := store.cuts()):
            raise WrongCallError(
                f"epoch {epoch} is not a cut in {store.path}: it holds {_listed(cuts)}, and 0 stands for the beginning"
            )
        loaded: dict[str, tuple[Deployment, int, Mapping[str, StoredFile]]] = {}
        there: list[str] = []
        for piece in store.inputs_after(epoch):
            if piece.flow not in loaded:
                loaded[piece.flow] = _loaded(store.inputs.flow(piece.flow))
            self.deployment, self.seed, self.constants = loaded[piece.flow]
            self.task, self.attempt = self.deployment.tasks[piece.id.task], piece.id.attempt
            if operator in self.task.operators and index == self.task.id.index and attempt in (None, self.attempt):
                return
            there.append(f"{' > '.join(self.task.operators)}, task {self.task.id.index}, attempt {self.attempt}")
        which = "" if attempt is None else f", attempt {attempt}"
        others = f"there are those of {_listed(there)}"
        fix = others if there else f"run it with keep_inputs=[{operator!r}] (--keep-inputs {operator})"
        raise WrongCallError(
            f"no inputs of {operator!r}, task {index}{which} are kept after {_cut(epoch)} of {store.job}: {fix}"
        )

    def use(self, plan: Plan) -> None:
        """Run the functions of this flow instead of those that the run had."""
        ran = self.deployment
        parts = (plan, *pipelines_of(plan, is_divided=True))
        same = [part for part in parts if part.hash == ran.plan.hash]
        if not same:
            raise WrongCallError(
                f"{plan.name} has other operators or edges than the flow that was run: leave out --flow, "
                "or undo that change"
            )
        self.deployment = resized(expand(same[0], actors="slice" if ran.by_slice else "task"), ran.parallelism)
        task = self.deployment.tasks.get(self.task.id)
        if task is None or task.operators != self.task.operators:
            raise WrongCallError(
                f"{plan.name} chains other operators in one task than the attempt, which was rescaled: leave out --flow"
            )
        self.task = task

    def share_constants(self) -> None:
        """Let the constants of the flow be those of the run. All are verified before any of them is decoded."""
        read = {name: self._store.constants.read(name, file) for name, file in self.constants.items()}
        for name, data in read.items():
            share(self._store.job, name, partial(constant_in, memoryview(data)))

    def state(self) -> Mapping[str, OperatorState] | None:
        """The state of the task in the cut; None at the beginning."""
        if self.epoch == NO_CUT:
            return None
        cut = self._store.manifest_of(self.epoch)
        if cut.graph_hash != self.deployment.plan.hash:
            raise WrongCallError(
                f"attempt {self.attempt} began with another graph than that of cut {self.epoch}: replay "
                "it from a later cut"
            )
        plan = plan_restore(cut.outline, self.deployment)[self.task.id]
        tasks = TasksInFolder(self._store, self.deployment.plan, is_beside=False)
        return tasks.take_back(plan, cut.tasks, self.deployment).operators

    def entries(self) -> Iterator[Entry]:
        """What the task got."""
        return entries_in(self._store.inputs, self.task.id, self.attempt, self.epoch)


def _loaded(flow: bytes) -> tuple[Deployment, int, Mapping[str, StoredFile]]:
    """The flow of a run. Its functions are those of modules as they are now, as far as they can be imported."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    with told_in_a_line("the flow that was run cannot be loaded here: it raises"):
        try:
            loaded = pickle.loads(flow)
        except ModuleNotFoundError as missing:
            raise WrongCallError(
                f"the flow that was run needs the module {missing.name!r}, which is not here or among the installed "
                "ones: run the command in the folder that holds it"
            ) from None
        except AttributeError as missing:
            if "get attribute" not in str(missing):
                raise  # it comes from the code of the module
            raise WrongCallError(
                f"the flow that was run needs a function that its module has no longer ({missing}): give it "
                "its former name for the replay"
            ) from None
    cluster.adopt_script_classes()
    return loaded


def _listed(what: Sequence[object]) -> str:
    return "; ".join(map(str, what)) or "none"


def _cut(epoch: Epoch) -> str:
    return "the beginning" if epoch == NO_CUT else f"cut {epoch}"


# -- what is printed -------------------------------------------------------------------------------------------------


def _told(kept: KeptTask, found: Replayed) -> str:
    name = f"{' > '.join(kept.task.operators)}, task {kept.task.id.index}"
    lines = [
        f"{name}, attempt {kept.attempt}, from {_cut(kept.epoch)}: {counted(found.calls, 'call')} with "
        f"{counted(found.records, 'record')}"
    ]
    first = found.first
    if first is None and found.error is None:
        lines.append(f"what it sends is the same as in the run: {counted(found.sent, 'record')}")
    elif first is None:
        lines.append(f"it sends the same as in the run, {counted(found.sent, 'record')}, and raises as it did there:")
    if first is not None:
        where = f", {first.where}" if first.where else ""
        lines.append(f"call {first.call} ({first.what}) differs{where}:")
        lines += _pair(first, raised_in_run=found.error is None)
        if found.error is None:
            lines.append(
                f"{found.differing} of {counted(found.calls, 'call')} differ, and an earlier difference in the state "
                "may cause later ones"
            )
        lines.append(CAUSES)
    if found.error is not None:
        lines.append(str(found.error))
    if found.broken:
        lines.append(f"what follows was not kept: {found.broken}")
    elif found.error is None and not found.is_complete:
        lines.append(
            "the inputs end before the attempt does: its process was killed, or what follows is no longer kept"
        )
    return "\n".join(lines)


def _pair(first: Difference, raised_in_run: bool) -> list[str]:
    if first.fault:
        return [
            f"  only the {'run' if raised_in_run else 'replay'} raises",
            *(f"  {first.fault}".splitlines() if raised_in_run else ()),
        ]
    return [f"  run:    {_record(first.in_run)}", f"  replay: {_record(first.in_replay)}"]


def _record(record: Any) -> str:
    return "nothing" if record is NOTHING else show(record)


def _facts(kept: KeptTask, found: Replayed) -> dict[str, Any]:
    first = found.first
    return {
        "task": list(kept.task.id),
        "operators": list(kept.task.operators),
        "attempt": kept.attempt,
        "epoch": kept.epoch,
        "calls": found.calls,
        "records": found.records,
        "sent": found.sent,
        "same": found.is_same,
        "differing": found.differing,
        "difference": first
        and {
            "call": first.call,
            "what": first.what,
            "where": first.where,
            "fault": first.fault,
            "run": _record(first.in_run),
            "replay": _record(first.in_replay),
        },
        "error": found.error and str(found.error),
        "cuts": found.cuts,
        "complete": found.is_complete,
        "broken": found.broken,
    }

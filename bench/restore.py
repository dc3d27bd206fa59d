"""How fast 2 GB of state in two tasks are restored, and how much memory the supervisor needs meanwhile.

A cut is written first, once for all turns: 2,000,000 keys with 1,000 bytes each, which cannot be compressed. A run then
resumes from it, once with the two tasks that it was taken with and once with three. The same from a cut of 1,000 keys
shows what starting a run takes anyway: processes, mailboxes, the chain. The figure is the size of the files by the time
that the large cut takes beyond that, from `start` until all tasks run.

The supervisor's memory is the peak of its process over all of these runs.

Peer: bare, two processes that read the same files, each those of a task, decode them and load the entries into a dict.
They verify nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

from backedge import Collect, Flow, Generate
from backedge.engine.state.keyed_state import encode_entries
from backedge.graphs.deployment import Deployment
from backedge.graphs.describing import describe_plan
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.routing import groups_of_task, key_groups
from backedge.recovery.cut.cut import InputRecord, OperatorState, OutputRecord, TaskSnapshot
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import AttemptStart, Manifest
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.task_files import TaskFiles
from bench.measuring import Limit, Report, Samples, at_least, interleaved
from bench.options import Options
from bench.ours import BenchError, begin, peak_mb
from bench.peers import peers, restore_bare
from bench.session import session
from bench.workloads import RestoreWorkload

KEYS, FEW_KEYS = 2_000_000, 1_000
VALUE_BYTES = 1_000
TASKS, OTHER_TASKS = 2, 3
JOB = "restore"
EPOCH, ATTEMPT = Epoch(1), Attempt(1)
NO_CUTS_S = 3_600.0
LIMITS = {"decode": 0.7, "decode_rescaled": 0.5}
SUPERVISOR_MB_MAX = 400.0


def run(options: Options) -> Report:
    """Restore the same cut with both parallelisms, and read its files by hand, in turns."""
    keys = options.records or KEYS
    known = peers({"bare": restore_bare.run}, options.peer)
    supervisor_mb: list[float] = []
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        large, small = f"{folder}/large", f"{folder}/small"
        files = write_cut(large, keys, options.seed)
        workload = RestoreWorkload(files, sum(os.path.getsize(file) for of_task in files for file in of_task) / 1e6)
        write_cut(small, FEW_KEYS, options.seed)

        def mb_per_s(tasks: int) -> float:
            anyway_s, _ = start_s(small, tasks)
            seconds, supervisor = start_s(large, tasks)
            supervisor_mb.append(supervisor)
            return workload.mb / max(seconds - anyway_s, 0.01)

        with session():
            found = interleaved(
                {
                    "same": lambda: mb_per_s(TASKS),
                    "bare": lambda: known["bare"](workload),
                    "rescaled": lambda: mb_per_s(OTHER_TASKS),
                },
                options.turns,
                cold={"rescaled": lambda: 0.0},
            )
    return compare(found, workload, keys, max(supervisor_mb))


def compare(found: dict[str, Samples], workload: RestoreWorkload, keys: int, supervisor_mb: float) -> Report:
    """How fast the state is restored, and how much memory the supervisor needed."""
    ratios = {
        "decode": found["same"].over(found["bare"]),
        "decode_rescaled": found["rescaled"].over(found["bare"]),
    }
    held = Limit(
        f"supervisor_mb: {supervisor_mb:.0f}, at most {SUPERVISOR_MB_MAX:.0f}", supervisor_mb <= SUPERVISOR_MB_MAX
    )
    return Report(
        bench="restore",
        unit="MB/s",
        turns=len(found["bare"].figures),
        figures={"same": found["same"], "rescaled": found["rescaled"]},
        peers={"bare": found["bare"]},
        ratios=ratios,
        limits=(*at_least(ratios, LIMITS), held),
        ours="same",
        more={"keys": keys, "state_mb": round(workload.mb), "supervisor_mb": round(supervisor_mb)},
    )


def start_s(folder: str, tasks: int) -> tuple[float, float]:
    """How long a run takes to resume, and the peak memory of its supervisor in MB."""
    began_s = time.monotonic()
    job = begin(make_flow(), folder, NO_CUTS_S, {"resume": "latest", "parallelism": tasks, "actors": "slice"})
    took_s = time.monotonic() - began_s
    try:
        story = job.status()
        if story.state != "running" or story.restarts or not story.restores:
            raise BenchError(f"the run is {story.state} after {story.restarts} restarts: {'; '.join(story.lines[-3:])}")
        return took_s, peak_of("ray::SupervisorActor")
    finally:
        job.cancel()


def peak_of(title: str) -> float:
    """The most memory in MB that a process of this title has had."""
    found: list[float] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            if (process / "cmdline").read_text().startswith(title):
                found.append(peak_mb(int(process.name)))
    if not any(found):
        raise BenchError(f"no process is called {title}")
    return max(found)


# -- the cut -------------------------------------------------------------------------------------------------------


def make_flow() -> Flow:
    """Records read a keyed state and do not change it."""
    flow = Flow(JOB)
    numbers = flow.read(Generate(lambda position: position % FEW_KEYS), rate=100.0, name="numbers")
    kept = numbers.key_by(_same).stateful_map(_keep, initial=b"", name="profiles")
    kept.filter(_is_never, name="chosen").write(Collect(), name="seen")
    return flow


def _same(number: int) -> int:
    return number


def _keep(profile: bytes, number: int) -> tuple[bytes, int]:
    return profile, number


def _is_never(number: int) -> bool:
    return number < 0


def write_cut(folder: str, keys: int, seed: int) -> tuple[tuple[str, ...], ...]:
    """Write a cut of that flow, each task in a process of its own; returns the files of each task's state."""
    deployment = expand(make_flow().plan(), TASKS, "slice")
    store = CutStore(folder, JOB)
    store.describe_graph(deployment.plan.hash, describe_plan(deployment.plan))
    with ProcessPoolExecutor(TASKS, multiprocessing.get_context("spawn")) as processes:
        writing = {task: processes.submit(write_task, folder, task, keys, seed) for task in deployment.tasks}
        files = {task: written.result() for task, written in writing.items()}
    store.create(1, AttemptStart(ATTEMPT, None))
    store.create(2, Manifest(EPOCH, ATTEMPT, Mode.ALIGNED, dict.fromkeys(files, EPOCH), {}), files, deployment)
    of_state = [[file for file in of_task.files if file.groups is not None] for of_task in files.values()]
    return tuple(tuple(str(Path(store.path, file.name)) for file in of_task) for of_task in of_state if of_task)


def write_task(folder: str, id: TaskId, keys: int, seed: int) -> TaskFiles:
    """Write the part of one task."""
    deployment: Deployment = expand(make_flow().plan(), TASKS, "slice")
    task = deployment.tasks[id]
    snapshot = TaskSnapshot(
        id,
        EPOCH,
        ATTEMPT,
        {name: _state(name, id.index, keys, seed) for name in task.operators},
        tuple(InputRecord(channel.id, channel.is_back, 0, 0) for channel in task.inputs),
        tuple(OutputRecord(channel.id, 0, 0) for channel in task.outputs),
    )
    kinds = {name: operator.kind.word for name, operator in deployment.plan.operators.items()}
    return CutStore(folder, JOB).write_task(ATTEMPT, EPOCH, snapshot, kinds=kinds)


def _state(operator: str, index: int, keys: int, seed: int) -> OperatorState:
    if operator == "numbers":
        return OperatorState(splits={f"{index}-of-{TASKS}": pickle.dumps(0, 5)})
    if operator != "profiles":
        return OperatorState()
    chance, numbers = np.random.default_rng(seed + index), np.arange(keys, dtype=np.int64)
    of_keys = key_groups(numbers)
    values = {
        key: chance.bytes(VALUE_BYTES)
        for group in groups_of_task(index, TASKS)
        for key in numbers[of_keys == group].tolist()
    }
    return OperatorState(encode_entries(operator, values))

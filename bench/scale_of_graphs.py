"""What a graph of many tasks costs before a record moves and at each cut, in one process, without Ray.

`python -m bench.scale_of_graphs SHAPE TASKS` runs every step once and prints a line of JSON: tasks, channels, and
for each step its CPU seconds and the memory in MB that it takes at its peak beyond what was there before.
"""

from __future__ import annotations

import json
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from zlib import crc32

from msgspec.structs import replace

from backedge import Collect, Flow, Range
from backedge.engine.io.files.objects_in_memory import ObjectsInMemory
from backedge.graphs.checks import check
from backedge.graphs.deployment import Channel, Deployment, Task
from backedge.graphs.describing import describe_plan
from backedge.graphs.expansion import expand, resized
from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.graphs.plan import loops_of_edges
from backedge.recovery.cut.cut import (
    InputRecord,
    LogEntry,
    OperatorState,
    OutputRecord,
    TaskSnapshot,
    Transaction,
)
from backedge.recovery.protocol.effects import Acknowledge, AcknowledgeEnd, Committed, Effect, Report
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import AppendEntry, Entry, Manifest, Numbered, Order
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from backedge.recovery.protocol.supervisor import Coordinator, Supervisor
from backedge.recovery.restore.outline import CutOutline
from backedge.recovery.restore.plan import plan_restore, with_unpublished
from backedge.recovery.spark.audit.job_documents import judge_documents, read_documents
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.documents import sealed
from backedge.recovery.stores.manifests import manifest_document
from backedge.recovery.stores.settling import Settling
from backedge.recovery.stores.task_files import TaskFiles
from backedge.recovery.stores.task_tables import write_files
from bench.metering import Meter

STAGES_PER_LOOP = 9
STAGE_TASKS = 100
BATCHES = 12_345
"""How many batches have passed through each channel: a manifest has their digits."""

T = TypeVar("T")


def stages(tasks: int) -> Flow:
    """Keyed operators of 100 tasks each, and a loop over every nine of them: a hundred channels for a task."""
    return _chained("stages", tasks // STAGE_TASKS, STAGE_TASKS)


def operators(tasks: int) -> Flow:
    """As many operators as tasks, each with one task."""
    return _chained("operators", tasks, 1)


def wide(tasks: int) -> Flow:
    """Ten operators with a tenth of the tasks each. One edge of a loop is all to all, the others are one to one."""
    flow = Flow("wide")
    again = flow.loop("again")
    size = tasks // 10
    stream = flow.read(Range(0), name="numbers", parallelism=size).merge(again)
    for number in range(8):
        # Operators with other resources are not chained.
        stream = stream.map(_same, name=f"stage {number}", parallelism=size, num_cpus=1 + number % 2)
    done, rest = stream.rebalance().split(bool, name="odd", parallelism=size)
    again.feed(rest)
    done.write(Collect(), name="done", parallelism=size)
    return flow


SHAPES: Mapping[str, Callable[[int], Flow]] = {"stages": stages, "operators": operators, "wide": wide}


def _chained(name: str, count: int, size: int) -> Flow:
    """Keyed operators in a row, each with this number of tasks."""
    flow = Flow(name)
    stream = flow.read(Range(0), name="numbers", parallelism=size)
    left = count - 2
    while left > 0:
        steps = min(STAGES_PER_LOOP, left)
        again = flow.loop(f"again {left}")
        stream = stream.merge(again)
        for _ in range(steps - 1):
            left -= 1
            stream = stream.key_by(_same).stateful_map(_count, initial=0, name=f"count {left}", parallelism=size)
        left -= 1
        stream, rest = stream.key_by(_same).split(bool, parallelism=size)
        again.feed(rest)
    stream.key_by(_same).write(Collect(), name="done", parallelism=size)
    return flow


def _same(number: int) -> int:
    return number


def _count(seen: int, number: int) -> tuple[int, int]:
    return seen + 1, number


class Steps:
    """The steps of one graph, in the order of a run: each is metered under its name."""

    def __init__(self, make: Callable[[int], Flow], tasks: int) -> None:
        self.meter = Meter()
        self.flow = self.meter("declare", lambda: make(tasks))
        self.plan = self.meter("plan", self.flow.plan)
        self.meter("checks", lambda: check(self.plan))
        self.meter("loops", lambda: (self.plan.trips, loops_of_edges(self.plan.edges)))
        self.deployment = self.meter("expand", lambda: expand(self.plan))
        # Each process of a run gets all of it.
        data = self.meter("pack", lambda: pickle.dumps(self.deployment, 5))
        self.deployment_bytes = len(data)
        self.meter("unpack", lambda: pickle.loads(data))
        self.files = dict(_files(self.deployment))
        self.manifest_bytes = 0

    def figures(self) -> dict[str, Any]:
        """Take every step."""
        supervisor, chain = Supervisor("4f.01", snapshots=SnapshotOptions(files_max=8)), list[Numbered]()
        self.meter("claim", lambda: self._lead(supervisor, chain))
        coordinator = _leader(supervisor)
        manifest = self.meter("epoch", lambda: self._epoch(supervisor, chain))
        self.meter("probe", lambda: self._probe(coordinator))
        self.meter("ends", lambda: self._ends(coordinator, supervisor, chain))
        self.meter("claim again", lambda: self._lead(Supervisor("5e.01"), chain))
        outline = self._outline()
        plans = self.meter("restore", lambda: plan_restore(outline, self.deployment))
        names = [name for names in manifest.transactions.values() for name in names]
        self.meter("unpublished", lambda: with_unpublished(plans, names, self.deployment))
        sizes = {name: max(1, size * 4 // 5) for name, size in self.deployment.parallelism.items()}
        other = self.meter("resize", lambda: resized(self.deployment, sizes))
        self.meter("rescale", lambda: plan_restore(outline, other))
        self._manifest(manifest, chain)
        return {
            "tasks": len(self.deployment.tasks),
            "channels": len(self.deployment.channels),
            "steps": self.meter.found,
            "manifest_bytes": self.manifest_bytes,
            "deployment_bytes": self.deployment_bytes,
        }

    # -- the protocol --------------------------------------------------------------------------------------------

    def _lead(self, supervisor: Supervisor, chain: list[Numbered]) -> None:
        """Claim an attempt, and have all tasks restored and started."""
        _carried_out(supervisor, supervisor.begin(chain), chain)
        supervisor.on_placed(self.deployment.tasks)
        for task in self.deployment.tasks:
            supervisor.on_restored(task, supervisor.attempt)
        supervisor.on_started(self.deployment, 0)

    def _epoch(self, supervisor: Supervisor, chain: list[Numbered]) -> Manifest:
        """A whole epoch: trigger, an acknowledgement from each task, manifest, complete, published."""
        coordinator = _leader(supervisor)
        coordinator.start(Mode.ALIGNED, 0)
        epoch = Epoch(coordinator.next_epoch - 1)
        orders: list[Order] = []
        for task in self.deployment.tasks.values():
            orders += self._tell(coordinator, task.id, Acknowledge(epoch, self.report(task)))
        _carried_out(supervisor, orders, chain)
        for task in self.deployment.tasks:
            self._tell(coordinator, task, Committed(epoch))
        entry = chain[-1].entry
        if not isinstance(entry, Manifest) or coordinator.unpublished:
            raise RuntimeError("the epoch is not complete")
        return entry

    def _probe(self, coordinator: Coordinator) -> None:
        """A probe that finds every loop in use."""
        coordinator.probes.is_due(60_000, coordinator.ended)
        coordinator.start(Mode.PROBE, 0)
        epoch = Epoch(coordinator.next_epoch - 1)
        for task in self.deployment.tasks.values():
            self._tell(coordinator, task.id, Acknowledge(epoch, self.report(task)))
        if coordinator.open:
            raise RuntimeError("the probe is not complete")

    def _ends(self, coordinator: Coordinator, supervisor: Supervisor, chain: list[Numbered]) -> None:
        """All tasks end while an epoch is open, which their last states complete."""
        coordinator.start(Mode.ALIGNED, 0)
        orders: list[Order] = []
        for task in self.deployment.tasks.values():
            report = replace(self.report(task), transactions=(), ended=frozenset(c.id for c in task.inputs))
            orders += self._tell(coordinator, task.id, AcknowledgeEnd(report, Epoch(0), Epoch(0)))
        _carried_out(supervisor, orders, chain)
        if coordinator.open:
            raise RuntimeError("the epoch of tasks that have ended is not complete")

    def _tell(self, coordinator: Coordinator, task: TaskId, effect: Effect) -> list[Order]:
        return coordinator.on_report(task, coordinator.attempt, effect, 0)

    def report(self, task: Task) -> Report:
        """What a task acknowledges."""
        return Report({}, frozenset(), False, self.files[task.id].transactions)

    # -- the store -----------------------------------------------------------------------------------------------

    def _outline(self) -> CutOutline:
        tasks = {task: files.outline for task, files in self.files.items()}
        return CutOutline(Epoch(1), self.plan.hash, self.deployment.parallelism, tasks)

    def _manifest(self, entry: Manifest, chain: list[Numbered]) -> None:
        """Encode the manifest; write it, read it, and audit it as far as that needs no Spark."""
        document = self.meter("manifest", lambda: manifest_document(entry, self.files, self.deployment, {}))
        data = self.meter("encode", lambda: sealed(document, None))
        self.manifest_bytes = len(data)
        begin = next(numbered for numbered in chain if numbered.entry.attempt == entry.attempt)
        with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
            store = CutStore(folder, "scale")
            store.describe_graph(self.plan.hash, describe_plan(self.plan))
            store.create(1, begin.entry)
            self.meter("write", lambda: store.create(2, entry, self.files, self.deployment))
            again = CutStore(folder, "scale")
            self.meter("read", lambda: again.manifest_of(entry.epoch))
            job = JobFolder.open(store.path)
            found = self.meter("audit", lambda: judge_documents(read_documents(job, "latest")))
        if wrong := [str(finding) for of_cut in found.values() for finding in of_cut.findings]:
            raise RuntimeError(f"the audit has found {len(wrong)} faults, first {wrong[0]}")


def _leader(supervisor: Supervisor) -> Coordinator:
    if supervisor.coordinator is None:
        raise RuntimeError("the attempt has no coordinator")
    return supervisor.coordinator


def _carried_out(supervisor: Supervisor, orders: list[Order], chain: list[Numbered]) -> None:
    """Append what is to be appended; all other orders are for ports."""
    ahead = list(orders)
    while ahead:
        order = ahead.pop()
        if isinstance(order, AppendEntry):
            entry: Entry = order.entry
            chain.append(Numbered(order.number, entry))
            ahead += supervisor.on_appended(entry)


def _files(deployment: Deployment) -> Iterator[tuple[TaskId, TaskFiles]]:
    """What the tasks have written: positions of sources, a transaction for each task of the sink, a batch in each loop.

    A keyed state has no rows here: its facts in the manifest are the same.
    """
    kinds = {name: operator.kind.word for name, operator in deployment.plan.operators.items()}
    loops = {edge.name: edge.loop for edge in deployment.plan.edges if edge.loop is not None}
    for task in deployment.tasks.values():
        snapshot = TaskSnapshot(
            task.id,
            Epoch(1),
            Attempt(1),
            {name: _state(name, task.id.index, deployment) for name in task.operators},
            tuple(
                InputRecord(c.id, c.is_back, BATCHES, _digest(c), _log(c.id, is_back=c.is_back)) for c in task.inputs
            ),
            tuple(OutputRecord(c.id, BATCHES, _digest(c)) for c in task.outputs),
        )
        yield task.id, write_files(Attempt(1), Epoch(1), snapshot, loops, kinds, Settling(_Nowhere(), 1 << 60))


def _state(name: str, index: int, deployment: Deployment) -> OperatorState:
    if name == "numbers":
        return OperatorState(splits={f"{index}-of-{deployment.parallelism[name]}": b"7"})
    if name == "done":
        return OperatorState(transactions=(Transaction(f"done.{index}.attempt-1.epoch-1", Epoch(1), Attempt(1)),))
    return OperatorState()


def _digest(channel: Channel) -> int:
    return 0 if channel.within_actor else crc32(str(channel.id).encode())


def _log(channel: ChannelId, *, is_back: bool) -> tuple[LogEntry, ...]:
    return (LogEntry(BATCHES, b"batch", 5, 6),) if is_back and channel.sender.index == channel.receiver.index else ()


class _Nowhere(ObjectsInMemory):
    def write(self, files: Mapping[str, bytes]) -> None:
        """Only what the manifest says of them is needed."""


if __name__ == "__main__":
    print(json.dumps(Steps(SHAPES[sys.argv[1]], int(sys.argv[2])).figures()))

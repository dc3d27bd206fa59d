"""A consistent cut with any number of rows: half of them keyed state, half of them batches in a loop log."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from backedge import Collect, Flow, Range
from backedge.graphs.deployment import Deployment
from backedge.graphs.describing import describe_plan
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.graphs.routing import groups_of_task, key_groups
from backedge.recovery.cut.cut import InputRecord, LogEntry, OperatorState, OutputRecord, TaskSnapshot
from backedge.recovery.cut.keyed_parts import Numbers
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import AttemptStart, Manifest
from backedge.recovery.stores.cut_store import CutStore

TASKS = 8
PAYLOADS = 1_000
EPOCH, ATTEMPT = Epoch(1), Attempt(1)


def write_large_cut(root: str, job: str, rows: int, seed: int) -> str:
    """Create the folder of a job with one cut of this many rows."""
    deployment = expand(_flow().plan(), TASKS)
    store = CutStore(root, job)
    store.describe_graph(deployment.plan.hash, describe_plan(deployment.plan))
    logs = dict(_logs(deployment, rows // 2 // TASKS, seed))
    digests = {channel: log[-1].digest_after for channel, log in logs.items()}
    kinds = {name: operator.kind.word for name, operator in deployment.plan.operators.items()}
    loops = {edge.name: edge.loop for edge in deployment.plan.edges if edge.loop is not None}
    keys = np.arange(rows // 2, dtype=np.int64) + seed
    groups = key_groups(keys)
    files = {}
    for id, task in deployment.tasks.items():
        states = {name: _state(name, id, keys, groups) for name in task.operators}
        snapshot = TaskSnapshot(
            id,
            EPOCH,
            ATTEMPT,
            states,
            tuple(InputRecord(c.id, c.is_back, 0, 0, logs.get(c.id, ())) for c in task.inputs),
            tuple(OutputRecord(c.id, len(logs.get(c.id, ())), digests.get(c.id, 0)) for c in task.outputs),
        )
        files[id] = store.write_task(ATTEMPT, EPOCH, snapshot, loops=loops, kinds=kinds)
    store.create(1, AttemptStart(ATTEMPT, None))
    filed = dict.fromkeys(files, EPOCH)
    store.create(2, Manifest(EPOCH, ATTEMPT, Mode.ALIGNED, filed, {}), files, deployment)
    return str(Path(store.path))


def _flow() -> Flow:
    flow = Flow("large")
    again = flow.loop("again")
    keyed = flow.read(Range(0), name="numbers").merge(again).key_by(_same)
    done, rest = keyed.stateful_map(_count, initial=0, name="count").split(_is_odd, name="odd")
    again.feed(rest.key_by(_same))
    done.write(Collect(), name="done")
    return flow


def _same(number: int) -> int:
    return number


def _count(seen: int, number: int) -> tuple[int, int]:
    return seen + 1, number


def _is_odd(number: int) -> bool:
    return number % 2 == 1


def _logs(deployment: Deployment, entries: int, seed: int) -> Iterator[tuple[ChannelId, tuple[LogEntry, ...]]]:
    """Each task of the head has as many batches from the next task, in another actor, with a record in each."""
    payloads = [pickle.dumps(([number + seed], 0), 5) for number in range(PAYLOADS)]
    for channel in deployment.channels.values():
        if channel.is_back and channel.id.sender.index == (channel.id.receiver.index + 1) % TASKS:
            log: list[LogEntry] = []
            before = 0
            for seq in range(1, entries + 1):
                payload = payloads[seq % PAYLOADS]
                after = zlib.crc32(payload, before)
                log.append(LogEntry(seq, payload, before, after))
                before = after
            yield channel.id, tuple(log)


def _state(name: str, task: TaskId, keys: np.ndarray, groups: np.ndarray) -> OperatorState:
    if name == "numbers":
        return OperatorState(splits={f"{task.index}-of-{TASKS}": pickle.dumps(0, 5)})
    if name != "count":
        return OperatorState()
    of_task = groups_of_task(task.index, TASKS)
    order = np.argsort(groups, kind="stable")
    order = order[np.isin(groups[order], of_task)]
    return OperatorState((Numbers("i", groups[order].astype(np.int32), keys[order], np.ones(len(order), np.int64)),))

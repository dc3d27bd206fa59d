"""Versions on Ray: a learner and its workers die, and what is read is what this attempt or its cut has published."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from backedge import Collect, Context, Flow, Items, Process, run
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.actor.host_memory import BoardReader
from backedge.recovery.stores.cut_store import CutStore
from tests.faults.evidence import Evidence
from tests.gates import HANG_S, LOOK_S, Gate
from tests.on_ray.flows import finish
from tests.on_ray.test_constants_on_ray import mapped

WORKERS, LENGTH, KEEP = 2, 500_000, 3
BYTES = 8 * LENGTH


def training(gate: Gate, seen: Gate, *, are_elsewhere: bool = False) -> Flow:
    """The learner publishes an array and waits until all workers have read it, until the gate is open.

    What it publishes depends on its process, so an attempt publishes other values than the one before. It goes on until
    every number that a lost attempt has published, as `seen` says, stands for a value of its own. Workers that are
    elsewhere cannot map the learner's memory.
    """
    flow = Flow("training")
    weights = flow.versions("weights", keep=KEEP)
    back = flow.loop("back", of=tuple)

    class Learn(Process[Any, Any]):
        def on_record(self, ctx: Context[Any], value: Any) -> None:
            number, read, content = ctx.state.get((0, WORKERS - 1, None))
            if read + 1 < WORKERS:
                ctx.state.set((number, read + 1, content))
            elif not gate.is_open or number < seen.allowed:
                if number and not is_full(weights[number]["array"], content):
                    raise AssertionError(f"number {number} does not stand for {content}")
                content = os.getpid() * 1_000 + number
                number = ctx.publish(weights, {"array": np.full(LENGTH, content)})
                seen.let(max(number, seen.allowed))
                ctx.state.set((number, 0, content))
                ctx.emit((number, content))

    def work(told: tuple[int, int]) -> tuple[int, bool, str]:
        number, content = told
        if are_elsewhere:
            cast(Any, BoardReader).opened = lambda offer: None
        array = weights[number]["array"]
        return number, is_full(array, content), mapped(array)

    told = flow.read(Items([()]), name="begin").merge(back).process(Learn, name="learn", parallelism=1)
    worked = told.broadcast().map(work, name="work", parallelism=WORKERS)
    back.feed(worked.map(lambda made: made[:1]))
    worked.write(Collect(), name="worked")
    return flow


def is_full(array: Any, content: int) -> bool:
    return len(array) == LENGTH and bool((array == content).all())


def free_bytes() -> float:
    """How much of the shared memory of the cluster holds no object."""
    return cluster.ray.available_resources()["object_store_memory"]


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_a_learner_and_a_worker_die_and_every_number_stands_for_what_was_published(tmp_path: Path, evidence: Evidence):
    cuts, gate, seen, free = tmp_path / "cuts", Gate(tmp_path / "gate"), Gate(tmp_path / "seen"), free_bytes()
    kills = ["work/1@epoch=3", "learn/0@epoch=6"]
    seen.let(KEEP + 2)
    _, result = finish(training(gate, seen), gate=gate, snapshots=cuts, every=0.2, kills=kills, actors="task")
    evidence.happened("processes that died", len(result.kills))
    worked = result.outputs["worked"]
    last = max(number for number, *_ in worked)
    evidence.same([record[:2] for record in worked], [(1 + n // WORKERS, True) for n in range(WORKERS * last)])
    assert {place.split()[1] for *_, place in worked} >= {"/memfd:backedge-version"}
    assert not any(place.startswith("0 ") for *_, place in worked), (
        "memory that a process shares with no other is of no file"
    )
    store = CutStore(str(cuts), "training")
    named = {file for epoch in store.cuts() for file in store.manifest_of(epoch).shared}
    there = {f"constants/{path.name}": path.stat().st_size for path in (cuts / "training" / "constants").iterdir()}
    assert there == {file.name: file.size for file in named}
    kept = [(len(cut.shared), cut.size) for cut in map(store.manifest_of, store.cuts())]
    assert all(count <= KEEP and count * BYTES < size < (count + 0.5) * BYTES for count, size in kept)
    evidence.cuts(cuts)
    until_s = time.monotonic() + HANG_S
    while free_bytes() < free - BYTES:
        assert time.monotonic() < until_s, "versions are left in shared memory"
        time.sleep(LOOK_S)


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
@pytest.mark.parametrize("are_elsewhere", [False, True])
def test_versions_of_a_run_that_keeps_no_cuts_are_in_memory_on_each_host(tmp_path: Path, are_elsewhere: bool):
    gate, seen = Gate(tmp_path / "gate"), Gate(tmp_path / "seen")
    gate.open()
    seen.let(5)
    flow = training(gate, seen, are_elsewhere=are_elsewhere)
    worked = run(flow, progress=False, parallelism=2, actors="task").outputs["worked"]
    assert sorted(record[:2] for record in worked) == [(1 + n // WORKERS, True) for n in range(10)]
    files = {place.split()[1] for *_, place in worked}
    if are_elsewhere:
        assert len(files) == 1 and "plasma" in files.pop()
    else:
        assert files == {"/memfd:backedge-version"}

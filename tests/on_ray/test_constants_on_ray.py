"""A constant on Ray: processes map the same memory, also one that replaces another; each cut names its one file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backedge import Collect, Context, Flow, GraphMismatchError, Process, Range, run
from backedge.recovery.stores.cut_store import CutStore
from tests.faults.evidence import Evidence
from tests.gates import Gate, Gated
from tests.on_ray.flows import finish

COUNT, PRICES = 100, 100_000


class Priced(Process[int, Any]):
    def __init__(self, prices: Any) -> None:
        self.prices = prices

    def on_record(self, ctx: Context[Any], value: int) -> None:
        ctx.emit((value, int(self.prices[value]), os.getpid(), mapped(self.prices)))


def mapped(array: Any) -> str:
    """The number, the path and the device of the file that holds the memory of an array."""
    place = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, _, device, inode, *path = line.split()
        start, end = (int(address, 16) for address in addresses.split("-"))
        if start <= place < end:
            return f"{inode} {' '.join(path)} {device}"
    raise LookupError(f"{place:x} is not mapped")


def priced(gate: Gate, **prices: Any) -> Flow:
    flow = Flow("priced")
    constant = flow.constant("prices", **prices)
    numbers = flow.read(Gated(Range(COUNT), gate, COUNT // 2), name="numbers").rebalance()
    numbers.process(Priced, prices=constant, parallelism=2, name="priced").write(Collect(), name="out")
    return flow


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_tasks_in_processes_of_their_own_have_one_copy_and_it_is_that_of_the_cut(tmp_path: Path, evidence: Evidence):
    calls, cuts, gate = tmp_path / "calls", tmp_path / "cuts", Gate(tmp_path / "gate")

    def load() -> Any:
        with calls.open("a") as file:
            file.write("called\n")
        return np.arange(PRICES) * 2

    _, result = finish(priced(gate, load=load), gate=gate, snapshots=cuts, every=0.2, kills=["priced/1@epoch=3"])
    evidence.happened("processes that died", len(result.kills))
    evidence.same([record[:2] for record in result.outputs["out"]], [(n, 2 * n) for n in range(COUNT)])
    assert len({pid for _, _, pid, _ in result.outputs["out"]}) == 3, "two tasks, and the one in place of a dead one"
    (place,) = {where for _, _, _, where in result.outputs["out"]}
    assert not place.startswith("0 "), "memory that a process shares with no other is of no file"
    assert calls.read_text().count("called") == 1
    store = CutStore(str(cuts), "priced")
    named = {store.manifest_of(epoch).constants["prices"].name for epoch in store.cuts()}
    assert named == {f"constants/{path.name}" for path in (cuts / "priced" / "constants").iterdir()}
    evidence.cuts(cuts)
    with pytest.raises(GraphMismatchError, match="constant 'prices' has another value"):
        run(priced(gate, value=np.arange(PRICES)), snapshots=str(cuts), resume="latest", progress=False)

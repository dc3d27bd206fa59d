"""A function that takes long for a record holds up no cut, however much waits before it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from backedge import Call, Flow, Generate, start
from tests.on_ray.flows import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

RECORD_S = 0.05
WAITING_BYTES_MAX = 100_000


def forget(records: list[int]) -> None:
    """A sink that keeps nothing."""


def test_cuts_go_on_while_a_function_is_slow(tmp_path: Path):
    """If all that the source can read waited before it, each cut would take minutes, or hold megabytes."""

    def weigh(number: int) -> int:
        time.sleep(RECORD_S)
        return number

    flow = Flow("slow")
    numbers = flow.read(Generate(lambda position: position), name="numbers").rebalance()
    numbers.map(weigh, name="weigh").rebalance().write(Call(forget), name="forget")
    job = start(flow, snapshots=tmp_path, every=None, keep=100, parallelism=2, actors="task", progress=False)
    for held in (50, 100, 150):
        until(job, lambda story, held=held: story.by_task().get(("weigh", 0), 0) > held, "records are weighed")
        job.cut()
    assert job.stop().state == "stopped"
    assert max(path.stat().st_size for path in tmp_path.rglob("*.parquet")) < WAITING_BYTES_MAX

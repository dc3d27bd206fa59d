"""A function that takes long for a record holds up no cut, however much waits before it."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from backedge import Call, Flow, Generate, start
from recovery.orders import Manifest
from recovery.stores.cut_store import CutStore
from tests.on_ray.flows import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

EVERY_S = 1.0
CUT_S_MAX = 5.0
LONG_S = 600


def forget(records: list[int]) -> None:
    """A sink that keeps nothing."""


@pytest.mark.timeout(LONG_S + 300)
@pytest.mark.parametrize(
    ("record_s", "seconds"),
    [
        (0.05, 8),
        pytest.param(0.05, LONG_S, marks=pytest.mark.long),
        pytest.param(0.005, LONG_S, marks=pytest.mark.long),
    ],
)
def test_cuts_go_on_while_a_function_is_slow(tmp_path: Path, record_s: float, seconds: int):
    def weigh(number: int) -> int:
        time.sleep(record_s)
        return number

    flow = Flow("slow")
    numbers = flow.read(Generate(lambda position: position), name="numbers").rebalance()
    numbers.map(weigh, name="weigh").rebalance().write(Call(forget), name="forget")
    job = start(flow, snapshots=tmp_path, every=EVERY_S, keep=10_000, parallelism=2, actors="task", progress=False)
    until(job, lambda story: story.snapshots >= 1, "the first cut")
    time.sleep(seconds)
    result = job.stop()
    written = written_at_s(tmp_path)
    print(f"{len(written)} cuts, {result.records} records, {result.snapshots_with_log} cuts with a log")
    assert result.state == "stopped"
    assert result.by_task["weigh/0"] > 0.5 * seconds / record_s, "it was busy all the time"
    assert len(written) >= seconds / (EVERY_S + CUT_S_MAX)
    assert max(after - before for before, after in pairwise(written)) <= EVERY_S + CUT_S_MAX
    waiting = max((path.stat().st_size for path in tmp_path.rglob("*.parquet")), default=0)
    assert waiting < 100_000, "what waits before it is what it does in half a second, not megabytes"


def written_at_s(root: Path) -> list[float]:
    """When each cut was complete, by the time of its manifest."""
    entries = [entry for entry in CutStore(str(root), "slow").chain() if isinstance(entry, Manifest)]
    folders = [root / "slow" / f"epoch={entry.epoch}" / f"attempt={entry.attempt}" for entry in entries]
    return [path.stat().st_mtime for folder in folders for path in folder.glob("manifest-*.json")]

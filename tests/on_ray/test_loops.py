"""Loops that grow: what does not fit into memory waits on disk, and what does not fit there fails the run in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from backedge import Collect, Flow, LoopOverflowError, Range, run, start
from backedge.engine.on_ray.supervisor.run_story import Story
from tests.faults.evidence import Evidence
from tests.on_ray.flows import watch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

ROUNDS, COUNT = 10, 400
PADDING = "x" * 200
LEAVES_BYTES = COUNT * 2**ROUNDS * len(PADDING)
MEMORY_BYTES_MAX = 120_000_000


def fork(record: tuple[int, str]) -> list[tuple[int, str]]:
    """Two records that share nothing, or one would travel as a reference to the other."""
    depth, text = record
    return [(depth, text + "a"), (depth, text + "b")]


def tree(count: int, rounds: int) -> Flow:
    """Each record yields two, `rounds` deep; what leaves is counted, so that the output is small."""
    flow = Flow("tree")
    again = flow.loop("again")
    begun = flow.read(Range(count), name="numbers").map(lambda number: (0, f"{number}{PADDING}"), name="begin")
    grown = begun.rebalance().merge(again).map(lambda record: (record[0] + 1, record[1]), name="grow")
    twice = grown.rebalance().flat_map(fork, name="fork")
    done, rest = twice.split(lambda record: record[0] == rounds, name="enough")
    again.feed(rest.rebalance())
    leaves = done.map_batches(lambda records: [len(records)], name="count").rebalance()
    leaves.process(Total, name="total", parallelism=1).write(Collect(), name="done")
    return flow


class Total:
    """The sum of what comes."""

    def on_record(self, ctx: object, value: int) -> None:
        ctx.state.set((ctx.state.get() or 0) + value)  # type: ignore[attr-defined]

    def on_end(self, ctx: object) -> None:
        ctx.emit(ctx.state.get())  # type: ignore[attr-defined]


def memory_bytes_max(pid: int) -> int:
    """The most memory that a process has had; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def test_a_loop_that_doubles_ten_times_with_credit_for_one_batch_finishes_in_bounded_memory(evidence: Evidence):
    job = start(tree(COUNT, ROUNDS), actors="task", credit_bytes=1, loop_bytes=20_000, progress=False)
    idle: dict[int, int] = {}
    most: dict[int, int] = {}
    spilled = 0

    def look(story: Story) -> None:
        nonlocal spilled
        spilled = max(spilled, story.total().spilled_bytes)
        for pid in story.pids.values():
            most[pid] = max(most.get(pid, 0), memory_bytes_max(pid))
            idle.setdefault(pid, most[pid])

    result = watch(job, look)
    evidence.happened("bytes of a loop that did not fit into memory", spilled)
    evidence.same(result.outputs["done"], [COUNT * 2**ROUNDS])
    grown = max(most[pid] - idle[pid] for pid in most)
    assert grown < MEMORY_BYTES_MAX, f"{grown:,} bytes more than at the start; all leaves are {LEAVES_BYTES:,}"
    evidence.survived("processes whose memory stayed below the bound", len(most))


def test_a_loop_that_outgrows_its_disk_fails_the_run_in_words(tmp_path: Path, evidence: Evidence):
    """One record is enough: its last round has a million, more than the tasks can have in hand."""
    with pytest.raises(LoopOverflowError, match=r"need more than their 100,000 bytes of disk: .* loop_disk_bytes="):
        run(
            tree(count=1, rounds=20),
            snapshots=tmp_path,
            actors="task",
            credit_bytes=1,
            loop_bytes=20_000,
            loop_disk_bytes=100_000,
            progress=False,
        )
    evidence.happened("loops that outgrew their disk", 1)
    evidence.survived("runs that failed in words", 1)

"""A living run gets another number of tasks: in one run, from its own cut, with a gap that is told."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow, Job, JsonLines, Range, RequestFailedError, Stream, start
from tests.faults.evidence import Evidence
from tests.gates import Gate, Gated
from tests.on_ray.flows import Record, expect, held_back, trips, trips_made, until
from tests.on_ray.leftovers import actors_below, end, supervisor_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

COUNT, TRIPS = 40, 5


def begun(flow: Flow) -> Stream[Record]:
    """What enters the loop. Once it is read, a source that gets more tasks has some that end at once."""
    numbers = flow.read(Range(COUNT), name="numbers")
    return numbers.map(lambda number: (number, 0), name="begin")


def circling(gate: Gate, **placing: Any) -> Flow:
    """Every number goes round the loop so often. Head, body and sink are tasks of their own."""
    flow = Flow("circling")
    again = flow.loop("again")
    numbers = begun(flow)
    keyed = numbers.merge(again).key_by(lambda record: record[0])
    grown = keyed.stateful_map(held_back(gate), initial=0, name="grow", **placing)
    done, rest = grown.rebalance().split(lambda record: record[1] >= TRIPS, name="enough", **placing)
    again.feed(rest.rebalance())
    done.rebalance().write(Collect(), name="done")
    return flow


def tasks_of(job: Job, operator: str = "grow") -> int:
    """How many processes of an operator run."""
    story = until(job, lambda story: story.state == "running", "it runs")
    return sum(actor.startswith(f"{operator}/") for actor in story.pids)


def test_a_free_loop_is_rescaled_three_times_and_keeps_its_tasks_when_its_supervisor_dies(
    tmp_path: Path, evidence: Evidence
):
    before, gate = actors_below(os.getpid()), Gate(tmp_path / "gate")
    job = start(circling(gate), snapshots=tmp_path / "cuts", every=0.2, actors="task", progress=False)
    until(job, lambda story: story.snapshots_with_log, "records are in the loop")
    for tasks in (2, 1, 3):
        assert job.rescale(tasks) > 0
        assert tasks_of(job) == tasks
    assert job.rescale({"grow": 3}) == 0, "nothing is left to do"
    end(supervisor_of(before))
    until(job, lambda story: story.restarts == 1 and story.state == "running", "the supervisor is replaced")
    assert tasks_of(job) == 3, "its successor knows of the rescale"
    gate.open()
    result = job.wait()
    evidence.happened("supervisors of rescaled runs that died", 1)
    evidence.same(result.outputs["done"], trips_made(COUNT, TRIPS))
    assert [rescale["tasks"]["grow"] for rescale in result.rescales] == [[1, 2], [2, 1], [1, 3]]
    assert all(rescale["gap_ms"] > 0 for rescale in result.rescales)
    assert sum(rescale["in_loop_records"] for rescale in result.rescales) > 0, "in the middle of the loop"
    assert len(result.restores) == 1, "a rescale is no failure"
    evidence.cuts(tmp_path / "cuts")


class Hoarder:
    """Passes on what it gets, and has a state that cannot be divided, as shows only when it is tried."""

    def __init__(self) -> None:
        self.seen = 0

    def on_record(self, ctx: Any, record: int) -> None:
        self.seen += 1
        ctx.emit((record, self.seen))

    def capture(self) -> int:
        return self.seen

    def restore(self, state: int) -> None:
        self.seen = state

    @staticmethod
    def merge(states: list[int]) -> int:
        raise ArithmeticError("these counts cannot be added")

    @staticmethod
    def split(state: int, parts: int) -> list[int]:
        return [state, *[0] * (parts - 1)]


def test_a_rescale_whose_state_cannot_be_divided_is_refused_and_the_run_goes_on(tmp_path: Path):
    flow, gate = Flow("hoarding"), Gate(tmp_path / "gate")
    numbers = flow.read(Gated(Range(COUNT), gate, COUNT // 2), name="numbers", parallelism=1)
    numbers.rebalance().process(Hoarder, name="hoard", parallelism=1).write(Collect(), name="done")
    job = start(flow, snapshots=tmp_path / "cuts", every=0.2, actors="slice", progress=False)
    until(job, lambda story: story.snapshots, "a cut is complete")
    with pytest.raises(RequestFailedError, match=r"was refused, and the run goes on as before: .*these counts cannot"):
        job.rescale({"hoard": 2})
    until(job, lambda story: story.state == "running", "it runs as before")
    gate.open()
    result = job.wait()
    assert {name for name in result.by_task if name.startswith("hoard/")} == {"hoard/0"}
    assert sorted(result.outputs["done"]) == [(number, number + 1) for number in range(COUNT)]
    assert len(result.restores) == 1 and result.rescales == ()


def test_a_rescale_that_cannot_be_carried_out_leaves_the_run_as_it_is(tmp_path: Path):
    """For want of room it waits; a wrong one is refused at once."""
    gate = Gate(tmp_path / "gate")
    job = start(circling(gate, num_cpus=0.9), snapshots=tmp_path / "cuts", every=0.2, actors="task", progress=False)
    until(job, lambda story: story.snapshots, "a cut is complete")
    with pytest.raises(RequestFailedError, match="no operator 'shrink' to rescale; its operators are 'numbers'"):
        job.rescale({"shrink": 2})
    with pytest.raises(RequestFailedError, match="128 key groups"):
        job.rescale(1000)
    with ThreadPoolExecutor(1) as client:
        asked = client.submit(job.rescale, {"grow": 2})
        told = "the rescale waits, and the run goes on as before: actor circling/grow/1 needs a machine with 0.9 CPU"
        until(job, lambda story: any(told in line for line in story.lines), "it is told what is missing")
        gate.open()
        expect(job.wait(), trips_made(COUNT, TRIPS))
        with pytest.raises(RequestFailedError, match=r"superseded by the end of the run|the run is over"):
            asked.result()
    assert job.result is not None and job.result.rescales == () and job.result.restores == ()


def test_parts_that_wait_when_the_run_is_rescaled_are_published_once(tmp_path: Path):
    """The files would roll at a size that they never reach, or at the end."""
    gate, out = Gate(tmp_path / "gate"), tmp_path / "out"
    sink = JsonLines(str(out), roll_bytes=10**9, roll_s=None)
    flow = trips(count=100, gate=gate, sink=sink)
    job = start(flow, snapshots=tmp_path / "cuts", every=0.1, parallelism=2, progress=False)
    for tasks, count in ((3, 35), (1, 45)):
        gate.let(count)  # of each of the two splits
        until(job, lambda _: any(out.glob("_staging/trips/done/prepared/*")), "parts wait")
        published = set(out.glob("*.jsonl"))
        assert job.rescale(tasks) > 0
        until(job, lambda _, known=published: set(out.glob("*.jsonl")) > known, "what waited is published")
    gate.open()
    job.wait()
    found = [tuple(json.loads(line)) for file in out.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert sorted(found) == trips_made(100)

"""A living run gets another number of tasks: in one run, from its own cut, with a gap that is told."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow, Job, Range, RequestFailedError, Stream, start
from backedge.command import main
from tests.on_ray.flows import Record, expect, held_back, trips_made, until
from tests.on_ray.leftovers import actors_below, end
from tests.on_ray.test_recovery import supervisor_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

COUNT, TRIPS = 40, 150


def begun(flow: Flow) -> Stream[Record]:
    """What enters the loop. It keeps its one task: an operator that has ended in part cannot be rescaled."""
    numbers = flow.read(Range(COUNT), name="numbers", parallelism=1)
    return numbers.map(lambda number: (number, 0), name="begin", parallelism=1)


def circling(gate: Path, **placing: Any) -> Flow:
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


def in_rounds(gate: Path) -> Flow:
    """The same in rounds."""
    flow = Flow("in_rounds")
    step = held_back(gate)

    def body(records: Stream[Record]) -> Stream[Record]:
        return records.key_by(lambda record: record[0]).stateful_map(step, initial=0, name="grow").rebalance()

    flow.iterate(begun(flow).rebalance(), body, rounds=TRIPS, name="again").rebalance().write(Collect(), name="done")
    return flow


def tasks_of(job: Job, operator: str = "grow") -> int:
    """How many processes of an operator run."""
    story = until(job, lambda story: story.state == "running", "it runs")
    return sum(actor.startswith(f"{operator}/") for actor in story.pids)


def test_a_free_loop_is_rescaled_three_times_and_keeps_its_tasks_when_its_supervisor_dies(spark: Any, tmp_path: Path):
    before, gate = actors_below(os.getpid()), tmp_path / "gate"
    job = start(circling(gate), snapshots=tmp_path, every=0.2, actors="task", parallelism=2, progress=False)
    until(job, lambda story: story.snapshots_with_log, "records are in the loop")
    for tasks in (3, 1, 4):
        assert job.rescale(tasks) > 0
        assert tasks_of(job) == tasks
    assert job.rescale({"grow": 4}) == 0, "nothing is left to do"
    end(supervisor_of(before))
    until(job, lambda story: story.restarts == 1 and story.state == "running", "the supervisor is replaced")
    assert tasks_of(job) == 4, "its successor knows of the rescale"
    gate.touch()
    result = job.wait()
    expect(result, trips_made(COUNT, TRIPS))
    assert [rescale["tasks"]["grow"] for rescale in result.rescales] == [[2, 3], [3, 1], [1, 4]]
    assert all(rescale["gap_ms"] > 0 for rescale in result.rescales)
    assert sum(rescale["in_loop_records"] for rescale in result.rescales) > 0, "in the middle of the loop"
    assert len(result.restores) == 1, "a rescale is no failure"
    assert main(["audit", str(tmp_path / "circling"), "--epoch", "all"]) == 0


def test_an_iteration_is_rescaled_between_two_rounds(tmp_path: Path):
    gate = tmp_path / "gate"
    job = start(in_rounds(gate), snapshots=tmp_path, every=0.2, actors="slice", parallelism=2, progress=False)
    until(job, lambda story: story.snapshots, "a cut is complete while rounds go on")
    for tasks in (3, {"grow": 1}):
        assert job.rescale(tasks) > 0
    gate.touch()
    result = job.wait()
    expect(result, trips_made(COUNT, TRIPS))
    assert [rescale["tasks"]["grow"] for rescale in result.rescales] == [[2, 3], [3, 1]]


def test_a_rescale_that_cannot_be_carried_out_leaves_the_run_as_it_is(tmp_path: Path):
    """For want of room it waits; a wrong one is refused at once."""
    gate = tmp_path / "gate"
    job = start(circling(gate, num_cpus=0.9), snapshots=tmp_path, every=0.2, actors="task", progress=False)
    until(job, lambda story: story.snapshots, "a cut is complete")
    with pytest.raises(RequestFailedError, match="no operator 'shrink' to rescale; its operators are 'numbers'"):
        job.rescale({"shrink": 2})
    with pytest.raises(RequestFailedError, match="128 key groups"):
        job.rescale(1000)
    with ThreadPoolExecutor(1) as client:
        asked = client.submit(job.rescale, {"grow": 2})
        told = "the rescale waits, and the run goes on as before: actor circling/grow/1 needs a machine with 0.9 CPU"
        until(job, lambda story: any(told in line for line in story.lines), "it is told what is missing")
        gate.touch()
        expect(job.wait(), trips_made(COUNT, TRIPS))
        with pytest.raises(RequestFailedError, match=r"superseded by the end of the run|the run is over"):
            asked.result()
    assert job.result is not None and job.result.rescales == () and job.result.restores == ()

"""A detached run goes on when its driver is gone. It is found by the name of its job, joined, steered and followed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from backedge import (
    BadOptionError,
    Collect,
    Flow,
    Items,
    Job,
    NoSuchRunError,
    Range,
    RunAliveError,
    attach,
    run,
    start,
)
from backedge.command import main
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.actor import supervisor_watch
from backedge.engine.on_ray.api import detached_runs, starting
from backedge.engine.on_ray.api.detached_runs import SPACE, NoAnswerError
from backedge.engine.on_ray.api.living_runs import LivingRuns
from backedge.recovery.stores.run_status import RunStatus
from tests.faults.evidence import Evidence
from tests.gates import HANG_S, Gate, Gated, wait_for
from tests.jobs.rays import last_json
from tests.on_ray.drivers import GATE, LONG, RESULT_KEPT_S, ROOT, begin_detached, driver, long_trips, next_line
from tests.on_ray.flows import Record, told, trips_made, until, with_function
from tests.on_ray.leftovers import actors_below, end, has_ended, supervisor_of
from tests.on_ray.standing_still import let_stand_still, wake

MADE = trips_made(LONG["count"], LONG["trips"])
SILENCE_S = 3.0


@pytest.fixture
def address(on_ray: None) -> str:
    """Where drivers that are processes of their own find the Ray of this process."""
    return cluster.ray.get_runtime_context().gcs_address


def expect_gone(job: str) -> None:
    """The supervisor ends by itself, for good."""
    wait_for(lambda: cluster.find_actor(job, SPACE) is None, f"the supervisor of {job} ends")
    with pytest.raises(NoSuchRunError, match=f"no detached run of job '{job}'"):
        attach(job)


def end_at_once(job: str) -> None:
    """End a supervisor that keeps the result of its run for those who ask for it later."""
    supervisor = cluster.find_actor(job, SPACE)
    if supervisor is not None:
        cluster.kill(supervisor)


@pytest.mark.slow
def test_a_run_outlives_its_driver_a_task_and_its_supervisor(address: str, tmp_path: Path, evidence: Evidence):
    before = actors_below(os.getpid())
    with driver("tests.on_ray.drivers", "detach", str(tmp_path), address=address) as started:
        pids = next_line(started)["pids"]
        started.kill()
        assert started.wait() == -signal.SIGKILL
        job = attach("trips", progress=False)
        alone = until(job, lambda story: story.state == "running", "it runs")
        assert alone.total().records < LONG["count"] * LONG["trips"], "the driver died in the middle"
    end(next(iter(pids.values())))
    later = until(job, lambda story: story.restarts == 1 and story.state == "running", "the task is replaced")
    assert later.restores[0]["in_loop_records"] > 0, "records were in the loop"
    end(supervisor_of(before))
    until(job, lambda story: story.restarts == 2 and story.state == "running", "the supervisor is replaced")
    Gate(tmp_path / GATE).open()
    result = job.wait()
    evidence.happened("drivers, tasks and supervisors that died", 3)
    evidence.same(result.outputs["done"], MADE)
    again = attach("trips", progress=False).wait()
    assert again.state == "finished" and again.outputs == result.outputs
    evidence.cuts(tmp_path / "trips")
    expect_gone("trips")


@pytest.fixture
def is_ours_to_keep(on_ray: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may start detached runs although it has started Ray: a driver of its own takes seconds to start.

    Nothing but the refusal differs for them, and `test_a_run_outlives_its_driver_a_task_and_its_supervisor` has such a
    driver.
    """
    monkeypatch.setattr(cluster, "ends_with_us", lambda: False)
    monkeypatch.setattr(starting, "RESULT_KEPT_S", RESULT_KEPT_S)


@pytest.fixture
def living(is_ours_to_keep: None, tmp_path: Path) -> Iterator[Job]:
    """A detached run, followed by its name as from another process."""
    begin_detached(tmp_path)
    yield attach("trips", progress=False)
    end_at_once("trips")


@pytest.mark.slow
@pytest.mark.usefixtures("is_ours_to_keep")
def test_the_processes_of_the_tasks_end_when_their_supervisor_is_gone_for_good(tmp_path: Path):
    flow = long_trips(tmp_path)
    grow = flow.draft.operators["grow"].function

    def grow_and_look_often(rounds: int, record: Record) -> tuple[int, Record]:
        supervisor_watch.GONE_LOOK_S = 0.2
        return grow(rounds, record)

    pids = begin_detached(tmp_path, with_function(flow, "grow", grow_and_look_often)).status().pids
    cluster.kill(cluster.find_actor("trips", SPACE))
    assert pids and all(has_ended(pid) for pid in pids.values())


def again(folder: Path, **options: Any) -> Job:
    """Start the same job again."""
    given = {"every": 0.2, "actors": "slice", "resume": "latest", "progress": False, **options}
    return start(long_trips(folder), snapshots=folder, **given)


@pytest.mark.slow
def test_starting_the_same_job_again_joins_it_and_its_cancellation_ends_all_of_it(
    living: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(RunAliveError, match=r"parallelism=2, not 1; resume='never', not 'latest': .*backedge attach"):
        again(tmp_path, parallelism=2, resume="never")
    other = Flow("trips")
    other.read(Items([1]), name="one").write(Collect(), name="done")
    with pytest.raises(RunAliveError, match="another graph"):
        start(other, snapshots=tmp_path, every=0.2, actors="slice", resume="latest", progress=False)
    joined = again(tmp_path, progress=True)
    assert "joined it, nothing was started" in capsys.readouterr().err
    pids = living.status().pids
    with ThreadPoolExecutor(1) as follower:
        followed = follower.submit(attach("trips", progress=False).wait)
        assert main(["cancel", "trips"]) == 0
        assert "trips: cancelled" in capsys.readouterr().out
        assert joined.wait().state == followed.result().state == "cancelled"
    assert living.wait().restores == (), "nobody fought"
    assert all(has_ended(pid) for pid in pids.values())


@pytest.mark.slow
def test_commands_steer_a_run_from_any_terminal(
    living: Job, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["--snapshots", str(tmp_path), "--every", "0.2", "--actors", "slice", "--resume", "latest"]
    given = {**LONG, "gate": tmp_path / GATE}
    settings = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "backedge", "run", "tests.on_ray.flows:trips", *settings, *words]
    environment = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as joined:
        assert joined.stderr is not None
        assert any("joined it" in line for line in joined.stderr)
        assert any("Ctrl-C leaves it alone" in line for line in joined.stderr)
        joined.send_signal(signal.SIGINT)
        left = joined.stderr.read()
        assert joined.wait() == 130
    assert "the run goes on without this process" in left and "backedge stop trips" in left
    assert living.status().state == "running"
    assert main(["savepoint", "trips", "--name", "kept", "--json"]) == 0
    assert last_json(capsys.readouterr().out)["savepoint"] == "kept"
    assert main(["rescale", "trips", "--parallelism", "2", "--json"]) == 0
    assert last_json(capsys.readouterr().out)["gap_ms"] > 0
    assert main(["stop", "trips", "--json"]) == 0
    assert last_json(capsys.readouterr().out)["state"] == "stopped"
    assert living.wait().state == "stopped"
    assert main(["attach", "trips", "--json"]) == 0, "its end is still told"
    told = capsys.readouterr()
    assert last_json(told.out)["state"] == "stopped"
    assert "has ended" in told.err and "Ctrl-C" not in told.err


NEARLY_NEVER = "0.000001/s"
"""A task reads a record at once, and the next one after eleven days."""


@pytest.mark.slow
@pytest.mark.usefixtures("is_ours_to_keep")
def test_a_rate_is_changed_and_outlives_a_task_and_the_supervisor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], evidence: Evidence
):
    gate, count, first = Gate(tmp_path / GATE), 60, 4
    flow, before = Flow("slow"), actors_below(os.getpid())
    numbers = flow.read(Gated(Range(count), gate, first), name="numbers", parallelism=1)
    numbers.rebalance().map(abs, name="same", parallelism=1).write(Collect(), name="done")
    job = start(flow, snapshots=tmp_path, every=0.2, actors="task", detached=True, progress=False)

    def read(status: RunStatus) -> tuple[str, int]:
        return status.operators[0].rate, status.operators[0].tasks[0].records_in

    told(job, lambda status: read(status) == ("", first), "the first are read")
    assert main(["rate", "slow", "numbers", NEARLY_NEVER, "--json"]) == 0
    assert last_json(capsys.readouterr().out)["rate"] == "1e-06/s"
    job.cut()  # its source task gets orders one after the other, and has had that one
    gate.open()
    for attempt in (1, 2, 3):
        more = ("1e-06/s", 1 + first if attempt == 1 else 1)
        told(job, lambda status, more=more: read(status) == more, "one more is read")
        assert job.cut() < job.cut()
        assert job.status().state == "running", "a source without a limit would have read all, and the run be over"
        if attempt < 3:
            end(next(iter(job.status().pids.values())) if attempt == 1 else supervisor_of(before))
            until(
                job,
                lambda story, restarts=attempt: story.restarts == restarts and story.state == "running",
                "it runs again",
            )
    assert main(["rate", "slow", "nmbers", "5/s"]) == 2
    assert "the flow has no source 'nmbers'; its sources are 'numbers'" in capsys.readouterr().err
    assert main(["rate", "slow", "numbers", "0/s"]) == 2
    assert main(["rate", "slow", "numbers", "off"]) == 0
    evidence.happened("tasks and supervisors that died", job.status().restarts)
    evidence.same(job.wait().outputs["done"], range(count))
    end_at_once("slow")


@pytest.mark.slow
def test_of_two_processes_that_start_a_job_at_once_one_joins_the_other(address: str, tmp_path: Path):
    """First when there is no run, then when one has just ended and its supervisor still has the name."""
    with (
        driver("tests.on_ray.drivers", "race", str(tmp_path), address=address) as one,
        driver("tests.on_ray.drivers", "race", str(tmp_path), address=address) as other,
    ):
        for process in (one, other):
            next_line(process)
        for gate in (False, True):
            assert Gate(tmp_path / GATE).is_open == gate
            for process in (one, other):
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
            for process in (one, other):
                next_line(process)
            Gate(tmp_path / GATE).open()
            attempts: list[int] = []
            for process in (one, other):
                end = next_line(process)
                attempts.append(end["attempt"])
                assert (end["state"], len(end["done"])) == ("finished", len(MADE))
            assert attempts[0] == attempts[1] > 0, "they follow the same run"
    expect_gone("trips")


def test_a_name_that_another_process_has_taken_meanwhile_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    ended: list[Any] = []
    names = iter(["the one that has ended", "the one that another process has started"])
    monkeypatch.setattr(cluster, "kill", ended.append)
    monkeypatch.setattr(cluster, "find_actor", lambda name, space: next(names))
    detached_runs._free_name("trips", "the one that has ended")
    assert ended == ["the one that has ended"] and not list(names)


def test_a_run_that_is_not_detached_is_told_from_one_that_is_not_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster, "connect", lambda must_exist: None)
    monkeypatch.setattr(cluster, "find_actor", lambda name, space: None)
    monkeypatch.setattr(cluster, "named_actors", lambda: [("shop/supervisor", f"{SPACE}-1-f00d"), ("rank", SPACE)])
    with pytest.raises(NoSuchRunError, match=r"a run of job 'shop' is alive and not detached.*--detached"):
        attach("shop")
    with pytest.raises(NoSuchRunError, match=r"no detached run of job 'shp' is alive on this cluster.*'rank'"):
        attach("shp")


@pytest.mark.slow
@pytest.mark.usefixtures("is_ours_to_keep")
def test_a_supervisor_that_dies_after_the_end_does_not_begin_the_run_again(tmp_path: Path):
    before = actors_below(os.getpid())
    begin_detached(tmp_path)
    job = attach("trips", progress=False)
    assert job.stop().state == "stopped"
    last = job.status()
    end(supervisor_of(before))
    ended = attach("trips", progress=False)
    story = until(ended, lambda story: story.restarts == 1, "its successor answers")
    assert (story.state, story.last_epoch, story.pids) == ("stopped", last.last_epoch, {})
    assert ended.wait().state == "stopped"
    expect_gone("trips")
    assert again(tmp_path).stop().state == "stopped", "and a later start continues it"


@pytest.mark.slow
@pytest.mark.usefixtures("is_ours_to_keep")
def test_a_supervisor_that_is_stopped_is_told_of_and_replaced(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    evidence: Evidence,
):
    monkeypatch.setattr(detached_runs, "ANSWER_TOLD_S", 0.2)
    monkeypatch.setattr(detached_runs, "ANSWER_TIMEOUT_S", 1.0)
    before = actors_below(os.getpid())
    begin_detached(tmp_path, silence_timeout=SILENCE_S)
    living = attach("trips", progress=False)
    supervisor, tasks = supervisor_of(before), living.status().pids.values()
    # The tasks would have it replaced.
    let_stand_still([supervisor, *tasks])
    runs = LivingRuns(timeout_s=0.5)
    assert runs.ask() == []
    runs._timeout_s = HANG_S
    assert runs.ask() == [], "and it is not waited for again"
    assert main(["attach", "trips"]) == 2
    told = capsys.readouterr().err
    assert "waiting for 1 s at most" in told and "its process is stopped or waits for a machine" in told
    with pytest.raises(NoAnswerError):
        again(tmp_path, silence_timeout=SILENCE_S)
    wake(tasks)
    until(living, lambda story: story.restarts == 1 and story.state == "running", "it is replaced")
    evidence.happened("supervisors that were stopped, and ended", has_ended(supervisor))
    assert [status.job for status in LivingRuns().ask()] == ["trips"]
    Gate(tmp_path / GATE).open()
    evidence.same(living.wait().outputs["done"], MADE)
    evidence.cuts(tmp_path / "trips")
    end_at_once("trips")


@pytest.mark.usefixtures("on_ray")
def test_a_cluster_that_ends_with_the_process_is_refused(tmp_path: Path):
    with pytest.raises(BadOptionError, match=r"this process has started the Ray .*ray start --head"):
        run(long_trips(tmp_path), snapshots=tmp_path, detached=True, progress=False)
    assert main(["attach", "trips"]) == 2


def test_what_only_a_driver_supplies_is_refused(tmp_path: Path):
    with pytest.raises(BadOptionError, match=r"sink 'done', whose records would be lost .*snapshots="):
        run(long_trips(tmp_path), detached=True)
    with pytest.raises(BadOptionError, match=r"audit='final' and detached=True.*backedge audit"):
        run(long_trips(tmp_path), snapshots="cuts", audit="final", detached=True)


def test_more_data_in_a_flow_than_outlives_the_driver_is_refused():
    most = bytes(starting.DETACHED_BYTES_MAX)
    assert b"".join(starting._pieces(most, is_detached=True)) == most
    with pytest.raises(BadOptionError, match=r"carries 8,000,001 bytes.*read the data from files"):
        starting._pieces(most + b"1", is_detached=True)
    assert sum(map(len, starting._pieces(most + b"1", is_detached=False))) == len(most) + 1

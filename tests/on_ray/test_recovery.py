"""A run goes on from its last cut, whatever dies: every record counts once."""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow, Job, Range, RunFailedError, start
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.supervisor.run_figures import LOST
from backedge.engine.on_ray.supervisor.run_story import Story
from backedge.graphs.ids import TaskId
from backedge.recovery.protocol.chain_view import run_of
from backedge.recovery.protocol.orders import AttemptStart, Manifest
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.stored_status import stored_status
from tests.faults.evidence import Evidence
from tests.gates import Gate, Gated, wait_for
from tests.on_ray.flows import begin, expect, finish, killed, trips, trips_made, until
from tests.on_ray.leftovers import actors_below, end, has_ended, supervisor_of
from tests.on_ray.standing_still import let_stand_still

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

SILENCE_S = 3.0


KILLS = ["source@epoch=1", "head@epoch=2", "body@loop=3", "sink@epoch=4", "head@epoch=5"]


@pytest.mark.parametrize(("actors", "parallelism"), [("task", 1), pytest.param("slice", 2, marks=pytest.mark.long)])
def test_each_role_may_die_in_its_turn(tmp_path: Path, actors: Any, parallelism: int, evidence: Evidence):
    """Between a capture and the manifest, an earlier cut is restored; after a cut with a loop log, that one is."""
    gate, cuts = Gate(tmp_path / "gate"), tmp_path / "cuts"
    options: dict[str, Any] = {"every": 0.2, "actors": actors, "parallelism": parallelism, "spares": 1}
    _, result = finish(trips(count=100, gate=gate), gate=gate, snapshots=cuts, kills=KILLS, **options)
    evidence.happened("processes that died", sum(has_ended(kill["pid"], 0) for kill in result.kills))
    assert sorted(killed(result)) == sorted(KILLS)
    restored = {kill: restore["epoch"] for kill, restore in zip(killed(result), result.restores, strict=True)}
    assert restored.pop("source@epoch=1") is None
    assert restored.pop("body@loop=3") >= 3
    assert None not in restored.values()
    evidence.happened("records restored from a loop log", sum(one["in_loop_records"] for one in result.restores))
    evidence.happened("cuts with records in the loop", result.snapshots_with_log)
    evidence.same(result.outputs["done"], trips_made(100))
    evidence.cuts(cuts)


def test_a_run_without_a_cut_begins_anew_and_its_records_are_counted_over_attempts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """The head processes 600 records from beginning to end: in no single attempt would it come to 800."""
    kills = ["head@records=300", "head@records=800"]
    job, result = finish(trips(count=120), snapshots=tmp_path, every=None, actors="slice", kills=kills, spares=1)
    expect(result, trips_made(120))
    assert killed(result) == kills
    assert [restore["epoch"] for restore in result.restores] == [None, None]
    assert result.by_task["grow/0"] == 800 + 600
    # References to its actors among the arguments of the supervisor would be lost with their owner.
    assert not job.is_detached and "SupervisorActor" not in capfd.readouterr().err, "Ray warns of nothing"


def test_processes_that_die_at_random_lose_nothing_of_unaligned_cuts(tmp_path: Path, evidence: Evidence):
    gate, kills = Gate(tmp_path / "gate"), ["random@every=500ms"]
    options: dict[str, Any] = {"every": 0.1, "parallelism": 2, "spares": 2, "max_restarts": 100, "policy": "unaligned"}
    _, result = finish(trips(count=100, gate=gate), gate=gate, snapshots=tmp_path / "cuts", kills=kills, **options)
    expect(result, trips_made(100))
    evidence.happened("processes that died at random", len(result.kills))


@pytest.mark.parametrize("who", [*(pytest.param(who, marks=pytest.mark.long) for who in ("source", "head")), "sink"])
def test_a_death_near_the_end_loses_nothing(tmp_path: Path, who: str, evidence: Evidence):
    """The last cut is taken when all tasks have ended; whoever has ended says so again."""
    flow = trips(count=150)
    records = {"source": 150, "head": 750, "sink": 150}[who]
    kills = [f"{who}@records={records}"]
    _, result = finish(flow, snapshots=tmp_path, every=0.05, actors="task", kills=kills, spares=1)
    assert killed(result) == kills
    evidence.happened("processes that died near the end", len(result.kills))
    evidence.same(result.outputs["done"], trips_made(150))
    evidence.cuts(tmp_path)


def test_a_death_while_a_source_has_ended_and_another_is_idle_loses_nothing(tmp_path: Path, evidence: Evidence):
    """Cuts are complete on the last state of the one and without a record of the other."""
    flow, gate, cuts = Flow("two_sources"), Gate(tmp_path / "gate"), tmp_path / "cuts"
    short = flow.read(Range(10), name="short").rebalance()
    long = flow.read(Gated(Range(200, start=10), gate, 50), name="long").rebalance()
    idle = flow.read(Gated(Range(202, start=200), gate, 1), name="idle").rebalance()
    merged = short.merge(long).merge(idle)
    merged.map(lambda number: -number, name="turn").rebalance().write(Collect(), name="done")
    kills = ["turn@epoch=4"]
    _, result = finish(flow, gate=gate, snapshots=cuts, every=0.15, actors="task", kills=kills, spares=1, keep=1_000)
    assert len(result.restores) == 1 and result.restores[0]["epoch"] is not None
    evidence.happened("processes that died", len(result.kills))
    store = CutStore(str(cuts), "two_sources")
    parts = [store.cut(entry.epoch).snapshots for entry in store.chain() if isinstance(entry, Manifest)]
    evidence.happened("cuts in which a source had ended", sum(cut[TaskId("short", 0)].ended for cut in parts))
    idle_tasks = [cut[TaskId("idle", 0)] for cut in parts]
    positions = Counter(str(task.operators["idle"].splits) for task in idle_tasks if not task.ended)
    evidence.happened("cuts between which a source had nothing to read", max(positions.values()) - 1)
    evidence.same(result.outputs["done"], [-number for number in range(202)])
    evidence.cuts(cuts)


def test_a_spare_takes_the_place_of_the_dead_and_healthy_processes_roll_back_in_place(tmp_path: Path):
    gate, cuts = Gate(tmp_path / "gate"), tmp_path / "cuts"
    job = start(trips(count=50, gate=gate), snapshots=cuts, every=0.1, actors="task", spares=1, progress=False)
    # Four tasks, their supervisor and the spare.
    until(job, lambda story: story.last_epoch and len(actors_below(os.getpid())) == 6, "the spare is there")
    story = job.status()
    spares = set(actors_below(os.getpid())) - set(story.pids.values())
    end(story.pids["grow/0"])
    later = until(job, lambda later: later.attempt == 2 and later.state == "running", "it has recovered")
    assert later.pids["grow/0"] in spares
    stayed = {actor for actor, pid in later.pids.items() if story.pids[actor] == pid}
    assert stayed == story.pids.keys() - {"grow/0"}
    gate.open()
    expect(job.wait(), trips_made(50))


def lose_supervisor(job: Job, before: dict[int, str], cuts: int) -> tuple[Story, Story]:
    """Kill the supervisor after `cuts` complete cuts.

    Returns its last story, and that of its successor once all tasks run again.
    """
    story = until(job, lambda story: story.state == "running" and story.snapshots >= cuts, "a cut is complete")
    pid = supervisor_of(before)
    end(pid)
    assert has_ended(pid)
    later = until(job, lambda later: later.restarts > story.restarts and later.state == "running", "it is replaced")
    assert later.attempt > story.attempt
    return story, later


def test_a_supervisor_that_dies_is_replaced_and_the_run_ends_once(tmp_path: Path, evidence: Evidence):
    """Twice: the second death meets the successor. The processes of the tasks stay.

    The flow has a constant, which goes with the first supervisor.
    """
    before, gate, cuts = actors_below(os.getpid()), Gate(tmp_path / "gate"), tmp_path / "cuts"
    flow = trips(count=50, gate=gate, has_constant=True)
    job = start(flow, snapshots=cuts, every=0.1, actors="slice", progress=False)
    first, second = lose_supervisor(job, before, cuts=1)
    _, third = lose_supervisor(job, before, cuts=second.snapshots + 1)
    assert first.pids == second.pids == third.pids
    gate.open()
    result = job.wait()
    evidence.happened("supervisors that died", 2)
    evidence.same(result.outputs["done"], trips_made(50))
    evidence.cuts(cuts)
    assert len(result.restores) == 2
    claims = [entry for entry in CutStore(str(cuts), "trips").chain() if isinstance(entry, AttemptStart)]
    assert len({entry.claimant for entry in claims}) == 3 and len({run_of(entry.claimant) for entry in claims}) == 1
    status = stored_status(CutStore(str(cuts), "trips"), time.time())
    assert [failure.reason for failure in status.failures] == [LOST, LOST]


def test_a_successor_keeps_the_processes_of_the_driver_that_leave_the_attempt_and_takes_requests(tmp_path: Path):
    """A process that the dead supervisor has started ends with it, and one that does not leave is replaced."""
    before, gate = actors_below(os.getpid()), Gate(tmp_path / "gate")
    flow = trips(count=50, gate=gate)
    job = start(flow, snapshots=tmp_path / "cuts", every=0.1, actors="task", progress=False)
    end(until(job, lambda story: story.last_epoch, "a cut is complete").pids["grow/0"])
    second = until(job, lambda story: story.attempt == 2 and story.state == "running", "it is replaced")
    let_stand_still([second.pids["enough/0"]])
    end(supervisor_of(before))
    assert job.savepoint("behind") > (second.last_epoch or 0), "the successor takes it"
    third = until(job, lambda story: story.restarts > second.restarts and story.state == "running", "it goes on")
    replaced = {actor for actor, pid in second.pids.items() if pid != third.pids[actor]}
    assert replaced == {"grow/0", "enough/0"}
    assert all(has_ended(second.pids[actor]) for actor in replaced)
    gate.open()
    expect(job.wait(), trips_made(50))


def test_a_supervisor_that_is_stopped_between_two_attempts_is_replaced(tmp_path: Path, evidence: Evidence):
    """Its next attempt would begin in ten minutes, and no attempt runs whose tasks could miss it."""
    before, gate, cuts = actors_below(os.getpid()), Gate(tmp_path / "gate"), tmp_path / "cuts"
    pausing: dict[str, Any] = {"restart_strategy": "fixed", "restart_pause": 600.0, "silence_timeout": SILENCE_S}
    flow = trips(count=50, gate=gate)
    job = begin(flow, kills=["grow@epoch=2"], snapshots=cuts, every=0.1, actors="task", **pausing)
    paused = until(job, lambda story: any("next attempt begins in" in line for line in story.lines), "it pauses")
    assert any("actor grow/0 died: killed by SIGKILL, as planned" in line for line in paused.lines)
    supervisor = supervisor_of(before)
    let_stand_still([supervisor])
    until(job, lambda story: story.state == "running", "its successor leads the run")
    evidence.happened("supervisors that were stopped between two attempts, and ended", has_ended(supervisor))
    gate.open()
    evidence.same(job.wait().outputs["done"], trips_made(50))
    evidence.cuts(cuts)


def test_a_supervisor_asks_without_a_warning_whether_it_is_a_successor():
    class Asks:
        def asks(self) -> bool:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                return cluster.is_restarted()

    actor = cluster.ray.remote(Asks).remote()
    assert cluster.ray.get(actor.asks.remote()) is False
    cluster.ray.kill(actor)


def test_a_supervisor_that_may_not_be_replaced_fails_the_run(tmp_path: Path):
    before = actors_below(os.getpid())
    flow = trips(count=50, gate=Gate(tmp_path / "gate"))
    job = start(flow, snapshots=tmp_path / "cuts", every=0.1, max_restarts=0, actors="slice", progress=False)
    until(job, lambda story: story.last_epoch, "a cut is complete")
    ours = actors_below(os.getpid()).keys() - before.keys()
    end(supervisor_of(before))
    with pytest.raises(RunFailedError, match=r"the supervisor of the run died: .*; .* resume=\"latest\""):
        job.wait()
    assert all(has_ended(pid) for pid in ours)


def descriptors(pid: int) -> int:
    """How many files and sockets a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_descriptors_do_not_pile_up_from_attempt_to_attempt(tmp_path: Path):
    """What an attempt opens in a process that stays, it closes: mailboxes, threads, calls, timers, spilled loops."""

    async def ask(number: int) -> int:
        return number

    flow, gate = Flow("attempts"), Gate(tmp_path / "gate")
    numbers = flow.read(Gated(Range(100), gate), name="numbers").rebalance()
    numbers.map_async(ask, name="ask").rebalance().write(Collect(), name="done")
    job = start(flow, snapshots=tmp_path / "cuts", every=None, actors="task", spares=1, progress=False)
    opened: list[int] = []
    for attempt in range(1, 7):
        gate.let(10 * attempt)
        story = until(
            job, lambda story, attempt=attempt: story.attempt == attempt and story.state == "running", "it runs"
        )
        job.cut()
        opened.append(descriptors(story.pids["ask/0"]))
        # Ray keeps a connection of its own a while longer now and then, and a cut its files.
        wait_for(lambda pid=story.pids["ask/0"]: descriptors(pid) < opened[min(1, len(opened) - 1)] + 2, opened)
        end(story.pids["numbers/0"])
    job.cancel()

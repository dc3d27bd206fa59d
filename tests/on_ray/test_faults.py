"""Planned faults are understood or refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backedge import Collect, Flow, Items
from backedge.engine.on_ray.job_store import has_records_in_loops
from backedge.engine.on_ray.planned_faults import Kill, KillSpecError, Recurring, check_kills, next_by_records, role_of
from backedge.engine.on_ray.supervisor.planned_kills import PlannedKills
from backedge.engine.on_ray.supervisor.run_story import Story
from backedge.graphs.deployment import Deployment
from backedge.graphs.expansion import expand
from backedge.graphs.ids import TaskId
from backedge.recovery.stores.task_files import LogFigures
from tests.every import every
from tests.gates import Gate
from tests.on_ray.flows import begin, trips, until


def loop() -> Deployment:
    flow = Flow("loop")
    again = flow.loop("again")
    numbers = flow.read(Items([1, 2]), name="numbers").rebalance().map(abs, name="clean")
    grown = numbers.rebalance().merge(again).map(lambda n: n + 1, name="grow")
    done, rest = grown.rebalance().split(lambda n: n > 3, name="enough")
    again.feed(rest.rebalance())
    done.rebalance().write(Collect(), name="done")
    return expand(flow.plan(), parallelism=2)


@every(
    ("text", "kill"),
    [
        ("head@epoch=3", Kill("head", "epoch", 3)),
        ("head@loop=2", Kill("head", "loop", 2)),
        (" count/1@records=100000 ", Kill("count/1", "records", 100_000)),
        ("random@every=2s", Kill("random", "every", 2_000)),
        ("random@every=0.25s", Kill("random", "every", 250)),
        ("random@every=40ms", Kill("random", "every", 40)),
        ("a name@epoch=1", Kill("a name", "epoch", 1)),
    ],
)
def test_a_fault_is_read_from_its_short_form(text: str, kill: Kill):
    assert Kill.parse(text) == kill
    assert Kill.parse(str(kill)) == kill


NO_FAULTS = """head head@ @epoch=1 head@epoch head@epoch= head@epoch=-1 head@epoch=0 head@epoch=1s head@records=0.5
    head@every=2s random@epoch=1 random@loop=1 random@every=2 random@every=0s random@every=2h head@epoch=1@epoch=2
    head@EPOCH=1"""


@every("text", ["", *NO_FAULTS.split()])
def test_what_is_no_fault_is_refused(text: str):
    with pytest.raises(KillSpecError, match="--kill "):
        Kill.parse(text)


def test_every_task_has_a_role():
    tasks = loop().tasks
    roles = {name: role_of(tasks[TaskId(name, 0)]) for name in ("numbers", "clean", "grow", "enough", "done")}
    assert roles == {"numbers": "source", "clean": "body", "grow": "head", "enough": "body", "done": "sink"}


@every(
    ("who", "tasks"),
    [
        ("head", {"grow/0", "grow/1"}),
        ("source", {"numbers/0", "numbers/1"}),
        ("sink", {"done/0", "done/1"}),
        ("enough", {"enough/0", "enough/1"}),
        ("enough/1", {"enough/1"}),
        ("nobody", set[str]()),
    ],
)
def test_a_fault_concerns_the_tasks_that_it_names(who: str, tasks: set[str]):
    kill = Kill(who, "epoch", 1)
    assert {str(task.id) for task in loop().tasks.values() if kill.concerns(task)} == tasks


def test_a_fault_for_an_operator_concerns_the_task_that_it_is_chained_into():
    flow = Flow("chain")
    flow.read(Items([1]), name="numbers").map(abs, name="clean").write(Collect(), name="kept")
    (task,) = expand(flow.plan()).tasks.values()
    concerned = {who for who in ("numbers", "clean", "kept", "other") if Kill(who, "epoch", 1).concerns(task)}
    assert concerned == {"numbers", "clean", "kept"}


def test_a_fault_that_concerns_nobody_is_refused_with_the_tasks_there_are():
    check_kills((Kill("random", "every", 100), Kill("head", "epoch", 1)), loop())
    with pytest.raises(KillSpecError, match=r"--kill grow/7@epoch=1: no task .*grow/1 \(head\)"):
        check_kills((Kill("grow/7", "epoch", 1),), loop())


def test_records_of_earlier_attempts_count_and_the_nearest_fault_is_the_next():
    task = loop().tasks[TaskId("grow", 1)]
    kills = [Kill("head", "records", 100), Kill("grow/1", "records", 70), Kill("sink", "records", 5)]
    assert next_by_records(kills, task, 0) == (kills[1], 70)
    assert next_by_records(kills, task, 60) == (kills[1], 10)
    assert next_by_records(kills[:1], task, 60) == (kills[0], 40)
    assert next_by_records(kills, task, 90) == (kills[1], 1), "it was passed before: due at the next record"
    assert next_by_records([Kill("head", "epoch", 3), Kill("source", "records", 3)], task, 0) is None


@pytest.mark.parametrize(
    ("log", "is_in_a_loop"),
    [
        (LogFigures("again", batches=2, size=90, records=3), True),
        (LogFigures("again", batches=1, size=20, records=0), False),
        (LogFigures("clean.out->grow.in", batches=2, size=90, records=3), False),
    ],
)
def test_a_fault_that_waits_for_records_in_a_loop_does_not_take_those_in_front_of_it(
    log: LogFigures, is_in_a_loop: bool
):
    files: Any = {TaskId("grow", 0): SimpleNamespace(logs=(log,)), TaskId("grow", 1): None}
    assert has_records_in_loops(files, loop().plan) is is_in_a_loop


def test_the_pause_between_random_faults_counts_from_when_all_tasks_run_again():
    """However long the run takes to come back, it has that time to get further."""
    kill = Kill("random", "every", 100)
    recurring = Recurring((Kill("head", "epoch", 1), kill))
    assert recurring.due(5_000) == [], "nothing runs yet"
    recurring.on_running(5_000)
    assert recurring.due(5_099) == []
    assert recurring.due(5_100) == [kill]
    assert recurring.due(5_101) == []
    recurring.on_running(9_000)
    assert recurring.due(9_099) == []
    assert recurring.due(9_100) == [kill]
    assert recurring.due(9_200) == [kill], "a fault that found nobody is due again"


def test_faults_that_leave_no_time_for_a_cut_are_reported_once():
    recurring = Recurring((Kill("random", "every", 100),))
    assert [recurring.on_kill() for _ in range(6)] == [False, False, True, False, False, False]


def test_a_cut_between_two_faults_is_progress():
    recurring = Recurring((Kill("random", "every", 100),))
    reported: list[bool] = []
    for _ in range(4):
        reported += [recurring.on_kill(), recurring.on_kill()]
        recurring.on_cut()
    assert not any(reported)


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_a_run_that_is_killed_before_every_cut_says_why_it_makes_no_progress(tmp_path: Path):
    flow, kills = trips(count=50, gate=Gate(tmp_path / "gate")), ["random@every=0.05s"]
    job = begin(flow, snapshots=tmp_path / "cuts", every=None, kills=kills, spares=2)
    story = until(job, lambda story: any("made no progress" in line for line in story.lines), "it is said")
    assert len(story.kills) >= 3 and not story.last_epoch, "they happened, and no cut was complete"
    (said,) = [line for line in story.lines if "made no progress" in line]
    assert "random@every=0.05s leaves too little time" in said
    job.cancel()
    job.wait()


def test_a_process_that_is_to_die_of_one_fault_is_not_killed_by_another():
    """The second one waits for the next attempt: each fault has a death of its own."""
    dying: set[str] = set()
    crew = SimpleNamespace(on_planned_kill=dying.add, is_to_die=dying.__contains__)
    actors: Any = SimpleNamespace(crew=crew, tell=lambda *order: None, flush=lambda: None)
    first, second = Kill("grow", "epoch", 1), Kill("grow", "records", 120)
    story, task = Story("loop"), TaskId("grow", 0)
    planned = PlannedKills([first, second], 0, story, actors)
    planned.on_reached("slice-0", 9, first, task)
    planned.on_reached("slice-0", 9, second, task)
    assert [kill["fault"] for kill in story.kills] == ["grow@epoch=1"] and planned.left == [second]
    dying.clear()
    planned.on_reached("slice-0", 10, second, task)
    assert len(story.kills) == 2 and not planned.left

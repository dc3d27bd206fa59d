"""A run goes on with a changed flow, exactly once, also when it is killed at once: renamed and added operators,
state of a later version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow, GraphMismatchError, Range, run, start
from backedge.command import main
from backedge.graphs.ids import TaskId
from backedge.recovery.spark.audit.audit_job import audit
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from tests.faults.evidence import Evidence
from tests.gates import Gate, Gated
from tests.on_ray.flows import begin, expect, held_back, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

TRIPS = 5
COUNT = 100


def grow(trips: int, record: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    return trips + 1, (record[0], trips + 1)


def grow_in_a_dict(trips: dict[str, int], record: tuple[int, int]) -> tuple[dict[str, int], tuple[int, int]]:
    return {"trips": trips["trips"] + 1}, (record[0], trips["trips"] + 1)


def in_a_dict(trips: int, version: int) -> dict[str, int]:
    """Applied twice, it makes a state that the function fails for."""
    return {"trips": trips}


def changed(gate: str, grown: str = "grown", shown: bool = True) -> Flow:
    """Every number goes round `TRIPS` times, under state by number: of version 1 in `grow`, of version 2 in `grown`."""
    flow = Flow("changing")
    again = flow.loop("again")
    source = Gated(Range(COUNT), Gate(gate), COUNT // 4)
    numbers = flow.read(source, name="numbers").map(lambda number: (number, 0), name="begin")
    keyed = numbers.merge(again).key_by(lambda record: record[0])
    if grown == "grow":
        counted = keyed.stateful_map(grow, initial=0, name=grown)
    else:
        counted = keyed.stateful_map(grow_in_a_dict, {"trips": 0}, state_version=2, upgrade=in_a_dict, name=grown)
    done, rest = counted.split(lambda record: record[1] >= TRIPS, name="enough")
    again.feed(rest)
    if shown:
        done = done.map(lambda record: record, name="shown")
    done.write(Collect(), name="done")
    return flow


def expect_shown(gate: Gate, cuts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command shows what the change makes of the cut."""
    where = [f"{__name__}:changed", "--set", f"gate={gate}", "--snapshots", str(cuts)]

    def shown(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        return main(["snapshots", "check", *where, *words]), capsys.readouterr().out

    code, told = shown()
    assert code == 1
    assert "added: operator shown" in told and "problem: operator 'grow' is not in the flow any more" in told
    code, told = shown("--rename", "grow=grown", "--json")
    found = json.loads(told)
    assert code == 0 and found["restorable"] and found["renamed"] == {"grow": "grown"} and "shown" in found["added"]
    assert found["upgraded"] == {"grown": [1, 2]}
    code, told = shown("--rename", "grow=grown")
    assert code == 0 and "upgraded: the state of operator grown from version 1 to 2" in told
    code, told = shown("--drop", "grow")
    assert code == 0 and "dropped: the state of operator grow is given up" in told


def stopped_before_the_change(folder: Path) -> Gate:
    """With nothing on its way in the cut: with batches for it, an operator cannot be dropped."""
    gate = Gate(folder / "gate")
    job = start(changed(gate, grown="grow", shown=False), snapshots=folder / "cuts", every=None, progress=False)
    made = COUNT // 4 * TRIPS
    until(job, lambda story: story.by_task().get(TaskId("grow", 0), 0) == made, "all that it may read is through")
    assert job.stop().state == "stopped"
    return gate


def test_a_changed_flow_goes_on_from_the_cut_and_again_if_it_is_killed_before_its_own_first_cut(
    tmp_path: Path, evidence: Evidence, capsys: pytest.CaptureFixture[str]
):
    gate, cuts = stopped_before_the_change(tmp_path), tmp_path / "cuts"
    expect_shown(gate, cuts, capsys)
    flow = changed(gate)
    with pytest.raises(GraphMismatchError, match=r"'grow' is not in the flow any more"):
        run(flow, snapshots=cuts, resume="latest", progress=False)
    evidence.happened("changed graphs that were refused before any record", 1)
    options: dict[str, Any] = {"snapshots": cuts, "resume": "latest", "rename": {"grow": "grown"}}
    gate.let(COUNT // 2)
    job = begin(flow, every=None, kills=["grown@records=5", "grown@records=150"], **options)
    until(job, lambda story: len(story.restores) == 2 and story.state == "running", "it was killed at once")
    own = job.cut()
    gate.open()
    result = job.wait()
    evidence.happened("processes that died", len(result.kills))
    evidence.same(result.outputs["done"], [(number, TRIPS) for number in range(COUNT)])
    evidence.cuts(cuts)
    before, *later = [restore["epoch"] for restore in result.restores]
    assert before < own and later == [before, own]
    # The options of the change may stay: the latest cut has the new graph.
    again = run(flow, progress=False, **options)
    expect(again, [(number, TRIPS) for number in range(COUNT)])


def moving(gate: Gate, source: str = "numbers", sink: str = "done") -> Flow:
    """Every number goes round `TRIPS` times, and number 0 until the gate is open."""
    flow = Flow("moving")
    again = flow.loop("again")
    numbers = flow.read(Gated(Range(COUNT), gate, COUNT // 4), name=source).map(lambda n: (n, 0), name="begin")
    keyed = numbers.merge(again).key_by(lambda record: record[0])
    grown = keyed.stateful_map(held_back(gate), initial=0, name="grow")
    done, rest = grown.split(lambda record: record[1] >= TRIPS, name="enough")
    again.feed(rest)
    done.write(Collect(), name=sink)
    return flow


def test_cuts_are_consistent_whatever_their_run_has_renamed_or_dropped(tmp_path: Path, spark: Any):
    """An operator that begins again counts from zero, and records in a loop come to it in another channel."""
    gate = Gate(tmp_path / "gate")
    runs: list[tuple[Flow, dict[str, Any]]] = [
        (moving(gate), {}),
        (moving(gate, "figures", "more"), {"rename": {"numbers": "figures"}, "drop": ["done"]}),
        (moving(gate, "figures", "more"), {"drop": ["grow"]}),
        (moving(gate, "figures", "more"), {"drop": ["figures", "more"]}),
    ]
    for flow, changes in runs:
        job = start(flow, snapshots=tmp_path, every=None, keep=9, resume="latest", progress=False, **changes)
        until(job, lambda story: story.by_task().get(TaskId("grow", 0), 0) > COUNT, "records go round")
        assert job.stop().state == "stopped"
    verdict = audit(spark, JobFolder.open(str(tmp_path / "moving")), "all")
    assert len(verdict.epochs) == len(runs)
    assert all(cut.sizes["log_batches"] for cut in verdict.epochs), "a record was in the loop"
    assert verdict.consistent, "\n".join(verdict.lines())

"""A run goes on with a changed flow, exactly once, also when it is killed at once: renamed and added operators,
state of a later version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow, GraphMismatchError, Range, run, start
from backedge.command import main
from tests.faults.evidence import Evidence
from tests.on_ray.flows import expect, finish, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

TRIPS = 5
COUNT = 600


def grow(trips: int, record: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    return trips + 1, (record[0], trips + 1)


def grow_in_a_dict(trips: dict[str, int], record: tuple[int, int]) -> tuple[dict[str, int], tuple[int, int]]:
    return {"trips": trips["trips"] + 1}, (record[0], trips["trips"] + 1)


def in_a_dict(trips: int, version: int) -> dict[str, int]:
    """Applied twice, it makes a state that the function fails for."""
    return {"trips": trips}


def changed(rate: float | None = None, grown: str = "grown", shown: bool = True) -> Flow:
    """Every number goes round `TRIPS` times, under state by number: of version 1 in `grow`, of version 2 in `grown`."""
    flow = Flow("changing")
    again = flow.loop("again")
    numbers = flow.read(Range(COUNT, rate=rate), name="numbers").map(lambda number: (number, 0), name="begin")
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


def stopped_before_the_change(folder: Path, policy: str = "aligned") -> None:
    before = changed(rate=150, grown="grow", shown=False)
    job = start(before, snapshots=folder, every=0.1, policy=policy, progress=False)
    until(job, lambda story: story.snapshots >= 2 and story.total().hops > 100, "records circulate")
    assert job.stop().state == "stopped"


def test_a_changed_flow_goes_on_from_the_cut_and_again_if_it_is_killed_before_its_own_first_cut(
    tmp_path: Path, evidence: Evidence
):
    stopped_before_the_change(tmp_path)
    flow = changed(rate=150)
    with pytest.raises(GraphMismatchError, match=r"'grow' is not in the flow any more"):
        run(flow, snapshots=tmp_path, resume="latest", progress=False)
    evidence.happened("changed graphs that were refused before any record", 1)
    options: dict[str, Any] = {"snapshots": tmp_path, "resume": "latest", "rename": {"grow": "grown"}}
    _, result = finish(flow, every=0.3, kills=["grown@records=5", "grown@records=1000"], **options)
    evidence.happened("processes that died", len(result.kills))
    evidence.same(result.outputs["done"], [(number, TRIPS) for number in range(COUNT)])
    evidence.cuts(tmp_path)
    before, at_once, *later = [restore["epoch"] for restore in result.restores]
    assert before == at_once, "the first kill came before the changed flow had a cut of its own"
    assert later and later[0] > before, "the second one came after it had"
    # The options of the change may stay: the latest cut has the new graph.
    again = run(flow, progress=False, **options)
    expect(again, [(number, TRIPS) for number in range(COUNT)])


def test_the_command_shows_the_difference_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    # Nothing is on its way in the cut: with batches for it, an operator cannot be dropped.
    stopped_before_the_change(tmp_path, policy="drain")
    capsys.readouterr()
    where = [f"{__name__}:changed", "--snapshots", str(tmp_path)]
    assert main(["snapshots", "check", *where]) == 1
    told = capsys.readouterr().out
    assert "added: operator shown" in told and "problem: operator 'grow' is not in the flow any more" in told
    assert main(["snapshots", "check", *where, "--rename", "grow=grown", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["restorable"] and found["renamed"] == {"grow": "grown"} and "shown" in found["added"]
    assert found["upgraded"] == {"grown": [1, 2]}
    assert main(["snapshots", "check", *where, "--rename", "grow=grown"]) == 0
    assert "upgraded: the state of operator grown from version 1 to 2" in capsys.readouterr().out
    assert main(["snapshots", "check", *where, "--drop", "grow"]) == 0
    assert "dropped: the state of operator grow is given up" in capsys.readouterr().out

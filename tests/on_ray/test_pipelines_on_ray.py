"""Pipelines of a run fail and recover by themselves: when one dies, the other keeps its attempt and its processes."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow, JsonLines, Range, RequestFailedError
from backedge.command import main
from backedge.recovery.protocol.orders import AttemptStart, Manifest
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.stored_status import stored_status
from tests.faults.evidence import Evidence
from tests.gates import Gate, Gated
from tests.on_ray.flows import begin, expect, finish, held_back, trips_made, until
from tests.on_ray.leftovers import actors_below, end, has_ended, supervisor_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

NAMES = ("left", "right")


def pair(count: int, gate: Gate, out: Path | None = None, names: Sequence[str] = NAMES) -> Flow:
    """Two loops behind a gate that exchange nothing. They write files into folders below `out`, if it is given."""
    flow = Flow("pair")
    for name in names:
        again = flow.loop(f"{name} again")
        numbers = flow.read(Gated(Range(count), gate, count // 4), name=name)
        begun = numbers.map(lambda number: (number, 0), name=f"{name} begin")
        keyed = begun.merge(again).key_by(lambda record: record[0])
        grown = keyed.stateful_map(held_back(gate), initial=0, name=f"{name} grow")
        done, rest = grown.rebalance().split(lambda record: record[1] >= 5, name=f"{name} enough")
        again.feed(rest.rebalance())
        sink = Collect() if out is None else JsonLines(str(out / name), roll_bytes=50, roll_s=None)
        done.write(sink, name=f"{name} done")
    return flow


def attempts_in(folder: Path) -> dict[str | None, list[int]]:
    """The attempts of each pipeline."""
    found: dict[str | None, list[int]] = {}
    for entry in CutStore(str(folder), "pair").chain():
        if isinstance(entry, AttemptStart):
            found.setdefault(entry.pipeline, []).append(entry.attempt)
    return found


def cuts_named(folder: Path, name: str) -> dict[str | None, int]:
    """The cut of each pipeline that is kept under a name."""
    entries = CutStore(str(folder), "pair").chain()
    return {e.pipeline: e.epoch for e in entries if isinstance(e, Manifest) and e.savepoint == name}


def of(pids: dict[str, int], pipeline: str) -> dict[str, int]:
    return {actor: pid for actor, pid in pids.items() if actor.startswith(pipeline)}


def expect_both(result: Any, count: int) -> None:
    for name in NAMES:
        expect(result, trips_made(count), f"{name} done")


@pytest.mark.parametrize("actors", [pytest.param("task", marks=pytest.mark.long), "slice"])
def test_one_pipeline_dies_and_the_other_keeps_its_attempt_and_its_processes(
    tmp_path: Path, actors: str, evidence: Evidence
):
    gate, cuts = Gate(tmp_path / "gate"), tmp_path / "cuts"
    job = begin(pair(100, gate), snapshots=cuts, every=0.1, actors=actors, spares=1)
    before = after = until(job, lambda story: story.state == "running" and story.snapshots >= 4, "both have cuts").pids
    ended: list[int] = []
    for restores in (1, 2):
        ended.append(next(iter(of(after, "right").values())))
        end(ended[-1])
        after = until(job, lambda s, n=restores: len(s.restores) == n and s.state == "running", "it is restored").pids
    gate.open()
    result = job.wait()
    evidence.happened("processes that died", sum(has_ended(pid) for pid in ended))
    assert set(before) == set(after) and not set(of(before, "left").values()) & set(of(before, "right").values())
    assert of(before, "left") == of(after, "left") and of(before, "right") != of(after, "right")
    attempts = attempts_in(cuts)
    assert len(attempts["left"]) == 1 and len(attempts["right"]) == 3
    assert [restore["attempt"] for restore in result.restores] == attempts["right"][1:]
    evidence.survived("pipelines that kept their attempt", 1)
    for name in NAMES:
        evidence.same(result.outputs[f"{name} done"], trips_made(100))
    evidence.cuts(cuts)


def test_a_savepoint_is_a_cut_of_each_pipeline_which_a_successor_continues_and_a_run_resumes_from(tmp_path: Path):
    before, gate, cuts = actors_below(os.getpid()), Gate(tmp_path / "gate"), tmp_path / "cuts"
    job = begin(pair(100, gate), snapshots=cuts, every=0.1)
    epoch = job.savepoint("mine")
    named = cuts_named(cuts, "mine")
    assert set(named) == set(NAMES) and epoch == max(named.values())
    end(supervisor_of(before))
    until(job, lambda story: len(story.restores) == 2 and story.state == "running", "both run again")
    assert all(len(attempts) == 2 for attempts in attempts_in(cuts).values())
    gate.open()
    expect_both(job.wait(), 100)
    for chosen in named.values():
        _, result = finish(pair(100, gate), snapshots=cuts, every=0.1, resume=chosen)
        assert sorted(restore["epoch"] for restore in result.restores) == sorted(named.values())


def test_a_run_that_is_stopped_goes_on_and_one_that_is_through_does_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    gate, cuts = Gate(tmp_path / "gate"), tmp_path / "cuts"
    job = begin(pair(100, gate), snapshots=cuts, every=0.1)
    until(job, lambda story: story.snapshots > 3, "some cuts")
    assert job.stop().state == "stopped"
    assert set(cuts_named(cuts, "stop")) == set(NAMES)
    assert stored_status(CutStore(str(cuts), "pair"), 0.0).state == "stopped"
    gate.open()
    _, result = finish(pair(100, gate), snapshots=cuts, every=0.1, resume="latest")
    expect_both(result, 100)
    known = attempts_in(cuts)
    status = stored_status(CutStore(str(cuts), "pair"), 0.0)
    assert status.state == "finished" and {operator.name for operator in status.operators} >= set(NAMES)
    _, again = finish(pair(100, gate), snapshots=cuts, every=0.1, resume="latest")
    expect_both(again, 100)
    assert {name: len(attempts) for name, attempts in attempts_in(cuts).items()} == {
        name: len(attempts) + 1 for name, attempts in known.items()
    }
    assert main(["snapshots", "list", "--snapshots", str(cuts), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["cuts"]
    assert Counter(cut["pipeline"] for cut in listed).keys() == set(NAMES)
    assert all(cut["restorable"] for cut in listed)


def test_both_pipelines_are_rescaled_or_the_one_that_is_named(tmp_path: Path):
    gate, cuts = Gate(tmp_path / "gate"), tmp_path / "cuts"
    job = begin(pair(100, gate), snapshots=cuts, every=0.1)
    until(job, lambda story: story.snapshots > 1, "some cuts")
    job.rescale({"right grow": 2})
    assert [len(attempts) for _, attempts in sorted(attempts_in(cuts).items(), key=str)] == [1, 2]
    job.rescale(2)
    assert [len(attempts) for _, attempts in sorted(attempts_in(cuts).items(), key=str)] == [2, 3]
    with pytest.raises(RequestFailedError, match="no operator 'up'"):
        job.rescale({"up": 2})
    gate.open()
    expect_both(job.wait(), 100)


def test_a_pipeline_that_fails_for_good_ends_the_run_and_the_other_one(tmp_path: Path):
    flow = pair(100, Gate(tmp_path / "gate"))
    faulty: Sequence[int] = (1, 0)
    flow.read(Range(50), name="third").map(lambda number: 1 // faulty[number // 40], name="divide").write(
        Collect(), name="third done"
    )
    job = begin(flow, snapshots=tmp_path / "cuts", every=0.1)
    with pytest.raises(Exception, match="divide"):
        job.wait()
    assert job.result is not None and job.result.state == "failed"


def test_pipelines_that_replace_their_output_leave_each_record_in_their_files_once(tmp_path: Path):
    """Each goes back to its own cut, and removes the later output of its own sink."""
    gate, cuts, out = Gate(tmp_path / "gate"), tmp_path / "cuts", tmp_path / "out"
    flow = pair(100, gate, out)
    job = begin(flow, snapshots=cuts, every=0.1, keep=1_000)
    until(job, lambda _: all(list((out / name).glob("*.jsonl")) for name in NAMES), "both have a file")
    epoch = job.savepoint("mine")
    there = {name: len(list((out / name).glob("*.jsonl"))) for name in NAMES}
    gate.let(50)
    until(job, lambda _: all(len(list((out / n).glob("*.jsonl"))) > there[n] for n in NAMES), "both have more")
    job.cancel()
    named = cuts_named(cuts, "mine")
    gate.open()
    _, result = finish(flow, snapshots=cuts, every=0.1, resume=epoch, replace_output=True)
    assert sorted(restore["epoch"] for restore in result.restores) == sorted(named.values())
    for name in NAMES:
        files = (out / name).glob("*.jsonl")
        found = Counter(tuple(json.loads(line)) for file in files for line in file.read_text().splitlines())
        assert found == Counter(trips_made(100)), name

"""A benchmark goes red when what was measured does not count, or is too slow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from backedge.engine.on_ray.api.job_handle import RunResult
from backedge.engine.on_ray.supervisor.run_story import Story
from backedge.engine.on_ray.transport.control_messages import Counts
from bench import (
    audit,
    calls,
    count,
    crawl,
    hop,
    increments,
    loop,
    losses,
    ours,
    received,
    recover,
    rescale,
    restore,
    snapshot,
    start,
    superstep,
    versions,
)
from bench.increments_on_ray import CutWindow
from bench.measuring import Report, Samples
from bench.ours import BenchError, Look, Window
from bench.workloads import LoopWorkload, RestoreWorkload
from tests.every import every

LOOPED = Window(seconds=10.1, records_per_s=1.0, hops_per_s=1.0, epochs=10, epochs_with_log=9)
RARE = replace(LOOPED, seconds=30.2, epochs=30)
OFTEN = replace(RARE, epochs=300)
CUTS = CutWindow(Window(12.0, 1.0, 0.0, 118, 0), deltas=40, whole=0, rows=10_000)
LOSSES = losses.Losses(
    **{"kills": 21, "lost": 0, "ended_twice": 0, "needed": 1_750, "paid": 1_800, "answered_again": 0},
    **{"running_again": 50, "progress_s": 1.5, "answers_per_s": 1.0, "lines": 20},
)
DEATHS = calls.Deaths(needed=1_000, paid=1_050, answered_again=0, running_again=50, left_again=0)
RECEIVED = received.Outcome(1_000, 20, 0, 0, 0, 1.0, {"endpoint": 3, "tasks": 3, "supervisor": 3})
CRAWLED = crawl.Deaths(kills=20, lost=0, doubled=0, running_again=30, fetched_again=0)

Figures = Mapping[str, Any]
Found = dict[str, Samples]

COMPARE: dict[str, Callable[[Found, Any], Report]] = {
    "loop": lambda found, window=LOOPED: loop.compare(found, [LOOPED, window, LOOPED]),
    "hop": lambda found: hop.compare(found),
    "count": lambda found, seconds=10.0: count.compare(found, seconds),
    "superstep": lambda found: superstep.compare(found),
    "versions": lambda found, more_mb=30.0: versions.compare(found, more_mb),
    "recover": lambda found: recover.compare(found, 100),
    "rescale": lambda found, cuts=4: rescale.compare(found, 100, cuts),
    "start": lambda found: start.compare(found, Samples((400.0,))),
    "snapshot": lambda found, rare=RARE, often=OFTEN: snapshot.compare(
        found, {"every_1s": [RARE, rare], "every_100ms": [often]}
    ),
    "audit": lambda found, python_mb=200.0, heap_mb=900.0: audit.compare(found, 1_600, python_mb, heap_mb),
    "restore": lambda found, supervisor_mb=400.0: restore.compare(
        found, RestoreWorkload((), 3.0), 3_000, supervisor_mb
    ),
    "calls": lambda found, deaths=DEATHS: calls.compare(
        found["kept"], found["again"], found["kept_ms"], found["again_ms"], {"kept": deaths}
    ),
    "losses": lambda found, ours=LOSSES: losses.compare({"backedge": ours, "dbos": LOSSES}, 500),
    "received": lambda found, outcome=RECEIVED: received.compare(found, outcome),
    "crawl": lambda found, deaths=CRAWLED: crawl.compare(found, {"ours": deaths}),
    "increments": lambda found, windows=(CUTS, CUTS), delta_bytes=0.03: increments.compare(
        found, [*windows], delta_bytes, 500.0, 12
    ),
}  # fmt: skip

AT_THE_LIMITS: dict[str, Mapping[str, float]] = {
    "loop": {"slice": 1.1, "bare": 1.0, "task": 0.7},
    "hop": {"ours": 140.0, "bare": 88.0, "ray": 900.0, "ours_apart": 200.0, "bare_apart": 100.0},
    "count": {"ours": 1.0, "bare": 1.5},
    "versions": {"ours": 12.0, "segment": 10.0},
    "superstep": {"ours": 425.0, "ray": 1_700.0, "ray_led": 1_000.0},
    "recover": {
        **{"with_spare": 300.0, "actor_start": 400.0, "without_spare": 1_000.0, "supervisor": 1_900.0},
        **{"spared_per_s": 95.0, "undisturbed_per_s": 100.0},
    },
    "rescale": {
        **{"gap": 900.0, "actor_start": 400.0, "before": 100.0, "after": 90.0},
        **{"light_before": 100.0, "light_after": 40.0},
    },
    "start": {"ours": 1_800.0, "actor_start": 900.0},
    "snapshot": {"none": 100.0, "every_1s": 97.0, "every_100ms": 90.0, "stall_ms": 20.0, "dict_copy": 10.0},
    "audit": {"small": 1.0, "large": 1.0, "bare": 9.0},
    "restore": {"same": 70.0, "rescaled": 50.0, "bare": 100.0},
    "calls": {"kept": 0.95, "again": 1.0, "kept_ms": 23.0, "again_ms": 3.0},
    "losses": {},
    "received": {"requests": 1_900.0},
    "crawl": {"ours": 1.0, "scrapy": 1.0},
    "increments": {
        **dict.fromkeys(("whole", "whole_stall", "delta", "delta_stall", "large_capture", "plain", "noted"), 1.0),
        **{"whole_restore": 1.0, "deltas_restore": 1.5, "resume_whole": 1.0, "resume_deltas": 1.5},
        **{"often_per_s": 0.95, "none_per_s": 1.0, "stall": 20.0, "large_stall": 20.0},
        **{"opaque_cut_s": 1.5, "bare_s": 1.0, "peak_mb": 900.0},
    },
}

MISSED: list[tuple[str, Figures, Figures, list[str]]] = [
    ("loop", {"task": 0.5}, {}, ["ratios.bare_task: 0.50"]),
    ("loop", {}, {"window": replace(LOOPED, epochs_with_log=4)}, ["4 epochs with a log"]),
    ("loop", {}, {"window": replace(LOOPED, seconds=9.9)}, ["9.9 s measured"]),
    ("hop", {"ours": 160.0}, {}, ["ratios.bare: 0.55", "ratios.ray: 5.62"]),
    ("count", {"bytewax": 0.9}, {}, ["ratios.bytewax: 1.11"]),
    ("count", {}, {"seconds": 3.0}, ["3.0 s measured"]),
    ("superstep", {"ours": 500.0}, {}, ["ratios.ray: 3.40"]),
    ("versions", {"ours": 25.0}, {}, ["ratios.segment: 0.40"]),
    ("versions", {}, {"more_mb": 31.0}, ["more_mb: 31.0"]),
    ("recover", {"with_spare": 500.0}, {}, ["ratios.actor_start: 0.80"]),
    ("recover", {"without_spare": 1_300.0}, {}, ["ratios.actor_start_without_spare: 0.31"]),
    ("recover", {"supervisor": 2_100.0}, {}, ["ratios.task_death: 0.48"]),
    ("recover", {"spared_per_s": 94.0}, {}, ["ratios.undisturbed_per_s: 0.94"]),
    ("rescale", {"gap": 1_300.0}, {}, ["ratios.actor_start: 0.31"]),
    ("rescale", {"after": 80.0}, {"cuts": 3}, ["ratios.before: 0.80", "3 cuts were audited"]),
    ("start", {"ours": 1_810.0}, {}, ["ratios.actor_start: 0.50"]),
    ("snapshot", {"every_1s": 94.0}, {}, ["ratios.none: "]),
    ("snapshot", {"every_100ms": 84.0}, {}, ["ratios.none_100ms: "]),
    ("snapshot", {"stall_ms": 31.0}, {}, ["ratios.dict_copy: "]),
    # Epochs are due by the clock: a coordinator that begins fewer completes all that it has begun.
    ("snapshot", {}, {"rare": replace(RARE, epochs=20)}, ["every_1s: 83%"]),
    ("snapshot", {}, {"often": replace(OFTEN, epochs=200)}, ["every_100ms: 66%"]),
    ("snapshot", {}, {"rare": replace(RARE, seconds=29.0, epochs=29)}, ["29.0 s measured"]),
    ("audit", {"small": 1.1}, {}, ["10 times the rows take 11.0 times"]),
    ("audit", {}, {"python_mb": 501.0}, ["501 MB of Python"]),
    ("audit", {}, {"heap_mb": 3_000.0}, ["3000 MB of Java heap"]),
    ("restore", {"same": 69.0}, {}, ["ratios.decode: 0.69"]),
    ("restore", {"rescaled": 49.0}, {}, ["ratios.decode_rescaled: 0.49"]),
    ("restore", {}, {"supervisor_mb": 401.0}, ["supervisor_mb: 401"]),
    ("calls", {"kept": 0.94}, {}, ["ratios.again: 0.94"]),
    ("calls", {"kept_ms": 24.0}, {}, ["later_ms: 21.0"]),
    ("calls", {}, {"deaths": DEATHS._replace(answered_again=1)}, ["answered_again: 1"]),
    ("calls", {}, {"deaths": DEATHS._replace(left_again=1)}, ["left_again: 1"]),
    ("calls", {}, {"deaths": DEATHS._replace(paid=1_060)}, ["paid over needed: 1.060"]),
    ("losses", {}, {"ours": LOSSES._replace(kills=20)}, ["kills: 20, at least 21"]),
    ("losses", {}, {"ours": LOSSES._replace(lost=1)}, ["lost: 1"]),
    ("losses", {}, {"ours": LOSSES._replace(ended_twice=1)}, ["ended_twice: 1"]),
    ("losses", {}, {"ours": LOSSES._replace(answered_again=1)}, ["answered_again: 1"]),
    ("received", {"requests": 1_899.0}, {}, ["requests a second: 1899"]),
    ("received", {}, {"outcome": RECEIVED._replace(lost=1)}, ["lost: 1"]),
    ("received", {}, {"outcome": RECEIVED._replace(twice=1)}, ["twice: 1"]),
    ("received", {}, {"outcome": RECEIVED._replace(kills={"endpoint": 3, "tasks": 2})}, ["kills: "]),
    ("crawl", {"ours": 0.99}, {}, ["ratios.scrapy: 0.99"]),
    ("crawl", {}, {"deaths": CRAWLED._replace(lost=1)}, ["lost: 1"]),
    ("crawl", {}, {"deaths": CRAWLED._replace(doubled=1)}, ["doubled: 1"]),
    ("crawl", {}, {"deaths": CRAWLED._replace(fetched_again=1)}, ["fetched_again: 1"]),
    ("increments", {"deltas_restore": 1.6}, {}, ["in one process a restore takes 1.60"]),
    ("increments", {"resume_deltas": 1.6}, {}, ["on Ray a restore takes 1.60"]),
    ("increments", {"large_capture": 1.1}, {}, ["a delta of ten times the keys is captured in 1.10"]),
    ("increments", {"large_stall": 21.0}, {}, ["with ten times the keys the longest stall is 1.05"]),
    ("increments", {"often_per_s": 0.94}, {}, ["with ten cuts a second the speed is 0.94"]),
    ("increments", {"peak_mb": 901.0}, {}, ["peak_ratio: 1.50"]),
    ("increments", {"opaque_cut_s": 1.6}, {}, ["a cut of opaque values takes 1.60"]),
    ("increments", {}, {"delta_bytes": 0.031}, ["a delta takes 3.10%"]),
    (
        *("increments", {}, {"windows": (CUTS, replace(CUTS, window=replace(CUTS.window, epochs=97)))}),
        ["215 of 240 cuts completed"],
    ),
    (*("increments", {}, {"windows": (CUTS, replace(CUTS, deltas=30, whole=10))}), ["70 of 80 cuts hold what changed"]),
]


def report(bench: str, changed: Figures, more: Figures) -> Report:
    figures = {**AT_THE_LIMITS[bench], **changed}
    return COMPARE[bench]({name: Samples((figure,) * 5) for name, figure in figures.items()}, **more)


@every("bench", AT_THE_LIMITS)
def test_what_keeps_all_limits_is_green_and_each_limit_can_be_missed(bench: str):
    for of, changed, more, claims in ((bench, {}, {}, []), *MISSED):
        if of == bench:
            found = report(bench, changed, more)
            missed = [limit.claim for limit in found.limits if not limit.holds]
            assert found.ok is not bool(claims) and len(missed) == len(claims), missed
            assert all(claim.startswith(begins) for claim, begins in zip(missed, claims, strict=True)), missed


def test_one_moment_of_the_machine_does_not_make_a_long_stall():
    same = {name: Samples((figure,) * 5) for name, figure in AT_THE_LIMITS["increments"].items()}
    stalls = {"stall": Samples((8.0, 9.0, 10.0)), "large_stall": Samples((7.0, 9.0, 300.0))}
    assert increments.compare({**same, **stalls}, [CUTS], 0.03, 500.0, 12).ok


def test_a_run_that_is_not_exact_is_refused():
    workload = LoopWorkload(records=10)
    done = [(id, -1) for id, _ in workload.start()]
    run: dict[str, Any] = dict.fromkeys(RunResult.__dataclass_fields__)
    right = RunResult(**{**run, "hops": workload.hops, "outputs": {"done": done}})
    loop.check_exact(right, workload)
    lost, doubled, early = done[1:], [*done, done[0]], [(done[0][0], 3), *done[1:]]
    for wrong in (*({"outputs": {"done": found}} for found in (lost, doubled, early)), {"hops": workload.hops - 1}):
        with pytest.raises(BenchError):
            loop.check_exact(replace(right, **wrong), workload)


def test_pages_that_a_crawl_lost_or_doubled_or_fetched_again_are_counted():
    wanted = sorted(crawl.pages_of(12))
    assert len(wanted) == 6 * (12 + 5)
    doubled = wanted[1]
    with pytest.raises(BenchError):
        crawl.rate([1.0, 2.0], 12, [*wanted[1:], doubled])
    assert crawl.rate([1.0, 3.0], 12, wanted) == len(wanted) / 2
    left, running, kept = map(crawl.number_of, wanted[:3])
    served = {left: [(1, 0.0), (2, 2.0)], running: [(1, 0.0), (2, 2.0)], kept: [(3, 0.0), (3, 2.0)]}
    found = crawl.cost(served, 12, [*wanted[1:], doubled], 1, [(0.5, left)], {1: 1.0})
    assert found == crawl.Deaths(kills=1, lost=1, doubled=1, running_again=1, fetched_again=2)


class FakeJob:
    """A run that is as far as it is told."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.story = Story("fake", state="running")
        for name, value in fields.items():
            setattr(self.story, name, value)

    def status(self) -> Story:
        return self.story


def test_only_a_run_that_goes_on_undisturbed_is_measured():
    look = ours.look(FakeJob({"snapshots": 3, "counts": {(1, "a"): Counts(records=7, hops=2)}}))
    assert (look.records, look.hops, look.snapshots) == (7, 2, 3)
    for fields in ({"state": "finished"}, {"state": "failed"}, {"restarts": 1}):
        with pytest.raises(BenchError):
            ours.look(FakeJob(fields))


def test_the_rate_is_that_of_all_looks():
    """A task that is late once with telling how far it is changes little."""
    looks = [Look(at / 5, at * 200, 0, 0, 0) for at in range(51)]
    assert ours.slope(looks, lambda look: look.records) == pytest.approx(1000)
    late = [*looks[:25], replace(looks[25], records=looks[24].records), *looks[26:]]
    assert ours.slope(late, lambda look: look.records) == pytest.approx(1000, rel=0.01)

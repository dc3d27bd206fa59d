"""A benchmark goes red when what was measured does not count, or is too slow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from backedge.engine.on_ray.api.job_handle import RunResult
from backedge.engine.on_ray.supervisor.run_story import Story
from backedge.engine.on_ray.transport.control_messages import Counts
from bench import count, hop, loop, ours, recover, rescale, snapshot, start, superstep
from bench.measuring import Report, Samples
from bench.ours import BenchError, Look, Window
from bench.workloads import LoopWorkload

GOOD = Window(seconds=10.1, records_per_s=1.0, hops_per_s=1.0, epochs=10, epochs_with_log=9)
LONG = replace(GOOD, seconds=30.2, epochs=30)
OFTEN = replace(LONG, epochs=300)


def samples(figure: float) -> Samples:
    return Samples((figure,) * 5)


def missed(report: Report) -> list[str]:
    assert report.ok == (not [limit for limit in report.limits if not limit.holds])
    return [limit.claim for limit in report.limits if not limit.holds]


# -- loop --------------------------------------------------------------------------------------------------------


def judge_loop(*windows: Window, task: float = 0.7) -> list[str]:
    found = {"slice": samples(1.1), "bare": samples(1.0), "task": samples(task)}
    return missed(loop.compare(found, list(windows)))


def test_a_loop_that_keeps_all_limits_is_green():
    assert judge_loop(GOOD, GOOD) == []


@pytest.mark.parametrize(
    ("window", "claim"),
    [
        (replace(GOOD, epochs_with_log=4), "4 epochs with a log in the poorest turn, at least 5"),
        (replace(GOOD, seconds=9.9), "9.9 s measured in the shortest turn, at least 10.0"),
    ],
)
def test_one_poor_turn_is_enough_to_miss(window: Window, claim: str):
    assert judge_loop(GOOD, window, GOOD) == [claim]


def test_a_slow_loop_misses():
    assert judge_loop(GOOD, task=0.5) == ["ratios.bare_task: 0.50, at least 0.6"]


def result_of(workload: LoopWorkload, **changed: Any) -> RunResult:
    run: dict[str, Any] = dict.fromkeys(RunResult.__dataclass_fields__)
    run |= {"hops": workload.hops, "outputs": {"done": [(id, -1) for id, _ in workload.start()]}}
    return RunResult(**{**run, **changed})


def test_an_exact_run_passes():
    loop.check_exact(result_of(LoopWorkload(records=10)), LoopWorkload(records=10))


@pytest.mark.parametrize("change", ["lost", "doubled", "early", "hops"])
def test_a_run_that_is_not_exact_is_refused(change: str):
    workload = LoopWorkload(records=10)
    done = result_of(workload).outputs["done"]
    changed: dict[str, dict[str, Any]] = {
        "lost": {"outputs": {"done": done[1:]}},
        "doubled": {"outputs": {"done": [*done, done[0]]}},
        "early": {"outputs": {"done": [(done[0][0], 3), *done[1:]]}},
        "hops": {"hops": workload.hops - 1},
    }
    with pytest.raises(BenchError):
        loop.check_exact(result_of(workload, **changed[change]), workload)


# -- what is measured inside of a run ----------------------------------------------------------------------------


class FakeJob:
    """A run that is as far as it is told."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.story = Story("fake", state="running")
        for name, value in fields.items():
            setattr(self.story, name, value)

    def status(self) -> Story:
        return self.story


def test_a_run_that_goes_on_is_looked_at():
    look = ours.look(FakeJob({"snapshots": 3, "counts": {(1, "a"): Counts(records=7, hops=2)}}))
    assert (look.records, look.hops, look.snapshots) == (7, 2, 3)


@pytest.mark.parametrize("fields", [{"state": "finished"}, {"state": "failed"}, {"restarts": 1}])
def test_a_run_that_ended_or_restarted_meanwhile_is_not_measured(fields: dict[str, Any]):
    with pytest.raises(BenchError, match="while it is measured"):
        ours.look(FakeJob(fields))


def test_the_rate_is_that_of_all_looks():
    """A task that is late once with telling how far it is changes little."""
    looks = [Look(at / 5, at * 200, 0, 0, 0) for at in range(51)]
    assert ours.slope(looks, lambda look: look.records) == pytest.approx(1000)
    late = [*looks[:25], replace(looks[25], records=looks[24].records), *looks[26:]]
    assert ours.slope(late, lambda look: look.records) == pytest.approx(1000, rel=0.01)


# -- hop, count, superstep, recover ------------------------------------------------------------------------------


def test_a_hop_that_takes_too_long_misses():
    found = {"ours": samples(140.0), "bare": samples(88.0), "ray": samples(900.0)}
    found |= {"ours_apart": samples(200.0), "bare_apart": samples(100.0)}
    assert hop.compare(found).ratios["bare_apart"] == 0.5
    assert missed(hop.compare(found)) == []
    found["ours"] = samples(160.0)
    assert len(missed(hop.compare(found))) == 2


def test_a_count_without_bytewax_says_so_and_is_judged_by_what_is_there():
    report = count.compare({"ours": samples(1.0), "bare": samples(1.5)}, 10.0)
    assert missed(report) == [] and report.ratios.keys() == {"bare"}
    assert "not installed" in report.more["absent"]["bytewax"]
    assert missed(count.compare({"ours": samples(1.0), "bare": samples(1.5), "bytewax": samples(0.9)}, 10.0))


def test_a_count_of_a_moment_misses():
    assert missed(count.compare({"ours": samples(1.0), "bare": samples(1.0)}, 3.0)) == [
        "3.0 s measured a turn, at least 10.0"
    ]


def test_a_round_that_takes_too_long_misses():
    report = superstep.compare({"ours": samples(500.0), "ray": samples(1700.0), "ray_led": samples(1000.0)})
    assert missed(report) == ["ratios.ray: 3.40, at least 4.0"]


@pytest.mark.parametrize(
    ("spare", "none", "supervisor", "count"),
    [(300.0, 1000.0, 1900.0, 0), (500.0, 1000.0, 1900.0, 1), (500.0, 1300.0, 1900.0, 2), (300.0, 1000.0, 2100.0, 1)],
)
def test_a_recovery_that_takes_too_long_misses(spare: float, none: float, supervisor: float, count: int):
    found = {"with_spare": samples(spare), "actor_start": samples(400.0), "without_spare": samples(none)}
    found |= {"spared_per_s": samples(95.0), "undisturbed_per_s": samples(100.0)}
    found["supervisor"] = samples(supervisor)
    assert len(missed(recover.compare(found, 100))) == count


def test_a_pipeline_that_loses_throughput_when_another_dies_misses():
    found = {"with_spare": samples(300.0), "actor_start": samples(400.0), "without_spare": samples(1000.0)}
    found["supervisor"] = samples(1900.0)
    found |= {"spared_per_s": samples(94.0), "undisturbed_per_s": samples(100.0)}
    assert missed(recover.compare(found, 100)) == ["ratios.undisturbed_per_s: 0.94, at least 0.95"]


@pytest.mark.parametrize(("gap", "after", "cuts", "count"), [(900.0, 90.0, 4, 0), (1300.0, 80.0, 3, 3)])
def test_a_rescale_with_a_long_gap_or_a_slow_run_after_it_misses(gap: float, after: float, cuts: int, count: int):
    found = {"gap": samples(gap), "actor_start": samples(400.0), "before": samples(100.0), "after": samples(after)}
    found |= {"light_before": samples(100.0), "light_after": samples(40.0)}
    report = rescale.compare(found, 100, cuts)
    assert len(missed(report)) == count and report.ratios["light_before"] == 0.4


@pytest.mark.parametrize(("ours_ms", "claims"), [(1800.0, 0), (1810.0, 1)])
def test_a_start_that_takes_too_long_misses(ours_ms: float, claims: int):
    found = {"ours": samples(ours_ms), "actor_start": samples(900.0)}
    assert len(missed(start.compare(found, samples(400.0)))) == claims


# -- snapshot ----------------------------------------------------------------------------------------------------


def judge_snapshot(rare: Window = LONG, often: Window = OFTEN, **changed: float) -> Report:
    found = {"none": 100.0, "every_1s": 97.0, "every_100ms": 90.0, "stall_ms": 20.0, "dict_copy": 10.0, **changed}
    windows = {"every_1s": [LONG, rare], "every_100ms": [often]}
    return snapshot.compare({name: samples(figure) for name, figure in found.items()}, windows)


def test_cheap_cuts_are_green_and_counted():
    report = judge_snapshot()
    assert missed(report) == []
    assert report.more["epochs_requested"] == report.more["epochs_completed"] == 60
    assert (report.more["epochs_requested_100ms"], report.more["epochs_completed_100ms"]) == (302, 300)


def test_epochs_that_were_due_and_did_not_complete_miss():
    """They are due by the clock: a coordinator that begins fewer completes all that it has begun."""
    claims = missed(judge_snapshot(replace(LONG, epochs=20), replace(OFTEN, epochs=200)))
    assert claims == [
        "every_1s: 83% of the epochs completed, at least 90%",
        "every_100ms: 66% of the epochs completed, at least 90%",
    ]


@pytest.mark.parametrize(
    ("change", "ratio"),
    [({"every_1s": 94.0}, "none"), ({"every_100ms": 84.0}, "none_100ms"), ({"stall_ms": 31.0}, "dict_copy")],
)
def test_dear_cuts_miss(change: dict[str, float], ratio: str):
    (claim,) = missed(judge_snapshot(LONG, OFTEN, **change))
    assert claim.startswith(f"ratios.{ratio}: ")


def test_a_short_run_misses():
    assert missed(judge_snapshot(replace(LONG, seconds=29.0, epochs=29)))[-1].startswith("29.0 s measured")

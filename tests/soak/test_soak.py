"""What grows fails a soak and what swings does not; a seed draws its faults; and a short soak is green."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backedge import Flow, RunFailedError
from backedge.engine.io.files.file_errors import UnknownTransactionError
from backedge.recovery.spark.spark_errors import UnreadableError
from backedge.recovery.stores.store_errors import SnapshotCorruptError
from tests.formats.test_stored_cuts import VERSIONS
from tests.soak import audits, lanes
from tests.soak.audits import Audits
from tests.soak.flows import Mixed, mix
from tests.soak.lanes import Lane
from tests.soak.page import page_of
from tests.soak.report import TOLERANCES, Progress, Report
from tests.soak.schedule import FAULTS, LASTS_S, STEADY, schedule
from tests.soak.trends import Point, trend_of

ROOT = Path(__file__).resolve().parents[2]
HOUR_S, SAMPLES = 3600.0, 240
RNG = random.Random(7)


def over_an_hour(value: Callable[[float], float]) -> list[Point]:
    """A figure that is sampled for an hour, with noise and outliers."""
    times = [HOUR_S * n / SAMPLES for n in range(SAMPLES)]
    return [(at_s, value(at_s / HOUR_S) + RNG.gauss(0, 8) + 300 * (RNG.random() < 0.03)) for at_s in times]


LEAKS: dict[str, Callable[[float], float]] = {
    "a megabyte a minute": lambda hour: 200 + 60 * hour,
    "a megabyte a minute from the middle on": lambda hour: 200 + 120 * max(0.0, hour - 0.4),
    "in steps of 10": lambda hour: 200 + 10 * int(8 * hour),
}
NOISE: dict[str, Callable[[float], float]] = {
    "flat": lambda hour: 200,
    "a warm-up": lambda hour: 200 + 90 * min(1.0, 6 * hour),
    "a new level": lambda hour: 200 + 90 * (hour > 0.6),
    "a saw": lambda hour: 200 + 80 * (11 * hour % 1),
    "it shrinks": lambda hour: 200 - 60 * hour,
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_planted_leak_is_a_trend(leak: str):
    trend = trend_of(over_an_hour(LEAKS[leak]), TOLERANCES["memory MB"])
    assert trend.is_growing and trend.growth > TOLERANCES["memory MB"], trend


@pytest.mark.parametrize("noise", NOISE)
def test_noise_is_no_trend(noise: str):
    assert not trend_of(over_an_hour(NOISE[noise]), TOLERANCES["memory MB"]).is_growing


def test_few_points_are_not_judged():
    assert not trend_of([(0.0, 1.0), (1.0, 1e9)], 1.0).is_judged
    assert not trend_of([], 1.0).is_judged


def test_a_leak_turns_the_verdict_and_the_page_red(tmp_path: Path):
    progress = Progress(HOUR_S, tmp_path, tmp_path)
    progress.points["driver: memory MB"] = over_an_hour(NOISE["a saw"])
    progress.note_fault("task killed", "calls", has_happened=True)
    report = Report.of(progress, 7)
    assert not report.failures and "Nothing lost" in page_of(report)
    progress.points["tasks: memory MB"] = over_an_hour(LEAKS["a megabyte a minute"])
    report = Report.of(progress, 7)
    assert "it grows: tasks: memory MB" in report.failures[0] and report.lines()[-1].startswith("RED")
    assert [figure.is_bad for figure in report.figures] == [True, False]
    assert 'class="fails"' in page_of(report) and "<script" not in page_of(report)


def test_a_fault_that_never_happens_turns_the_verdict_red(tmp_path: Path):
    progress = Progress(HOUR_S, tmp_path, tmp_path)
    for _ in range(2):
        progress.note_fault("disk full", "disk", has_happened=False)
    assert Report.of(progress, 7).failures == ["never happened: disk full"]


def test_faults_that_stop_happening_turn_the_verdict_red(tmp_path: Path):
    progress = Progress(600.0, tmp_path, tmp_path)
    progress.happened_s = [float(second) for second in range(12, 600, 4)]
    progress.fail_if_stalled()
    assert progress.failures == []
    del progress.happened_s[70:]
    progress.fail_if_stalled()
    assert "no fault happened between 288 and 600 s" in progress.failures[0]


def test_a_job_in_which_something_is_wrong_is_kept_from_whatever_store(tmp_path: Path):
    job, kept = tmp_path / "job", tmp_path / "kept"
    (job / "chain").mkdir(parents=True)
    (job / "chain" / "1.json").write_text("{}")
    kept.mkdir()
    progress = Progress(HOUR_S, tmp_path, kept)
    for place in (str(job), f"file://{job}", f"file://{tmp_path}/gone"):
        progress.fail("objects", "a file is missing", place)
    assert [len(list(each.rglob("1.json"))) for each in kept.iterdir()].count(1) == 2
    assert len(progress.failures) == 3


def test_a_seed_draws_all_faults_each_time_the_same():
    planned = schedule(7, 120)
    assert planned == schedule(7, 120) != schedule(8, 120)
    assert {each.fault for each in planned} == set(FAULTS)
    assert all(each.target in FAULTS[each.fault] for each in planned)
    deadly = {each.fault for each in schedule(7, 3600) if each.target == STEADY}
    assert deadly == {"task stands still"}, "the steady flow loses no process"
    # Its supervisor would kill a process that is silent for so long.
    assert mix(NO_SERVER, "")[STEADY].options["silence_timeout"] > LASTS_S[1]


NO_SERVER: Any = None


class NoAudits:
    """Stands for Spark, which finds nothing."""

    def all_of(self, name: str, path: str) -> None:
        assert path.endswith(name)


@pytest.mark.parametrize(
    ("done", "wrong"),
    [
        ([(0, 5), (1, 5)], []),
        ([(0, 5)], ["lacking [((1, 5), 1)], surplus []"]),
        ([(0, 5), (1, 5), (1, 5)], ["lacking [], surplus [((1, 5), 1)]"]),
    ],
)
def test_a_record_that_is_lost_or_doubled_turns_the_verdict_red(
    tmp_path: Path, done: list[tuple[int, int]], wrong: list[str]
):
    progress = Progress(HOUR_S, tmp_path, tmp_path)
    lane = Lane("rescaled", Mixed(lambda life: Flow("rescaled"), lambda _: [(0, 5), (1, 5)]), progress, 1.0, None)
    lane.audits = NoAudits()  # type: ignore[assignment]
    lane._check(SimpleNamespace(outputs={"done": done}))  # type: ignore[arg-type]
    assert [failure.partition("life 0: ")[2] for failure in progress.failures] == wrong
    assert progress.counted["lives"] == 1


@pytest.mark.parametrize(
    ("flow", "error", "is_forgiven"),
    [
        ("objects", RunFailedError("s3://cuts/objects-1 does not answer"), True),
        ("objects", SnapshotCorruptError("s3://cuts/objects-1/job.json was changed"), False),
        ("objects", RunFailedError("a record was processed twice"), False),
        ("postgres", RunFailedError("database 'postgres' has not answered"), True),
        ("postgres", UnknownTransactionError("it is neither prepared in database 'postgres' nor marked"), False),
    ],
)
def test_a_store_that_is_away_is_forgiven_and_no_loss(
    flow: str, error: Exception, is_forgiven: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lanes, "LOOK_S", 0.0)
    lane = Lane(flow, mix(NO_SERVER, "")[flow], Progress(HOUR_S, tmp_path, tmp_path), 1.0, None)
    assert lane._is_forgiven(error) == is_forgiven


def test_a_cut_of_a_living_run_that_cannot_be_read_turns_the_verdict_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def torn(spark: Any, folder: Any, *_: Any, **__: Any) -> None:
        raise UnreadableError(f"a file of {folder.path} is torn")

    monkeypatch.setattr(audits, "audit", torn)
    progress = Progress(HOUR_S, tmp_path, tmp_path)
    of_runs = Audits(None, progress)
    of_runs.newest_of(STEADY, str(tmp_path / "removed meanwhile"))
    assert progress.failures == []
    of_runs._next_s = 0.0
    of_runs.newest_of(STEADY, str(VERSIONS["0.1, layout 13"] / "plain"))
    assert len(progress.failures) == 1 and "is torn" in progress.failures[0]
    assert list(tmp_path.glob("held-*")) == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_two_minutes_of_it_are_green(tmp_path: Path):
    words = ["--minutes", "2", "--seed", "7", "--json", f"{tmp_path}/soak.json", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "tests.soak", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads((tmp_path / "soak.json").read_text())
    assert said["failures"] == [] and sum(said["happened"].values()) > len(FAULTS) / 2
    assert said["counted"]["lives"] >= 9 and said["counted"]["cuts audited"] > said["counted"]["lives"]
    assert said["counted"]["records compared"] > 0 and said["counted"]["restores"] > 0
    assert "Nothing lost" in (tmp_path / "soak.html").read_text()

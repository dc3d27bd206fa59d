"""An old job does no more than a young one when it is started or looked at: counted, not timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.long_lived_job import LongLivedJob
from bench.longlife import asked_of, files_of, live, needed_by
from tests.bench.test_scale import Counter

GROWTH_MAX = 1.15


@pytest.mark.slow
def test_an_old_job_does_no_more_than_a_young_one_and_has_the_files_that_its_cuts_need(tmp_path: Path):
    count = Counter()
    young, old = LongLivedJob(tmp_path / "young"), LongLivedJob(tmp_path / "old")
    live(young, 100, 33)
    live(old, 1_000, 20)
    assert (young.restarts, old.restarts, len(old.published())) == (3, 50, 50)
    assert files_of(old) == needed_by(old)
    for age, job in (("young", young), ("old", old)):
        for what, ask in asked_of(job).items():
            ask()
            count(f"{what}, {age}", ask)
    growth = {what: count.found[f"{what}, old"][0] / count.found[f"{what}, young"][0] for what in asked_of(old)}
    assert {what: times for what, times in growth.items() if times > GROWTH_MAX} == {}
    left = Path(old.snapshots, "longlife", "epoch=7", "left.json")
    left.parent.mkdir()
    left.touch()
    assert files_of(old) - needed_by(old) == {"longlife/epoch=7/left.json"}

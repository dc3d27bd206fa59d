"""Files that arrive while a run reads, dies and is rescaled: each row counts once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from backedge import Collect, Flow, JsonLines, start
from tests.faults.evidence import Evidence
from tests.on_ray.flows import until
from tests.on_ray.leftovers import end

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

READERS = 3


def arrive(folder: Path, files: range) -> None:
    """Put files of very different sizes there: under a hidden name first, as is right."""
    for number in files:
        rows = (json.dumps({"file": number, "row": row}) for row in range(1 + number**3))
        (folder / ".part").write_text("".join(f"{row}\n" for row in rows))
        os.utime(folder / ".part", (0, 0))
        (folder / ".part").rename(folder / f"{number}.jsonl")


def counting(folder: Path) -> Flow:
    """Counts the rows of each file in a loop that no record leaves before it has gone round once."""
    flow = Flow("arriving")
    again = flow.loop("again")
    rows = flow.read(JsonLines(str(folder), watch=0.1, until="_DONE"), name="rows")
    once = rows.map(lambda row: (row["file"], row["row"], 0), name="begin").merge(again)
    done, more = once.rebalance().split(lambda record: record[2] > 0, name="split")
    again.feed(more.map(lambda record: (*record[:2], 1), name="round"))
    done.write(Collect(), name="done")
    return flow


def test_files_that_arrive_amid_two_deaths_and_a_rescale_count_once(tmp_path: Path, evidence: Evidence):
    folder = tmp_path / "in"
    folder.mkdir()
    arrive(folder, range(8))
    options = {"snapshots": tmp_path / "cuts", "every": 0.2, "actors": "task", "parallelism": READERS}
    job = start(counting(folder), progress=False, **options)
    until(job, lambda story: story.snapshots, "a cut is complete")
    for deaths, more in ((1, range(8, 14)), (2, range(14, 20))):
        arrive(folder, more)
        readers = [pid for actor, pid in until(job, lambda story: story, "it runs").pids.items() if "rows" in actor]
        end(readers[deaths])
        until(job, lambda story, deaths=deaths: story.restarts == deaths and story.state == "running", "it goes on")
    assert job.rescale({"rows": 2}) > 0
    arrive(folder, range(20, 24))
    (folder / "_DONE").write_text("")
    result = job.wait()
    evidence.happened("deaths of readers of splits", len(result.restores))
    assert len(result.restores) == 2
    assert sorted(result.outputs["done"]) == sorted((n, row, 1) for n in range(24) for row in range(1 + n**3))
    evidence.cuts(tmp_path / "cuts")

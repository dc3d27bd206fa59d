"""What the processes of a run import before they run user code, and what they do not."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest

from engine.on_ray import cluster
from graphs import Collect, Flow, Range
from tests.jobs.rays import short_folder
from tests.on_ray import imported
from tests.on_ray.flows import begin, until

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
import ray
from backedge import Collect, Flow, Items, run

OF_PYDANTIC = "ray._common.pydantic_compat"

def look(number):
    import importlib, sys
    before = [name for name in ("pydantic", OF_PYDANTIC) if name in sys.modules]
    return before, importlib.import_module(OF_PYDANTIC).PYDANTIC_INSTALLED

@ray.remote
class Other:
    def look(self, given):
        import sys, engine.on_ray.actor.task_actor
        return [name for name in ("pydantic", OF_PYDANTIC) if name in sys.modules]

flow = Flow("light")
flow.read(Items([1])).map(look, name="look").write(Collect(), name="seen")
seen = run(flow, progress=False).outputs["seen"]
print(seen, ray.get(Other.remote().look.remote(1)))
"""


@pytest.mark.slow
def test_workers_of_a_run_start_without_pydantic_and_can_import_it_later(tmp_path: Path):
    """Ray's own serializers for it are registered in all other workers, as ever. This Ray is one as users start it."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with short_folder() as folder:
        environment |= {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": folder}
        command = [sys.executable, "-c", SCRIPT]
        told = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert told.stdout == "[([], True)] ['pydantic', 'ray._common.pydantic_compat']\n", told.stderr


@pytest.mark.usefixtures("on_ray")
def test_the_modules_that_unpickling_imports_are_known():
    by_value = lambda text: json.loads(text)  # noqa: E731
    pickled, modules = cluster.pickled_with_modules([imported.when, by_value, Fraction(1, 2), statistics.mean, 7])
    assert cluster.ray.cloudpickle.loads(pickled)[2:] == [Fraction(1, 2), statistics.mean, 7]
    ours = [name for name in modules if "cloudpickle" not in name]
    assert ours == ["tests.on_ray.imported", "json", "fractions", "statistics"]


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_a_spare_has_imported_the_flow_before_it_replaces_a_process(tmp_path: Path):
    flow = Flow("imports")
    flow.read(Range(200, rate=40), name="numbers").map(imported.when, name="when").write(Collect(), name="seen")
    job = begin(flow, snapshots=tmp_path, every=0.3, actors="slice", parallelism=1, spares=1, kills=["when@epoch=12"])
    until(job, lambda story: story.last_epoch is not None and story.last_epoch >= 6, "the sixth cut")
    before_the_kill_s = time.monotonic()
    result = job.wait()
    assert len(result.kills) == 1
    seen = sorted(result.outputs["seen"])
    (_, first, _), (_, spare, imported_at_s) = seen[0], seen[-1]
    assert [number for number, *_ in seen] == list(range(200)) and first != spare
    assert imported_at_s < before_the_kill_s

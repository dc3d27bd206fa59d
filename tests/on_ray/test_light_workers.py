"""What the processes of a run do not import before they run user code, on a Ray that starts them as users' Rays do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.rays import short_folder

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
    """Ray's own serializers for it are registered in all other workers, as ever."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with short_folder() as folder:
        environment |= {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": folder}
        command = [sys.executable, "-c", SCRIPT]
        told = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert told.stdout == "[([], True)] ['pydantic', 'ray._common.pydantic_compat']\n", told.stderr

"""What the processes of a run do not import before they run user code, on a Ray that starts them as users' Rays do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backedge.engine.on_ray import cluster
from tests.gates import HANG_S
from tests.jobs.rays import QUIET_RAY, short_folder

ROOT = Path(__file__).resolve().parents[2]
COMPAT, ARROW = "ray._common.pydantic_compat", "ray._private.arrow_serialization"
SCRIPT = """
import sys
from pathlib import Path
import ray
from backedge import Collect, Flow, Generate, Range, run

SEEN, CUTS = sys.argv[1:]
NAMES = ("pydantic", "ray._common.pydantic_compat", "pyarrow", "ray._private.arrow_serialization")

def imported():
    import sys
    return [name for name in NAMES if name in sys.modules]

def look(number):
    import importlib
    return number, imported(), importlib.import_module(NAMES[1]).PYDANTIC_INSTALLED

def in_the_supervisor(view):
    Path(SEEN).write_text(str(imported()))
    return bool(view.output("seen"))

def go(name, source, stop_when=None, rate=None, **options):
    flow = Flow(name, stop_when=stop_when)
    flow.read(source, rate=rate).map(look, name="look").write(Collect(), name="seen")
    return run(flow, progress=False, parallelism=1, actors="slice", **options).outputs["seen"]

@ray.remote
def given(number):
    return imported()

@ray.remote
def going():
    return len(go("within", Range(4))), imported()

# It has no end of its own, so the supervisor sees a cut before it stops.
print(min(go("light", Generate(int), in_the_supervisor, rate=1000.0, snapshots=CUTS, every=0.2)))
# First, in a process that has not been used, and reads no argument before it starts the run.
print(ray.get(going.remote()))
print(ray.get(given.remote(1)))
"""


@pytest.mark.slow
def test_the_processes_of_a_run_start_without_pydantic_and_pyarrow_and_no_others_do(tmp_path: Path):
    """On a Ray as users start it. Ray registers serializers of both, also in a worker that itself starts a run."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    seen = tmp_path / "supervisor"
    with short_folder() as folder:
        environment |= {**QUIET_RAY, "PYTHONPATH": str(ROOT), "RAY_TMPDIR": folder}
        command = [sys.executable, "-c", SCRIPT, str(seen), str(tmp_path / "cuts")]
        told = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S)
    both = "['pydantic', 'ray._common.pydantic_compat', 'pyarrow', 'ray._private.arrow_serialization']"
    assert told.stdout.splitlines() == ["(0, [], True)", f"(4, {both})", both], told.stderr
    assert seen.read_text() == "['pyarrow']", "it has read a cut"


def as_another_ray(monkeypatch: pytest.MonkeyPatch, lacking: str, apply: Callable[[object], object]) -> SimpleNamespace:
    """A Ray that lacks one of the names that we know, in a worker; or has all, in one that hosts no actor."""
    actor = SimpleNamespace(is_nil=lambda: lacking == "an actor")
    worker = {"global_worker": SimpleNamespace(mode=1, actor_id=actor), "WORKER_MODE": 1}
    addons = SimpleNamespace(**{name: value for name, value in {"apply": apply}.items() if name != lacking})
    here = SimpleNamespace(**{name: value for name, value in worker.items() if name != lacking})
    monkeypatch.setitem(sys.modules, "ray._private.worker", cast(Any, here))
    monkeypatch.setitem(sys.modules, "ray.util.serialization_addons", cast(Any, addons))
    for module in (COMPAT, ARROW):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return addons


@pytest.mark.parametrize("lacking", ["global_worker", "WORKER_MODE", "apply", "an actor"])
def test_a_ray_without_a_private_name_or_an_actor_is_left_as_it_is(lacking: str, monkeypatch: pytest.MonkeyPatch):
    addons = as_another_ray(monkeypatch, lacking, print)
    cluster.skip_serializers(type("Unpickled", (), {}))
    assert getattr(addons, "apply", print) is print


def test_a_ray_that_takes_more_from_its_module_gets_stand_ins_once(monkeypatch: pytest.MonkeyPatch):
    taken: list[object] = []

    def apply(context: object) -> None:
        for name in (COMPAT, ARROW):
            taken.append(import_module(name).register_other(context))

    addons = as_another_ray(monkeypatch, "nothing", apply)
    cluster.skip_serializers(type("Unpickled", (), {}))
    addons.apply("context")
    assert taken == [None, None]
    assert addons.apply is apply and not sys.modules.keys() & {COMPAT, ARROW}

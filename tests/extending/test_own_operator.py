"""An operator from another package, as docs/extending.md shows it: exactly once in the simulator and on Ray."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from backedge import BadOptionError, Collect, Flow, Items, OperatorKind, draw, simulate
from backedge.engine.on_ray import cluster

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page."""
    for name, code in re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, flags=re.DOTALL):
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("once", "walk"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def expected(count: int) -> tuple[set[int], int]:
    """The pages that can be reached, and how many records repeat one."""
    found, waiting, repeated = set[int](), list(range(count)), 0
    while waiting:
        page = waiting.pop()
        if page in found:
            repeated += 1
        else:
            found.add(page)
            waiting += [page * 2 % 97, page * 3 % 97]
    return found, repeated


@pytest.mark.slow
@pytest.mark.parametrize("schedules", [12, pytest.param(300, marks=pytest.mark.long)])
def test_it_is_exactly_once_under_every_schedule(package: Path, schedules: int):
    flow = import_module("walk").walk()
    totals = flow.draft.operators["once"]
    assert totals.keys.keys() == {"in"}
    found, repeated = expected(30)

    def no_page_twice(view: Any) -> bool:
        return max(Counter(view.output("found")).values(), default=1) == 1

    result = simulate(flow, seeds=range(schedules), crashes=3, invariant=no_page_twice)
    assert set(result.outputs["found"]) == found and len(result.outputs["found"]) == len(found)
    assert len(result.outputs["repeated"]) == repeated
    assert result.restores_with_log > 0 and result.rescaled > 0


@pytest.mark.slow
def test_the_state_of_its_tasks_is_shared_out_anew(package: Path):
    once = import_module("once")
    flow = Flow("own state")
    kept = flow.read(Items([n % 5 for n in range(60)]), name="n").key_by(lambda n: n).apply(once.Once(), name="once")
    kept.write(Collect(), name="kept")
    each = kept.side("total").flat_map(lambda total: [1] * total, name="each")
    each.write(Collect(), name="repetitions")
    result = simulate(flow, seeds=range(15))
    assert sorted(result.outputs["kept"]) == [0, 1, 2, 3, 4]
    assert len(result.outputs["repetitions"]) == 55, "what a restore loses would be missing here"
    assert result.rescaled > 0


@pytest.mark.usefixtures("local_ray")
def test_it_is_exactly_once_on_ray_when_processes_are_killed(package: Path):
    (package / "on_ray.py").write_text(
        "from functools import partial\n"
        "from backedge import JsonLines\n"
        "from walk import walk\n"
        "def flow(folder: str):\n"
        "    names = iter(['found', 'repeated'])\n"
        "    return walk(200, 100.0, lambda: JsonLines(f'{folder}/{next(names)}'))\n"
    )
    faults = ["start/0@records=40", "once/0@records=90"]
    kills = [word for fault in faults for word in ("--kill", fault)]
    command = [sys.executable, "-m", "backedge", "run", "on_ray:flow", "--set", f"folder={package}/out"]
    command += ["--snapshots", f"{package}/cuts", "--every", "0.2", "--parallelism", "2", "--json", *kills]
    address = cluster.ray.get_runtime_context().gcs_address
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), str(ROOT)]), "RAY_ADDRESS": address}
    ran = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    summary = json.loads(ran.stdout.splitlines()[-1])
    assert (summary["kills"], summary["missed_faults"]) == (2, []), summary
    found, repeated = expected(200)
    written = {name: records(package / "out" / name) for name in ("found", "repeated")}
    assert sorted(written["found"]) == sorted(found)
    assert len(written["repeated"]) == repeated


def records(folder: Path) -> list[Any]:
    return [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]


def test_a_plan_draws_it_and_hashes_its_structure_only(package: Path):
    once = import_module("once")

    def flow(kind: OperatorKind) -> Flow:
        flow = Flow("drawn")
        flow.read(Items([1]), name="n").key_by(abs).apply(kind).write(Collect(), name="kept")
        return flow

    plain, other = flow(once.Once()), flow(once.Once(identity=abs))
    assert "Once (Once)" in draw(plain)
    assert plain.plan().hash == other.plan().hash


def test_what_is_not_an_operator_is_refused(package: Path):
    once: Any = import_module("once")
    stream: Any = Flow("wrong").read(Items([1]))
    with pytest.raises(BadOptionError, match="instance"):
        stream.apply(once.Once)
    with pytest.raises(BadOptionError, match="OperatorKind"):
        stream.apply(len)
    assert list(stream.draft.operators) == ["read-1"]

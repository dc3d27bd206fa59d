"""A resource on Ray: one a process, which all its tasks and calls share; every attempt opens its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Context, Flow, Process, Range, Resource
from tests.faults.evidence import Evidence
from tests.gates import Gate, Gated
from tests.on_ray.flows import begin, told, until

COUNT = 200
PROCESSES = 2
AT_FIRST = COUNT // (2 * PROCESSES)
"""Each task reads these before the death, half of all numbers together."""


class Line:
    """What is open; a file says so, and another one that it was closed."""

    def __init__(self, folder: Path) -> None:
        self.id = f"{os.getpid()}-{len(os.listdir(folder))}"
        self.folder = folder
        (folder / f"{self.id}.opened").touch()

    def close(self) -> None:
        (self.folder / f"{self.id}.closed").touch(exist_ok=False)


class Ask(Process[Any, Any]):
    def __init__(self, line: Resource[Line]) -> None:
        self.line = line

    def on_record(self, ctx: Context[Any], value: Any) -> None:
        ctx.emit((*value, self.line.value.id))


def asked(folder: Path, gate: Gate) -> Flow:
    flow = Flow("asked")
    line = flow.resource("line", open=lambda: Line(folder), close=Line.close)
    numbers = flow.read(Gated(Range(COUNT), gate, AT_FIRST), name="numbers").map(lambda number: (number,))
    by_task = numbers.key_by(lambda record: record[0]).map(lambda record: (*record, line.value.id), name="by_task")
    by_call = by_task.map_async(lambda record: (*record, line.value.id), name="by_call", concurrency=4)
    by_call.process(Ask, line=line, name="by_class").write(Collect(), name="done")
    return flow


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_tasks_and_calls_of_a_process_share_one_and_the_next_attempt_opens_its_own(tmp_path: Path, evidence: Evidence):
    folder, gate = tmp_path / "lines", Gate(tmp_path / "gate")
    folder.mkdir()
    job = begin(
        asked(folder, gate), kills=["by_task/1@epoch=2"], snapshots=tmp_path / "cuts", every=0.1, parallelism=PROCESSES
    )
    until(job, lambda story: len(story.kills) == 1 and story.restores and story.state == "running", "it runs again")
    gate.let(2 * AT_FIRST)
    status = told(job, lambda status: status.resources["line"].open == PROCESSES, "both processes use theirs again")
    assert status.resources["line"].opened == 2 * PROCESSES
    gate.open()
    result = job.wait()
    evidence.happened("processes that died", len(result.kills))
    evidence.same([number for number, *_ in result.outputs["done"]], range(COUNT))
    # Earlier records may have been between two operators in the cut.
    by_task, by_call, by_class = zip(
        *(ids for number, *ids in result.outputs["done"] if number >= COUNT // 2), strict=True
    )
    assert len(set(by_task)) == PROCESSES
    assert set(by_task) == set(by_call) == set(by_class), "a process has one for all that runs in it"
    opened, closed = ({path.stem for path in folder.glob(f"*.{what}")} for what in ("opened", "closed"))
    died = {f"{kill['pid']}" for kill in result.kills}
    assert len(opened) == 2 * PROCESSES
    assert {line.partition("-")[0] for line in opened - closed} == died, "all are closed but that of the dead process"

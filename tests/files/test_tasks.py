"""The tasks of a flow read files and write files, die, and go on from a cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow
from backedge.engine.files.checks import check_sink, check_source
from backedge.engine.files.file_formats import CSV, JsonLines, Parquet
from backedge.engine.files.services import FileServices
from backedge.graphs.ids import Attempt, Epoch
from tests.files.opened import JOB, RUN, Deliveries, collected, folder_store, place, reader, rest, swept, write_json
from tests.runtime.tasks import States, Tasks, encoded


def orders(folder: Path) -> Flow:
    flow = Flow("orders")
    read = flow.read(JsonLines(str(folder / "in")), name="orders", parallelism=2)
    doubled = read.map(lambda order: {"n": order["n"] * 2})
    doubled.write(Parquet(str(folder / "out")), name="files")
    doubled.write(CSV(str(folder / "csv")), name="tables")
    doubled.write(Collect(), name="kept")
    return flow


class Attempts:
    """A run: tasks over the same folders, one attempt behind the other."""

    def __init__(self, folder: Path) -> None:
        self.staging = str(folder / "staging")
        self.flow = orders(folder)
        self.operators = self.flow.plan().operators
        self.sinks = [operator for operator in self.operators.values() if operator.kind.is_sink]
        self.splits = {"orders": check_source(self.operators["orders"])}
        for operator in self.sinks:
            check_sink(operator, place(operator.name, staging=Path(self.staging)), fresh=True)
        self.delivered = Deliveries()
        self.number = 0

    def start(self, states: States | None) -> Tasks:
        """The next attempt, from a cut: what that lists is committed, and the rest is rolled back."""
        self.number += 1
        self.services = FileServices(JOB, folder_store(Path(self.staging)), self.delivered, run=RUN, splits=self.splits)
        listed = [t for task in (states or {}).values() for state in task.values() for t in state.transactions]
        for operator in self.sinks:
            self.services.sweep(operator, swept({transaction.name for transaction in listed}))
        services: Any = self.services
        tasks = Tasks(self.flow, restored=states, services=services)
        self.commit(tasks)
        return tasks

    def commit(self, tasks: Tasks) -> None:
        for runtime in tasks.runtimes.values():
            runtime.commit([transaction.name for transaction in runtime.transactions])

    def cut(self, tasks: Tasks, epoch: int) -> States:
        captures = {id: r.capture(Epoch(epoch), Attempt(self.number)) for id, r in tasks.runtimes.items()}
        return {id: encoded(capture) for id, capture in captures.items()}


def read_some(tasks: Tasks, batches: int, records_max: int) -> None:
    for runtime in tasks.runtimes.values():
        for _ in range(batches):
            if runtime.task.is_source and not runtime.exhausted:
                for channel, batch in runtime.produce(records_max, now_ms=0):
                    tasks.runtimes[channel.receiver].process(tasks.deployment.channels[channel], batch, now_ms=0)


@pytest.mark.parametrize("commits_before_it_dies", [True, False])
def test_output_is_that_of_a_run_that_nothing_happened_to(tmp_path: Path, commits_before_it_dies: bool):
    for file in range(5):
        write_json(tmp_path / "in" / f"{file}.jsonl", [{"n": 100 * file + n} for n in range(100)])
    run = Attempts(tmp_path)
    tasks = run.start(None)
    read_some(tasks, batches=4, records_max=30)
    run.commit(tasks)
    states = run.cut(tasks, epoch=1)
    if commits_before_it_dies:
        run.commit(tasks)
    read_some(tasks, batches=3, records_max=30)
    run.cut(tasks, epoch=2)

    tasks = run.start(states)
    read_some(tasks, batches=100, records_max=30)
    run.cut(tasks, epoch=3)
    run.commit(tasks)
    for operator in run.sinks:
        run.services.sweep(operator, swept())

    expected = [2 * (100 * file + n) for file in range(5) for n in range(100)]
    assert sorted(record["n"] for record in rest(reader(Parquet(str(tmp_path / "out"))))) == expected
    assert sorted(int(record["n"]) for record in rest(reader(CSV(str(tmp_path / "csv"))))) == expected
    assert sorted(record["n"] for record in collected(run.services, "kept")) == expected
    delivered = {name: records for _, name, records in run.delivered.all}
    assert sorted(record["n"] for records in delivered.values() for record in records) == expected
    assert not (tmp_path / "out" / "_staging").exists()

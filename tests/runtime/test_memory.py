"""Sources and sinks in memory keep the promises that files would, and a writer is closed when its task is over."""

from __future__ import annotations

from typing import Any

import pytest

from backedge import Collect, Flow, Generate, Items, Source
from backedge.engine.io.memory import ListStore, ListWriter, MemoryServices
from backedge.engine.operators.services import RecordsOnly
from backedge.graphs.ids import TaskId
from backedge.graphs.kinds import Read
from backedge.graphs.plan import Operator
from tests.runtime.tasks import Tasks


@pytest.mark.parametrize("source", [Items([0, 1, 4, 9, 16]), Generate(lambda n: n * n, count=5)])
def test_the_splits_of_all_tasks_are_the_whole_source(source: Source):
    operator = Operator("source", Read(source))
    readers = [MemoryServices({}).reader(operator, index, 3, None) for index in range(3)]
    assert sorted(n for reader in readers for n in reader.read(100)) == [0, 1, 4, 9, 16]
    assert all(reader.exhausted for reader in readers)


def test_what_was_prepared_outlives_its_writer_as_it_was_written_and_what_was_not_does_not():
    store, record = ListStore(), {"n": 1}
    writer = ListWriter("sink", store)
    writer.write([record])
    record["n"] = 2
    writer.prepare("one")
    writer.write(["b"])
    later = ListWriter("sink", store)
    later.commit("one")
    assert later.prepare("two") is False
    assert store.output("sink") == [{"n": 1}]


def test_committing_what_nobody_prepared_is_refused():
    with pytest.raises(LookupError, match=r"sink 'sink' .* transaction 'one', which was never prepared"):
        ListWriter("sink", ListStore()).commit("one")


class ClosingWriter(ListWriter):
    closed = 0

    def close(self) -> None:
        self.closed += 1
        raise PermissionError("what it has open cannot be removed")


class Closing(MemoryServices):
    def __init__(self, is_wrapped: bool) -> None:
        super().__init__({})
        self.is_wrapped = is_wrapped
        self.opened: list[ClosingWriter] = []

    def writer(self, operator: Operator, task: TaskId) -> Any:
        writer = ClosingWriter(operator.name, self.store)
        self.opened.append(writer)
        return RecordsOnly(writer) if self.is_wrapped else writer


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_writer_is_closed_and_hides_nothing_by_what_it_raises(is_wrapped: bool):
    flow, services = Flow("numbers"), Closing(is_wrapped)
    flow.read(Items([1, 2]), name="read").write(Collect(), name="kept")
    tasks = Tasks(flow, services=services)
    tasks.run()
    for runtime in tasks.runtimes.values():
        runtime.close()
    assert [writer.closed for writer in services.opened] == [1]

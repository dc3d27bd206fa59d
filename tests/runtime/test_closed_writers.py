"""The writer of a sink is closed when its task is over, if it can be."""

from __future__ import annotations

from typing import Any

import pytest

from backedge import Collect, Flow, Items
from backedge.engine.io.memory import ListWriter, MemoryServices
from backedge.engine.operators.services import RecordsOnly
from backedge.graphs.ids import TaskId
from backedge.graphs.plan import Operator
from tests.runtime.tasks import Tasks


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


def numbers() -> Flow:
    flow = Flow("numbers")
    flow.read(Items([1, 2]), name="read").write(Collect(), name="kept")
    return flow


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_writer_is_closed_and_hides_nothing_by_what_it_raises(is_wrapped: bool):
    services = Closing(is_wrapped)
    tasks = Tasks(numbers(), services=services)
    tasks.run()
    for runtime in tasks.runtimes.values():
        runtime.close()
    assert [writer.closed for writer in services.opened] == [1]

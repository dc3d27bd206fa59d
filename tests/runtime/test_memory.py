"""Sources and sinks in memory keep the promises that files would."""

from __future__ import annotations

import pytest

from backedge import Generate, Items, Source
from backedge.engine.io.memory import ListStore, ListWriter, MemoryServices
from backedge.graphs.kinds import Read
from backedge.graphs.plan import Operator


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

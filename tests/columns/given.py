"""Columns for tests, and flows whose batches are columns."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from backedge import Collect, Flow, Items
from backedge.engine.batches.arrow import arrow
from backedge.engine.batches.batch import Batch, decode, encode
from backedge.engine.batches.columns import Columns, to_columns
from backedge.engine.batches.repeated_keys import RepeatedKeys
from tests.runtime.tasks import Tasks

slow = partial(pytest.param, marks=pytest.mark.slow)


def columns(**values: Any) -> Columns:
    """Columns of these values."""
    made = to_columns(arrow().table(values))
    assert isinstance(made, Columns)
    return made


def flow_of(step: Any) -> Flow:
    """A flow with one operator in a task of its own, called "op"; its outputs go to sinks in tasks of their own."""
    flow = Flow("one")
    made = step(flow.read(Items[Any]([]), name="source").rebalance())
    for name, stream in made.items() if isinstance(made, dict) else [("sink", made)]:
        stream.rebalance().write(Collect(), name=name)
    return flow


def sent(tasks: Tasks, records: Any, hops: Any = 0) -> list[tuple[str, Any, Any]]:
    """Where each batch of "op" went, its records as they travel, its hops."""
    runtime = tasks.home("op")
    emitted = runtime.process(runtime.task.inputs[0], batch_of(records, hops), 0)
    return [(str(channel.receiver), batch.records, batch.hops) for channel, batch in emitted]


def batch_of(records: Any, hops: Any = 0) -> Batch:
    """A batch, as it comes off the wire."""
    return decode(encode(Batch(records, hops)))


def count_found(monkeypatch: pytest.MonkeyPatch) -> Counter[type]:
    """Counts from now on what is found for keys that came before, by its type."""
    counts: Counter[type] = Counter()
    find = RepeatedKeys.find

    def counted(known: RepeatedKeys[Any], content: Any) -> Any:
        found = find(known, content)
        if found is not None:
            counts[type(found)] += 1
        return found

    monkeypatch.setattr(RepeatedKeys, "find", counted)
    return counts

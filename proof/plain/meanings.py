"""What each operator does with a record, without batches, tasks or concern for speed: for the plain interpreters.

It shares no code with the operators of the engine, which are compared with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import singledispatch
from operator import itemgetter
from typing import Any, Protocol, cast

import numpy as np

from backedge.graphs.discovery import READ, WANTED, FindSplits, ReadSplits, free_key, has_enough
from backedge.graphs.kinds import (
    Filter,
    FlatMap,
    Iterate,
    Map,
    MapAsync,
    MapBatches,
    OfBatchClass,
    OfClass,
    Split,
    StatefulMap,
    Write,
)
from backedge.graphs.operator_kind import OperatorKind
from backedge.graphs.options import BatchFormat
from backedge.graphs.routing import key_group, task_of_group


class PlainRecord(Protocol):
    """A record at an operator, and the actions it allows. `instance` is that of `instance_of`, `context` its ctx."""

    @property
    def record(self) -> Any: ...
    @property
    def input(self) -> str: ...
    @property
    def instance(self) -> Any: ...
    @property
    def context(self) -> Any: ...

    def emit(self, record: Any, output: str = "out") -> None:
        """Send a record to an output."""

    def value(self, default: Any) -> Any:
        """The value of the record's key; a copy of `default` if it has none."""
        ...

    def set_value(self, value: Any) -> None:
        """Set the value of the record's key."""

    def keep(self) -> None:
        """Keep the record until its answer arrives or its round ends."""

    def write(self) -> None:
        """Add the record to the output of the flow."""


def instance_of(kind: OperatorKind) -> Any:
    """The object whose hooks are called; None for an operator without hooks."""
    if isinstance(kind, FindSplits):
        return PlainFinder(kind)
    return kind.new_instance() if isinstance(kind, OfClass) else None


@singledispatch
def mean(kind: OperatorKind, at: PlainRecord) -> None:
    """Process one record."""
    raise NotImplementedError(f"operator kind {kind.word} has no plain meaning: give it one here")


@mean.register
def _(kind: Write, at: PlainRecord) -> None:
    at.write()


@mean.register
def _(kind: Map, at: PlainRecord) -> None:
    at.emit(kind.function(at.record))


@mean.register
def _(kind: FlatMap, at: PlainRecord) -> None:
    for result in kind.function(at.record):
        at.emit(result)


@mean.register
def _(kind: Filter, at: PlainRecord) -> None:
    if kind.function(at.record):
        at.emit(at.record)


@mean.register
def _(kind: Split, at: PlainRecord) -> None:
    chosen = kind.function(at.record)
    at.emit(at.record, chosen if kind.by_name else kind.names[0 if chosen else 1])


@mean.register
def _(kind: MapBatches, at: PlainRecord) -> None:
    function: Any = kind.function() if isinstance(kind.function, type) else kind.function
    for result in rows_of(function(batch_of_one(at.record, kind.batch_format))):
        at.emit(result)


@mean.register
def _(kind: MapAsync, at: PlainRecord) -> None:
    at.keep()


@mean.register
def _(kind: StatefulMap, at: PlainRecord) -> None:
    value, result = kind.function(at.value(kind.initial), at.record)
    at.set_value(value)
    at.emit(result)


@mean.register
def _(kind: OfClass, at: PlainRecord) -> None:
    named = (at.input,) if kind.named_inputs else ()
    at.instance.on_record(at.context, *named, at.record)


@mean.register
def _(kind: OfBatchClass, at: PlainRecord) -> None:
    named = (at.input,) if kind.named_inputs else ()
    at.instance.on_batch(at.context, *named, batch_of_one(at.record, kind.batch_format))


@mean.register
def _(kind: Iterate, at: PlainRecord) -> None:
    if at.input == "returned":
        at.keep()
    else:
        at.emit(at.record, "body")


@mean.register
def _(kind: FindSplits, at: PlainRecord) -> None:
    at.instance.on_record(at.context, at.record)


@mean.register
def _(kind: ReadSplits, at: PlainRecord) -> None:
    split = at.record["split"]
    at.set_value((split, kind.source.first_position(split)))


def batch_of_one(record: Any, batch_format: BatchFormat) -> Any:
    """A record as a batch."""
    if batch_format == "records":
        return [record]
    if batch_format == "numpy":
        return {name: np.array([value]) for name, value in record.items()}
    raise NotImplementedError(f'batch_format="{batch_format}" has no plain meaning')


def rows_of(batch: Any) -> list[Any]:
    """The records of a list or of a dict of arrays.

    >>> rows_of({"n": np.array([1, 2])})
    [{'n': 1}, {'n': 2}]
    """
    if isinstance(batch, list):
        return cast("list[Any]", batch)
    rows = zip(*(column.tolist() for column in batch.values()), strict=True)
    return [dict(zip(batch, row, strict=True)) for row in rows]


class PlainFinder:
    """`FindSplits`, with every step looking at all that is known."""

    def __init__(self, kind: FindSplits) -> None:
        self.find = kind.source.find_splits
        self._source = kind.source
        self._readers = kind.readers
        self._look_ms = round((kind.source.look_s or 0) * 1000)

    def on_start(self, ctx: Any) -> None:
        ctx.set_timer(0)

    def on_timer(self, ctx: Any, at_ms: int) -> None:
        values = self._values(ctx)
        found = self.find(values)
        for split in found.gone:
            if values.get(split) == READ:
                self._set(ctx, split, None)
        for split in found.new:
            self._set(ctx, split, WANTED)
        if not found.is_last:
            ctx.set_timer(ctx.now + self._look_ms)
        self._hand_out(ctx)

    def on_record(self, ctx: Any, finished: Mapping[str, str]) -> None:
        self._set(ctx, finished["split"], READ)
        self._hand_out(ctx)

    def _hand_out(self, ctx: Any) -> None:
        count = ctx.sizes.get(self._readers, 1)
        while wanted := [split for split, value in self._values(ctx).items() if value == WANTED]:
            wanted.sort(key=lambda split: (-self._source.size_of(split), split))
            taken = {value for value in self._values(ctx).values() if isinstance(value, int)}
            loads = Counter(task_of_group(key_group(key), count) for key in taken)
            task = min(range(count), key=lambda index: loads[index])
            if has_enough(self._source, loads[task], len(wanted), count):
                return
            key = free_key(taken, task, count, loads[task])
            self._set(ctx, wanted[0], key)
            ctx.emit({"key": key, "split": wanted[0]})

    @staticmethod
    def _values(ctx: Any) -> dict[str, Any]:
        known: Iterator[str] = ctx.keys()
        return {split: ctx.state.get() for split in known}

    @staticmethod
    def _set(ctx: Any, split: str, value: Any) -> None:
        before, ctx.state.key = ctx.state.key, split
        ctx.state.clear() if value is None else ctx.state.set(value)
        ctx.state.key = before


def measure_of(kind: Iterate, record: Any) -> Any:
    """The value of a record that the body of an iteration returned."""
    if kind.measure is None:
        return 1
    if callable(kind.measure):
        return kind.measure(record)
    return itemgetter(*((kind.measure,) if isinstance(kind.measure, str) else kind.measure))(record)

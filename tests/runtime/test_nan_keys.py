"""NaN is one key: in records and in columns, alone and within a tuple, in state, in timers and after a restore."""

from __future__ import annotations

import math
import struct
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

from backedge import Collect, Flow, Items, simulate
from backedge.engine.batches.arrow import arrow
from backedge.engine.batches.columns import Columns
from backedge.engine.operators.sending import Emitted, RebalanceTurn, partitioner
from backedge.graphs.deployment import Channel
from backedge.graphs.ids import ChannelId, TaskId
from backedge.graphs.plan import Edge, Routing
from backedge.graphs.routing import canonical_key, key_group
from tests.every import every
from tests.runtime.tasks import Tasks, flow_of, records_of

Pair = namedtuple("Pair", "name weight")  # what users write


def nan() -> float:
    """A NaN of its own: none is equal to another, and none is another."""
    return struct.unpack("<d", struct.pack("<d", math.nan))[0]


KEYS: dict[str, Any] = {
    "alone": nan,
    "in a tuple": lambda: ("a", nan()),
    "in a tuple in a tuple": lambda: (1, ("a", nan())),
    "in a named tuple": lambda: Pair("a", nan()),
    "of numpy": lambda: np.float64(nan()),
    "of 32 bits": lambda: np.float32(nan()),
}


def count(seen: int, record: Any) -> tuple[int, int]:
    return seen + 1, seen + 1


class Count:
    def on_record(self, ctx: Any, record: Any) -> None:
        seen = ctx.state.get(0) + 1
        ctx.state.set(seen)
        ctx.emit(seen)
        ctx.set_timer(10)

    def on_timer(self, ctx: Any, at_ms: int) -> None:
        ctx.emit(("woken", ctx.state.get()))


class CountBatches:
    def on_batch(self, ctx: Any, records: list[Any]) -> None:
        ctx.state.set(ctx.state.get(0) + len(records))
        ctx.emit(ctx.state.get())


def counting(step: str, states: Any = None, **options: Any) -> Tasks:
    def counted(stream: Any) -> Any:
        keyed = stream.key_by(lambda record: record["key"])
        if step == "stateful_map":
            return keyed.stateful_map(count, initial=0, name="op", **options)
        return keyed.process(Count if step == "process" else CountBatches, name="op", **options)

    return Tasks(flow_of(counted), restored=states)


@every("step", ["stateful_map", "process", "batches"])
@every("kind", KEYS)
def test_records_whose_key_holds_a_nan_meet_also_after_a_restore(kind: str, step: str):
    for options in ({}, {"on_error": "dead_letter"}) if step != "batches" else ({},):
        tasks = counting(step, **options)
        records = [{"key": KEYS[kind]()} for _ in range(4)]
        assert len({id(record["key"]) for record in records}) == 4
        assert records_of(tasks.feed("op", records[:3])) == ([3] if step == "batches" else [1, 2, 3])
        restored = counting(step, tasks.capture(), **options)
        assert records_of(restored.feed("op", records[3:])) == [4]


def test_a_timer_finds_the_state_of_its_key_after_a_restore_too():
    tasks = counting("process")
    tasks.feed("op", [{"key": nan()}])
    for woken in (counting("process", tasks.capture()), tasks):
        assert records_of(woken.home("op").fire_timers(now_ms=10)) == [("woken", 1)]


def test_other_keys_stay_as_they_are():
    for key in (1, 1.0, 0.0, math.inf, "nan", ("a", 1.5), (), None, True, b"nan", Pair("a", 1.0), np.float64(2)):
        assert canonical_key(key) is key
    assert isinstance(canonical_key(Pair("a", nan())), Pair)
    assert canonical_key((nan(), 1)) == canonical_key((nan(), 1))
    assert canonical_key((nan(), 1)) != canonical_key((nan(), 2))


def targets(records: Any, by: Any, parallelism: int) -> set[int]:
    edge = Edge("e", "a", "out", "b", "in", Routing.HASH, by)
    ids = [ChannelId("e", TaskId("a", 0), TaskId("b", index)) for index in range(parallelism)]
    emitted: Emitted = []
    channels = [Channel(id, edge, is_back=False, depth=0, within_actor=False) for id in ids]
    partitioner(edge, channels, 0, emitted, RebalanceTurn("e"))(records, 0)
    return {channel.receiver.index for channel, _ in emitted}


@pytest.mark.parametrize("parallelism", [2, 3, 7, 128])
def test_records_and_columns_go_to_the_same_task(parallelism: int):
    records = [{"key": nan()} for _ in range(20)]
    doubles, floats = np.full(20, np.nan), np.full(20, np.nan, np.float32)
    payload = np.array([struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000000 + n))[0] for n in range(20)])
    to = targets(records, "key", parallelism)
    assert to == {key_group(math.nan) * parallelism // 128}
    for column in (doubles, floats, -doubles, payload):
        assert targets(Columns(arrow().record_batch({"key": column})), "key", parallelism) == to
    with_null = Columns(arrow().record_batch({"key": arrow().array([nan(), nan()])}))
    assert targets(with_null, "key", parallelism) == to


def test_columns_of_nan_meet_in_the_state_of_one_key():
    flow = Flow("nan")
    made = flow.read(Items([{"key": 1.0}]), name="numbers").map_batches(
        lambda batch: {"key": np.full(5, np.nan)}, batch_format="numpy", name="make"
    )
    made.key_by("key").stateful_map(count, initial=0, name="op").write(Collect(), name="done")
    assert sorted(simulate(flow, seeds=range(5)).outputs["done"]) == [1, 2, 3, 4, 5]


def test_a_cut_is_asked_for_the_state_of_nan():
    seen: list[Any] = []
    flow = Flow("nan")
    numbers = flow.read(Items([nan(), nan()]), name="numbers").key_by(lambda record: record)
    numbers.stateful_map(count, initial=0, name="op").write(Collect(), name="done")
    simulate(flow, seeds=[], invariant=lambda view: seen.append(view.state("op").get(math.nan)) is None)
    assert seen[-1] == 2

"""The small graphs that the explorer walks, each with its bounds.

A record is (id, hops left, times counted). Bodies count it in their state and in the record itself, so a cut is right
if each record is in one place, and the states have counted it as often as it says.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from backedge.engine.batches.batch import decode
from backedge.engine.simulation.world.world import World
from backedge.engine.simulation.world.world_options import Parts, WorldOptions
from backedge.engine.state.keyed_state import keyed_entries
from backedge.engine.task.ports import FlowLimits
from backedge.graphs.ids import Attempt, ChannelId
from backedge.graphs.plan import Operator, Plan, Routing
from backedge.recovery.cut.cut import Cut
from backedge.recovery.protocol.credit import Credit
from backedge.recovery.protocol.messages import Mode, marker_in
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from proof.tiny import (
    DeltaRuntime,
    PairsRuntime,
    SplitsRuntime,
    TinyFinder,
    TinyHead,
    TinyReader,
    TinyRuntime,
    TinySource,
    TinyStep,
    tiny_plan,
)

Record = tuple[int, int, int]
NEVER_MS = 10**9
UNBOUNDED = FlowLimits()
SPILLING = FlowLimits(loop_bytes_max=0)
"""All waiting batches of a loop but the first are spilled."""
ONE_BATCH = FlowLimits(credit_bytes=1, back_edge_bytes_min=1, loop_bytes_max=0)
"""Every channel has room for one batch. On a back edge the next ones wait at the sender, spilled."""
REPEATING = structs.replace(ONE_BATCH, back_edge_bytes_min=100, credit_repeat_ms=0)
"""Back edges have room for two batches, so two messages of credit can be in transit; any moment is one to repeat it."""


def pass_on(state: dict[Any, Any], record: Record) -> list[tuple[str, Record]]:
    """A head that only merges."""
    return [("out", record)]


def count(state: dict[Any, Any], record: Record) -> list[tuple[str, Record]]:
    """A body: counts, and sends back records that have hops left."""
    id, left, counted = record
    state[id] = state.get(id, 0) + 1
    counted_again = (id, left - 1, counted + 1)
    if left > 1:
        return [("again", counted_again)]
    state["done"] = sorted([*state.get("done", []), counted_again])
    return []


def count_nested(state: dict[Any, Any], record: Record) -> list[tuple[str, Record]]:
    """A body of two nested loops: every second hop belongs to the outer loop."""
    out = count(state, record)
    return [("outer" if record[1] % 2 else "again", again) for _, again in out]


def count_in_rounds(state: dict[Any, Any], record: Record) -> list[tuple[str, Record]]:
    """A body of an iteration: sends everything back."""
    id, left, counted = record
    state[id] = state.get(id, 0) + 1
    return [("again", (id, left, counted + 1))]


def keep(state: dict[Any, Any], record: Record) -> list[tuple[str, Record]]:
    """The end: keeps finished records."""
    state["done"] = sorted([*state.get("done", []), record])
    return []


class ExploredWorld(World):
    """A world whose tasks' credit waits in `sent_credits` for the explorer to deliver it."""

    def __init__(self, *arguments: Any) -> None:
        self.sent_credits: list[tuple[ChannelId, Credit]] = []
        super().__init__(*arguments)

    def send_credit(self, attempt: Attempt, channel: ChannelId, credit: Credit) -> None:
        """Keep it, unless channels have no bounds."""
        if self.options.flow.credit_bytes is not None:
            self.sent_credits.append((channel, credit))


@dataclass(frozen=True)
class TinyGraph:
    """A plan, its input, and the bounds of its walk.

    - logs_regular: regular channels may be logged too; overtakes: tasks may capture past their queues at any moment.
    - together: batches may be taken together. flow: the limits on what waits in channels.
    - late_credit: credit is in transit and may overtake credit; otherwise it arrives at once.
    - files_max: how many files may make up the keyed state of a task; with more than 1, cuts hold what has changed.
    """

    name: str
    plan: Plan
    bounds: Mapping[str, int]
    counted_at_end: Mapping[int, int]
    parallelism: int = 1
    mode: Mode = Mode.ALIGNED
    writes_at_once: bool = True
    logs_regular: bool = False
    overtakes: bool = False
    together: bool = False
    flow: FlowLimits = field(default=UNBOUNDED)
    late_credit: bool = False
    records_max: int = 1
    files_max: int = 1
    runtime: Callable[..., Any] = field(default=TinyRuntime)

    def world(self, parts: Parts | None = None) -> ExploredWorld:
        """A new world of this graph; epochs begin only on request."""
        patience_ms = 0 if self.overtakes else None
        snapshots = SnapshotOptions(
            self.mode,
            NEVER_MS,
            NEVER_MS,
            patience_ms=patience_ms,
            probe_pause_ms=0,
            keep=10**6,
            files_max=self.files_max,
        )
        options = WorldOptions(
            self.parallelism,
            snapshots=snapshots,
            records_max=self.records_max,
            traces=False,
            slices=self.overtakes,
            together=self.together,
            flow=self.flow,
        )
        return ExploredWorld(self.plan, {}, options, replace(parts or Parts(), runtime=self.runtime))

    def wrong_in(self, cut: Cut) -> str:
        """What is wrong with the places of the records in this cut; empty if nothing is."""
        places = list(self._places(cut))
        ids = Counter(record[0] for record in places)
        expected = Counter(record[0] for operator in self.plan.operators.values() for record in _records(operator))
        if ids != expected:
            return f"records are in these many places: {dict(ids)}, of {dict(expected)}"
        counted: Counter[int] = Counter()
        for state in _states(cut):
            counted.update({key: value for key, value in state.items() if isinstance(key, int)})
        for id, _, times in places:
            if counted[id] != times:
                return f"record {id} says that it was counted {times} times, the states say {counted[id]}"
        return ""

    def unfinished_in(self, cut: Cut) -> str:
        """Which records are not done, or not often enough, in what should be the end."""
        done = [record for state in _states(cut) for record in state.get("done", [])]
        if sorted((id, counted) for id, _, counted in done) != sorted(self.counted_at_end.items()):
            return f"records should be done and counted so often: {dict(self.counted_at_end)}, done are {done}"
        return ""

    def _places(self, cut: Cut) -> Iterator[Record]:
        for task, snapshot in cut.snapshots.items():
            operator = self.plan.operators[task.name]
            for state in (s.whole for s in snapshot.operators.values()):
                content: dict[Any, Any] = {} if state is None else pickle.loads(state)
                yield from content.get("done", [])
                yield from content.get("gathered", [])
                share = _records(operator)[task.index :: cut.parallelism[task.name]]
                yield from share[content.get("read", 0) :]
            batches = [(entry.payload, entry.skip) for record in snapshot.inputs for entry in record.log]
            if snapshot.rounds is not None:
                for channel, aside in snapshot.rounds.aside.items():
                    skips = (snapshot.rounds.skips.get(channel, 0), *(0 for _ in aside[1:]))
                    batches += zip(aside, skips, strict=True)
            for payload, skip in batches:
                if marker_in(payload) is None:
                    yield from decode(payload).records[skip:]


class SplitsGraph(TinyGraph):
    """A source that finds its splits: each of these is in one place."""

    def wrong_in(self, cut: Cut) -> str:
        """What is wrong with the places of the splits in this cut; empty if nothing is."""
        where: dict[int, list[str]] = {id: [] for id in self.counted_at_end}
        for state in _states(cut):
            for name in ("wanted", "taken", "open", "done"):
                for id, *_ in state.get(name, []):
                    where[id].append(name)
        in_logs = {"find.out": "handed out", "read.out": "sent", "read.finished": "reported"}
        for received in (record for snapshot in cut.snapshots.values() for record in snapshot.inputs):
            for entry in received.log:
                for id, *_ in decode(entry.payload).records[entry.skip :]:
                    where[id].append(in_logs[received.channel.edge.partition("->")[0]])
        right = (["wanted"], ["handed out", "taken"], ["open", "taken"], ["done", "reported", "taken"], ["done"])
        right += (["reported", "sent", "taken"], ["sent"])
        wrong = {id: places for id, places in where.items() if sorted(places) not in right}
        return f"splits are in these places: {wrong}" if wrong else ""


def _records(operator: Operator) -> tuple[Record, ...]:
    return operator.kind.records if isinstance(operator.kind, TinySource) else ()


def _states(cut: Cut) -> Iterator[dict[Any, Any]]:
    for snapshot in cut.snapshots.values():
        for state in snapshot.operators.values():
            if state.whole is not None:
                counts = {id: count for id, (count,) in keyed_entries(state).values.items()}
                yield {**pickle.loads(state.whole), **counts}


def _source(name: str, *records: Record) -> Operator:
    return Operator(name, TinySource(records), parallelism=1, inputs=())


def _step(name: str, function: Any, *outputs: str) -> Operator:
    return Operator(name, TinyStep(function), inputs=("in",), outputs=outputs or ("out",))


def _loop(name: str, bounds: Mapping[str, int], *items: Record, parallelism: int = 1, **options: Any) -> TinyGraph:
    """The items enter at the head, one record more at the body; what has hops left goes back, shuffled."""
    side = (2, 1, 0)
    operators = [_source("items", *items), _source("side", side), _step("head", pass_on), _step("body", count, "again")]
    edges = [
        ("items.out", "head.in", None, Routing.HASH),
        ("head.out", "body.in", None, Routing.FORWARD if parallelism > 1 else Routing.HASH),
        ("side.out", "body.in", None, Routing.HASH),
        ("body.again", "head.in", "again", Routing.HASH),
    ]
    counted = {id: hops for id, hops, _ in (*items, side)}
    return TinyGraph(name, tiny_plan(name, operators, edges), bounds, counted, parallelism, **options)


def _narrow(name: str, bounds: Mapping[str, int], *items: Record, **options: Any) -> TinyGraph:
    """A loop with nothing beside it: few channels, so that more epochs can be walked."""
    operators = [_source("items", *items), _step("head", pass_on), _step("body", count, "again")]
    edges = [
        ("items.out", "head.in", None, Routing.HASH),
        ("head.out", "body.in", None, Routing.HASH),
        ("body.again", "head.in", "again", Routing.HASH),
    ]
    counted = {id: hops for id, hops, _ in items}
    return TinyGraph(name, tiny_plan(name, operators, edges), bounds, counted, **options)


def _nested(name: str, bounds: Mapping[str, int]) -> TinyGraph:
    operators = [
        _source("items", (0, 3, 0)),
        _step("outer", pass_on),
        _step("inner", pass_on),
        _step("body", count_nested, "again", "outer"),
    ]
    edges = [
        ("items.out", "outer.in", None, Routing.HASH),
        ("outer.out", "inner.in", None, Routing.HASH),
        ("inner.out", "body.in", None, Routing.HASH),
        ("body.again", "inner.in", "inner", Routing.HASH),
        ("body.outer", "outer.in", "outer", Routing.HASH),
    ]
    return TinyGraph(name, tiny_plan(name, operators, edges), bounds, {0: 3})


def _rounds(name: str, bounds: Mapping[str, int], rounds: int) -> TinyGraph:
    operators = [
        _source("items", (0, 0, 0), (1, 0, 0)),
        Operator(
            "repeat",
            TinyHead(rounds, voices=2),
            inputs=("start", "returned"),
            outputs=("body", "result"),
        ),
        _step("body", count_in_rounds, "again"),
        _step("keep", keep),
    ]
    edges = [
        ("items.out", "repeat.start", None, Routing.HASH),
        ("repeat.body", "body.in", None, Routing.HASH),
        ("body.again", "repeat.returned", "repeat", Routing.HASH),
        ("repeat.result", "keep.in", None, Routing.FORWARD),
    ]
    return TinyGraph(name, tiny_plan(name, operators, edges), bounds, {0: rounds, 1: rounds}, 2)


def _splits(name: str, bounds: Mapping[str, int], **options: Any) -> TinyGraph:
    splits = ((0, 0, 0), (1, 0, 0), (2, 0, 0))
    finder = Operator("find", TinyFinder(splits, 2), parallelism=1, inputs=("splits",))
    operators = [finder, Operator("read", TinyReader(), inputs=("splits",), outputs=("out", "finished"))]
    edges = [
        ("find.out", "read.splits", None, Routing.HASH),
        ("read.out", "keep.in", None, Routing.HASH),
        ("read.finished", "find.splits", "finished", Routing.HASH),
    ]
    plan = tiny_plan(name, [*operators, structs.replace(_step("keep", keep), parallelism=1)], edges)
    options = {"runtime": SplitsRuntime, "parallelism": 2, **options}
    return SplitsGraph(name, plan, bounds, {id: 0 for id, *_ in splits}, **options)


def graphs() -> tuple[TinyGraph, ...]:
    one = {"epochs": 1, "aborts": 0, "crashes": 1, "early_probes": 0}
    # Two records in the loop and two inputs of its body would take minutes together.
    overlapping = {**one, "epochs": 2, "aborts": 1}
    items = ((0, 2, 0), (1, 1, 0))
    return (
        _loop("two heads, two bodies, shuffled", one, (0, 2, 0), (1, 2, 0), parallelism=2),
        _narrow("two overlapping epochs, an abort", overlapping, *items),
        _loop("two overlapping epochs, two inputs, an abort", overlapping, (0, 2, 0)),
        _nested("nested loops", one),
        _rounds("rounds", one, rounds=2),
        _loop("unaligned", one, *items, mode=Mode.UNALIGNED, logs_regular=True),
        _loop("unaligned, one record", one, (0, 2, 0), mode=Mode.UNALIGNED, logs_regular=True),
        _loop(
            "overtaking, batches in parts",
            one,
            (0, 1, 0),
            (1, 1, 0),
            logs_regular=True,
            overtakes=True,
            records_max=2,
            runtime=PairsRuntime,
        ),
        _loop("a spilled loop, batches together", one, (0, 2, 0), (1, 2, 0), together=True, flow=SPILLING),
        _loop(
            "channels with room for one batch",
            one,
            (0, 2, 0),
            (1, 2, 0),
            together=True,
            flow=ONE_BATCH,
            runtime=PairsRuntime,
        ),
        _narrow("deltas", {**one, "epochs": 2}, (0, 2, 0), files_max=4, runtime=DeltaRuntime),
        _narrow("deltas of the same keys", {**one, "epochs": 3}, (0, 1, 0), files_max=4, runtime=DeltaRuntime),
        _narrow(
            "credit that is late or lost",
            {**one, "lost_credits": 1},
            (0, 2, 0),
            (1, 2, 0),
            flow=REPEATING,
            late_credit=True,
        ),
        _splits("splits that are found", one),
        _splits("splits that are found, unaligned", one, mode=Mode.UNALIGNED, logs_regular=True),
        _loop("a late write", one, *items, writes_at_once=False),
        _loop("a probe too early", {**one, "early_probes": 1}, *items),
        _loop("a death during the restore", {**one, "crashes": 2}, *items),
    )

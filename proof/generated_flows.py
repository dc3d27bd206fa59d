"""Generated cases for the simulator: real flows of every topology, with small inputs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from backedge import Collect, Flow, Items, Loop, Plan, Stream
from backedge.engine.simulation.checker.record import Conserved
from backedge.graphs.discovery import sources_of
from proof.column_flows import ON_COLUMNS, on_columns, on_records
from proof.generated_steps import (
    KEYS,
    Arriving,
    Delay,
    Item,
    Learn,
    Listen,
    Owner,
    Pay,
    Publish,
    Total,
    Turn,
    alike,
    ask,
    compared,
    count,
    fan_out,
    is_done,
    is_even,
    mark,
    new_count,
    side,
    step,
    three_ways,
    weight_of,
    weight_of_state,
)

Policy = Literal["aligned", "unaligned"]


@dataclass(frozen=True)
class Case:
    """A flow with its inputs, and how to run it.

    - conserved: None if the flow multiplies or drops records.
    - on_records: the same flow on records, if this one is on columns.
    """

    name: str
    flow: Flow
    plan: Plan
    inputs: dict[str, list[Any]]
    parallelism: int
    rescale_to: int | None
    actors: Literal["task", "slice"]
    policy: Policy
    is_cyclic: bool
    conserved: Conserved | None
    on_records: Plan | None = None


Streams = Stream[Item]
Variant = Callable[[Flow], None]

CONSERVED = Conserved(weight_of, weight_of_state)
LEFT_MAX = 6


def generate(rng: random.Random, name: str | None = None, *, long: bool = False) -> Case:
    """A case of this topology, or of a random one. `long`: with many records.

    >>> generate(random.Random(1), "self_loop").is_cyclic
    True
    """
    name = name or rng.choice(NAMES)
    variant = 0 if name in ON_COLUMNS else rng.randrange(len(_TOPOLOGIES[name]))
    flow, plan = _built(name, variant)
    in_rounds = name in IN_ROUNDS
    policy = rng.choice(_POLICIES_IN_ROUNDS if in_rounds else _POLICIES)
    return Case(
        name=name,
        flow=flow,
        plan=plan,
        inputs=_inputs(rng, plan, in_rounds=in_rounds, long=long),
        parallelism=rng.choice((1, 2, 2, 3, 4)[: 3 if in_rounds else 5]),
        rescale_to=rng.randint(1, 3) if rng.random() < 0.3 else None,
        actors=rng.choice(("task", "slice")),
        policy=policy,
        is_cyclic=any(edge.is_back for edge in plan.edges),
        conserved=None if name in NOT_CONSERVED or (name, variant) in _LOSING else CONSERVED,
        on_records=on_records(name) if name in ON_COLUMNS else None,
    )


_POLICIES: tuple[Policy, ...] = ("aligned", "aligned", "unaligned", "unaligned")
_POLICIES_IN_ROUNDS: tuple[Policy, ...] = ("aligned", "aligned", "unaligned")


@cache
def _built(name: str, variant: int) -> tuple[Flow, Plan]:
    if name in ON_COLUMNS:
        return on_columns(name), on_columns(name).plan()
    flow = Flow(name)
    _TOPOLOGIES[name][variant](flow)
    return flow, flow.plan()


def _inputs(rng: random.Random, plan: Plan, *, in_rounds: bool, long: bool) -> dict[str, list[Any]]:
    """Records for each source: a few, one, or none at all; the ids are unique."""
    sources = sources_of(plan)
    # Side inputs of an iteration are long, so that snapshots find them still arriving.
    are_long = [not in_rounds or name == "samples" for name in sources]
    several = (16, 24) if long else (4, 6, 8)
    lengths = [rng.choice(several if is_long else (2, 3)) for is_long in are_long]
    if len(sources) > 1 and rng.random() < 0.3:
        lengths[rng.randrange(len(lengths))] = rng.choice((0, 1))
    ids = iter(range(1000))
    return {
        name: [
            {
                "id": next(ids),
                "key": rng.randrange(KEYS),
                "left": rng.randint(LEFT_MAX // 2, LEFT_MAX),
                "weight": rng.randint(3, 8) if in_rounds else rng.randint(1, 3),
                "path": [],
            }
            for _ in range(length)
        ]
        for name, length in zip(sources, lengths, strict=True)
    }


def _read(flow: Flow, name: str = "in") -> Streams:
    return flow.read(Items[Item]([]), name=name)


def _write(stream: Streams, name: str = "done") -> None:
    stream.write(Collect(), name=name)


def _count(stream: Streams, name: str) -> Streams:
    return stream.key_by("key").stateful_map(count, initial=new_count(), name=name)


def _until_done(again: Loop[Item], stream: Streams) -> Streams:
    """What has no hops left. The rest goes round again."""
    done, more = stream.split(is_done, name="split")
    again.feed(more)
    return done


# -- without a cycle ---------------------------------------------------------------------------------------------


def _chain(flow: Flow) -> None:
    _write(_count(_read(flow).map(step), "count").map(mark))


def _chain_filtered(flow: Flow) -> None:
    _write(_count(_read(flow).flat_map(fan_out).rebalance().filter(is_even), "count"))


def _chain_async(flow: Flow) -> None:
    _write(_count(_read(flow).rebalance().map_async(ask, answers="again", name="ask"), "count"))


def _chain_delayed(flow: Flow) -> None:
    delayed = _read(flow).key_by("key").process(Delay, name="delay")
    _write(delayed.key_by("key").process(Total, name="total"))


def _diamond(flow: Flow) -> None:
    even, odd = _read(flow).merge(_read(flow, "more")).split(is_even, name="split")
    _write(_count(even.map(mark).merge(odd.flat_map(fan_out).rebalance().map(step)), "count"))


def _diamond_routed(flow: Flow) -> None:
    routed = _read(flow).merge(_read(flow, "more")).route(side).map(mark, parallelism=2, name="routed")
    even, odd = routed.split(is_even, name="split", parallelism=2)
    _write(_count(even.merge(odd), "count"))


# -- loops that run freely ---------------------------------------------------------------------------------------


def _self_loop(flow: Flow) -> None:
    again = flow.loop("again", of=Item)
    turned = _read(flow).merge(_read(flow, "more")).merge(again).key_by("key").process(Turn, name="turn")
    again.feed(turned)
    _write(turned.side("done"))


def _self_loop_forward(flow: Flow) -> None:
    again = flow.loop("again", of=Item)
    stepped = _read(flow).rebalance().merge(again).map(step, name="step")
    _write(_count(_until_done(again, stepped), "count"))


def _self_loop_limited(flow: Flow) -> None:
    again = flow.loop("again", of=Item, max_rounds=2)
    _write(_until_done(again, _count(_read(flow).merge(again), "count")))


def _far_loop(flow: Flow) -> None:
    """Two tasks between the sources and the loop: batches queue up behind a head that holds its inputs."""
    again = flow.loop("again", of=Item)
    near = _read(flow).rebalance().map(mark, name="near")
    far = near.rebalance().map(mark, name="far")
    _write(_until_done(again, _count(far.merge(again), "count")))


def _two_back_edges(flow: Flow) -> None:
    again = flow.loop("again", of=Item)
    counted = _count(_read(flow).merge(again), "count")
    left, right, done = counted.split(three_ways, into=("left", "right", "done"), name="split")
    again.feed(left.map(mark, name="mark").merge(right))
    _write(done)


def _nested(flow: Flow) -> None:
    outer, inner = flow.loop("outer", of=Item), flow.loop("inner", of=Item)
    entered = _count(_read(flow).merge(outer), "outer_head")
    turned = _count(entered.merge(inner), "inner_head")
    left, right, done = turned.split(three_ways, into=("left", "right", "done"), name="split")
    inner.feed(left)
    outer.feed(right)
    _write(done)


def _shared_head(flow: Flow) -> None:
    one, two = flow.loop("one", of=Item), flow.loop("two", of=Item)
    counted = _count(_read(flow).merge(one, two, _read(flow, "more")), "count")
    left, right, done = counted.split(three_ways, into=("left", "right", "done"), name="split")
    one.feed(left.rebalance().map(mark, name="mark"))
    two.feed(right.flat_map(fan_out, name="fan_out"))
    _write(done)


def _shared_head_async(flow: Flow) -> None:
    one, two = flow.loop("one", of=Item), flow.loop("two", of=Item)
    counted = _count(_read(flow).merge(one, two), "count")
    left, right, done = counted.split(three_ways, into=("left", "right", "done"), name="split")
    one.feed(left.map_async(ask, answers="again", name="ask"))
    two.feed(right.key_by("key").process(Delay, name="delay"))
    _write(done)


def _overlapping(flow: Flow) -> None:
    first, second = flow.loop("first", of=Item), flow.loop("second", of=Item)
    entered = _count(_read(flow).merge(first), "head")
    turned = _count(entered.merge(second), "middle")
    even, odd = turned.split(is_even, name="parity")
    stays, back = even.split(is_done, name="split_even")
    first.feed(back)
    done, more = stays.merge(odd).map(mark, name="last").split(is_done, name="split_odd")
    second.feed(more)
    _write(done)


def _irreducible(flow: Flow) -> None:
    again = flow.loop("again", of=Item)
    first = _count(_read(flow).merge(again), "first")
    second = _count(first.merge(_read(flow, "more")), "second")
    _write(_until_done(again, second))


# -- calls whose answers are kept ----------------------------------------------------------------------------------


def _kept(flow: Flow) -> None:
    _write(_count(_read(flow).map(alike).map_async(ask, name="ask"), "count"))


def _kept_in_a_loop(flow: Flow) -> None:
    again = flow.loop("again", of=Item)
    asked = _count(_read(flow).map(alike).merge(again), "count").map_async(ask, name="ask")
    _write(_until_done(again, asked))


def _kept_by_key(flow: Flow) -> None:
    asked = _read(flow).map(alike).key_by("key").map_async(ask, name="ask", parallelism=2)
    _write(_count(asked, "count"))


def _kept_in_rounds(flow: Flow) -> None:
    """Each round asks the same questions, which have other answers to wait for."""

    def body(stream: Streams) -> Streams:
        return _pay(stream.map(alike).map_async(ask, name="ask"), "pay")

    _write(flow.iterate(_read(flow), body, rounds=3, name="iterate"))


# -- iterations in rounds ----------------------------------------------------------------------------------------


def _pay(stream: Streams, name: str) -> Streams:
    paid = stream.key_by("key").process(Pay, name=name)
    _write(paid.side("paid"), f"{name}_paid")
    return paid


def _rounds(flow: Flow) -> None:
    _write(flow.iterate(_read(flow), lambda s: _pay(s.map(mark, name="mark"), "pay"), rounds=6, name="iterate"))


def _rounds_until(flow: Flow) -> None:
    result = flow.iterate(
        _read(flow),
        lambda s: _pay(s, "pay"),
        until=lambda total: total < 4,
        measure=weight_of,
        name="iterate",
    )
    _write(result)


def _rounds_asking(flow: Flow) -> None:
    """A round waits for calls, across a crash too."""

    def body(stream: Streams) -> Streams:
        return _pay(stream.rebalance().map_async(ask, answers="again", name="ask"), "pay")

    _write(flow.iterate(_read(flow), body, rounds=6, name="iterate"))


def _rounds_delayed(flow: Flow) -> None:
    """A round waits for timers, across a crash too."""

    def body(stream: Streams) -> Streams:
        return _pay(stream.key_by("key").process(Delay, name="delay"), "pay")

    _write(flow.iterate(_read(flow), body, rounds=6, name="iterate"))


def _rounds_learning(flow: Flow) -> None:
    samples = _read(flow, "samples")

    def body(model: Streams) -> Streams:
        learned = flow.process(Learn, model=model.key_by("key"), samples=samples.key_by("key"), name="learn")
        _write(learned.side("paid"), "learn_paid")
        return learned

    _write(flow.iterate(_read(flow), body, rounds=5, name="iterate"))


def _rounds_nested(flow: Flow) -> None:
    def body(outer: Streams) -> Streams:
        return flow.iterate(_pay(outer, "outer_pay"), lambda s: _pay(s, "inner_pay"), rounds=2, name="inner")

    _write(flow.iterate(_read(flow), body, rounds=2, name="outer"))


def _rounds_nested_last(flow: Flow) -> None:
    def body(outer: Streams) -> Streams:
        return _pay(flow.iterate(outer, lambda s: _pay(s, "inner_pay"), rounds=2, name="inner"), "outer_pay")

    _write(flow.iterate(_read(flow), body, name="outer"))


def _rounds_deep(flow: Flow) -> None:
    def middle(stream: Streams) -> Streams:
        return flow.iterate(stream, lambda s: _pay(s, "inner_pay"), rounds=2, name="inner")

    def body(outer: Streams) -> Streams:
        return flow.iterate(_pay(outer, "outer_pay"), middle, rounds=1, name="middle")

    _write(flow.iterate(_read(flow), body, rounds=2, name="outer"))


def _rounds_behind_loop(flow: Flow) -> None:
    again = flow.loop("again", of=Item)
    done = _until_done(again, _count(_read(flow).merge(again), "count"))
    _write(flow.iterate(done, lambda s: _pay(s, "pay"), rounds=4, name="iterate"))


def _rounds_asking_last(flow: Flow) -> None:
    """Records sent at the end of a round cause calls that still belong to that round."""

    def body(stream: Streams) -> Streams:
        return _pay(stream, "pay").map_async(ask, answers="again", name="ask")

    _write(flow.iterate(_read(flow), body, rounds=4, name="iterate"))


def _rounds_beside_loops(flow: Flow) -> None:
    """What is behind both gets the barriers of cuts between two rounds, and of probes, by two ways."""
    again = flow.loop("again", of=Item)
    done = _until_done(again, _count(_read(flow, "other").merge(again), "count"))

    def body(stream: Streams) -> Streams:
        return _pay(stream.key_by("key").process(Delay, name="delay"), "pay")

    _write(flow.iterate(_read(flow), body, rounds=3, name="iterate").merge(done))


def _rounds_beside_and_behind_loops(flow: Flow) -> None:
    one, two = flow.loop("one", of=Item), flow.loop("two", of=Item)
    before = _until_done(one, _count(_read(flow).merge(one), "count"))
    beside, more = _read(flow, "other").merge(two).map(step, name="step").split(is_done, name="split_beside")
    two.feed(more.key_by("key").process(Delay, name="delay"))
    rounds = flow.iterate(before, lambda s: _pay(s.map(mark, name="mark"), "pay"), rounds=4, name="iterate")
    _write(_count(rounds.merge(beside), "count_all"))


def _rounds_in_lanes(flow: Flow) -> None:
    """Nothing in the body is partitioned: each head sends to one task, so one lane may be far ahead."""
    _write(flow.iterate(_read(flow), lambda s: s.map(mark, name="mark"), rounds=6, name="iterate"))


def _rounds_in_lanes_nested(flow: Flow) -> None:
    def body(outer: Streams) -> Streams:
        return flow.iterate(outer.map(mark, name="mark"), lambda s: s.map(mark, name="step"), rounds=2, name="inner")

    _write(flow.iterate(_read(flow), body, rounds=4, name="outer"))


# -- sources whose splits arrive ---------------------------------------------------------------------------------


def _arriving(flow: Flow) -> None:
    arrived = flow.read(Arriving([]), name="in").map(mark, name="near")
    _write(_count(arrived.merge(_read(flow, "other")), "count"))


def _arriving_for_a_loop(flow: Flow) -> None:
    again = flow.loop("again", of=Item)
    arrived = flow.read(Arriving([]), name="in").rebalance().map(mark, name="near")
    _write(_until_done(again, _count(arrived.merge(again), "count")))


# -- the rest ----------------------------------------------------------------------------------------------------


def _pipelines(flow: Flow) -> None:
    again = flow.loop("again", of=Item)
    turned = _read(flow).merge(again).key_by("key").process(Turn, name="turn")
    again.feed(turned)
    _write(turned.side("done"))
    _write(_count(_read(flow, "other"), "count"), "counted")
    _write(_read(flow, "third").map(mark), "marked")


def _versions(flow: Flow) -> None:
    versions = flow.versions("versions", keep=1_000)
    again = flow.loop("again", of=Item)
    published = _read(flow).merge(_read(flow, "more")).merge(again).process(Publish, versions=versions, parallelism=1)
    read = published.rebalance().map(compared(versions), name="compare").map(step, name="step")
    done, more = read.split(is_done, name="split")
    again.feed(more.rebalance())
    _write(_count(done, "count"))


def _broadcast(flow: Flow) -> None:
    heard = flow.process(
        Listen, data=_read(flow).rebalance(), control=_read(flow, "control").broadcast(), name="listen"
    )
    _write(heard.side("told"), "told")
    _write(_count(heard, "count"))


def _broadcast_loop(flow: Flow) -> None:
    again = flow.loop("again", of=Item)
    owned = _read(flow).merge(again).broadcast().process(Owner, name="owner")
    again.feed(owned)
    _write(_count(owned.side("done"), "count"))


_TOPOLOGIES: dict[str, tuple[Variant, ...]] = {
    "chain": (_chain, _chain_filtered, _chain_async, _chain_delayed),
    "diamond": (_diamond, _diamond_routed),
    "self_loop": (_self_loop, _self_loop_forward, _self_loop_limited),
    "far_loop": (_far_loop,),
    "two_back_edges": (_two_back_edges,),
    "nested": (_nested,),
    "shared_head": (_shared_head, _shared_head_async),
    "overlapping": (_overlapping,),
    "irreducible": (_irreducible,),
    "rounds": (_rounds, _rounds_until, _rounds_learning, _rounds_asking, _rounds_delayed),
    "rounds_nested": (_rounds_nested, _rounds_nested_last, _rounds_deep, _rounds_in_lanes_nested),
    "rounds_behind_loop": (_rounds_behind_loop, _rounds_asking_last),
    "rounds_in_lanes": (_rounds_in_lanes,),
    "rounds_beside_loops": (_rounds_beside_loops, _rounds_beside_and_behind_loops),
    "kept_answers": (_kept, _kept_in_a_loop, _kept_by_key),
    "kept_answers_in_rounds": (_kept_in_rounds,),
    "pipelines": (_pipelines,),
    "versions": (_versions,),
    "broadcast": (_broadcast, _broadcast_loop),
    "arriving": (_arriving, _arriving_for_a_loop),
}
MIXED = ("rounds_beside_loops", "kept_answers", "kept_answers_in_rounds", "versions")
ARRIVING = ("arriving",)
"""Drawn by few seeds (`drawn_topology`); the others take turns."""
NAMES = tuple(name for name in _TOPOLOGIES if name not in (*MIXED, *ARRIVING))
IN_ROUNDS = frozenset(
    {
        *("rounds", "rounds_nested", "rounds_behind_loop", "rounds_in_lanes", "rounds_beside_loops"),
        "kept_answers_in_rounds",
        *("columns_vertices", "columns_repeating", "columns_best_vertices"),
    }
)
_LOSING = {("chain", 1)}
NOT_CONSERVED = frozenset({"broadcast", *ARRIVING, *ON_COLUMNS})

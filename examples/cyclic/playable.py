"""Three flows that are small enough to look at every step of them.

    backedge play examples.cyclic.playable:retries retries.html

docs/playing.md has the pages of all three.
"""

from __future__ import annotations

from backedge import Collect, Flow, Items

Tried = tuple[str, int]


def count(tries: int, parcel: Tried) -> tuple[int, Tried]:
    """One more try of a parcel, in the state of its key and in the record."""
    return tries + 1, (parcel[0], tries + 1)


def retries() -> Flow:
    """A loop with one head: each parcel is tried until it has been tried as often as it needs."""
    needs = {"a": 1, "b": 3, "c": 2, "d": 3}
    flow = Flow("retries")
    again = flow.loop("again", max_rounds=9)
    parcels = flow.read(Items([(name, 0) for name in needs]), name="parcels")
    tried = parcels.merge(again).key_by(lambda parcel: parcel[0]).stateful_map(count, initial=0, name="try")
    done, failed = tried.rebalance().split(lambda parcel: parcel[1] >= needs[parcel[0]], name="judge")
    again.feed(failed)
    done.rebalance().write(Collect(), name="done")
    return flow


def mutual() -> Flow:
    """Two loops that feed each other: what ping returns goes to pong, what pong returns goes to ping."""
    flow = Flow("mutual")
    to_ping = flow.loop("to_ping", max_rounds=9)
    to_pong = flow.loop("to_pong", max_rounds=9)
    left = flow.read(Items([("a", 0), ("b", 0)]), name="left")
    right = flow.read(Items([("x", 0), ("y", 0)]), name="right")
    pinged = left.merge(to_ping).key_by(lambda ball: ball[0]).stateful_map(count, initial=0, name="ping")
    ponged = right.merge(to_pong).key_by(lambda ball: ball[0]).stateful_map(count, initial=0, name="pong")
    out, returned = pinged.split(lambda ball: ball[1] >= 2, name="out")
    to_pong.feed(returned)
    missed, back = ponged.split(lambda ball: ball[1] >= 2, name="missed")
    to_ping.feed(back)
    out.merge(missed).rebalance().write(Collect(), name="done")
    return flow


def rounds() -> Flow:
    """A loop in rounds: every number is halved until all are below two."""
    flow = Flow("rounds")
    numbers = flow.read(Items([8.0, 12.0, 5.0]), name="numbers")
    halved = flow.iterate(
        numbers,
        lambda body: body.rebalance().map(lambda number: number / 2, name="halve"),
        until=lambda most: most < 2,
        measure=float,
        reduce=max,
        name="rounds",
    )
    halved.rebalance().write(Collect(), name="halved")
    return flow

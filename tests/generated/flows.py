"""Flows drawn by a seed: loops in a row, within each other, entangled, and iterations, before, behind and beside them,
with every routing, calls and timers.

A record is (id, left, mark, outer): `left` says how many trips it has yet to make, `mark` is any number that operators
compute, and `outer` keeps the trips of the loop around. Every operator does the same to a record whatever came before
it, so the result does not depend on order, and a plain interpreter can say what it must be.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from backedge import Collect, Flow, Items, Stream

Record = tuple[int, int, int, int]
TRIPS_MAX = 4
MARK_MAX = 997


def key_of(record: Record) -> int:
    return record[0] % 5


def index_of(record: Record) -> int:
    return record[0] + record[2]


def is_done(record: Record) -> bool:
    return record[1] <= 0


def is_odd(record: Record) -> bool:
    return record[2] % 2 == 1


def step(record: Record) -> Record:
    """One trip less to make."""
    return record[0], record[1] - 1, *record[2:]


class Mixing:
    """Computes another mark."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, record: Record) -> Record:
        return *record[:2], (record[2] * self.factor + record[0]) % MARK_MAX, record[3]


class Refilling:
    """Gives each record so many trips."""

    def __init__(self, trips: int) -> None:
        self.trips = trips

    def __call__(self, record: Record) -> Record:
        return record[0], (record[0] + self.trips) % (TRIPS_MAX + 1), *record[2:]


def fork(record: Record) -> list[Record]:
    """A record and its shadow, which makes no trips."""
    return [record, (record[0] + 1_000, 0, record[2], 0)] if record[0] < 1_000 else [record]


def is_kept(record: Record) -> bool:
    return (record[0] + record[2]) % 7 != 0


def answered(record: Record) -> Record:
    return *record[:2], (record[2] + 1) % MARK_MAX, record[3]


def counted(count: int, record: Record) -> tuple[int, Record]:
    """Counts by key, and lets the record pass."""
    return count + 1, record


class Delaying:
    """Holds each record until a timer fires. One that another record has set may be first, so each keeps its rounds."""

    def on_record(self, ctx: Any, record: Record) -> None:
        ctx.state.set([*ctx.state.get([]), (record, ctx.hops)])
        ctx.set_timer(ctx.now + 1 + record[0] % 9)

    def on_timer(self, ctx: Any, at_ms: int) -> None:
        for record, hops in ctx.state.get([]):
            ctx.emit(record, hops=hops)
        ctx.state.clear()


class Drawn:
    """One flow, as its seed draws it. `shapes` names what is in it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.flow = Flow(f"drawn_{seed}")
        self.shapes: list[str] = []
        self._names = 0
        self.inputs: dict[str, list[Record]] = {}
        stream = self.read()
        for _ in range(self.rng.randint(1, 3)):
            stream = self.stage(stream, depth=0)
        stream.write(Collect(), name="done")

    def name(self, what: str) -> str:
        self._names += 1
        return f"{what}_{self._names}"

    def read(self) -> Stream[Any]:
        name = self.name("numbers")
        first = len(self.inputs) * 100
        records = [(first + n, self.rng.randint(0, TRIPS_MAX), n, 0) for n in range(self.rng.randint(0, 7))]
        self.inputs[name] = records
        return self.flow.read(Items(records), name=name)

    def stage(self, stream: Stream[Any], depth: int) -> Stream[Any]:
        """Something behind the stream: a few operators, and a loop or an iteration perhaps."""
        shapes: list[Callable[[Stream[Any], int], Stream[Any]]] = [self.loop, self.entangled, self.two_back_edges]
        if depth == 0:
            shapes += [self.iteration, self.nested_iteration, self.plain, self.beside]
        chosen = self.rng.choice(shapes)
        self.shapes.append(chosen.__name__)
        return chosen(self.operators(stream), depth)

    def plain(self, stream: Stream[Any], depth: int) -> Stream[Any]:
        return self.operators(stream.merge(self.read()))

    def beside(self, stream: Stream[Any], depth: int) -> Stream[Any]:
        """An iteration and a loop, neither of which gets anything from the other."""
        odd, even = stream.split(is_odd, name=self.name("split"))
        iterate = self.rng.choice((self.iteration, self.nested_iteration))
        turn = self.rng.choice((self.loop, self.entangled, self.two_back_edges))
        return iterate(odd, depth).merge(turn(self.operators(even), depth))

    def operators(self, stream: Stream[Any]) -> Stream[Any]:
        """Up to three operators, behind any routing."""
        kinds = ["map", "map", "stateful", "async", "routed", "filter", "fork", "split", "delayed"]
        for _ in range(self.rng.randint(0, 3)):
            stream = self.operator(self.routed(stream), self.rng.choice(kinds))
        return stream

    def routed(self, stream: Stream[Any]) -> Stream[Any]:
        match self.rng.randrange(4):
            case 0:
                return stream.rebalance()
            case 1:
                return stream.key_by(key_of)
            case _:
                return stream

    def operator(self, stream: Stream[Any], kind: str) -> Stream[Any]:
        name = self.name(kind)
        parallelism = self.rng.choice((None, None, 1, 2, 3, 4))
        match kind:
            case "map":
                return stream.map(Mixing(self.rng.randint(2, 9)), name=name, parallelism=parallelism)
            case "stateful":
                return stream.key_by(key_of).stateful_map(counted, initial=0, name=name, parallelism=parallelism)
            case "async":
                return stream.map_async(answered, name=name, parallelism=parallelism)
            case "delayed":
                return stream.key_by(key_of).process(Delaying, name=name, parallelism=parallelism)
            case "routed":
                width = parallelism or 2
                return stream.route(index_of).map(Mixing(3), name=name, parallelism=width)
            case "filter":
                return stream.filter(is_kept, name=name, parallelism=parallelism)
            case "fork":
                return stream.flat_map(fork, name=name, parallelism=parallelism)
            case _:
                odd, even = stream.split(is_odd, name=name, parallelism=parallelism)
                return odd.map(Mixing(5), name=self.name("map")).merge(even)

    def turn(self, stream: Stream[Any]) -> tuple[Stream[Any], Stream[Any]]:
        """A step, and what is done or not."""
        stepped = self.routed(stream).map(step, name=self.name("step"))
        done, rest = stepped.split(is_done, name=self.name("is_done"))
        return done, rest

    def refilled(self, stream: Stream[Any]) -> Stream[Any]:
        return stream.map(Refilling(self.rng.randint(0, 3)), name=self.name("refill"))

    # -- loops -------------------------------------------------------------------------------------------------------

    def loop(self, stream: Stream[Any], depth: int) -> Stream[Any]:
        limit = self.rng.choice((None, None, 1, 2, 9))
        again = self.flow.loop(self.name("again"), of=tuple, max_rounds=limit)
        entered = self.operators(self.refilled(stream).merge(again))
        if depth < 1 and self.rng.random() < 0.4:
            self.shapes.append("within")
            left = entered.map(keep_trips, name=self.name("keep"))
            entered = self.stage(left, depth + 1).map(restore_trips, name=self.name("restore"))
        done, rest = self.turn(entered)
        again.feed(self.operators(rest))
        if limit is not None:
            done = done.merge(again.dead_letters)
        return done

    def two_back_edges(self, stream: Stream[Any], depth: int) -> Stream[Any]:
        one, two = (self.flow.loop(self.name("again"), of=tuple) for _ in range(2))
        done, rest = self.turn(self.operators(self.refilled(stream).merge(one).merge(two)))
        odd, even = rest.split(is_odd, name=self.name("split"))
        one.feed(self.operators(odd))
        two.feed(even)
        return done

    def entangled(self, stream: Stream[Any], depth: int) -> Stream[Any]:
        """Two loops through each other, each entered from outside: no head is before the other."""
        left, right = (self.flow.loop(self.name("again"), of=tuple) for _ in range(2))
        odd, even = self.refilled(stream).split(is_odd, name=self.name("split"))
        left_done, left_rest = self.turn(self.operators(odd.merge(left)))
        right_done, right_rest = self.turn(self.operators(even.merge(right).merge(left_rest)))
        back_left, back_right = right_rest.map(Mixing(7), name=self.name("map")).split(is_odd, name=self.name("split"))
        left.feed(back_left)
        right.feed(back_right)
        return left_done.merge(right_done)

    # -- iterations --------------------------------------------------------------------------------------------------

    def iteration(self, stream: Stream[Any], depth: int) -> Stream[Any]:
        return self.flow.iterate(stream, self.body, rounds=self.rng.randint(1, 4), name=self.name("iterate"))

    def nested_iteration(self, stream: Stream[Any], depth: int) -> Stream[Any]:
        inner_rounds = self.rng.randint(1, 3)

        def outer(entered: Stream[Any]) -> Stream[Any]:
            inner = self.flow.iterate(self.body(entered), self.body, rounds=inner_rounds, name=self.name("inner"))
            return self.body(inner)

        return self.flow.iterate(stream, outer, rounds=self.rng.randint(1, 3), name=self.name("outer"))

    def body(self, entered: Stream[Any]) -> Stream[Any]:
        mixed = self.routed(entered).map(Mixing(self.rng.randint(2, 9)), name=self.name("map"))
        return self.operators(mixed)


def keep_trips(record: Record) -> Record:
    """Before an inner loop, which counts trips of its own."""
    return *record[:3], record[1]


def restore_trips(record: Record) -> Record:
    """Behind it."""
    return record[0], record[3], record[2], 0

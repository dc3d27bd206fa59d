"""User code for the generated flows. It changes records and state in place; results do not depend on arrival order.

So every schedule must end with the same multiset of output and the same keyed values, and a record or value that is
shared by mistake is noticed at once: some emitted records contain objects of their sender's state. A record carries a
`weight`, which no step creates or loses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backedge import Items, Versions

KEYS = 5

Item = dict[str, Any]


def weight_of(record: Item) -> int:
    return record["weight"]


def weight_of_state(operator: str, key: Any, value: Any) -> int:
    """The weight of a keyed value: records that are held, and sums that are still to be paid out."""
    return value.get("weight", 0) + sum(record["weight"] for record in value.get("held", ()))


def step(record: Item) -> Item:
    """Moves the record on to another key, which is a hop."""
    record["left"] -= 1
    record["path"].append(record["key"])
    record["key"] = (record["key"] * 2 + 1) % KEYS
    return record


def mark(record: Item) -> Item:
    """Changes the record but not its key."""
    record["path"].append("mark")
    return record


def ask(record: Item) -> Item:
    """An external call."""
    record["path"].append("asked")
    return record


def alike(record: Item) -> Item:
    """Makes records of a key equal, as far as possible: they ask the same question."""
    record["id"] = record["key"]
    record["path"] = []
    return record


def count(state: Item, record: Item) -> tuple[Item, Item]:
    """Counts records, and uses up a hop."""
    state["sum"] += record["weight"]
    state["seen"][record["id"]] = state["seen"].get(record["id"], 0) + 1
    record["left"] -= 1
    record["path"].append(record["key"])
    # The record shares its list with the state, and the next step may append to it.
    state["paths"][record["id"], *record["path"]] = record["path"]
    record["key"] = (record["key"] * 2 + 1) % KEYS
    return state, record


def new_count() -> Item:
    return {"sum": 0, "seen": {}, "paths": {}}


def _kept(ctx: Any, new: Item) -> Item:
    """The value of the key, which is a new one if there is none."""
    value: Item | None = ctx.state.get()
    if value is None:
        value = new
        ctx.state.set(value)
    return value


def is_done(record: Item) -> bool:
    return record["left"] <= 0


def is_even(record: Item) -> bool:
    return record["id"] % 2 == 0


def fan_out(record: Item) -> list[Item]:
    """Splits a heavy record into two that share its weight."""
    if record["weight"] < 2:
        return [record]
    half = record["weight"] // 2
    record["weight"] -= half
    return [record, {**record, "id": record["id"] * 2 + 1001, "weight": half, "path": ["born"]}]


def three_ways(record: Item) -> str:
    """Where a record goes from a head with two loops."""
    return "done" if record["left"] <= 0 else "left" if record["left"] % 2 else "right"


def side(record: Item) -> int:
    """One of two tasks."""
    return record["id"] % 2


class Arriving(Items[Item]):
    """A source of which splits are found while it is read."""

    @property
    def look_s(self) -> float:
        """A few ticks."""
        return 0.03


class Turn:
    """An operator that is its own loop: it counts by key, and sends a record round until no hop is left."""

    outputs = ("again", "done")

    def on_record(self, ctx: Any, record: Item) -> None:
        count(_kept(ctx, new_count()), record)
        ctx.emit(record, "done" if record["left"] <= 0 else "again")


class Publish:
    """Publishes what is in a record, which then carries the number. Which number it gets depends on the schedule."""

    def __init__(self, versions: Versions) -> None:
        self.versions = versions

    def on_record(self, ctx: Any, record: Item) -> None:
        record["version"] = ctx.publish(self.versions, [record["id"], list(record["path"])])
        ctx.emit(record)


def compared(versions: Versions) -> Callable[[Item], Item]:
    """Compares a record with what was published for it."""

    def compare(record: Item) -> Item:
        if versions[record.pop("version")] != [record["id"], record["path"]]:
            record["path"].append("stale")
        return record

    return compare


class Delay:
    """Holds records by key until a timer fires. Odd keys are then removed, and start again with their next record."""

    def on_record(self, ctx: Any, record: Item) -> None:
        value = _kept(ctx, {"held": [], "times": {}})
        value["held"].append(record)
        value["times"][record["id"]] = value["times"].get(record["id"], 0) + 1
        ctx.set_timer(ctx.now + 5 + record["id"] % 3)

    def on_timer(self, ctx: Any, at_ms: int) -> None:
        value = ctx.state.get()
        if value is None:
            return
        held, value["held"] = value["held"], []
        if ctx.key % 2:
            ctx.state.clear()
        for record in held:
            record["path"].append("woken")
            ctx.emit(record)


class Total:
    """Adds up by key, and emits the sums at the end."""

    def on_record(self, ctx: Any, record: Item) -> None:
        value = _kept(ctx, {"weight": 0, "count": 0})
        value["weight"] += record["weight"]
        value["count"] += 1

    def on_end(self, ctx: Any) -> None:
        keys = ctx.keys()
        for key in keys:
            value = ctx.state.get()
            ctx.emit({"id": -1, "key": key, "left": 0, "weight": value["weight"], "path": [value["count"]]})
            value["weight"] = 0


class Pay:
    """In rounds: adds up by key, and at the end of a round pays 1 out and sends the rest to the next key."""

    outputs = ("rest", "paid")

    def on_record(self, ctx: Any, record: Item) -> None:
        self.add(ctx, record)

    def add(self, ctx: Any, record: Item) -> None:
        value = _kept(ctx, {"weight": 0, "rounds": {}})
        value["weight"] += record["weight"]

    def on_round_end(self, ctx: Any) -> None:
        keys = ctx.keys()
        for key in keys:
            value: Item = ctx.state.get()
            weight, value["weight"] = value["weight"], 0
            if not weight:
                continue
            value["rounds"][ctx.round] = weight
            ctx.emit(item(key, 1), "paid")
            if weight > 1:
                ctx.emit(item((key * 2 + 1) % KEYS, weight - 1), "rest")


class Learn(Pay):
    """`Pay` with a side input, which arrives before the first round: every round notes the number of samples."""

    def on_record(self, ctx: Any, input: str, record: Item) -> None:  # type: ignore[override]
        if input == "model":
            self.add(ctx, record)
            return
        value = _kept(ctx, {"weight": 0, "rounds": {}})
        value["samples"] = value.get("samples", 0) + 1
        ctx.emit(record, "paid")

    def add(self, ctx: Any, record: Item) -> None:
        super().add(ctx, record)
        value = ctx.state.get()
        value["rounds"]["samples", value.get("samples", 0)] = True


class Listen:
    """Every task gets control records, one task gets data: each counts control, only the first task emits it."""

    outputs = ("out", "told")

    def __init__(self) -> None:
        self.total = {"heard": 0}

    def on_record(self, ctx: Any, input: str, record: Item) -> None:
        if input == "data":
            ctx.emit(mark(record))
            return
        self.total["heard"] += 1
        if ctx.task_index == 0:
            record["path"].append("told")
            ctx.emit(record, "told")

    def capture(self) -> Item:
        return self.total

    def restore(self, state: Item) -> None:
        self.total = state


class Owner:
    """Records go round to every task; only the task that owns a record passes it on."""

    outputs = ("again", "done")

    def on_record(self, ctx: Any, record: Item) -> None:
        if record["key"] % ctx.parallelism == ctx.task_index:
            step(record)
            ctx.emit(record, "done" if record["left"] <= 0 else "again")


def item(key: int, weight: int) -> Item:
    """A record that represents a sum."""
    return {"id": -2, "key": key, "left": 0, "weight": weight, "path": []}

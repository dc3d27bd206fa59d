"""User code for the generated flows. It changes records and state in place; what it gives shows no order of arrival.

So every schedule must end with the same multiset of output and the same keyed values, while a record or a value that is
shared by mistake shows at once: some records that are sent hold objects of their sender's state. A record carries
`weight`, which no step makes or loses.
"""

from __future__ import annotations

from typing import Any

KEYS = 5

Item = dict[str, Any]


def weight_of(record: Item) -> int:
    """What a record carries."""
    return record["weight"]


def weight_of_state(operator: str, key: Any, value: Any) -> int:
    """What a keyed value keeps: records that are held, and sums that are still to be paid out."""
    return value.get("weight", 0) + sum(record["weight"] for record in value.get("held", ()))


def step(record: Item) -> Item:
    """A hop of its own: the record moves on to another key."""
    record["left"] -= 1
    record["path"].append(record["key"])
    record["key"] = (record["key"] * 2 + 1) % KEYS
    return record


def mark(record: Item) -> Item:
    """Changes a record and no key."""
    record["path"].append("mark")
    return record


def ask(record: Item) -> Item:
    """A call outside."""
    record["path"].append("asked")
    return record


def count(state: Item, record: Item) -> tuple[Item, Item]:
    """Counts what passes, and takes a hop."""
    state["sum"] += record["weight"]
    state["seen"][record["id"]] = state["seen"].get(record["id"], 0) + 1
    record["left"] -= 1
    record["path"].append(record["key"])
    # The record goes on with the list that is kept here, and the next step may append to it.
    state["paths"][record["id"], *record["path"]] = record["path"]
    record["key"] = (record["key"] * 2 + 1) % KEYS
    return state, record


def new_count() -> Item:
    """The initial state of `count`."""
    return {"sum": 0, "seen": {}, "paths": {}}


def is_done(record: Item) -> bool:
    """Whether the record has no hop left."""
    return record["left"] <= 0


def is_even(record: Item) -> bool:
    """Whether the record's id is even."""
    return record["id"] % 2 == 0


def fan_out(record: Item) -> list[Item]:
    """A record of some weight becomes two, which share it."""
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


class Turn:
    """An operator that is its own loop: it counts by key, and sends a record round until no hop is left."""

    outputs = ("again", "done")

    def on_record(self, ctx: Any, record: Item) -> None:
        value: Item | None = ctx.state.get()
        if value is None:
            value = new_count()
            ctx.state.set(value)
        count(value, record)
        ctx.emit(record, "done" if record["left"] <= 0 else "again")


class Delay:
    """Holds records by key until a timer. Odd keys are forgotten then, and begin again with their next record."""

    def on_record(self, ctx: Any, record: Item) -> None:
        value: Item | None = ctx.state.get()
        if value is None:
            value = {"held": [], "times": {}}
            ctx.state.set(value)
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
    """Adds up by key, and says so at the end."""

    def on_record(self, ctx: Any, record: Item) -> None:
        value: Item | None = ctx.state.get()
        if value is None:
            value = {"weight": 0, "count": 0}
            ctx.state.set(value)
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
        value: Item | None = ctx.state.get()
        if value is None:
            value = {"weight": 0, "rounds": {}}
            ctx.state.set(value)
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
    """`Pay` with a side input, which is there before the first round: every round notes how many samples there are."""

    def on_record(self, ctx: Any, input: str, record: Item) -> None:  # type: ignore[override]
        if input == "model":
            self.add(ctx, record)
            return
        value: Item | None = ctx.state.get()
        if value is None:
            value = {"weight": 0, "rounds": {}}
            ctx.state.set(value)
        value["samples"] = value.get("samples", 0) + 1
        ctx.emit(record, "paid")

    def add(self, ctx: Any, record: Item) -> None:
        super().add(ctx, record)
        value = ctx.state.get()
        value["rounds"]["samples", value.get("samples", 0)] = True


class Listen:
    """Control records come to every task, data to one: the first task tells of control, each counts it for itself."""

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
    """Records come round to every task; the one that they belong to goes on with them."""

    outputs = ("again", "done")

    def on_record(self, ctx: Any, record: Item) -> None:
        if record["key"] % ctx.parallelism == ctx.task_index:
            step(record)
            ctx.emit(record, "done" if record["left"] <= 0 else "again")


def item(key: int, weight: int) -> Item:
    """A record that stands for a sum."""
    return {"id": -2, "key": key, "left": 0, "weight": weight, "path": []}

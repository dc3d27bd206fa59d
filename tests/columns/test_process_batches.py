"""Process classes on columns: their hooks, their mistakes, and the same result as with records under crashes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backedge import BadOptionError, Collect, Flow, Items, ScheduleError, Stream, draw, simulate, tasks_of_keys
from backedge.engine.batches.columns import Columns
from backedge.graphs.task_errors import MisuseError
from tests.columns.given import columns, flow_of, sent
from tests.runtime.tasks import Tasks, records_of

Arrays = dict[str, Any]
State = tuple[Any, Any]
NODES = 12
EDGES = [{"id": (n * 5) % NODES, "to": (n * n + 1) % NODES} for n in range(30)]
STARTS = [{"id": node, "n": node + 1} for node in range(NODES)]


class Halves:
    """Emits the even and the odd rows on outputs of their own, from an array that it changes afterwards."""

    outputs = ("even", "odd")

    def on_batch(self, ctx: Any, batch: Arrays) -> None:
        for rest, output in enumerate(self.outputs):
            kept = batch["n"][batch["n"] % 2 == rest]
            ctx.emit_batch({"n": kept}, output)
            kept += 100


def test_columns_come_and_go_as_columns_and_emitted_arrays_may_be_changed():
    def step(stream: Any) -> dict[str, Any]:
        op = stream.process(Halves, batch_format="numpy", name="op")
        return {"even": op, "odd": op.side("odd")}

    found = sent(Tasks(flow_of(step)), columns(n=[1, 2, 3, 4]), 2)
    assert found == [("even/0", columns(n=[2, 4]), 2), ("odd/0", columns(n=[1, 3]), 2)]


def test_a_keyed_batch_is_whole_and_what_a_hook_emits_leaves_together():
    seen: list[Any] = []

    class Twice:
        def on_batch(self, ctx: Any, batch: Arrays) -> None:
            seen.append(batch["n"].tolist())
            ctx.emit_batch(batch)
            ctx.emit_batch(batch)

    tasks = Tasks(flow_of(lambda s: s.key_by("n").process(Twice, batch_format="numpy", name="op")))
    assert sent(tasks, columns(n=[1, 2, 1])) == [("sink/0", columns(n=[1, 2, 1, 1, 2, 1]), 0)]
    assert seen == [[1, 2, 1]]


def test_rows_of_one_call_have_the_same_hops():
    tasks = Tasks(flow_of(lambda s: s.process(Same, batch_format="pyarrow", name="op")))
    found = sent(tasks, [{"n": 1}, {"n": 2}, {"n": 3}], [0, 0, 1])
    assert [(records.to_records(), hops) for _, records, hops in found] == [([{"n": 1}, {"n": 2}], 0), ([{"n": 3}], 1)]


def test_timers_emit_batches_with_the_hops_of_what_set_them():
    class Later:
        def on_batch(self, ctx: Any, batch: Arrays) -> None:
            ctx.set_timer(int(batch["n"][0]))

        def on_timer(self, ctx: Any, at_ms: int) -> None:
            ctx.emit_batch([{"at": at_ms}])

    tasks = Tasks(flow_of(lambda s: s.process(Later, batch_format="numpy", name="op")))
    sent(tasks, columns(n=[5]), 1)
    sent(tasks, columns(n=[3]), 1)
    assert records_of(tasks.home("op").fire_timers(now_ms=9)) == [{"at": 3}, {"at": 5}]


def test_a_batch_that_raises_is_set_aside_as_it_arrived_and_takes_back_what_it_emitted():
    class Fails:
        def on_batch(self, ctx: Any, batch: Arrays) -> None:
            ctx.emit_batch(batch)
            batch["n"][:] = 0
            raise ValueError

    def step(stream: Any) -> dict[str, Any]:
        op = stream.process(Fails, batch_format="numpy", on_error="dead_letter", name="op")
        return {"sink": op, "dead": op.side("dead")}

    assert sent(Tasks(flow_of(step)), columns(n=[1, 2])) == [("dead/0", columns(n=[1, 2]), 0)]


def _calls(method: str) -> type[Any]:
    uses = {
        "emit": lambda ctx: ctx.emit(1),
        "emit_batch": lambda ctx: ctx.emit_batch(5),
        "output": lambda ctx: ctx.emit_batch([1], "late"),
        "state": lambda ctx: ctx.state.get(),
    }
    return type("Uses", (), {"on_batch": lambda self, ctx, batch: uses[method](ctx)})


@pytest.mark.parametrize(
    ("method", "batch_format", "fault"),
    [
        ("emit", "numpy", r"uses ctx.emit, but has a batch_format.*ctx.emit_batch"),
        ("emit_batch", "numpy", r"'op': ctx.emit_batch got 5, of type int: give a list of records"),
        ("output", "numpy", r"emits to output 'late' but has 'out'"),
        ("state", "numpy", r"uses ctx.state, but a batch has many keys"),
        ("emit_batch", None, r"uses ctx.emit_batch, but works on records"),
    ],
)
def test_misuse_is_refused_with_its_fix(method: str, batch_format: Any, fault: str):
    flow = flow_of(lambda s: s.key_by("n").process(_calls(method), batch_format=batch_format, name="op"))
    with pytest.raises(MisuseError, match=fault):
        sent(Tasks(flow), [{"n": 1}])


def test_records_that_are_no_batch_of_columns_are_refused_with_the_operator():
    flow = flow_of(lambda s: s.process(_calls("emit_batch"), batch_format="numpy", name="op"))
    with pytest.raises(MisuseError, match=r"^operator 'op': a batch has records with different columns, \['n'\]"):
        sent(Tasks(flow), [{"n": 1}, {"m": 1}])


def test_emitting_in_on_start_is_refused():
    class Early:
        def on_start(self, ctx: Any) -> None:
            ctx.emit_batch([1])

        def on_batch(self, ctx: Any, batch: Any) -> None: ...

    with pytest.raises(MisuseError, match=r"ctx.emit_batch in on_start"):
        Tasks(flow_of(lambda s: s.process(Early, batch_format="records", name="op")))


def test_a_class_on_columns_needs_on_batch_and_a_known_format():
    class OnRecord:
        def on_record(self, ctx: Any, value: Any) -> None: ...

    stream = Flow().read(Items([1]))
    with pytest.raises(BadOptionError, match="has no on_batch"):
        stream.process(OnRecord, batch_format="numpy")
    with pytest.raises(BadOptionError, match="batch_format='csv'"):
        stream.process(Halves, batch_format="csv")  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_the_drawing_shows_which_operators_work_on_columns():
    flow = flow_of(lambda s: s.process(Same, batch_format="numpy", name="op"))
    assert "op (process, numpy)" in draw(flow)


class Same:
    """Passes batches on."""

    def on_batch(self, ctx: Any, batch: Any) -> None:
        ctx.emit_batch(batch)


class Hand:
    """Adds up by node what it was given, and hands the sum to those that the node links to."""

    keeps = True

    def __init__(self) -> None:
        self.edges = np.zeros((2, 0), np.int64)
        self.nodes = np.zeros((2, 0), np.int64)

    def on_batch(self, ctx: Any, input: str, batch: Arrays) -> None:
        if input == "edges":
            self.edges = np.concatenate([self.edges, [batch["id"], batch["to"]]], axis=1)
        else:
            self.nodes = np.concatenate([self.nodes, [batch["id"], batch["n"]]], axis=1)

    def on_round_end(self, ctx: Any) -> None:
        ids = np.unique(self.nodes[0])
        sums = np.zeros(NODES, np.int64)
        np.add.at(sums, *self.nodes)
        sources, targets = self.edges
        sums %= 1009
        ctx.emit_batch({"id": np.concatenate([ids, targets]), "n": np.concatenate([ids * 0, sums[sources]])})
        self.nodes = np.zeros((2, 0), np.int64)

    def capture(self) -> Any:
        return (self.edges, self.nodes) if self.keeps else None

    def restore(self, state: Any) -> None:
        if state is not None:
            self.edges, self.nodes = state

    @staticmethod
    def merge(states: Any) -> Any:
        return tuple(np.concatenate(parts, axis=1) for parts in zip(*states, strict=True))

    @staticmethod
    def split(state: Any, parts: int) -> Any:
        tasks = [tasks_of_keys(of[0], parts) for of in state]
        return [tuple(of[:, at == task] for of, at in zip(state, tasks, strict=True)) for task in range(parts)]


class Forgets(Hand):
    keeps = False


class HandRecords:
    """The same on records."""

    def on_record(self, ctx: Any, input: str, record: Any) -> None:
        number, targets = ctx.state.get((0, ()))
        ctx.state.set((number, (*targets, record["to"])) if input == "edges" else (number + record["n"], targets))

    def on_round_end(self, ctx: Any) -> None:
        for node in ctx.keys():  # noqa: SIM118
            number, targets = ctx.state.get()
            ctx.state.set((0, targets))
            ctx.emit({"id": node, "n": 0})
            for target in targets:
                ctx.emit({"id": target, "n": number % 1009})


def handing(hand: type[Any], batch_format: Any = "numpy") -> Flow:
    """Three rounds over a graph."""
    flow = Flow("handing")
    edges = flow.read(Items(EDGES), name="edges").key_by("id")

    def body(numbers: Stream[Any]) -> Stream[Any]:
        return flow.process(hand, batch_format=batch_format, edges=edges, numbers=numbers.key_by("id"), name="hand")

    rounds = flow.iterate(flow.read(Items(STARTS), name="starts"), body, rounds=3, name="rounds")
    rounds.write(Collect(), name="out")
    return flow


def test_keys_of_batches_are_refused():
    class Keys(Same):
        def on_end(self, ctx: Any) -> None:
            ctx.keys()

    tasks = Tasks(flow_of(lambda s: s.key_by("n").process(Keys, batch_format="numpy", name="op")))
    with pytest.raises(MisuseError, match=r"ctx\.keys\(\).*ctx\.table\.scan"):
        tasks.home("op").end(now_ms=0)


@pytest.mark.slow
def test_columns_and_records_give_the_same_in_rounds_under_crashes():
    ours = simulate(handing(Hand), seeds=range(8), parallelism=(1, 2))
    records = simulate(handing(HandRecords, None), seeds=range(2))
    assert ours.crashes > 5
    assert ours.rescaled
    by_node = [sorted((row["id"], row["n"]) for row in result.outputs["out"]) for result in (ours, records)]
    assert by_node[0] == by_node[1]
    assert len({id for id, _ in by_node[0]}) == NODES


@pytest.mark.slow
def test_a_class_that_captures_nothing_is_found():
    with pytest.raises(ScheduleError):
        simulate(handing(Forgets), seeds=range(20), parallelism=(2,))


def test_columns_stay_columns_across_a_key_by():
    tasks = Tasks(flow_of(lambda s: s.process(Same, batch_format="numpy", name="op").key_by("n").map(lambda r: r)), 2)
    found = sent(tasks, [{"n": n} for n in range(20)])
    assert [receiver[-1] for receiver, _, _ in found] == ["0", "1"]
    assert all(isinstance(records, Columns) for _, records, _ in found)
    expected = tasks_of_keys(np.arange(20), 2)
    assert [len(records) for _, records, _ in found] == np.bincount(expected).tolist()

"""map_batches over columns, beside operators that take records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backedge import Collect, Flow, Items, Stream
from backedge.engine.batches.arrow import arrow
from backedge.engine.batches.batch import Batch
from backedge.engine.batches.columns import Columns
from backedge.graphs.task_errors import MisuseError, UserFunctionError
from tests.columns.given import columns, flow_of, sent
from tests.every import every
from tests.runtime.tasks import Tasks

RECORDS = [{"n": n, "s": f"name {n % 3}"} for n in range(10)]


def root(arrays: dict[str, Any]) -> dict[str, Any]:
    arrays["root"] = np.sqrt(arrays["n"])
    return arrays


def fail_on_three(arrays: dict[str, Any]) -> dict[str, Any]:
    arrays["n"][:] += 100
    if (arrays["n"] == 103).any():
        raise ValueError("three")
    return arrays


def test_a_function_of_arrays_gives_columns():
    ((_, found, _),) = sent(Tasks(flow_of(lambda s: s.map_batches(root, batch_format="numpy", name="op"))), RECORDS)
    assert isinstance(found, Columns)
    assert found.to_records() == [{**record, "root": record["n"] ** 0.5} for record in RECORDS]


@every("size", [1, 3, 10, 1000])
@every("as_columns", [False, True])
def test_a_function_sees_at_most_batch_size_rows_and_what_it_gives_leaves_together(size: int, as_columns: bool):
    sizes: list[int] = []

    def same(table: Any) -> Any:
        sizes.append(table.num_rows)
        return table

    tasks = Tasks(flow_of(lambda s: s.map_batches(same, batch_format="pyarrow", batch_size=size, name="op")))
    given = columns(n=list(range(10))) if as_columns else [{"n": n} for n in range(10)]
    assert sent(tasks, given) == [("sink/0", columns(n=list(range(10))), 0)]
    assert sum(sizes) == 10
    assert max(sizes) <= size


def test_a_function_of_records_gets_a_list_of_its_own():
    def pop(records: list[Any]) -> list[Any]:
        records.pop()
        return records

    tasks = Tasks(flow_of(lambda s: s.map_batches(pop, name="op")))
    assert sent(tasks, columns(n=[1, 2])) == [("sink/0", [{"n": 1}], 0)]


def test_a_list_that_a_function_returned_and_changes_later_is_not_what_was_sent():
    buffer: list[Any] = []

    def keep(records: list[Any]) -> list[Any]:
        buffer[:] = records
        return buffer

    tasks = Tasks(flow_of(lambda s: s.map_batches(keep, name="op")))
    ((_, first, _),) = sent(tasks, [1, 2])
    sent(tasks, [3])
    assert first == [1, 2]


@pytest.mark.parametrize("empty", [{}, {"n": np.array([])}, []], ids=str)
def test_a_function_that_gives_no_rows_sends_nothing(empty: Any):
    tasks = Tasks(flow_of(lambda s: s.map_batches(lambda _: empty, batch_format="numpy", name="op")))
    assert sent(tasks, columns(n=[1])) == []


def test_results_whose_columns_differ_leave_apart_and_in_order():
    def typed(arrays: dict[str, Any]) -> dict[str, Any]:
        return arrays if arrays["n"][0] % 2 else {"n": arrays["n"].astype("f8")}

    tasks = Tasks(flow_of(lambda s: s.map_batches(typed, batch_format="numpy", batch_size=1, name="op")))
    found = [part for _, part, _ in sent(tasks, columns(n=[1, 3, 4, 5]))]
    assert found == [columns(n=[1, 3]), columns(n=[4.0]), columns(n=[5])]


@pytest.mark.parametrize("as_columns", [False, True])
def test_records_that_raise_alone_too_go_to_the_dead_letters_as_they_arrived(as_columns: bool):
    def step(stream: Stream[Any]) -> dict[str, Stream[Any]]:
        good = stream.map_batches(fail_on_three, batch_format="numpy", batch_size=4, name="op", on_error="dead_letter")
        return {"sink": good, "dead": good.dead_letters}

    given = columns(n=[0, 1, 2, 3, 4]) if as_columns else [{"n": n} for n in range(5)]
    found = sent(Tasks(flow_of(step)), given, 6)
    dead = columns(n=[3]) if as_columns else [{"n": 3}]
    assert found == [("dead/0", dead, 6), ("sink/0", columns(n=[100, 101, 102, 104]), 6)]


def test_a_function_that_raises_is_told_with_the_first_rows():
    tasks = Tasks(flow_of(lambda s: s.map_batches(fail_on_three, batch_format="numpy", name="op")))
    with pytest.raises(
        UserFunctionError, match=r"(?s)ValueError: three in a batch of 4.*record: \[\{'n': 0\}, \{'n': 1\}"
    ):
        sent(tasks, columns(n=[0, 1, 2, 3]))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"a": np.array([1]), "b": np.array([1, 2])}, "columns of different lengths: {'a': 1, 'b': 2}"),
        (5, "returned 5, of type int: give a list of records, a dict of columns"),
    ],
)
def test_what_is_no_batch_is_refused(made: Any, said: str):
    tasks = Tasks(flow_of(lambda s: s.map_batches(lambda _: made, batch_format="numpy", name="op")))
    with pytest.raises(MisuseError, match=said):
        sent(tasks, columns(n=[1]))


class Add:
    def on_record(self, ctx: Any, record: Any) -> None:
        record["n"] += 1
        ctx.emit(record)


TAKES_RECORDS: dict[str, Any] = {
    "map": lambda s: s.map(lambda r: {"n": r["n"] + 1}),
    "flat_map": lambda s: s.flat_map(lambda r: [{"n": r["n"] + 1}]),
    "filter": lambda s: s.filter(lambda r: r["n"] < 3).map(lambda r: {"n": r["n"] + 1}),
    "split": lambda s: s.split(lambda r: r["n"] < 3)[0].map(lambda r: {"n": r["n"] + 1}),
    "stateful_map": lambda s: s.key_by("n").stateful_map(lambda t, r: (t, {"n": r["n"] + 1}), initial=0, name="st"),
    "process": lambda s: s.process(Add),
    "map_batches": lambda s: s.map_batches(lambda records: [{"n": r["n"] + 1} for r in records]),
}


@every("kind", TAKES_RECORDS)
@every("chained", [True, False])
def test_operators_that_take_records_get_them_from_columns_and_give_them_to_functions_of_columns(
    kind: str, chained: bool
):
    def twice(arrays: dict[str, Any]) -> dict[str, Any]:
        return {"n": arrays["n"] * 2}

    flow = Flow("mixed")
    made = flow.read(Items([{"n": 0}, {"n": 1}, {"n": 2}]), name="source").map_batches(twice, batch_format="numpy")
    stepped = TAKES_RECORDS[kind](made if chained else made.rebalance())
    stepped.map_batches(twice, batch_format="numpy", name="last").write(Collect(), name="end")
    tasks = Tasks(flow)
    tasks.run()
    expected = [2, 6] if kind in ("filter", "split") else [2, 6, 10]
    assert sorted(record["n"] for record in tasks.output("end")) == expected


def iterating(**options: Any) -> Tasks:
    """An iteration whose body, in a task of its own, returns the columns that it gets."""

    def body(stream: Stream[Any]) -> Stream[Any]:
        return stream.rebalance().map_batches(lambda table: table, batch_format="pyarrow", name="body").rebalance()

    flow = Flow("rounds")
    start = flow.read(Items[Any]([]), name="source").rebalance()
    flow.iterate(start, body, name="op", **options).rebalance().write(Collect(), name="sink")
    return Tasks(flow)


MEASURED: dict[str, Any] = {"until": lambda total: False, "measure": lambda record: record["n"]}


def gather(tasks: Tasks, *batches: Batch) -> None:
    head = tasks.home("op")
    returned = next(channel for channel in head.task.inputs if channel.edge.input == "returned")
    for batch in batches:
        assert head.process(returned, batch, 0) == []


def released(tasks: Tasks) -> list[tuple[Any, Any]]:
    return [(batch.records, batch.hops) for _, batch in tasks.home("op").release_round()]


def test_an_iteration_takes_columns_into_its_body_and_gathers_what_comes_back_as_columns():
    tasks = iterating(**MEASURED)
    given = columns(n=[1, 2])
    assert sent(tasks, given) == [("body/0", given, 0)]
    within = tasks.home("body")
    ((_, back),) = within.process(within.task.inputs[0], Batch(given), 0)
    assert back.records == given
    assert within.take_contributions("op") == 3
    gather(tasks, back, Batch(columns(n=[5])))
    assert released(tasks) == [(columns(n=[1, 2, 5]), 0)]
    assert released(tasks) == []


def test_an_iteration_whose_batches_differ_gathers_each_as_it_is_in_their_order():
    tasks = iterating(**MEASURED)
    gather(tasks, Batch(columns(n=[1]), 1), Batch([{"n": 2}], 1), Batch(columns(n=[3]), 2))
    assert released(tasks) == [(columns(n=[1]), 1), ([{"n": 2}], 1), (columns(n=[3]), 2)]


def test_columns_of_an_iteration_that_differ_in_their_names_come_back_as_they_were():
    small = arrow().array([1, 2], "int8"), arrow().array([0.5, None], "float")
    given = [columns(a=small[0], b=small[1]), columns(b=small[0], a=small[1]), columns(c=small[0], d=small[1])]
    given += [columns(e=[1]), columns(f=[2])]
    tasks = iterating(rounds=2)
    gather(tasks, *map(Batch, given))
    assert released(Tasks(tasks.flow, restored=tasks.capture())) == [(one, 0) for one in given]


def test_an_iteration_without_a_measure_counts_the_rows():
    within = iterating(rounds=2).home("body")
    within.process(within.task.inputs[0], Batch(columns(n=[5, 6, 7])), 0)
    assert within.take_contributions("op") == 3

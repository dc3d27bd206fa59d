"""Values of every kind go every way that needs no cluster: they come out as they went in, or they are refused."""

from __future__ import annotations

import math
import pickle
import sqlite3
from contextlib import closing
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from importlib.util import find_spec
from itertools import combinations, pairwise
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backedge import Collect, Flow, Items, SqliteTable, Table, VertexProgram, simulate
from backedge.engine.batches.arrays import row_types
from backedge.engine.batches.batch import Batch, decode, encode
from backedge.engine.batches.columns import Columns, as_records
from backedge.engine.batches.formats import from_format, to_format
from backedge.engine.io.files.file_errors import UnwritableRecordError
from backedge.engine.io.files.file_formats import CSV, JsonLines, Parquet
from backedge.engine.state.tables.table_state import TableState
from backedge.graphs.io import SinkPlace
from backedge.graphs.table import VALUE_TYPES
from backedge.graphs.task_errors import MisuseError, RoutingError
from tests.columns.given import flow_of, sent
from tests.files.opened import AT_ONCE, reader, rest, transaction, writer
from tests.runtime.tasks import Tasks
from tests.values.kinds import (
    ARROW,
    COLUMNS_OF_VALUES,
    NUMBERS,
    PYTHON,
    VERTICES,
    given_as_columns,
    rows,
    same,
    values_in,
)

pytestmark = pytest.mark.slow

FORMATS = ["records", "numpy", "pyarrow", *filter(find_spec, ("pandas", "polars"))]


class Lowest(VertexProgram):
    """The lowest number in the same component."""

    combine, best = "min", "lowest"

    def start(self, vertices: Any) -> Any:
        return {"lowest": vertices.ids}


def some(count: int) -> Any:
    """So many examples, the same in each run."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    return settings(max_examples=count, derandomize=True, deadline=None, database=None, suppress_health_check=checks)


def came_through(values: list[Any], found: Any) -> bool:
    return len(values) == len(found) and all(map(same, values, found))


def check_identity(batch: Any, batch_format: str) -> None:
    """What a function gets and returns twice, sent over the wire each time."""
    try:
        before = pickle.loads(pickle.dumps(values_in(batch), 5))
        for _ in range(2):
            batch = decode(encode(Batch(from_format(to_format(batch, batch_format))))).records
            assert came_through(before, values_in(batch)), (before, values_in(batch))
    except MisuseError as error:
        # Nanoseconds of arrays are no times of Python; tables hold values of one type.
        of_table = batch_format in ("pyarrow", "polars") and "column 'v'" in str(error)
        assert of_table or "cast times" in str(error), error


@pytest.mark.parametrize("batch_format", FORMATS)
def test_a_function_that_returns_its_batch_changes_no_value(batch_format: str):
    @some(250)
    @given(COLUMNS_OF_VALUES)
    def check(values: list[Any]) -> None:
        check_identity(rows(values), batch_format)

    check()


@pytest.mark.parametrize("batch_format", FORMATS)
def test_a_function_that_returns_its_columns_changes_no_value(batch_format: str):
    @some(150)
    @given(ARROW)
    def check(column: Any) -> None:
        check_identity(given_as_columns(column), batch_format)

    check()


@some(60)
@given(COLUMNS_OF_VALUES)
def test_a_loop_changes_no_value(values: list[Any]):
    flow = Flow("loop")
    again = flow.loop("again", of=dict, max_rounds=3)
    turned = flow.read(Items(rows(values)), name="rows").merge(again).rebalance().map(lambda row: {"turn": 0, **row})
    turned = turned.map(lambda row: {**row, "turn": row["turn"] + 1})
    over, more = turned.split(lambda row: row["turn"] == 3)
    again.feed(more)
    over.write(Collect(), name="out")
    tasks = Tasks(flow, 2)
    tasks.run()
    assert came_through(values, values_in(tasks.output("out")))


@some(60)
@given(COLUMNS_OF_VALUES)
def test_state_and_its_restore_change_no_value(values: list[Any]):
    def keep(state: Any, row: Any) -> tuple[Any, Any]:
        return row.get("v", state), {"n": row["n"], "v": state}

    flow = Flow("state")
    source = flow.read(Items[Any]([]), name="rows").rebalance()
    source.key_by("n").stateful_map(keep, initial="nothing", name="keep").rebalance().write(Collect(), name="out")
    tasks = Tasks(flow)
    tasks.feed("keep", rows(values))
    restored = Tasks(flow, restored=tasks.capture())
    ((_, batch),) = restored.feed("keep", [{"n": n} for n in range(len(values))])
    assert came_through(values, values_in(batch.records))


def check_round(given_to_head: Any) -> None:
    """What the head of an iteration gathers, and releases behind a restore."""
    before = values_in(given_to_head)
    flow = Flow("rounds")
    start = flow.read(Items[Any]([]), name="rows").rebalance()
    flow.iterate(start, lambda s: s.rebalance(), rounds=5, name="head").write(Collect(), name="out")
    tasks = Tasks(flow)
    head = tasks.home("head")
    channel = next(channel for channel in head.task.inputs if channel.edge.input == "returned")
    head.process(channel, decode(encode(Batch(given_to_head))), 0)
    restored = Tasks(flow, restored=tasks.capture()).home("head")
    found = [row for runtime in (head, restored) for _, batch in runtime.release_round() for row in [batch.records]]
    assert len(found) == 2
    for records in found:
        assert came_through(before, values_in(records))
        if isinstance(given_to_head, Columns) and row_types(given_to_head) is not None:
            assert to_format(records, "pyarrow").schema == to_format(given_to_head, "pyarrow").schema


@some(60)
@given(COLUMNS_OF_VALUES)
def test_rounds_and_their_restore_change_no_value(values: list[Any]):
    check_round(rows(values))


@some(100)
@given(ARROW)
def test_rounds_and_their_restore_change_no_column(column: Any):
    check_round(given_as_columns(column))


def targets(given_to_step: Any) -> dict[int, str] | None:
    """To which task each row goes by its value; None if it is refused."""

    def step(stream: Any) -> Any:
        batch_format = "pyarrow" if isinstance(given_to_step, Columns) else "records"
        op = stream.map_batches(lambda batch: batch, batch_format=batch_format, name="op")
        return op.key_by("v").filter(lambda row: True, name="keyed", parallelism=3)

    try:
        found = sent(Tasks(flow_of(step)), given_to_step)
    except RoutingError:
        return None
    return {row["n"]: target for target, records, _ in found for row in as_records(records)}


@some(80)
@given(COLUMNS_OF_VALUES)
def test_equal_keys_meet_whether_they_are_records_or_columns(values: list[Any]):
    of_records = targets(rows(values))
    if of_records is None:
        return
    for (n, value), (m, other) in combinations(enumerate(values), 2):
        assert value != other or of_records[n] == of_records[m]
    columns = from_format(to_format(rows(values), "numpy"))
    assert not isinstance(columns, Columns) or targets(columns) == of_records


@some(80)
@given(COLUMNS_OF_VALUES)
def test_a_function_that_combines_rows_changes_no_value(values: list[Any]):
    def step(stream: Any) -> Any:
        op = stream.map_batches(lambda batch: batch, batch_format="records", name="op")
        return op.key_by("n").combine({"v": lambda array, starts: array[starts]})

    try:
        ((_, records, _),) = sent(Tasks(flow_of(step)), rows(values))
    except MisuseError as error:
        assert "'v'" in str(error)
    else:
        assert came_through(values, values_in(records))


@pytest.mark.parametrize("kind", VALUE_TYPES)
def test_a_table_holds_numbers_or_refuses_them(kind: str):
    @some(60)
    @given(NUMBERS | COLUMNS_OF_VALUES)
    def check(values: list[Any]) -> None:
        state = TableState("values", Table(key={"n": "int64"}, columns={"v": kind}))
        numbers = state.rows(range(len(values)))
        given_to_table = to_format(rows(values), "numpy")["v"]
        if given_to_table.ndim > 1:
            return
        try:
            state.set(numbers, v=given_to_table)
        except MisuseError as error:
            assert f"column 'v' of type {kind}" in str(error)
            return
        for value, found in zip(values, state.get("v", numbers).tolist(), strict=True):
            expected = value.item() if isinstance(value, np.generic) else value
            if kind == "float32" and isinstance(expected, float):
                expected = float(np.float32(expected))
            assert expected == found or (expected != expected and found != found)

    check()


@some(40)
@given(VERTICES, st.sampled_from([np.float32, np.float64, np.int64]))
def test_a_vertex_program_has_exact_messages_or_refuses_them(vertices: list[int], message: Any):
    flow = Flow("lowest")
    edges = flow.read(Items([{"source": a, "target": b} for a, b in pairwise(vertices)]), name="edges")
    program = type("Lowest", (Lowest,), {"message": message})
    flow.vertex_program(program, edges, undirected=True).write(Collect(), name="out")
    try:
        found = simulate(flow, seeds=[]).outputs["out"]
    except MisuseError as error:
        assert message is not np.int64 and "set message in Lowest" in str(error)
    else:
        lowest = {row["vertex"]: int(row["lowest"]) for row in found}
        assert lowest == dict.fromkeys(vertices, min(vertices))


def in_json(value: Any) -> Any:
    """What JSON has for a value. Raises TypeError if it has nothing."""
    if isinstance(value, np.ndarray | np.number | np.bool_):
        return in_json(value.tolist())
    if isinstance(value, list | tuple):
        return list(map(in_json, value))
    if isinstance(value, dict):
        return {key: in_json(part) for key, part in value.items()}
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise TypeError(f"JSON has no {value!r}")


def in_csv(value: Any) -> str:
    """The text that CSV has for a value. Raises TypeError if it has nothing."""
    value = value.item() if isinstance(value, np.number | np.bool_) else value
    if not isinstance(value, str | int | float | Decimal | UUID | date | time | timedelta | np.generic | None):
        raise TypeError(f"CSV has no {value!r}")
    return "" if value is None else str(value)


def in_parquet(value: Any) -> Any:
    """What Parquet has for a value: lists for arrays, and times without a fold."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.replace(fold=0) if isinstance(value, datetime | time) else value


WRITTEN = {JsonLines: in_json, CSV: in_csv, Parquet: in_parquet}


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_file_holds_values_as_they_are_or_refuses_them(kind: Any, tmp_path_factory: pytest.TempPathFactory):
    @some(60)
    @given(COLUMNS_OF_VALUES)
    def check(values: list[Any]) -> None:
        folder = tmp_path_factory.mktemp("values")
        opened = writer(kind(str(folder), **AT_ONCE))
        try:
            opened.write(rows(values))
            opened.prepare(transaction(1))
        except UnwritableRecordError:
            return
        opened.commit(transaction(1))
        try:
            found = values_in(rest(reader(kind(str(folder)))))
        except MisuseError as error:
            assert "cast times" in str(error)
            return
        expected = list(map(WRITTEN[kind], values))
        assert came_through(expected, found), (expected, found)

    check()


@some(100)
@given(COLUMNS_OF_VALUES)
def test_a_table_of_sqlite_holds_values_as_they_are_or_refuses_them(values: list[Any]):
    with TemporaryDirectory() as folder:
        database = f"{folder}/values.db"
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TABLE t (n INTEGER, v BLOB)")
        store = SqliteTable(database, "t").store()
        place = SinkPlace("out", "job", "run", 1, 0, None)
        store.check()
        try:
            check = store.enter(place)
            store.commit(place, {"one": check(rows(values))})
        except UnwritableRecordError:
            return
        with closing(sqlite3.connect(database)) as connection:
            found = [value for (value,) in connection.execute("SELECT v FROM t ORDER BY n")]
        plain = [value.item() if isinstance(value, np.generic) else value for value in values]
        assert len(found) == len(plain) and all(map(is_in_sqlite, plain, found)), (plain, found)


def is_in_sqlite(value: Any, found: Any) -> bool:
    """Truth values are numbers in SQLite, and dates and times are texts."""
    if isinstance(value, date | time):
        return found == (value.isoformat(" ") if isinstance(value, datetime) else value.isoformat())
    return same(int(value) if isinstance(value, bool) else value, found)


KEPT = st.lists(st.one_of(*PYTHON.values()), min_size=1, max_size=6)


@some(6)
@given(KEPT)
def test_values_come_through_crashes_rounds_state_and_another_number_of_tasks(values: list[Any]):
    def last(state: Any, row: Any) -> tuple[Any, Any]:
        return row["v"], {**row, "v": row["v"] if state is None else state}

    def body(stream: Any) -> Any:
        return stream.key_by("n").stateful_map(last, initial=None, name="last")

    flow = Flow("all")
    start = flow.read(Items(rows(values)), name="rows")
    flow.iterate(start, body, rounds=3, name="again").write(Collect(), name="out")
    result = simulate(flow, seeds=range(4), parallelism=(1, 2))
    assert came_through(values, values_in(result.outputs["out"]))

"""A source, a sink and a store from outside, exactly once in the simulator."""

from __future__ import annotations

import ast
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from backedge import Flow, ScheduleError, simulate
from tests.extending.outside.sqlite_sink import SqliteSink
from tests.extending.outside.sqlite_source import SqliteTable
from tests.extending.outside.sqlite_store import SqliteStore


def table_of(path: Path, numbers: range) -> str:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE numbers (n INTEGER)")
        database.executemany("INSERT INTO numbers VALUES (?)", [(n,) for n in numbers])
    return str(path)


def halving(source: SqliteTable, sink: SqliteSink) -> Flow:
    """Even numbers go round and are halved; odd ones are written."""
    flow = Flow("halving")
    again = flow.loop("again", of=int)
    numbers = flow.read(source, name="numbers").map(lambda row: row["n"], name="n")
    odd, even = numbers.merge(again).split(lambda n: n % 2 == 1, name="parity")
    again.feed(even.rebalance().map(lambda n: n // 2, name="half"))
    odd.write(sink, name="odd")
    return flow


def halved(n: int) -> int:
    return n if n % 2 else halved(n // 2)


def published(path: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as database:
        return sorted(json.loads(record) for (record,) in database.execute("SELECT record FROM published"))


def test_the_package_outside_imports_nothing_of_ours_but_backedge():
    ours = {"graphs", "recovery", "engine", "tests", "proof"}
    for file in (Path(__file__).parent / "outside").glob("*.py"):
        for found in ast.walk(ast.parse(file.read_text())):
            names = [found.module or ""] if isinstance(found, ast.ImportFrom) else []
            names += [name.name for name in found.names] if isinstance(found, ast.Import) else []
            assert not ours & {name.split(".")[0] for name in names}, file


def test_the_page_on_extending_shows_the_code_that_is_tested():
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    for name in ("sqlite_source.py", "sqlite_sink.py", "sqlite_store.py"):
        assert f"```python\n{(Path(__file__).parent / 'outside' / name).read_text()}```" in page, name


@pytest.mark.slow
@pytest.mark.parametrize("schedules", [6, pytest.param(300, marks=pytest.mark.long)])
def test_every_schedule_writes_each_record_once(tmp_path: Path, schedules: int):
    source = SqliteTable(table_of(tmp_path / "in.db", range(1, 51)), "numbers")
    flow = halving(source, SqliteSink(str(tmp_path / "out.db")))
    result = simulate(flow, seeds=range(schedules), crashes=3, snapshots=f"sqlite://{tmp_path}/cuts.db")
    assert sorted(result.outputs["odd"]) == sorted(halved(n) for n in range(1, 51))
    assert result.schedules == schedules and result.crashes > schedules and result.restores_with_log > 0
    assert result.rescaled > 0, "splits moved to other tasks, with their positions"
    assert not (tmp_path / "out.db").exists(), "what is simulated is written elsewhere"
    assert list(SqliteStore(f"sqlite://{tmp_path}/cuts.db").list()) == [], "each run removes what it has kept"


class Forgets(SqliteStore):
    """Forgets the start of the second attempt, after it has said that it is there."""

    def create(self, name: str, data: bytes) -> bool:
        return name == "chain/00000003.json" or super().create(name, data)


def test_a_store_that_breaks_its_promise_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("backedge.engine.simulation.simulation.store_at", Forgets)
    source = SqliteTable(table_of(tmp_path / "in.db", range(1, 31)), "numbers")
    flow = halving(source, SqliteSink(str(tmp_path / "out.db")))
    with pytest.raises(ScheduleError, match=r"cuts\.db"):
        simulate(flow, seeds=range(100), crashes=3, snapshots=f"sqlite://{tmp_path}/cuts.db")

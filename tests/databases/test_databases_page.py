"""docs/databases.md: its example runs, and what it says of ids and tables holds."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from backedge import simulate

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "databases.md").read_text()


def large_orders(database: Path) -> Any:
    with closing(sqlite3.connect(database)) as connection, connection:
        for table in ("orders", "large_orders"):
            connection.execute(f"CREATE TABLE {table} (id integer PRIMARY KEY, amount integer)")
        connection.executemany("INSERT INTO orders VALUES (?, ?)", [(n, n * 10) for n in range(30)])
    made: dict[str, Any] = {}
    exec(compile(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[0], "databases.md", "exec"), made)
    return made["large_orders"](str(database))


def test_the_example_is_simulated_and_writes_nothing(tmp_path: Path):
    flow = large_orders(tmp_path / "shop.db")
    outputs = simulate(flow, seeds=range(10)).outputs
    assert sorted(order["id"] for order in outputs["written"]) == list(range(10, 30))
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        assert connection.execute("SELECT * FROM large_orders").fetchall() == []

"""A source, a sink and a store from outside on Ray, while five processes are killed, and while some raise."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from backedge import Collect, Flow, Items
from tests.extending.outside.sqlite_sink import SqliteSink
from tests.extending.outside.sqlite_source import SqliteTable
from tests.extending.test_outside import halved, halving, published, table_of
from tests.gates import Gate, Gated
from tests.on_ray.flows import finish

KILLS = ["numbers@epoch=2", "parity@epoch=4", "half@epoch=6", "numbers@epoch=8", "parity@epoch=10"]


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_five_kills_lose_nothing_and_double_nothing(tmp_path: Path):
    gate = Gate(tmp_path / "gate")
    source = Gated(SqliteTable(table_of(tmp_path / "in.db", range(1, 301)), "numbers"), gate, 10)
    flow = halving(source, SqliteSink(str(tmp_path / "out.db")))
    options = {"snapshots": f"sqlite://{tmp_path}/cuts.db", "every": 0.2, "parallelism": 2}
    _, result = finish(flow, gate=gate, kills=KILLS, **options)
    assert len(result.kills) == 5
    assert published(str(tmp_path / "out.db")) == sorted(halved(n) for n in range(1, 301))


@dataclass
class Order:
    id: int
    steps: int = 0


def process_title(order: Order) -> tuple[Order, str]:
    return order, Path("/proc/self/cmdline").read_text()


def count(before: Order | None, order: Order) -> tuple[Order, Order]:
    counted = Order(order.id, 1 if before is None else before.steps + 1)
    return counted, counted


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_classes_of_a_script_are_records_and_state_and_processes_are_named_after_their_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in (Order, process_title, count):  # as if this file were the script
        monkeypatch.setattr(name, "__module__", "__main__")
        monkeypatch.setattr(sys.modules["__main__"], name.__name__, name, raising=False)
    flow, gate = Flow("orders"), Gate(tmp_path / "gate")
    orders = flow.read(Gated(Items([Order(n % 5) for n in range(100)]), gate, 25), name="orders").key_by(
        lambda order: order.id
    )
    titled = orders.stateful_map(count, initial=None, name="count").rebalance().map(process_title, name="titled")
    titled.write(Collect(), name="done")
    options = {"snapshots": tmp_path / "cuts", "every": 0.1, "parallelism": 2}
    _, result = finish(flow, gate=gate, kills=["count@epoch=2"], **options)
    found = sorted((order.id, order.steps) for order, _ in result.outputs["done"])
    assert found == [(n, step) for n in range(5) for step in range(1, 21)]
    assert all(type(order) is Order for order, _ in result.outputs["done"])
    titles = {title.strip("\0") for _, title in result.outputs["done"]}
    assert len(titles) == 2 and all("orders: " in title and "titled/" in title for title in titles)

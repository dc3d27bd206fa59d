"""Transfers go through their loop and into a table, while the process that writes it is killed at random steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from operator import sub
from pathlib import Path
from typing import Any

import pytest

from backedge import DeltaTable, Flow, IcebergTable, JsonLines
from backedge.engine.on_ray.supervisor.run_story import Story
from examples.cyclic import transfers
from tests.gates import Gate, Gated
from tests.lakes.deaths import Deaths, steps
from tests.lakes.lakes_by_hand import Delta, Iceberg, Lake
from tests.on_ray.conftest import on_ray
from tests.on_ray.flows import begin, until

__all__ = ["on_ray"]

COLUMNS = ("id", "step", "account", "change")


@dataclass(frozen=True)
class Mortal:
    """A function in whose process the deaths are planned."""

    deaths: Deaths
    function: Callable[..., Any]

    def __call__(self, record: Any) -> Any:
        self.deaths.set()
        return self.function(record)


def into(table: DeltaTable | IcebergTable, gate: Gate, deaths: Deaths) -> Flow:
    """The loop of the example, behind a gate; its bookings go into a table."""
    flow = Flow("transfers")
    read = flow.read(Gated(JsonLines(f"{transfers.DATA}/orders"), gate), name="read")
    orders = read.map(transfers.begin, name="orders")
    arriving = flow.loop("arriving", of=dict[str, Any])
    at_account = orders.merge(arriving).key_by(lambda transfer: transfer["route"][transfer["step"]])
    under_way = at_account.process(transfers.Accounts, name="accounts")
    arriving.feed(under_way.key_by("id").stateful_map(transfers.clear(0.0), initial=0, name="clearing"))
    booked = under_way.side("booked").map(Mortal(deaths, dict), name="row", parallelism=1)
    booked.write(table, name="booked")
    under_way.side("balances").write(transfers.Collect(), name="balances")
    return flow


def expected() -> list[tuple[int, ...]]:
    """The bookings of the orders, without Spark."""
    found: list[tuple[int, ...]] = []
    for file in Path(transfers.DATA, "orders").iterdir():
        for order in map(json.loads, file.read_text().splitlines()):
            amounts = [order["amount"] - step * transfers.FEE for step in range(len(order["route"]) - 1)]
            changes = map(sub, [0, *amounts], [*amounts, 0])
            found += [(order["id"], *each) for each in zip(count(), order["route"], changes)]
    return sorted(found)


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
@pytest.mark.parametrize(
    ("kind", "seed", "kills"),
    [
        (Delta, 1, 2),
        (Iceberg, 2, 2),
        *(pytest.param(kind, seed, 10, marks=pytest.mark.long) for kind in (Delta, Iceberg) for seed in (3, 4)),
    ],
)
def test_kills_of_the_writer_lose_nothing_and_double_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, kind: type[Lake], seed: int, kills: int
):
    """Some more orders come with each look at the run, until all kills have happened."""
    (tmp_path / "deaths").mkdir()
    deaths, gate, lake = Deaths(str(tmp_path / "deaths"), steps(seed, kills)), Gate(tmp_path / "gate"), kind(tmp_path)
    flow = into(lake.described(), gate, deaths)
    job = begin(flow, snapshots=tmp_path / "cuts", every=0.25, parallelism=2, max_restarts=20 * kills)

    def have_happened(_: Story) -> bool:
        gate.let(gate.allowed + 2)
        return deaths.happened == kills

    until(job, have_happened, f"{deaths}")
    gate.open()
    result = job.wait()
    assert result.state == "finished"
    rows = sorted(tuple(row[name] for name in COLUMNS) for row in lake.rows())
    assert rows == expected()
    markers = lake.markers("booked")
    assert markers == sorted(set(markers)) and 1 < len(markers) <= result.snapshots, "one commit for a cut, in order"
    if kills == 10:
        reference = transfers.reference(request.getfixturevalue("spark"), transfers.DATA)
        assert rows == sorted(tuple(row) for row in reference.select(*COLUMNS).collect())

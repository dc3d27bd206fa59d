"""A source, a sink and a store from outside on Ray, while five processes are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from backedge import RunOptions
from backedge.faults import Faults, run_with_faults
from tests.extending.outside.sqlite_sink import SqliteSink
from tests.extending.outside.sqlite_source import SqliteTable
from tests.extending.test_outside import halved, halving, published, table_of

KILLS = ["numbers@epoch=2", "parity@epoch=4", "half@epoch=6", "numbers@epoch=8", "parity@epoch=10"]


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_five_kills_lose_nothing_and_double_nothing(tmp_path: Path):
    source = SqliteTable(table_of(tmp_path / "in.db", range(1, 2001)), "numbers", rate=400.0)
    flow = halving(source, SqliteSink(str(tmp_path / "out.db")))
    options = RunOptions(snapshots=f"sqlite://{tmp_path}/cuts.db", every=0.2, parallelism=2, progress=False)
    result = run_with_faults(flow, Faults(kills=KILLS), options)
    assert result.missed_faults == () and len(result.kills) == 5
    assert published(str(tmp_path / "out.db")) == sorted(halved(n) for n in range(1, 2001))

"""docs/redis.md: its example runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backedge import run
from tests.redis_keys.conftest import server
from tests.redis_keys.redis_process import RedisProcess

__all__ = ["server"]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]


def test_the_example_of_the_page_runs(server: RedisProcess, tmp_path: Path):
    page = (Path(__file__).resolve().parents[2] / "docs" / "redis.md").read_text()
    made: dict[str, Any] = {}
    exec(compile(page.split("```python\n")[1].split("```")[0], "redis.md", "exec"), made)
    server.client.flushdb()
    _, id = (server.client.xadd("orders", {"amount": amount}) for amount in (3, 300))
    run(made["large_orders"](server.url), snapshots=str(tmp_path / "cuts"), progress=False)
    assert server.client.hgetall("large") == {id: f'{{"id":"{id}","amount":300}}'}

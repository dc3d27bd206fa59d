"""docs/lakehouse.md: its example runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from backedge import simulate

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "lakehouse.md").read_text()


@pytest.mark.slow
def test_the_example_is_simulated_and_writes_nothing(tmp_path: Path):
    deltalake.write_deltalake(str(tmp_path / "orders"), pa.table({"id": range(30), "amount": range(0, 300, 10)}))
    made: dict[str, Any] = {}
    exec(compile(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[0], "lakehouse.md", "exec"), made)
    outputs = simulate(made["large_orders"](str(tmp_path)), seeds=range(1)).outputs
    for sink in ("delta", "iceberg"):
        assert sorted(order["id"] for order in outputs[sink]) == list(range(10, 30))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["orders"]

"""Keys that are neither numbers nor text: dates, decimals, UUIDs and enums keep state, and the others are refused."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from backedge import Collect, Flow, Items, simulate
from backedge.graphs.task_errors import RoutingError
from tests.every import every
from tests.runtime.test_nan_keys import counting


class Colour(Enum):
    RED = 1
    GREEN = 2


KEYS: list[Any] = [
    date(2026, 1, 1),
    datetime(2026, 1, 1, tzinfo=UTC),
    Decimal("0.1"),
    UUID(int=7),
    Colour.RED,
    Colour.GREEN,
    (date(2026, 1, 1), Colour.RED),
]


def count(seen: int, key: Any) -> tuple[int, Any]:
    return seen + 1, (str(key), seen + 1)


def test_state_of_other_keys_survives_crashes_and_another_number_of_tasks():
    flow = Flow("keys")
    keyed = flow.read(Items(KEYS * 3), name="keys", parallelism=1).key_by(lambda key: key)
    keyed.stateful_map(count, initial=0, name="count").write(Collect(), name="out")
    result = simulate(flow, seeds=range(2), parallelism=(1, 2))
    assert sorted(result.outputs["out"]) == sorted((str(key), n) for key in KEYS for n in (1, 2, 3))
    assert result.restores and result.rescaled


@every("step", ["stateful_map", "process", "batches"])
@every("key", [frozenset({1}), object(), ("a", frozenset({1})), Decimal("nan"), Decimal("1e999999")])
def test_a_key_without_a_group_is_refused_by_its_operator_though_it_has_one_task(key: Any, step: str):
    with pytest.raises(RoutingError, match=r"key_by between 'source' and 'op': the key .*has no hash"):
        counting(step).feed("op", [{"key": key}])

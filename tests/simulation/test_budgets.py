"""A budget by key: what answers have cost is state, and what exceeds the budget is set aside and not asked about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from backedge import Collect, Flow, Items, MisuseError, UserFunctionError, simulate

TENANTS = {"small": 2, "large": 9}
BUDGET = 5


def answered(question: dict[str, Any]) -> dict[str, Any]:
    return {**question, "tokens": 1}


def asking(cost: Any = "tokens") -> Flow:
    questions = [{"tenant": tenant, "n": n} for tenant, number in TENANTS.items() for n in range(number)]
    flow = Flow("asking")
    by_tenant = flow.read(Items(questions), name="questions").key_by("tenant")
    asked = by_tenant.map_async(
        answered, concurrency=1, cost=cost, budget=BUDGET, on_error="dead_letter", parallelism=2, name="ask"
    )
    asked.map(lambda answer: answer["tenant"]).write(Collect(), name="answers")
    asked.dead_letters.map(lambda question: question["tenant"]).write(Collect(), name="refused")
    return flow


@pytest.mark.slow
def test_no_key_spends_more_than_its_budget_however_often_the_run_crashes():
    seen: list[int] = []

    def is_right(outputs: Mapping[str, list[str]]) -> bool:
        answers, refused = Counter(outputs["answers"]), Counter(outputs["refused"])
        seen.append(answers["large"])
        return answers + refused == TENANTS and answers["small"] == 2 and answers["large"] >= BUDGET

    found = simulate(asking(), seeds=range(60), crashes=3, check_outputs=False, check=is_right)
    assert found.restores > 20
    # Calls that run when the budget is spent are paid for, and schedules run many at a time.
    assert BUDGET in seen
    assert max(seen) < TENANTS["large"]


@pytest.mark.parametrize("cost", [lambda _: -1, lambda _: "much", "price"])
def test_a_cost_that_is_none_is_an_error_that_names_it(cost: Any):
    with pytest.raises(MisuseError if callable(cost) else UserFunctionError, match="cost"):
        simulate(asking(cost), seeds=range(1))

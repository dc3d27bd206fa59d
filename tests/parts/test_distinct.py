"""distinct: only the first record of each key passes."""

from __future__ import annotations

from typing import Any

import pytest

from backedge import BadOptionError, Collect, Flow, Items, distinct, simulate
from backedge.engine.parts.distinct import SWEPT_KEYS_MIN
from backedge.engine.state.keyed_state import keyed_entries
from tests.runtime.tasks import Tasks, flow_of, records_of


@pytest.mark.slow
def test_one_record_of_each_key_passes_in_a_loop_that_crashes():
    flow = Flow("numbers")
    again = flow.loop("again", of=int)
    seen = distinct(flow.read(Items([1, 1, 5]), name="first").merge(again), lambda n: n)
    again.feed(seen.flat_map(lambda n: [n, n * 2 % 11, n * 3 % 11], name="next"))
    seen.write(Collect(), name="seen")
    result = simulate(flow, seeds=range(10))
    assert sorted(result.outputs["seen"]) == list(range(1, 11)) and result.restores


def distinct_tasks(within: float | None, restored: Any = None) -> Tasks:
    return Tasks(flow_of(lambda stream: distinct(stream, lambda n: n, within=within)), restored=restored)


def test_a_key_passes_again_when_its_time_is_over():
    tasks = distinct_tasks(2)
    assert records_of(tasks.feed("distinct", [7, 7, 8], now_ms=1_000)) == [7, 8]
    later = distinct_tasks(2, tasks.capture())
    assert records_of(later.feed("distinct", [7, 9], now_ms=2_999)) == [9]
    assert records_of(later.feed("distinct", [7, 9], now_ms=3_000)) == [7]


def test_without_a_time_a_key_never_passes_again():
    tasks = distinct_tasks(None)
    assert records_of(tasks.feed("distinct", [7], now_ms=1_000)) == [7]
    assert records_of(tasks.feed("distinct", [7], now_ms=10**13)) == []


def test_keys_whose_time_is_over_are_forgotten_and_no_others():
    tasks = distinct_tasks(1)
    tasks.feed("distinct", range(SWEPT_KEYS_MIN - 1), now_ms=0)
    tasks.feed("distinct", ["late"], now_ms=999)
    assert records_of(tasks.feed("distinct", ["last", "late", 3], now_ms=1_001)) == ["last", 3]
    (state,) = [states["distinct"] for states in tasks.capture().values() if "distinct" in states]
    assert keyed_entries(state).values.keys() == {"late", "last", 3}


def test_a_time_of_nothing_is_refused():
    with pytest.raises(BadOptionError, match="within=0: give seconds above 0"):
        distinct(Flow().read(Items([1])), lambda n: n, within=0)

"""throttle: pauses between the records of a key, and few of them out at a time."""

from __future__ import annotations

from typing import Any

import pytest

from backedge import BadOptionError, Collect, Flow, Items, distinct, simulate, throttle
from backedge.engine.state.keyed_state import keyed_entries
from backedge.graphs.task_errors import MisuseError
from tests.runtime.tasks import Tasks, flow_of, records_of

DEPTH = 3


def links_of(url: str) -> list[str]:
    """Each page of this site links to three more, on two hosts, one of them known."""
    return ["a", f"{url}0", f"b{url[1:]}1"]


@pytest.mark.slow
def test_a_crawler_that_crashes_visits_each_page_to_its_depth_once():
    """A record that has waited goes on with its own rounds: `max_rounds` is the depth, whoever wakes it up."""
    flow = Flow("crawler")
    found = flow.loop("found", of=str, max_rounds=DEPTH)
    finished = flow.loop("finished", of=str)
    new = distinct(flow.read(Items(["a"]), name="seed").merge(found), lambda url: url)
    held = throttle(new, lambda url: url[0], delay=0.05, in_flight=2, done=finished)
    fetched = held.map_async(lambda url: url, name="fetch")
    finished.feed(fetched)
    found.feed(fetched.flat_map(links_of, name="links"))
    fetched.write(Collect(), name="pages")
    found.dead_letters.write(Collect(), name="too_deep")
    result = simulate(flow, seeds=range(4), check=lambda outputs: len(outputs["too_deep"]) == 3 * 2**DEPTH)
    assert len(result.outputs["pages"]) == 2 ** (DEPTH + 1) - 1 and result.restores and result.cuts_with_log


def initial(word: str) -> str:
    return word[0].lower()


def throttled(restored: Any = None, **options: Any) -> Tasks:
    def step(stream: Any) -> Any:
        made = {"done": stream.filter(str.isupper)} if "in_flight" in options else {}
        return throttle(stream.filter(str.islower), initial, **options, **made)

    return Tasks(flow_of(step), restored=restored)


def fired(tasks: Tasks, now_ms: int) -> list[str]:
    return records_of(tasks.home("throttle").fire_timers(now_ms))


def keyed_state(tasks: Tasks) -> dict[Any, Any]:
    (state,) = [states["throttle"] for states in tasks.capture().values() if "throttle" in states]
    return keyed_entries(state).values


def test_records_of_a_key_leave_one_pause_apart_and_others_at_once():
    tasks = throttled(delay=2)
    assert records_of(tasks.feed("throttle", ["a1", "a2", "b"], now_ms=0)) == []  # the pause with which it begins
    assert fired(tasks, 2_000) == ["a1", "b"]
    assert fired(tasks, 3_999) == [] and fired(tasks, 4_000) == ["a2"]
    assert tasks.home("throttle").next_timer_ms == 6_000 and fired(tasks, 6_000) == []
    assert tasks.home("throttle").next_timer_ms is None and keyed_state(tasks) == {}
    assert records_of(tasks.feed("throttle", ["a3", "a4"], now_ms=6_001)) == ["a3"]


def test_pauses_hold_after_a_restore_in_which_timers_are_overdue():
    tasks = throttled(delay=2)
    tasks.feed("throttle", ["a1", "a2", "a3"], now_ms=0)
    later = throttled(tasks.capture(), delay=2)
    assert [fired(later, now_ms) for now_ms in (60_000, 61_999, 62_000, 64_000)] == [[], [], ["a1"], ["a2"]]


def test_a_record_leaves_when_one_of_its_key_has_come_back():
    tasks = throttled(in_flight=2)
    assert records_of(tasks.feed("throttle", ["a1", "a2", "a3", "a4", "b"])) == ["a1", "a2", "b"]
    later = throttled(tasks.capture(), in_flight=2)
    assert records_of(later.feed("throttle", ["B"], input="done")) == []
    assert records_of(later.feed("throttle", ["A2"], input="done")) == ["a3"]
    later.feed("throttle", ["B", "B"], input="done")
    assert records_of(later.feed("throttle", ["b1", "b2", "b3"])) == ["b1", "b2"], "no more than two"
    assert later.home("throttle").counted()["throttle"].counters == {"done_without_being_out": 2}


def test_a_run_does_not_end_while_records_wait_for_one_that_was_lost():
    flow = Flow("leaky")
    finished = flow.loop("finished", of=str)
    held = throttle(flow.read(Items(["a1", "a2", "b"]), name="new"), initial, in_flight=1, done=finished)
    left = held.map(str, name="left")
    finished.feed(left.filter(lambda word: word[0] != "a", name="leak"))
    left.write(Collect(), name="words")
    with pytest.raises(MisuseError, match=r"while 'a2' waits .*feed done="):
        simulate(flow, crashes=0, seeds=range(1))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "holds nothing back"),
        ({"delay": 0}, "delay=0: give seconds above 0"),
        ({"in_flight": 0}, "in_flight=0"),
        ({"in_flight": 2}, "belong together"),
    ],
)
def test_a_throttle_that_holds_nothing_back_is_refused(options: dict[str, Any], complaint: str):
    with pytest.raises(BadOptionError, match=complaint):
        throttle(Flow().read(Items(["a"])), str, **options)

"""retry_later: a call that fails is made again later, a number of times that no crash changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any

import pytest

from backedge import BadOptionError, Collect, Flow, Items, SimulationResult, retry_later, simulate
from backedge.engine.callees.retry import Policy
from backedge.engine.parts.retry_later import PAUSE_MS_MAX, BackOff, _failed  # pyright: ignore[reportPrivateUsage]
from tests.runtime.tasks import Tasks, flow_of

CALLS: Counter[str] = Counter()


async def ask(question: str) -> str:
    """Some questions are answered at the third call, some never; some are wrong, and will be."""
    CALLS[question] += 1
    if question.startswith("wrong"):
        raise ValueError("no such question")
    if question.startswith("never") or CALLS[question] < 3:
        raise ConnectionError("busy")
    return question.upper()


class Client:
    """Is ready once it has started, and does not answer to "slow"."""

    async def on_start(self) -> None:
        self.is_ready = True

    async def __call__(self, question: str) -> bool:
        if question == "slow":
            await asyncio.Event().wait()
        return self.is_ready


def block(question: str) -> str:
    if question == "never":
        raise TimeoutError("late")
    return question.upper()


def awaitable(question: str) -> Awaitable[str]:
    return asyncio.to_thread(block, question)


def retried(questions: list[str], f: Any, seeds: range = range(3), **options: Any) -> SimulationResult:
    flow = Flow("questions")
    answers = retry_later(flow.read(Items(questions), name="questions"), f, backoff=0.01, **options)
    answers.write(Collect(), name="answers")
    answers.dead_letters.write(Collect(), name="given_up")
    return simulate(flow, seeds=seeds)


@pytest.mark.slow
@pytest.mark.parametrize("answers", ["again", "kept"])
def test_each_record_is_answered_or_given_up_after_its_tries_whatever_crashes(answers: str):
    CALLS.clear()
    questions = [f"{kind} {number}" for kind in ("hard", "never", "wrong") for number in range(3)]
    result = retried(questions, ask, range(8), tries=4, answers=answers)
    assert sorted(result.outputs["answers"]) == ["HARD 0", "HARD 1", "HARD 2"] and result.restores
    given_up = {letter["record"]: (letter["tries"], letter["error"]) for letter in result.outputs["given_up"]}
    assert given_up == {
        **{f"never {number}": (4, "ConnectionError: busy") for number in range(3)},
        **{f"wrong {number}": (1, "ValueError: no such question") for number in range(3)},
    }


def test_a_class_is_started_and_a_call_that_takes_too_long_is_made_again():
    result = retried(["quick", "slow"], Client, range(1), tries=2, timeout=0.02)
    assert result.outputs["answers"] == [True]
    assert [(letter["record"], letter["tries"]) for letter in result.outputs["given_up"]] == [("slow", 2)]


def test_functions_that_block_or_return_an_awaitable_are_tried_again():
    for f in (block, awaitable):
        result = retried(["why", "never"], f, range(1), tries=2)
        assert result.outputs["answers"] == ["WHY"] and result.outputs["given_up"][0]["tries"] == 2


def waiting(restored: Any = None) -> Tasks:
    return Tasks(flow_of(lambda stream: stream.key_by("record").process(BackOff, name="wait")), restored=restored)


def test_the_pause_of_each_record_holds_after_a_restore():
    attempt = {"record": "r", "tries": 1, "error": "busy", "pause_s": 2.0}
    tasks = waiting()
    tasks.feed("wait", [attempt, attempt], hops=[3, 5], now_ms=1_000)
    home = waiting(tasks.capture()).home("wait")
    assert home.fire_timers(2_999) == []
    sent = [(batch.records, batch.hops) for _, batch in [*home.fire_timers(3_000), *home.fire_timers(3_001)]]
    assert sent == [([attempt], 3), ([attempt], 5)] and home.next_timer_ms is None


class Times(dict[int, Any]):
    """Counts how often one looks whether a time is taken."""

    looks = 0

    def __contains__(self, at_ms: object) -> bool:
        self.looks += 1
        return super().__contains__(at_ms)


class OneKey:
    """The `ctx` of a class whose records all have one key."""

    now = 0

    def __init__(self) -> None:
        self.state = self
        self.times = Times()
        self.timers: list[int] = []

    def get(self, default: Any) -> Any:
        return self.times

    def set(self, value: Any) -> None:
        assert value is self.times

    def set_timer(self, at_ms: int) -> None:
        self.timers.append(at_ms)


def test_equal_records_wait_one_behind_the_other_and_each_finds_its_time_with_few_looks():
    ctx: Any = OneKey()
    for _ in range(1_000):
        BackOff().on_record(ctx, {"record": "why", "tries": 1, "pause_s": 0.5})
    assert ctx.timers == list(range(500, 1_500))
    assert ctx.times.looks < 5_000
    for pause_s in (3_600, 0.5):
        BackOff().on_record(ctx, {"record": "why", "tries": 1, "pause_s": pause_s})
    assert ctx.timers[-2:] == [3_600_000, 1_500], "one that waits longer holds up no other"


@pytest.mark.parametrize("pause_s", [1.7e12, float("inf")])
def test_a_pause_that_no_timer_could_wait_for_ends_after_a_year(pause_s: float):
    """A service may name a time, or milliseconds, where `after=` takes seconds."""
    tasks = waiting()
    tasks.feed("wait", [{"record": "r", "tries": 1, "error": "busy", "pause_s": pause_s}], now_ms=1_000)
    assert tasks.home("wait").next_timer_ms == 1_000 + PAUSE_MS_MAX


def test_pauses_are_drawn_up_to_a_length_that_doubles_and_are_the_same_each_time():
    pauses = [[drawn(record, tries) for tries in (0, 1, 2)] for record in ("a", "b", "a")]
    assert pauses[0] == pauses[2] != pauses[1] and len({*pauses[0], *pauses[1]}) == 6
    assert all(0 <= pause <= 8 * 2**tries for of_record in pauses for tries, pause in enumerate(of_record))


def drawn(record: str, tries: int) -> float:
    return _failed(Policy(4, 8.0, None, None, None), TimeoutError(), {"record": record, "tries": tries})["pause_s"]


def test_options_that_cannot_be_followed_are_refused():
    with pytest.raises(BadOptionError, match="retry_later 'ask' has tries=0"):
        retry_later(Flow().read(Items(["why"])), ask, tries=0)

"""What is tried again, how long `retry` waits for that, and which error is left."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import aiohttp
import cloudpickle
import pytest

from backedge import BadOptionError, Collect, Flow, Items, retry, simulate


class Busy(Exception):
    status = 503
    after_s = 7.0


class Refused(Exception):
    status = 400


class Passing(Exception):
    is_temporary = True


class Failing:
    """A function that fails with these errors, then answers; and the pauses that were made before each try."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.pauses: list[float] = []

    def answer(self, record: int) -> int:
        if self.errors:
            raise self.errors.pop(0)
        return 2 * record

    def blocking(self, **options: Any) -> int:
        return retry(self.answer, sleep=self.pauses.append, **options)(4)

    def awaited(self, **options: Any) -> int:
        async def answer(record: int) -> int:
            return self.answer(record)

        async def pause(seconds: float) -> None:
            self.pauses.append(seconds)

        return asyncio.run(retry(answer, sleep=pause, **options)(4))


BOTH = pytest.mark.parametrize("way", [Failing.blocking, Failing.awaited])
Way = Callable[..., int]
PASSING = [ConnectionResetError(), TimeoutError(), aiohttp.ServerDisconnectedError(), Busy(), Passing()]


@BOTH
def test_what_may_pass_is_tried_again_after_pauses_that_double(way: Way):
    failing = Failing(*PASSING)
    assert way(failing, tries=6, jitter=float) == 8
    assert failing.pauses == [0.5, 1, 2, 4, 8]


@BOTH
def test_the_last_error_is_raised(way: Way):
    failing = Failing(TimeoutError("first"), TimeoutError("second"), TimeoutError("third"))
    with pytest.raises(TimeoutError, match="second"):
        way(failing, tries=2)
    assert len(failing.pauses) == 1


@BOTH
@pytest.mark.parametrize("error", [ValueError("no"), Refused()])
def test_what_will_not_pass_is_raised_at_once(way: Way, error: Exception):
    failing = Failing(error)
    with pytest.raises(type(error)):
        way(failing)
    assert failing.pauses == []


def test_the_kinds_of_errors_can_be_chosen():
    assert Failing(ValueError()).blocking(on=(ValueError, KeyError)) == 8
    with pytest.raises(TimeoutError):
        Failing(TimeoutError()).blocking(on=ValueError)


def test_an_error_may_say_how_long_to_wait():
    failing = Failing(Busy(), TimeoutError())
    assert failing.blocking(after=lambda error: getattr(error, "after_s", None), jitter=float) == 8
    assert failing.pauses == [7.0, 1.0]


def test_pauses_are_drawn_and_have_a_limit():
    failing = Failing(*[TimeoutError()] * 20)
    failing.blocking(tries=21)
    assert all(pause <= min(60, 0.5 * 2**n) for n, pause in enumerate(failing.pauses))
    assert len(set(failing.pauses)) == 20


@BOTH
def test_a_service_that_is_away_for_days_is_tried_again_all_the_time(way: Way):
    failing = Failing(*[TimeoutError()] * 1_100)
    assert way(failing, tries=1_101, jitter=float) == 8
    assert set(failing.pauses[7:]) == {60}


def test_a_cancelled_call_is_not_made_again():
    async def cancelled(record: int) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(retry(cancelled)(1))


@retry
async def decorated(record: int) -> int:
    return record


class Decorated:
    lost = 1

    @retry
    async def __call__(self, record: int) -> int:
        self.lost -= 1
        if self.lost >= 0:
            raise Passing
        return record


def test_functions_and_methods_are_decorated():
    flow = Flow("retries")
    asked = flow.read(Items([1, 2]), name="numbers").map_async(Decorated, name="class").map_async(decorated)
    asked.write(Collect(), name="done")
    assert sorted(simulate(flow, seeds=[]).outputs["done"]) == [1, 2]
    assert asked.tails[0].operator == "decorated"


def test_it_travels():
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert cloudpickle.loads(cloudpickle.dumps(retry(abs)))(-3) == 3


@pytest.mark.parametrize(
    ("f", "options", "told"),
    [
        (Decorated, {}, "class Decorated"),
        (abs, {"tries": 0}, "tries=0"),
        (abs, {"backoff": -1}, "backoff=-1"),
        (abs, {"on": "busy"}, "on='busy'"),
    ],
)
def test_what_it_cannot_do_is_refused(f: Any, options: dict[str, Any], told: str):
    with pytest.raises(BadOptionError, match=told):
        retry(f, **options)


def test_a_function_that_hides_that_it_is_async_is_refused():
    with pytest.raises(BadOptionError, match="returns an awaitable"):
        retry(lambda record: decorated(record))(1)

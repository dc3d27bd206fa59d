"""Resources: opened at the first use, shared, closed when an attempt is over, and opened again where one is broken."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import cloudpickle
import pytest

from backedge import (
    BadOptionError,
    Collect,
    DuplicateNameError,
    Flow,
    Items,
    Process,
    Range,
    Resource,
    UserFunctionError,
    simulate,
)
from backedge.graphs.resource import resource_counts, take_opened
from tests.gates import HANG_S


@pytest.fixture(autouse=True)
def nothing_is_open() -> Iterator[None]:
    """Resources are those of a process, and a test should have its own."""
    yield
    take_opened()


class Line:
    """What a resource opens; it notes whether it was closed, and who has used it after that."""

    def __init__(self) -> None:
        self.is_closed = False
        self.used_closed = 0

    def ask(self) -> str:
        self.used_closed += self.is_closed
        return "answer"

    def close(self) -> None:
        self.is_closed = True


class Ask(Process[Any, Any]):
    def __init__(self, line: Resource[Line]) -> None:
        self.line = line

    def on_record(self, ctx: Any, value: Any) -> None:
        ctx.emit((*value, self.line.value.ask()))


def lines(flow: Flow) -> tuple[Resource[Line], list[Line]]:
    made: list[Line] = []
    return flow.resource("line", open=lambda: made.append(Line()) or made[-1], close=Line.close), made


@pytest.mark.slow
def test_simulated_attempts_open_their_own_and_close_it():
    flow = Flow("asked")
    line, made = lines(flow)

    async def ask_outside(value: int) -> tuple[int, str]:
        return value, line.value.ask()

    asked = flow.read(Range(10), name="numbers").map_async(ask_outside, name="outside")
    asked.process(Ask, line=line, name="asked").write(Collect(), name="done")
    found = simulate(flow, seeds=range(30))
    assert sorted(found.outputs["done"]) == [(number, "answer", "answer") for number in range(10)]
    assert found.restores > 0
    assert len(made) > 31, "an attempt after a crash opens its own"
    assert all(each.is_closed for each in made)
    assert not any(each.used_closed for each in made)


def test_a_process_opens_it_once_at_its_first_use_and_closes_it_once():
    flow = Flow("shop")
    line, made = lines(flow)
    assert (resource_counts(), made) == ({}, [])
    assert line.value is made[0]
    assert pickle.loads(cloudpickle.dumps(line)).value is made[0], "it has travelled to this process again"
    assert resource_counts() == {"line": (1, 1)}
    (opened,) = take_opened()
    assert (resource_counts(), made[0].is_closed) == ({}, False)
    opened.close()
    assert made[0].is_closed
    assert line.value is made[1]


def test_of_two_that_find_it_broken_one_opens_it_again():
    flow = Flow("shop")
    line, made = lines(flow)
    broken = line.value
    fresh = line.reopen(broken)
    assert broken.is_closed
    assert line.reopen(broken) is fresh is line.value
    assert resource_counts() == {"line": (1, 2)}
    assert len(made) == 2


def test_what_open_raises_is_an_error_of_the_users_function():
    flow = Flow("shop")

    def no_network() -> Any:
        raise ConnectionError("no route to the database")

    db = flow.resource("db", open=no_network)
    flow.read(Items([1]), name="numbers").map(lambda _: db.value, name="look_up").write(Collect())
    with pytest.raises(UserFunctionError, match="operator 'look_up' raised ConnectionError: no route") as caught:
        simulate(flow, seeds=[])
    told = str(caught.value)
    assert "in no_network" in told
    assert "raised by open= of <resource 'db' of flow 'shop'>" in told
    assert "graphs/resource.py" not in told


def test_what_close_raises_is_told_and_hides_nothing(capsys: pytest.CaptureFixture[str]):
    flow = Flow("shop")
    db = flow.resource("db", open=dict, close=lambda _: 1 / 0)
    assert db.value == {}
    for opened in take_opened():
        opened.close()
    assert "close= of <resource 'db' of flow 'shop'> raised ZeroDivisionError" in capsys.readouterr().err


def test_what_makes_no_resource_is_refused():
    flow = Flow("shop")
    flow.resource("db", open=dict)
    with pytest.raises(DuplicateNameError, match="resource 'db': flow 'shop' already has a resource of that name"):
        flow.resource("db", open=dict)
    with pytest.raises(DuplicateNameError, match="a resource of that name"):
        flow.read(Items([1]), name="db")
    with pytest.raises(BadOptionError, match="open= of resource 'other' got 5, which cannot be called"):
        flow.resource("other", open=5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadOptionError, match=r"close= of resource 'other' got .*, which is async"):
        flow.resource("other", open=dict, close=_close_later)


async def _close_later(value: Any) -> None:
    del value


def test_one_that_takes_long_to_open_holds_up_no_other():
    flow = Flow("shop")
    opening, may_open = Event(), Event()

    def open_slowly() -> str:
        opening.set()
        assert may_open.wait(HANG_S)
        return "slow"

    slow, fast = flow.resource("slow", open=open_slowly), flow.resource("fast", open=lambda: "fast")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lambda: slow.value)
        assert opening.wait(HANG_S)
        try:
            assert pool.submit(lambda: fast.value).result(HANG_S / 2) == "fast"
            assert not first.done()
        finally:
            may_open.set()
        assert first.result(HANG_S) == "slow"

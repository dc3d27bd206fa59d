"""A task that cannot be set up closes what it had opened, and so does its actor with its other tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from backedge import Collect, Flow, Items, Rollback, Sink, SinkPlace, SinkWriter, UserFunctionError
from tests.on_ray.in_process import Attending, options
from tests.runtime.tasks import Tasks


class Opened:
    """The instances that are open."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.closed: list[str] = []

    def kind(self, name: str, fails: Callable[[Any], bool] = lambda ctx: False) -> type[Any]:
        opened = self

        class Connects:
            def on_start(self, ctx: Any) -> None:
                self.name = f"{name}/{ctx.task_index}"
                opened.started.append(self.name)
                if fails(ctx):
                    raise ConnectionError("nobody listens")

            def on_record(self, ctx: Any, record: Any) -> None:
                ctx.emit(record)

            def close(self) -> None:
                opened.closed.append(self.name)

        return Connects


def chained(opened: Opened) -> Flow:
    flow = Flow("opening")
    stream = flow.read(Items([1]), name="numbers").rebalance().process(opened.kind("first"), name="first")
    stream = stream.process(opened.kind("second", lambda ctx: True), name="second")
    stream.process(opened.kind("third"), name="third").rebalance().write(Collect(), name="done")
    return flow


def test_the_operators_of_a_chain_are_closed_the_one_that_failed_among_them():
    opened = Opened()
    with pytest.raises(UserFunctionError, match="operator 'second' raised ConnectionError: nobody listens in on_start"):
        Tasks(chained(opened))
    assert opened.started == ["first/0", "second/0"]
    assert sorted(opened.closed) == ["first/0", "second/0"], "the third was never opened"


def test_one_whose_init_raises_has_nothing_to_close():
    class Broken:
        def __init__(self) -> None:
            raise ConnectionError("nobody listens")

        def on_record(self, ctx: Any, record: Any) -> None: ...

        def close(self) -> None:
            raise AssertionError("there is no instance")

    opened = Opened()
    flow = Flow("opening")
    stream = flow.read(Items([1]), name="numbers").rebalance().process(opened.kind("first"), name="first")
    stream.process(Broken, name="broken").rebalance().write(Collect(), name="done")
    with pytest.raises(UserFunctionError, match="in __init__"):
        Tasks(flow)
    assert opened.closed == ["first/0"]


def test_the_other_tasks_of_its_actor_are_closed_too():
    opened = Opened()
    flow = Flow("opening")
    stream = flow.read(Items([1]), name="numbers").rebalance().process(opened.kind("first"), name="first")
    stream.rebalance().process(opened.kind("late", lambda ctx: True), name="late").rebalance().write(Collect())
    with Attending(flow, actors="slice", options=options()) as run:
        run.until(lambda: bool(run.outcomes), "the actor has failed")
        (outcome,) = run.outcomes.values()
        assert outcome.end == "broken"
        assert "operator 'late' raised ConnectionError" in outcome.reason
    assert opened.started == ["first/0", "late/0"]
    assert sorted(opened.closed) == ["first/0", "late/0"]


class Unclosable(SinkWriter):
    """A writer of others whose connection is gone when it is to be closed."""

    def write(self, records: Any) -> None: ...

    def prepare(self, name: str) -> bool:
        return False

    def commit(self, name: str) -> None: ...

    def close(self) -> None:
        raise ValueError("the connection is closed already")


class Connected(Sink[Any]):
    def open_writer(self, place: SinkPlace) -> SinkWriter:
        return Unclosable()

    def roll_back(self, place: SinkPlace, rollback: Rollback) -> None: ...


def test_a_writer_that_cannot_be_closed_hides_no_error_and_the_others_are_closed(capsys: pytest.CaptureFixture[str]):
    opened = Opened()
    flow = Flow("opening")
    stream = flow.read(Items([1]), name="numbers")
    stream.rebalance().write(Connected(), name="connected")
    stream.rebalance().process(opened.kind("late", lambda ctx: True), name="late").rebalance().write(Collect())
    with Attending(flow, actors="slice", options=options()) as run:
        run.until(lambda: bool(run.outcomes), "the actor has failed")
        (outcome,) = run.outcomes.values()
        assert outcome.end == "broken" and "operator 'late' raised ConnectionError" in outcome.reason
    assert opened.closed == ["late/0"]
    assert "closing sink 'connected' raised ValueError: the connection is closed already" in capsys.readouterr().err

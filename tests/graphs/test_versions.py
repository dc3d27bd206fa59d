"""Versions of a flow: their numbers, which of them are kept, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from backedge import (
    BadOptionError,
    Collect,
    DuplicateNameError,
    Flow,
    Items,
    MisuseError,
    UserFunctionError,
    simulate,
)
from backedge.engine.batches.constant_bytes import constant_in
from backedge.engine.operators.version_memory import OwnMemory, put_on_shelf
from backedge.graphs.ids import Attempt
from backedge.recovery.cut.cut import Version
from backedge.recovery.protocol.versions import PublishedTwiceError, Shelf, VersionDirectory
from tests.every import every


class Publish:
    def __init__(self, versions: Any) -> None:
        self.versions = versions

    def on_record(self, ctx: Any, value: Any) -> None:
        number = ctx.publish(self.versions, np.array([value]))
        ctx.emit((number, value))


def published(keep: int, **options: Any) -> tuple[Flow, Any]:
    flow = Flow("published")
    versions = flow.versions("weights", keep=keep)
    numbers = flow.read(Items([5, 6, 7]), name="values").process(Publish, name="publish", versions=versions, **options)
    return flow, (versions, numbers)


def test_a_function_and_a_call_read_what_was_published_under_a_number():
    flow, (weights, numbers) = published(keep=3, parallelism=1)

    async def ask(told: tuple[int, int]) -> tuple[int, int]:
        return told[1], int(weights[told[0]][0])

    numbers.map(lambda told: (told[1], int(weights[told[0]][0])), name="map").write(Collect(), name="by function")
    numbers.map_async(ask, name="ask").write(Collect(), name="by call")
    found = simulate(flow, seeds=range(5)).outputs
    assert sorted(found["by function"]) == sorted(found["by call"]) == [(5, 5), (6, 6), (7, 7)]


def asking(number: int) -> Flow:
    """A function asks for this version when three were published."""
    flow, (weights, numbers) = published(keep=2, parallelism=1)
    late = numbers.filter(lambda told: told[0] == 3).map(lambda told: weights[number], name="late")
    late.write(Collect())
    return flow


@pytest.mark.parametrize(("number", "fix"), [(1, "raise keep=2"), (9, "publish it first")])
def test_a_version_that_is_not_kept_is_refused_by_name(number: int, fix: str):
    with pytest.raises(UserFunctionError, match=rf"version {number} of 'weights' is not kept; kept now: 2, 3, .*{fix}"):
        simulate(asking(number), seeds=())


def by_two_tasks() -> None:
    flow, (_, numbers) = published(keep=2, parallelism=2)
    numbers.write(Collect())
    simulate(flow, seeds=())


def of_another_flow() -> None:
    flow = Flow("other")
    numbers = flow.read(Items([1]), name="values").process(Publish, name="publish", versions=Flow("x").versions("w"))
    numbers.write(Collect())
    simulate(flow, seeds=())


def of_a_name() -> None:
    flow = Flow("named")
    flow.read(Items([1]), name="values").process(Publish, name="publish", versions="weights").write(Collect())
    simulate(flow, seeds=())


def what_does_not_pickle() -> None:
    flow = Flow("generator")
    weights = flow.versions("weights")

    class Wrong:
        def on_record(self, ctx: Any, value: Any) -> None:
            ctx.publish(weights, (n for n in range(3)))

    flow.read(Items([1]), name="values").process(Wrong, name="wrong").write(Collect())
    simulate(flow, seeds=())


def twice() -> None:
    flow = Flow("twice")
    flow.versions("weights")
    flow.constant("weights", 1)


@every(
    ("mistake", "error", "told"),
    [
        (by_two_tasks, MisuseError, "another task has published version 1 of 'weights'"),
        (of_another_flow, MisuseError, "<versions 'w' of flow 'x'> have no values in this process"),
        (of_a_name, MisuseError, "ctx.publish got 'weights'"),
        (what_does_not_pickle, MisuseError, "does not pickle"),
        (twice, DuplicateNameError, "already has versions of that name"),
        (lambda: Flow().versions("weights", keep=0), BadOptionError, "keep=0"),
    ],
)
def test_mistakes_are_named(mistake: Callable[[], Any], error: type[Exception], told: str):
    with pytest.raises(error, match=told):
        mistake()


def test_an_attempt_finds_the_versions_of_its_cut_and_its_publisher_and_none_of_the_one_before():
    directory = VersionDirectory[str, str]()
    directory.begin(Attempt(1), {})
    assert directory.publishes(Attempt(1), ("w", 1), "first learner")
    with pytest.raises(PublishedTwiceError):
        directory.publishes(Attempt(1), ("w", 1), "another task")
    assert directory.find(Attempt(1), ("w", 7)) == (None, (), "first learner")
    directory.begin(Attempt(2), {("w", 1): "of the cut"})
    assert not directory.publishes(Attempt(1), ("w", 4), "first learner")
    assert directory.find(Attempt(1), ("w", 3)) is None
    assert directory.find(Attempt(2), ("w", 2)) == (None, (1,), None)
    assert directory.publishes(Attempt(2), ("w", 2), "second learner")
    assert directory.find(Attempt(2), ("w", 1)) == ("of the cut", (1,), "second learner")


def test_the_first_process_that_has_read_a_file_is_where_the_others_find_it():
    directory = VersionDirectory[str, str]()
    directory.begin(Attempt(2), {("w", 1): "file"})
    assert directory.loaded(Attempt(2), ("w", 1), "file", "first") == ("first", (1,), None)
    assert directory.loaded(Attempt(2), ("w", 1), "file", "second") == ("first", (1,), None)
    assert directory.loaded(Attempt(1), ("w", 1), "first", "late") is None


def test_memory_is_used_again_when_nobody_holds_it():
    shelf = Shelf[OwnMemory](2)
    weights = Flow("learn").versions("w", keep=2)

    def put(number: int) -> tuple[OwnMemory, Version]:
        return put_on_shelf(shelf, OwnMemory, weights, number, np.array([number]), range(1, number))

    first, version = put(1)
    second = put(2)[0]
    third = put(3)[0]
    assert shelf.kept == (2, 3) and shelf.find(1) is None and shelf.find(3) is third
    assert third is second is not first, "a task or a cut holds the first version, and nobody the second"
    held = constant_in(version.data)
    del version
    assert put(4)[0] is third
    assert held.tolist() == [1], "a function still has its array"
    del held
    assert put(5)[0] is first
    with pytest.raises(PublishedTwiceError):
        shelf.put(5, third, (4,))

"""The process of a task outlives its supervisor: it leaves the attempt, and ignores what the dead one still orders."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy
import pyarrow
import pytest

from backedge.engine.on_ray.actor import task_host
from backedge.engine.on_ray.actor.task_host import LEAVE_LOOK_S, TaskHost
from backedge.engine.on_ray.transport.control_messages import SUPERVISOR, Begin, Meeting, Outcome
from backedge.engine.on_ray.transport.mailbox import Address, Keys
from backedge.graphs.ids import Attempt
from tests.gates import HANG_S

HERE = Address("here", "ipc:///nowhere")


class Attempting:
    """A host that meets others for attempt 1. Its loop runs until it is told to leave, once `may_begin` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begins, self.may_begin, self.runs, self.left, self.ended = (Event() for _ in range(5))
        self.host = TaskHost(supervisor=None)
        self.host._mailbox = SimpleNamespace(close=lambda: None)  # type: ignore[assignment]
        self.host._met = Attempt(1)
        monkeypatch.setattr(task_host, "open_store", self._open_store)
        monkeypatch.setattr(task_host, "ActorLoop", lambda *_: SimpleNamespace(run=self._run, leave=self.left.set))
        monkeypatch.setattr(task_host.cluster, "place", lambda: "here")
        monkeypatch.setattr(task_host.cluster, "name_process", lambda what: None)

    def take_part(self, attempt: Attempt = Attempt(1)) -> Outcome:  # noqa: B008
        deployment: Any = SimpleNamespace(plan=SimpleNamespace(name="flow"), tasks={})
        options: Any = SimpleNamespace(keep_inputs=frozenset(), job="trips")
        return self.host.take_part(Begin(attempt, "a", deployment, {}, {SUPERVISOR: HERE}, options))

    def _open_store(self, *_: Any) -> None:
        self.begins.set()
        assert self.may_begin.wait(HANG_S)

    def _run(self) -> Outcome:
        self.runs.set()
        assert self.left.wait(HANG_S)
        self.ended.set()
        return Outcome("stopped", "it has left")

    def leave(self) -> None:
        self.host.leave()
        assert self.ended.is_set(), "it waits for the end of the part"


@pytest.fixture
def attempting(monkeypatch: pytest.MonkeyPatch) -> Attempting:
    return Attempting(monkeypatch)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_leaving_ends_the_part_in_the_attempt_and_waits_for_it(attempting: Attempting, threads: ThreadPoolExecutor):
    attempting.may_begin.set()
    part = threads.submit(attempting.take_part)
    assert attempting.runs.wait(HANG_S)
    threads.submit(attempting.leave).result(HANG_S)
    assert part.result(HANG_S).reason == "it has left"


def test_leaving_ends_a_part_that_has_only_just_begun(attempting: Attempting, threads: ThreadPoolExecutor):
    part = threads.submit(attempting.take_part)
    assert attempting.begins.wait(HANG_S)
    leaving = threads.submit(attempting.leave)
    with pytest.raises(TimeoutError):
        leaving.result(3 * LEAVE_LOOK_S)
    attempting.may_begin.set()
    leaving.result(HANG_S)
    assert part.result(HANG_S).reason == "it has left"


def test_a_supervisor_that_wakes_up_late_does_not_disturb_the_attempt_of_its_successor(
    attempting: Attempting, threads: ThreadPoolExecutor
):
    attempting.may_begin.set()
    attempting.host._newest = Attempt(1)
    part = threads.submit(attempting.take_part)
    assert attempting.runs.wait(HANG_S)
    with pytest.raises(RuntimeError, match="attempt 0 is over"):
        attempting.host.arrive(Meeting(Attempt(0), Keys.new(), False, "here", Path("nowhere")))
    late = threads.submit(attempting.take_part, Attempt(0))
    assert late.result(HANG_S) == Outcome("stopped"), "it does not wait for the end of the other"
    assert not part.done()
    attempting.left.set()


def test_an_order_to_take_part_that_arrives_after_its_supervisor_has_died_is_ignored(attempting: Attempting):
    attempting.host.leave()
    assert attempting.take_part() == Outcome("stopped")
    assert not attempting.runs.is_set()


def test_what_a_source_or_operator_of_others_raises_fails_the_attempt_and_names_its_place(
    attempting: Attempting, monkeypatch: pytest.MonkeyPatch
):
    def hiccup(*_: Any) -> None:
        raise RuntimeError("the service hiccups")

    monkeypatch.setattr(task_host, "open_store", hiccup)
    outcome = attempting.take_part()
    assert outcome.end == "failed"
    assert "RuntimeError: the service hiccups" in outcome.reason
    assert f"{__file__}, line" in outcome.reason and "in hiccup" in outcome.reason
    assert "Backedge" not in outcome.reason


@pytest.mark.parametrize(
    ("statement", "end"),
    [
        ("raise OSError('no space left')", "failed"),
        ("numpy.empty(1 << 60, numpy.uint8)", "failed"),
        ("raise KeyError('epoch')", "broken"),
        ("numpy.stack([])", "broken"),
        ("pyarrow.array([1]).cast(pyarrow.date32()).cast(pyarrow.list_(pyarrow.int8()))", "broken"),
    ],
)
def test_a_mistake_of_ours_ends_the_run_and_a_lack_of_disk_or_memory_the_attempt(
    attempting: Attempting, monkeypatch: pytest.MonkeyPatch, statement: str, end: str
):
    scope: dict[str, Any] = {"numpy": numpy, "pyarrow": pyarrow}
    # As if a function of the engine itself had raised.
    exec(compile(f"def open_store(*_):\n    {statement}", task_host.__file__, "exec"), scope)
    monkeypatch.setattr(task_host, "open_store", scope["open_store"])
    outcome = attempting.take_part()
    assert (outcome.end, "mistake in Backedge" in outcome.reason) == (end, end == "broken")

"""Where snapshots are written: the small ones in the loop, whatever takes long in a thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping

import pytest

from backedge import Flow, Items, Print
from backedge.engine.io.files.objects_in_memory import ObjectsInMemory
from backedge.engine.on_ray.actor import background as background_module
from backedge.engine.on_ray.actor.background import Background, Written
from backedge.engine.on_ray.job_store import TasksInFolder
from backedge.engine.on_ray.transport.control_messages import Compacted
from backedge.engine.operators.async_calls import Call
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.resource import Opened, Resource
from backedge.recovery.cut.cut import TaskSnapshot
from backedge.recovery.protocol.answers import Question
from backedge.recovery.protocol.orders import Compact
from backedge.recovery.stores.cut_store import CutStore
from tests.gates import HANG_S, wait_for
from tests.on_ray.in_process import InMemory, NoAnswers
from tests.stores.snapshots import RANK, snapshots_of

TASK, OTHER = TaskId("rank", 0), TaskId("rank", 1)


class Noting:
    """A store that notes which thread writes."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        # Each aborted epoch, and how many writes came before.
        self.discarded: list[tuple[Epoch, int]] = []
        self.is_waited_for = False
        self.fails = False

    def write_task(self, attempt: Attempt, epoch: Epoch | None, snapshot: TaskSnapshot) -> InMemory:
        self.threads.append("loop" if threading.current_thread() is threading.main_thread() else "beside")
        if self.fails:
            raise OSError(28, "No space left on device")
        return InMemory(self.is_waited_for)

    answers = NoAnswers()

    def discard_task(self, attempt: Attempt, epoch: Epoch, task: TaskId) -> None:
        self.discarded.append((epoch, len(self.threads)))


class OneActor:
    """One actor's background, whose snapshots are written one after the other."""

    def __init__(self) -> None:
        self.store = Noting()
        self.woken = 0
        self.background = Background(self.store, self._wake)
        self.epoch = 0

    def _wake(self) -> None:
        self.woken += 1

    def write(self, task: TaskId = TASK, *, is_last: bool = False) -> str:
        """Write the next one; says where that was done."""
        self.epoch += 1
        epoch = None if is_last else Epoch(self.epoch)

        def snapshot() -> TaskSnapshot:
            return TaskSnapshot(task, Epoch(self.epoch), Attempt(1), {}, (), (), is_last)

        self.background.write(Attempt(1), epoch, task, snapshot)
        self.background.write_due()
        wait_for(lambda: self.background.done, "it is written")
        done = self.background.done.popleft()
        assert isinstance(done, Written)
        assert (done.task, done.epoch, done.failure is None) == (task, epoch, not self.store.fails)
        return self.store.threads[-1]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[OneActor]:
    """Every write is quick, however long it takes."""
    monkeypatch.setattr(background_module, "QUICK_NS", sys.maxsize)
    made = OneActor()
    yield made
    made.background.close()


def test_the_first_of_a_task_is_written_beside_the_loop_and_the_next_small_ones_in_it(written: OneActor):
    assert [written.write() for _ in range(3)] == ["beside", "loop", "loop"]
    assert [written.write(OTHER) for _ in range(2)] == ["beside", "loop"]


def test_the_loop_writes_when_it_is_told_to_or_before_it_removes_what_was_written(written: OneActor):
    """Tasks have a turn in between, which would otherwise wait for encoding and writing together."""
    assert written.write() == "beside"
    store, background = written.store, written.background
    background.write(Attempt(1), Epoch(2), TASK, lambda: TaskSnapshot(TASK, Epoch(2), Attempt(1), {}, (), ()))
    assert (store.threads, len(background.done)) == (["beside"], 0)
    background.write_due()
    assert (store.threads, len(background.done)) == (["beside", "loop"], 1)
    background.write(Attempt(1), Epoch(3), TASK, lambda: TaskSnapshot(TASK, Epoch(3), Attempt(1), {}, (), ()))
    background.discard(Attempt(1), Epoch(3), TASK)
    assert store.threads == ["beside", "loop", "loop"]
    wait_for(lambda: store.discarded, "it is removed")
    assert store.discarded == [(3, 3)], "after all writes"


def test_only_a_thread_wakes_the_loop(written: OneActor):
    """The loop looks at what it has written itself. To be woken, it would be pushed off its core."""
    assert [written.write() for _ in range(4)] == ["beside", "loop", "loop", "loop"]
    written.background.close()
    assert written.woken == 1


def test_where_the_disk_is_waited_for_the_loop_does_not_wait(written: OneActor):
    written.store.is_waited_for = True
    assert [written.write() for _ in range(3)] == ["beside", "beside", "beside"]


class Answering(ObjectsInMemory):
    """A store of objects: that one is written is known when the network has answered."""

    def __init__(self, writing: list[str]) -> None:
        super().__init__()
        self.writing = writing

    def write(self, files: Mapping[str, bytes]) -> None:
        self.writing.append(threading.current_thread().name)
        super().write(files)


def test_the_loop_does_not_wait_for_the_network(monkeypatch: pytest.MonkeyPatch):
    """However little is written: an answer may take half a minute, in which no task of the actor would do anything."""
    monkeypatch.setattr(background_module, "QUICK_NS", sys.maxsize)
    writing: list[str] = []
    flow = Flow("any")
    flow.read(Items([1]), name="numbers").write(Print(), name="shown")
    store = TasksInFolder(CutStore(Answering(writing), "job"), flow.plan(), is_beside=True)
    background = Background(store, lambda: None)
    for epoch in (1, 2):
        background.write(Attempt(1), Epoch(epoch), RANK, lambda: snapshots_of(1)[RANK])
        background.write_due()
        wait_for(lambda: background.done, "it is written")
        background.done.clear()
    background.close()
    assert writing and threading.main_thread().name not in writing


def test_what_took_long_is_written_beside_the_loop_from_then_on(written: OneActor, monkeypatch: pytest.MonkeyPatch):
    assert [written.write() for _ in range(2)] == ["beside", "loop"]
    monkeypatch.setattr(background_module, "QUICK_NS", 0)
    assert [written.write() for _ in range(3)] == ["loop", "beside", "beside"]


def test_a_last_state_is_written_beside_the_loop(written: OneActor):
    assert [written.write() for _ in range(2)] == ["beside", "loop"]
    assert written.write(is_last=True) == "beside"


def test_one_that_fails_in_the_loop_is_told_like_any_other_and_the_next_is_written_beside_it(written: OneActor):
    assert [written.write() for _ in range(2)] == ["beside", "loop"]
    written.store.fails = True
    assert [written.write() for _ in range(2)] == ["loop", "beside"]


@pytest.mark.parametrize(
    ("error", "told"),
    [(OSError(28, "No space left on device"), None), (ValueError("no such state"), "ValueError: no such state")],
)
def test_a_compaction_that_fails_in_any_way_is_reported_and_ends_nothing(
    written: OneActor, error: Exception, told: str | None
):
    def compact(attempt: Attempt, order: Compact) -> None:
        raise error

    written.store.compact = compact  # type: ignore[attr-defined]
    written.background.compact(Attempt(1), Compact(TASK, Epoch(7), ()))
    wait_for(lambda: written.background.done, "it is reported")
    assert written.background.done.popleft() == Compacted(TASK, Epoch(7), None, None, told)


def test_a_resource_is_closed_when_the_calls_have_their_answers_that_go_on_without_their_attempt():
    answers, began = {name: threading.Event() for name in ("first", "second")}, threading.Barrier(3)
    closed: list[str] = []

    def opened(name: str) -> Opened:
        return Opened(Resource("shop", name, dict, lambda _: closed.append(name)), {})

    def ask(name: str) -> str:
        began.wait(HANG_S)
        answers[name].wait(HANG_S)
        return name

    attempt = Background(None, lambda: None)
    for number, name in enumerate(answers):
        attempt.call(TASK, number, Call(ask, name, operator="ask", question=Question(number, name, 0)))
    began.wait(HANG_S)
    attempt.close()
    attempt.close_after_calls([opened("line")])
    later = Background(None, lambda: None)
    later.close()
    later.close_after_calls([opened("later")])
    assert closed == []
    answers["first"].set()
    next_one = Background(None, lambda: None)
    wait_for(lambda: next_one.done, "one has its answer")
    assert closed == []
    answers["second"].set()
    wait_for(lambda: len(closed) == 2 and len(next_one.done) == 2, "both are closed")
    next_one.done.clear()
    next_one.close()
    next_one.close_after_calls([opened("unused")])
    assert closed == ["line", "later", "unused"]

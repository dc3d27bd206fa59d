"""The background work of an actor: writing snapshots in one thread, external calls in an event loop and in others.

Results go into one queue, and wake the loop. Compactions have a thread of their own, so no snapshot waits for one.

Small snapshots are written in the loop itself. The thread would request Python's lock some sixty times and push the
loop off its core each time, which costs more than writing the snapshot. That is done when the tasks have had their
turn: records come between encoding a snapshot and writing it, so the longest time without one is half as long.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple

from backedge.engine.on_ray.actor.journal_writer import JournalWriter, Kept
from backedge.engine.on_ray.job_store import TasksInFolder
from backedge.engine.on_ray.tracing import CallSpans
from backedge.engine.on_ray.transport.control_messages import Compacted
from backedge.engine.operators.async_calls import Answer, Awaited, Call, begin, finish
from backedge.engine.operators.kept_answers import opened
from backedge.engine.operators.runtime import KeptAnswer
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.options import is_async
from backedge.graphs.resource import Opened
from backedge.graphs.task_errors import describe
from backedge.recovery.cut.cut import TaskSnapshot
from backedge.recovery.protocol.answers import Known, Question
from backedge.recovery.protocol.orders import Compact
from backedge.recovery.stores.store_errors import StoreError
from backedge.recovery.stores.task_files import TaskFiles

RETRY_PAUSE_S = 0.5
FIRST_ATTEMPT = Attempt(1)
QUICK_NS = 10_000_000
JOB_BYTES = 8


class Written(NamedTuple):
    """A snapshot was written, or could not be written. An `ImportError`: this process can write none."""

    task: TaskId
    epoch: Epoch | None
    files: TaskFiles | None
    failure: str | ImportError | None


Asked = tuple[str, Question]
"""An operator, and a question of it."""


class Answered(NamedTuple):
    """An external call has returned or failed. `asked`: its operator and question, if its answer is kept."""

    task: TaskId
    call_id: int
    result: Any
    error: BaseException | None
    asked: Asked | None = None


class Outlived(NamedTuple):
    """A call of an earlier attempt has returned or failed, and no call of this attempt has joined it."""

    operator: str
    question: Question
    result: Any
    error: BaseException | None


Done = Written | Compacted | Answered | Kept | Outlived


class Background:
    """The background work of an actor in one attempt. `store` is None for a run that keeps no snapshots.

    `spans` is told of the calls, if they are traced.
    """

    def __init__(
        self,
        store: TasksInFolder | None,
        wake: Callable[[], None],
        spans: CallSpans | None = None,
        attempt: Attempt = FIRST_ATTEMPT,
    ) -> None:
        self._spans = spans
        self.done: deque[Done] = deque()
        journal = None if store is None else store.answers
        self._job = secrets.token_hex(JOB_BYTES) if journal is None else journal.job_id
        self._journal = JournalWriter(journal, attempt, self.on_done)
        self._store = store
        self._wake = wake
        self._writer = ThreadPoolExecutor(1, "snapshots")
        self._compactor = ThreadPoolExecutor(1, "compaction")
        self._quick: set[TaskId] = set()
        # Writes that the loop does when the tasks have had their turn.
        self._due: deque[Callable[[], Written]] = deque()
        self._awaited = Awaited()
        self._is_closed = False
        _lasting.attach(self)

    def write(self, attempt: Attempt, epoch: Epoch | None, task: TaskId, snapshot: Callable[[], TaskSnapshot]) -> None:
        """Write a snapshot: in the loop with `write_due`, if the task's last one was quick."""
        if self._store is None:
            self.on_done(Written(task, epoch, None, None))
            return
        write = partial(self._write, self._store, attempt, epoch, task, snapshot)
        if epoch is not None and task in self._quick:
            self._due.append(write)
        else:
            self._writer.submit(lambda: self.on_done(write()))

    def write_due(self) -> None:
        """Write the snapshots that the loop writes itself. It looks at `done` afterwards, so nothing need wake it."""
        while self._due:
            self.done.append(self._due.popleft()())

    def _write(
        self,
        store: TasksInFolder,
        attempt: Attempt,
        epoch: Epoch | None,
        task: TaskId,
        snapshot: Callable[[], TaskSnapshot],
    ) -> Written:
        self._quick.discard(task)
        began_ns = time.thread_time_ns()
        try:
            files = store.write_task(attempt, epoch, snapshot())
            if not files.is_settled and time.thread_time_ns() - began_ns < QUICK_NS:
                self._quick.add(task)
            return Written(task, epoch, files, None)
        except ImportError as error:
            return Written(task, epoch, None, error)
        except Exception as error:  # noqa: BLE001 - in any case the epoch is declined and the run goes on
            if epoch is None:
                time.sleep(RETRY_PAUSE_S)
            return Written(task, epoch, None, f"{type(error).__name__}: {error}")

    def discard(self, attempt: Attempt, epoch: Epoch, task: TaskId) -> None:
        self.write_due()
        if self._store is not None:
            self._writer.submit(self._store.discard_task, attempt, epoch, task)

    def compact(self, attempt: Attempt, order: Compact) -> None:
        """Put files of a complete cut into one; the result arrives in `done`."""
        self._compactor.submit(self._compact, attempt, order)

    def _compact(self, attempt: Attempt, order: Compact) -> None:
        compacted = Compacted(order.task, order.epoch, None)
        try:
            if self._store is not None:
                files, keys = self._store.compact(attempt, order)
                compacted = Compacted(order.task, order.epoch, keys, files)
        except (StoreError, OSError):
            pass  # retention may have dropped the files, or the disk may be full: a later cut tries again
        except Exception as error:  # noqa: BLE001  # a run does not need it
            compacted = Compacted(order.task, order.epoch, None, failure=describe(error))
        self.on_done(compacted)

    def call(self, task: TaskId, call_id: int, call: Call) -> bool:
        """Make an external call; the answer arrives in `done`. A call that takes too long goes on, but is ignored.

        Returns False if the call of an earlier attempt goes on, and is joined.
        """
        if self._spans is not None:
            self._spans.on_call(task, call_id, call.operator)
        call, caller = call._replace(job=self._job), Caller(self, task, call_id)
        if call.question is not None and not _lasting.begins(call, caller):
            return False
        awaited = self._awaited if call.question is None else _lasting.awaited
        if is_async(call.function):
            awaited.run(_ask(awaited, call, caller))
        else:
            _threads_of(task, call.operator).run(lambda: self._begin(awaited, call, caller), call.threads_max)
        return True

    def _begin(self, awaited: Awaited, call: Call, caller: Caller) -> Callable[[], object]:
        """Call a function that may block. Returns what passes its answer on: the place of the call is free by then."""
        if self._is_closed and not _lasting.goes_on(call):
            return lambda: None
        if call.timeout_s is None:
            begun = begin(call)
            if isinstance(begun, Answer):
                return lambda: _pass_on(call, caller, begun)
            return lambda: awaited.run(_await(awaited, call, caller, finish(begun, call)))
        outcome: Future[Answer | Awaitable[Any]] = Future()
        outcome.set_running_or_notify_cancel()
        awaited.run(_await(awaited, call, caller, _from_thread(outcome, call)))
        answer = begin(call)
        return lambda: outcome.set_result(answer)

    def keep(self, task: TaskId, answers: Sequence[KeptAnswer]) -> None:
        """Write answers to the journal; `done` says when it has them."""
        self._journal.keep(Kept(task, answers))

    def on_done(self, what: Done) -> None:
        """Something is done, in any thread: wake the loop, which looks at it."""
        if self._spans is not None and isinstance(what, Answered):
            self._spans.on_answer(what.task, what.call_id, what.error)
        if not self._is_closed:
            self.done.append(what)
            self._wake()

    def close_after_calls(self, opened: list[Opened]) -> None:
        """Close resources of the attempt when no call needs them that goes on without it."""
        _lasting.close_after(opened)

    def close(self) -> None:
        """Stop reporting results. What is being written is completed. Calls that are awaited are cancelled: their
        records are in the cut, so the next attempt calls again. Those go on that block a thread, or whose answer is
        kept: the next attempt joins these, or finds their answers in the journal."""
        _lasting.detach(self)
        self._is_closed = True
        self._awaited.cancel()
        # Before the next attempt reads the journal.
        _lasting.take_back(self._journal.close())
        self._writer.shutdown(wait=True, cancel_futures=True)
        self._compactor.shutdown(wait=True, cancel_futures=True)
        if self._spans is not None:
            self._spans.close()


async def _from_thread(outcome: Future[Answer | Awaitable[Any]], call: Call) -> Answer:
    """The answer of a function that is called in a thread of its own."""
    return await finish(await asyncio.wrap_future(outcome), call)


async def _ask(awaited: Awaited, call: Call, caller: Caller) -> None:
    await _await(awaited, call, caller, finish(begin(call), call))


async def _await(awaited: Awaited, call: Call, caller: Caller, answering: Coroutine[Any, Any, Answer]) -> None:
    _pass_on(call, caller, await awaited.within(call.timeout_s, answering))


def _pass_on(call: Call, caller: Caller, answer: Answer) -> None:
    if call.question is None:
        caller.background.on_done(Answered(caller.task, caller.call_id, *answer))
    else:
        _lasting.end(call, answer)


class Caller(NamedTuple):
    """The attempt, the task and the number of a call."""

    background: Background
    task: TaskId
    call_id: int


class LastingCalls:
    """The calls of this process whose answers are kept. They go on when their attempt is over.

    - awaited: what awaits them, as long as the process lives.
    - running: the calls without an answer, by operator and question, each with its caller; None if its attempt is over.
    - unclaimed: answers that came while there was no attempt. attempt: the one that takes part, if any.
    - unclosed: the resources of attempts that are over, with the calls that may still use them.
    """

    def __init__(self) -> None:
        self.awaited = Awaited()
        self._lock = threading.Lock()
        self._running: dict[Asked, Caller | None] = {}
        self._unclaimed: list[Outlived] = []
        self._attempt: Background | None = None
        self._unclosed: list[tuple[set[Asked], list[Opened]]] = []

    def attach(self, attempt: Background) -> None:
        """An attempt begins, and gets the answers that came before."""
        with self._lock:
            self._attempt = attempt
            unclaimed, self._unclaimed = self._unclaimed, []
        for answer in unclaimed:
            attempt.on_done(answer)

    def detach(self, attempt: Background) -> None:
        """An attempt is over."""
        with self._lock:
            if self._attempt is attempt:
                self._attempt = None
            for asked, caller in self._running.items():
                if caller is not None and caller.background is attempt:
                    self._running[asked] = None
            # It has not looked at these.
            for done in list(attempt.done):
                if isinstance(done, Answered) and done.asked is not None:
                    self._unclaimed.append(Outlived(*done.asked, done.result, done.error))
                elif isinstance(done, Outlived):
                    self._unclaimed.append(done)

    def take_back(self, unwritten: Iterable[tuple[str, Known]]) -> None:
        """The journal of an attempt that is over could not take these, because its disk is full: the next one may."""
        with self._lock:
            self._unclaimed += [
                Outlived(name, known.question, *opened(name, known.answer)) for name, known in unwritten
            ]

    def begins(self, call: Call, caller: Caller) -> bool:
        """Whether a call is to be made. Otherwise it has joined one that goes on, or whose answer has just come."""
        asked = _asked(call)
        with self._lock:
            for done in list(caller.background.done):
                if isinstance(done, Outlived) and done[:2] == asked:
                    # It may have failed, and is not kept then.
                    caller.background.on_done(Answered(caller.task, caller.call_id, done.result, done.error, asked))
                    return False
            is_new = asked not in self._running
            self._running[asked] = caller
        return is_new

    def goes_on(self, call: Call) -> bool:
        """Whether the attempt of a call still waits for it. If not, a call that has not begun is left out."""
        if call.question is None:
            return False
        with self._lock:
            is_awaited = self._running.get(_asked(call)) is not None
            if not is_awaited:
                self._running.pop(_asked(call), None)
        if not is_awaited:
            self._close_unused(_asked(call))
        return is_awaited

    def end(self, call: Call, answer: Answer) -> None:
        """A call has its answer: tell its caller, or the attempt that takes part now."""
        asked = _asked(call)
        with self._lock:
            # Not after this: `detach` looks for answers that an attempt has and has not looked at.
            caller = self._running.pop(asked, None)
            if caller is not None:
                caller.background.on_done(Answered(caller.task, caller.call_id, *answer, asked))
            elif self._attempt is not None:
                self._attempt.on_done(Outlived(*asked, *answer))
            else:
                self._unclaimed.append(Outlived(*asked, *answer))
        self._close_unused(asked)

    def close_after(self, opened: list[Opened]) -> None:
        """Close these resources when the calls that run now have their answers."""
        with self._lock:
            self._unclosed.append((set(self._running), opened))
        self._close_unused()

    def _close_unused(self, ended: Asked | None = None) -> None:
        """Close what no call uses any more, now that this one has ended."""
        with self._lock:
            for users, _ in self._unclosed:
                users.discard(ended)
            unused = [opened for users, opened in self._unclosed if not users]
            self._unclosed = [(users, opened) for users, opened in self._unclosed if users]
        for each in chain.from_iterable(unused):
            each.close()


def _asked(call: Call) -> Asked:
    if call.question is None:
        raise ValueError(f"operator {call.operator!r} keeps no answers")
    return call.operator, call.question


_lasting = LastingCalls()


class _Threads:
    """The threads of the blocking calls of one operator in one task, in all attempts of this process.

    A call that took too long cannot be stopped. It keeps its thread until it returns, and calls wait while there are as
    many threads as may block.
    """

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._lock = threading.Lock()
        self._running = 0
        self._waiting: deque[Callable[[], Callable[[], object]]] = deque()
        self._has_told = False

    def run(self, work: Callable[[], Callable[[], object]], threads_max: int | None) -> None:
        """Run this in a thread, as soon as one may run, and then what it returns, when the next one may run."""
        # What a call prints belongs to the task that makes it.
        in_context = partial(copy_context().run, work)
        with self._lock:
            if threads_max is not None and self._running >= threads_max:
                self._waiting.append(in_context)
                self._tell(threads_max)
                return
            self._running += 1
        # It does not keep the process alive, because a call may take arbitrarily long.
        threading.Thread(target=self._work, args=(in_context,), name="calls", daemon=True).start()

    def _work(self, work: Callable[[], Callable[[], object]] | None) -> None:
        while work is not None:
            pass_on = work()
            with self._lock:
                work = self._waiting.popleft() if self._waiting else None
                if work is None:
                    self._running -= 1
            # Only now: an answer makes the task call again, and that call finds a place.
            pass_on()

    def _tell(self, threads_max: int) -> None:
        # The task makes no more calls at a time than may block, so others than its own are in the way.
        if not self._has_told:
            self._has_told = True
            print(
                f"backedge: operator {self._operator!r} waits for blocking calls that exceeded timeout=, or that an "
                f"earlier attempt has made: {threads_max} may run at a time, and nothing can stop one. Give the "
                "client that it calls a timeout of its own, or make the function async",
                file=sys.stderr,
            )


@cache
def _threads_of(task: TaskId, operator: str) -> _Threads:
    return _Threads(operator)

"""The calls of map_async, for every driver: call the function, and await its result if it is awaitable.

Whatever ends a call is its answer, even SystemExit and CancelledError: a call without an answer would leave its record
waiting for ever. An answer is a copy, because the function may go on using the object that it returned.

A process has one event loop for its whole life. Users keep sessions and semaphores in module globals, and these belong
to the loop that they are first used in: with a loop for each attempt, the first restore would break them.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

from backedge.engine.batches.batch import copy_value, is_immutable
from backedge.graphs.public import public
from backedge.graphs.task_errors import describe
from backedge.recovery.protocol.answers import Question

CANCEL_S = 1.0
"""How long the end of an attempt waits for its calls after it has cancelled them."""

T = TypeVar("T")
_loops_lock = threading.Lock()


class Call(NamedTuple):
    """The function to call, the record to call it with (the call may change it), and the limit in seconds.

    `operator` is the one that calls; the task that it belongs to may have the name of another one. `threads_max`: how
    many of its calls may block a thread at a time; None: all that are made. `question`: its name, if its answer is
    kept; questions of other jobs and operators may have it as well.
    """

    function: Callable[[Any], Any]
    record: Any
    timeout_s: float | None = None
    operator: str = ""
    threads_max: int | None = None
    question: Question | None = None
    job: str = ""


class Answer(NamedTuple):
    """The result of a call, or the exception that it raised."""

    result: Any
    error: BaseException | None = None


class SetAsideError(Exception):
    """In place of an answer: the record goes to the dead letters."""


class Asking(NamedTuple):
    """A call whose answer is kept: the key of its question, and how often it has made each of its requests."""

    key: str
    requests: Counter[str]


_asking: ContextVar[Asking | None] = ContextVar("asking", default=None)


@public
def idempotency_key() -> str | None:
    """Within a call of `map_async` that keeps its answers: the name of its question, the same in every attempt.

    No question of another operator or job has it. Give it to a service that knows repeated requests, and a call whose
    process has died is not paid for again.
    """
    asking = _asking.get()
    return None if asking is None else asking.key


def request_key(request: bytes) -> str | None:
    """Within a call that keeps its answers: the name of one of its requests, the same in every attempt.

    A call may make several, in any order. Equal ones get numbers.
    """
    asking = _asking.get()
    if asking is None:
        return None
    digest = _digest(request)
    asking.requests[digest] += 1
    return f"{asking.key}-{digest}-{asking.requests[digest]}"


def _asking_of(call: Call) -> Asking | None:
    if call.question is None:
        return None
    asked_by = _digest(f"{call.job}/{call.operator}".encode())
    return Asking(f"{asked_by}-{call.question}", Counter())


def _digest(of: bytes) -> str:
    return blake2b(of, digest_size=8).hexdigest()


def begin(call: Call) -> Answer | Awaitable[Any]:
    """Call the function; return its answer, or the awaitable that will produce it."""
    before = _asking.set(_asking_of(call))
    try:
        result = call.function(call.record)
        return result if inspect.isawaitable(result) else Answer(_copied(result))
    except BaseException as error:  # noqa: BLE001 - the user's function may raise anything; its policy decides
        return Answer(None, error)
    finally:
        _asking.reset(before)


async def finish(begun: Answer | Awaitable[Any], call: Call) -> Answer:
    _asking.set(_asking_of(call))
    if isinstance(begun, Answer):
        return begun
    try:
        return Answer(_copied(await begun))
    except BaseException as error:  # noqa: BLE001 - raised further it would end the event loop, or go unnoticed
        return Answer(None, error)


def in_event_loop(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine in the event loop of this process, which has a thread of its own."""
    with _loops_lock:
        loop = _event_loop(os.getpid())
    return asyncio.run_coroutine_threadsafe(work, loop)


class Awaited:
    """The calls of one attempt that are awaited in the event loop.

    - open: their asyncio tasks, also those that took too long and go on.
    - is_used: there has been one. is_closed: the attempt is over.
    """

    def __init__(self) -> None:
        self._open: set[asyncio.Task[Answer]] = set()
        self._is_used = False
        self._is_closed = False

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine, which awaits its call with `within`."""
        self._is_used = True
        return in_event_loop(work)

    async def within(self, timeout_s: float | None, answering: Coroutine[Any, Any, Answer]) -> Answer:
        """The answer, if it arrives in time. A call that takes too long is cancelled and not waited for."""
        if self._is_closed:
            answering.close()
            raise asyncio.CancelledError
        work = asyncio.ensure_future(answering)
        self._open.add(work)
        work.add_done_callback(self._open.discard)
        done, _ = await asyncio.wait({work}, timeout=timeout_s)
        if done:
            return work.result()
        work.cancel()
        return Answer(None, TimeoutError(f"no answer within timeout={timeout_s} seconds"))

    def cancel(self) -> None:
        """Cancel the open calls, accept no more, and wait a moment for them to stop."""
        self._is_closed = True
        if self._is_used:
            with suppress(TimeoutError):  # a function that is async and blocks: what it awaits next is cancelled
                in_event_loop(self._cancel()).result(2 * CANCEL_S)

    async def _cancel(self) -> None:
        for call in self._open:
            call.cancel()
        if self._open:
            await asyncio.wait(set(self._open), timeout=CANCEL_S)


@cache
def _event_loop(pid: int) -> asyncio.AbstractEventLoop:
    """That of the process `pid`: a forked process has the loop of its parent, but not its thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=_run_for_ever, args=(loop,), name="event loop", daemon=True).start()
    return loop


def _run_for_ever(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            loop.run_forever()
        except BaseException:  # noqa: BLE001 - a SystemExit of a task that a user's function has started
            traceback.print_exc()


def _copied(result: Any) -> Any:
    if is_immutable(result):
        return result
    try:
        return copy_value(result)
    except Exception as error:
        raise TypeError(
            f"the answer is of type {type(result).__name__} and does not pickle ({describe(error)}): "
            "return plain values, such as the text of a response"
        ) from error

"""The calls of map_async, for every driver: call the function, and await its result if it is awaitable.

Whatever ends a call is its answer, even SystemExit and CancelledError: a call without an answer would leave its record
waiting for ever. An answer is a copy, because the function may go on using the object that it returned.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from engine.batch import copy_value, is_immutable
from engine.task_errors import describe


class Call(NamedTuple):
    """The function to call, the record to call it with (the call may change it), and the limit in seconds.

    `operator` is the one that calls; the task that it belongs to may have the name of another one.
    """

    function: Callable[[Any], Any]
    record: Any
    timeout_s: float | None = None
    operator: str = ""


class Answer(NamedTuple):
    """The result of a call, or the exception that it raised."""

    result: Any
    error: BaseException | None = None


def begin(call: Call) -> Answer | Awaitable[Any]:
    """Call the function; return its answer, or the awaitable that will produce it."""
    try:
        result = call.function(call.record)
        return result if inspect.isawaitable(result) else Answer(_copied(result))
    except BaseException as error:  # noqa: BLE001 - the user's function may raise anything; its policy decides
        return Answer(None, error)


async def finish(begun: Answer | Awaitable[Any]) -> Answer:
    """Complete a call that was begun."""
    if isinstance(begun, Answer):
        return begun
    try:
        return Answer(_copied(await begun))
    except BaseException as error:  # noqa: BLE001 - raised further it would end the event loop, or go unnoticed
        return Answer(None, error)


async def within(timeout_s: float | None, answering: Coroutine[Any, Any, Answer]) -> Answer:
    """The answer, if it arrives in time. A call that takes too long is cancelled and not waited for."""
    work = asyncio.ensure_future(answering)
    done, _ = await asyncio.wait({work}, timeout=timeout_s)
    if done:
        return work.result()
    work.cancel()
    return Answer(None, TimeoutError(f"no answer within timeout={timeout_s} seconds"))


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

"""Calls a function again while it fails in a way that may pass."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Callable, Iterator
from inspect import isawaitable, iscoroutine
from typing import Any, TypeVar, cast

from msgspec import Struct

from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.options import check_count, check_function, is_above_zero, is_async
from backedge.graphs.public import public

F = TypeVar("F", bound=Callable[..., Any])
Errors = type[Exception] | tuple[type[Exception], ...]

PAUSE_S_MAX = 60.0
"""A pause that doubles would otherwise come to hours."""

DOUBLED_MAX = 1_000
"""A float ends at 2 to the power of 1,024."""

BUSY = frozenset({408, 409, 425, 429})
"""What a server answers besides 5xx if it may answer otherwise later. 409: an equal request is still in progress."""


@public
def retry(
    f: F,
    *,
    tries: int = 5,
    backoff: float = 0.5,
    on: Errors | None = None,
    after: Callable[[Exception], float | None] | None = None,
    jitter: Callable[[float], float] | None = None,
    sleep: Callable[[float], Any] | None = None,
) -> F:
    """The function `f`, async or blocking, called up to `tries` times while it raises errors of the kinds in `on`.

    Without `on`, these are lost connections, timeouts, and errors that say that they may pass: by a true attribute
    `is_temporary`, or by a `status` such as 429 or 503. The last error is raised.

    The pause after the n-th failure is drawn between 0 and `backoff` times 2 to the power of n - 1 seconds, at most a
    minute, unless `after(error)` returns the seconds to wait. `jitter` draws otherwise, from the longest pause; a test
    gives its own `sleep`, async for an async function.

    >>> import asyncio
    >>> answers = iter([ConnectionResetError("lost"), TimeoutError("late"), 42])
    >>> async def ask(question):
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return answer
    >>> asyncio.run(retry(ask, backoff=0.001)("how many?"))
    42
    """
    if isinstance(f, type):
        raise BadOptionError(f"retry got class {f.__name__}: give a function, such as its __call__")
    check_function(f, "retry", may_await=True)
    policy = Policy(tries, backoff, on, after, jitter)
    policy.check("retry")

    @functools.wraps(f, updated=())
    async def call_async(*arguments: Any, **named: Any) -> Any:
        pauses = policy.pauses()
        while True:
            try:
                return await f(*arguments, **named)
            except Exception as error:
                if (pause_s := policy.pause_s(error, pauses)) is None:
                    raise
            await (sleep or asyncio.sleep)(pause_s)

    @functools.wraps(f, updated=())
    def call(*arguments: Any, **named: Any) -> Any:
        pauses = policy.pauses()
        while True:
            try:
                return _not_awaitable(f(*arguments, **named), f)
            except Exception as error:
                if (pause_s := policy.pause_s(error, pauses)) is None:
                    raise
            (sleep or time.sleep)(pause_s)

    return cast(F, call_async if is_async(f) else call)


class Policy(Struct, frozen=True):
    """Which errors may pass, and how long to wait for that."""

    tries: int
    backoff_s: float
    on: Errors | None
    after: Callable[[Exception], float | None] | None
    jitter: Callable[[float], float] | None

    def check(self, what: str) -> None:
        check_count(self.tries, "tries", what)
        if not is_above_zero(self.backoff_s):
            raise BadOptionError(f"{what} has backoff={self.backoff_s!r}: give seconds above 0")
        kinds: tuple[Any, ...] = self.on if isinstance(self.on, tuple) else (self.on or Exception,)
        if not all(isinstance(kind, type) for kind in kinds):
            raise BadOptionError(f"{what} has on={self.on!r}: give a class of errors, or a tuple of such classes")

    def pauses(self) -> Iterator[float]:
        """The longest pauses of a call, one for each try that may follow another."""
        return (min(PAUSE_S_MAX, self.backoff_s * 2.0 ** min(n, DOUBLED_MAX)) for n in range(self.tries - 1))

    def pause_s(self, error: Exception, pauses: Iterator[float]) -> float | None:
        """The seconds to wait after an error; None if it will not pass, or if there are no pauses left."""
        is_passing = may_pass(error) if self.on is None else isinstance(error, self.on)
        longest_s = next(pauses, None) if is_passing else None
        if longest_s is None:
            return None
        told_s = None if self.after is None else self.after(error)
        return (self.jitter or _up_to)(longest_s) if told_s is None else max(0.0, told_s)


def _not_awaitable(result: Any, f: Callable[..., Any]) -> Any:
    if isawaitable(result):
        if iscoroutine(result):
            result.close()
        raise BadOptionError(f"retry got {f!r}, which returns an awaitable: give a function that is async")
    return result


def _up_to(longest_s: float) -> float:
    """All of the pause is drawn, so that callers who failed together do not come back together."""
    return random.uniform(0, longest_s)


def may_pass(error: Exception) -> bool:
    """Whether an error is one of a connection or a timeout, or says that it may pass.

    >>> may_pass(ConnectionResetError()), may_pass(ValueError())
    (True, False)
    """
    from aiohttp import ClientConnectionError  # slow to import, and not needed before something fails

    if isinstance(error, ConnectionError | TimeoutError | ClientConnectionError):
        return True
    is_temporary = getattr(error, "is_temporary", None)
    return bool(is_temporary) if is_temporary is not None else is_busy(getattr(error, "status", None))


def is_busy(status: Any) -> bool:
    """Whether a server that answers with this status may answer otherwise later.

    >>> is_busy(503), is_busy(404), is_busy(None)
    (True, False, False)
    """
    return isinstance(status, int) and (status in BUSY or 500 <= status < 600)

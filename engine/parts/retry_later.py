"""retry_later: a call that fails is made again after a pause, in a loop of its own.

`retry` waits within the call. Here a record that waits is in the state, with a timer: it takes no place among the
concurrent calls, a crash does not shorten its pause, and calls that were made are counted.

1. `begin` gives a record its number of tries, `ask` calls `f` and returns the answer or the failure as a value.
2. An answer leaves. A failure goes to `back_off`, keyed by its record, and from there round the loop when its pause is
   over, or to the dead letters.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from inspect import isawaitable
from itertools import islice
from typing import Any, TypeVar, Unpack, cast

from msgspec.structs import replace

from backedge.engine.callees.retry import Errors, Policy
from backedge.graphs.kinds import Answers
from backedge.graphs.loop import open_loop
from backedge.graphs.naming import function_name
from backedge.graphs.options import Placing, check_function, is_async
from backedge.graphs.process_class import Context, Process
from backedge.graphs.public import public
from backedge.graphs.questions import AskedAbout, digest_of
from backedge.graphs.stream import Stream
from backedge.graphs.task_errors import describe

PAUSE_MS_MAX = 365 * 86_400_000
"""No timer waits for as long as a service may say."""

T = TypeVar("T")
Try = dict[str, Any]
"""A record and its `tries` so far; when one has failed, its `error`, and `pause_s` if another follows."""


@public
def retry_later(
    stream: Stream[T],
    f: Callable[[T], Any] | type[Any],
    *,
    tries: int = 5,
    backoff: float = 0.5,
    on: Errors | None = None,
    after: Callable[[Exception], float | None] | None = None,
    concurrency: int = 100,
    timeout: float | None = None,
    answers: Answers = "kept",
    **options: Unpack[Placing],
) -> Retried:
    """The answers of `f(record)`, which is called up to `tries` times while it raises errors of the kinds in `on`.

    `f`, `concurrency`, `timeout` and `answers` are those of `map_async`; `tries`, `backoff`, `on` and `after` those of
    `retry`. The pause is drawn from the record and the number of the try, so that it is the same in each attempt of a
    run. A record that is given up goes to `dead_letters`, as a dict of the `record`, its `tries`, and the last `error`.

    >>> from backedge import Collect, Flow, Items, retry_later, simulate
    >>> async def ask(question: str) -> int:
    ...     if question == "never":
    ...         raise ConnectionError("refused")
    ...     return len(question)
    >>> flow = Flow("questions")
    >>> answers = retry_later(flow.read(Items(["why", "never"]), name="questions"), ask, tries=2, backoff=0.01)
    >>> answers.write(Collect(), name="answers")
    >>> answers.dead_letters.write(Collect(), name="given_up")
    >>> simulate(flow, seeds=range(3)).outputs["given_up"]
    [{'record': 'never', 'tries': 2, 'error': 'ConnectionError: refused'}]
    """
    name = options.setdefault("name", function_name(f) or "retry_later")
    policy = Policy(tries, backoff, on, after, jitter=None)
    policy.check(f"retry_later {name!r}")
    if isinstance(f, type):
        # The class with its hooks, which is called with a try instead of a record.
        ask = type(f.__name__, (f,), {"__call__": _trying(cast(Any, f).__call__, policy)})
    else:
        check_function(f, f"retry_later {name!r}", may_await=True)
        ask = _trying(f, policy)
    again = open_loop(stream.draft, f"{name}.again")
    begun = stream.map(lambda record: {"record": record, "tries": 0}, name=f"{name}.begin").merge(again)
    asked = begun.map_async(
        ask, concurrency=concurrency, timeout=timeout, answers=answers, on_error="dead_letter", **options
    )
    answered, failed = asked.split(lambda outcome: "answer" in outcome, name=f"{name}.has_answer")
    silent = asked.dead_letters.map(partial(_failed, policy, SILENT), name=f"{name}.silent")
    waited = (
        failed.merge(silent)
        .key_by(AskedAbout("record"))
        .process(BackOff, name=f"{name}.back_off", on_error="dead_letter")
    )
    again.feed(waited)
    return Retried(answered.map(operator.itemgetter("answer"), name=f"{name}.answer"), waited.dead_letters)


class Retried(Stream[Any]):
    """Answers. Their dead letters are the records that were given up."""

    def __init__(self, answers: Stream[Any], given_up: Stream[Any]) -> None:
        super().__init__(answers.draft, answers.tails)
        self._given_up = given_up

    @property
    def dead_letters(self) -> Stream[Any]:
        """The records that were given up, each with its `tries` and its last `error`."""
        return self._given_up


SILENT = TimeoutError("no answer within timeout=, or one that does not pickle")


def _failed(policy: Policy, error: Exception, tried: Try) -> Try:
    tries = tried["tries"] + 1
    share = int(digest_of((tried["record"], tries)), 16) / 16**32
    pauses = islice(policy.pauses(), tries - 1, None)
    pause_s = replace(policy, jitter=partial(operator.mul, share)).pause_s(error, pauses)
    failure = {"record": tried["record"], "tries": tries, "error": describe(error)}
    return failure if pause_s is None else {**failure, "pause_s": pause_s}


def _trying(f: Callable[..., Any], policy: Policy) -> Callable[..., Any]:
    """`f`, a function or a method, as a function of a try that returns the answer or the failure."""

    async def finish(tried: Try, answering: Awaitable[Any]) -> dict[str, Any]:
        try:
            return {"answer": await answering}
        except Exception as error:  # noqa: BLE001  # the policy decides what becomes of it
            return _failed(policy, error, tried)

    def call(*bound_and_try: Any) -> Any:
        *bound, tried = bound_and_try
        try:
            result = f(*bound, tried["record"])
        except Exception as error:  # noqa: BLE001  # the same
            return _failed(policy, error, tried)
        return finish(tried, result) if isawaitable(result) else {"answer": result}

    async def call_async(*bound_and_try: Any) -> Any:
        outcome = call(*bound_and_try)
        return await outcome if isawaitable(outcome) else outcome

    return wraps(f)(call_async if is_async(f) else call)


class BackOff(Process[Any, Any]):
    """The state of a record are the tries that wait, by the time at which they are made."""

    def on_record(self, ctx: Context[Any], value: Try) -> None:
        """It waits, or is set aside with the tries that it had."""
        if "pause_s" not in value:
            raise GivenUpError
        waiting = ctx.state.get({})
        at_ms = ctx.now + math.ceil(min(value["pause_s"] * 1000, PAUSE_MS_MAX))
        while at_ms in waiting:  # an equal record: each has a timer of its own, with its own rounds
            # The one before it has passed those whose times follow each other.
            last_ms = next(reversed(waiting))
            at_ms = 1 + (last_ms if at_ms < last_ms < at_ms + len(waiting) else at_ms)
        waiting[at_ms] = value
        ctx.state.set(waiting)
        ctx.set_timer(at_ms)

    def on_timer(self, ctx: Context[Any], at_ms: int) -> None:
        """It is tried again."""
        waiting = ctx.state.get()
        ctx.emit(waiting.pop(at_ms))
        if not waiting:
            ctx.state.clear()


class GivenUpError(Exception):
    """A record has used up its tries, or failed in a way that does not pass."""

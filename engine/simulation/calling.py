"""Makes the calls of map_async in the simulator: each runs to its end; awaits share one event loop per run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from engine.answering import Answer, Call, begin, finish, within
from graphs.options import is_async

CANCEL_S = 1.0


class Calls:
    """Makes calls. The event loop is created for the first call that needs it, and kept: users bind connections to it.

    The timeout applies to awaits. A plain function takes as long as it takes, because nothing could stop it.

    >>> async def ask(record):
    ...     await asyncio.sleep(0)
    ...     return record + 1
    >>> calls = Calls()
    >>> calls.answer(Call(ask, 1)), calls.answer(Call(abs, -1))
    (Answer(result=2, error=None), Answer(result=1, error=None))
    >>> calls.close()
    """

    def __init__(self) -> None:
        self._events: asyncio.AbstractEventLoop | None = None

    def answer(self, call: Call) -> Answer:
        """Make a call, and wait for the answer."""
        answer = self._run(_ask(call)) if is_async(call.function) else self._answer_of(call)
        if isinstance(answer.error, KeyboardInterrupt):
            raise answer.error
        return answer

    def _answer_of(self, call: Call) -> Answer:
        # Outside of the event loop, as in an actor's thread, because the function may run a loop of its own.
        begun = begin(call)
        return begun if isinstance(begun, Answer) else self._run(within(call.timeout_s, finish(begun)))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        events = self._events = self._events or asyncio.new_event_loop()
        if not _is_in_event_loop():
            return events.run_until_complete(work)
        # In a notebook, this thread already runs an event loop.
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(events.run_until_complete(work)), name="calls")
        thread.start()
        thread.join()
        return results[0]

    def close(self) -> None:
        """Cancel open calls, and wait a moment for them to stop."""
        if self._events is not None:
            self._run(_cancel_all())
            self._events.close()
            self._events = None


async def _cancel_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=CANCEL_S)


async def _ask(call: Call) -> Answer:
    return await within(call.timeout_s, finish(begin(call)))


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

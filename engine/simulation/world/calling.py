"""Makes the calls of map_async in the simulator: each runs to its end, in the event loop of this process."""

from __future__ import annotations

from backedge.engine.operators.async_calls import Answer, Awaited, Call, begin, finish
from backedge.graphs.options import is_async
from backedge.graphs.versions import AttemptOverError


class Calls:
    """Makes the calls of one simulated run.

    The timeout applies to awaits. A plain function takes as long as it takes, because nothing could stop it.

    >>> import asyncio
    >>> async def ask(record):
    ...     await asyncio.sleep(0)
    ...     return record + 1
    >>> calls = Calls()
    >>> calls.answer(Call(ask, 1)), calls.answer(Call(abs, -1))
    (Answer(result=2, error=None), Answer(result=1, error=None))
    >>> calls.close()
    """

    def __init__(self) -> None:
        self._awaited = Awaited()

    def answer(self, call: Call) -> Answer:
        if is_async(call.function):
            answer = self._awaited.run(self._ask(call)).result()
        else:
            # Outside of the event loop, as in an actor's thread, because the function may run a loop of its own.
            begun = begin(call)
            if isinstance(begun, Answer):
                answer = begun
            else:
                answer = self._awaited.run(self._awaited.within(call.timeout_s, finish(begun, call))).result()
        if isinstance(answer.error, KeyboardInterrupt | AttemptOverError):
            raise answer.error
        return answer

    async def _ask(self, call: Call) -> Answer:
        return await self._awaited.within(call.timeout_s, finish(begin(call), call))

    def close(self) -> None:
        """Cancel calls that took too long and go on."""
        self._awaited.cancel()

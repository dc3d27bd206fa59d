"""Which actor of a pool makes which call.

1. A call goes to the actor that makes the fewest, and never to one that makes `at_once` already. Calls that find no
   room wait in the order in which they came.
2. A call with a key is joined by later ones with that key, while it runs and when it is over. So a process that takes
   the place of a dead one gets the result of the call that the dead one has left behind.
3. A result that was fetched is kept for a while: its process may die before the answer is in the journal. One that was
   not is kept until there are too many. An error is forgotten when a caller has it: who asks again wants another call.
4. An actor that dies is replaced, and others make its calls. A call that is lost too often is an error: it may be what
   the actors die of.
5. A call whose callers are all gone is not begun.
"""

from __future__ import annotations

import asyncio
import pickle
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from backedge.graphs.public import public

LOST_MAX = 3
STARTS_MAX = 3
KEPT_MAX = 1_000
KEPT_S = 60.0


@public
class PoolError(Exception):
    """A pool cannot make a call: its actors have died under it, or cannot be started.

    Fix: find out from the log of the actors what they have died of, such as a lack of memory; or set such records aside
    with `on_error="dead_letter"`.
    """


class LostError(Exception):
    """An actor has died in a call, or when it was started."""


class Outcome(NamedTuple):
    """A list with a reference to the result of a call; or the error that it has raised, pickled."""

    result: list[Any]
    error: bytes | None = None


class Member(Protocol):
    """An actor. `ready` and `call` raise `LostError`."""

    async def ready(self) -> None: ...
    async def call(self, record: Any) -> Outcome: ...
    def end(self) -> None: ...


class Place:
    """An actor that is ready, and how many calls it makes."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.running = 0


class PoolCall:
    """A call, and the processes that wait for it."""

    def __init__(self, record: Any) -> None:
        self.record = record
        self.callers: list[str] = []
        self.outcome: asyncio.Task[Outcome] | None = None


class PoolCalls:
    """The calls of a pool, and its actors.

    - places: the actors that are ready. waiting: the calls without one, in their order.
    - starting: what starts further actors. told: why one could not be started.
    - running: calls without an outcome, by key. kept: outcomes by key, the oldest first.
    """

    def __init__(self, start: Callable[[], Member], actors: int, at_once: int, lives: Callable[[str], bool]) -> None:
        self.places: list[Place] = []
        self._start = start
        self._actors = actors
        self._at_once = at_once
        self._lives = lives
        self._starting: set[asyncio.Task[None]] = set()
        self._told = ""
        self._waiting: deque[tuple[PoolCall, asyncio.Future[Place]]] = deque()
        self._running: dict[str, PoolCall] = {}
        self._kept: dict[str, Outcome] = {}

    async def ask(self, caller: str, key: str | None, record: Any) -> Outcome:
        """The outcome of the call with this key, or of a new one. `caller` is a process, which may be dead."""
        if key is not None and key in self._kept:
            return self._kept[key]
        call = PoolCall(record)
        if key is not None:
            call = self._running.setdefault(key, call)
        call.callers.append(caller)
        if call.outcome is None:
            call.outcome = asyncio.ensure_future(self._make(call, key))
        try:
            return await asyncio.shield(call.outcome)
        finally:
            call.callers.remove(caller)

    def drop(self, key: str, kept_s: float) -> None:
        """Forget an outcome after this time."""
        if kept_s:
            asyncio.get_running_loop().call_later(kept_s, self._kept.pop, key, None)
        else:
            self._kept.pop(key, None)

    async def _make(self, call: PoolCall, key: str | None) -> Outcome:
        try:
            outcome = await self._made(call)
        except PoolError as error:
            return Outcome([], pickle.dumps(error))
        finally:
            if key is not None:
                del self._running[key]
        if key is not None:
            self._kept[key] = outcome
            if len(self._kept) > KEPT_MAX:
                del self._kept[next(iter(self._kept))]
        return outcome

    async def _made(self, call: PoolCall) -> Outcome:
        told = ""
        for _ in range(LOST_MAX):
            place = await self._place_for(call)
            try:
                return await place.member.call(call.record)
            except LostError as error:
                told = str(error)
                if place in self.places:
                    self.places.remove(place)
                    place.member.end()
            finally:
                place.running -= 1
                self._give_places()
        raise PoolError(f"a call was lost {LOST_MAX} times, at last because of this: {told}")

    async def _place_for(self, call: PoolCall) -> Place:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((call, turn))
        self._give_places()
        return await turn

    def _give_places(self) -> None:
        """Start actors that are missing, and give those that have room to the calls that wait."""
        for _ in range(self._actors - len(self.places) - len(self._starting)):
            starting = asyncio.ensure_future(self._start_one())
            self._starting.add(starting)
            starting.add_done_callback(self._on_started)
        self._give_room()

    def _give_room(self) -> None:
        while self._waiting and self.places:
            place = min(self.places, key=lambda place: place.running)
            if place.running == self._at_once:
                return
            call, turn = self._waiting.popleft()
            if any(map(self._lives, call.callers)):
                place.running += 1
                turn.set_result(place)
            else:
                turn.cancel()

    async def _start_one(self) -> None:
        for _ in range(STARTS_MAX):
            try:
                member = self._start()
                await member.ready()
            except LostError as error:
                self._told = str(error)
            else:
                self.places.append(Place(member))
                return

    def _on_started(self, starting: asyncio.Task[None]) -> None:
        self._starting.discard(starting)
        if self.places:
            # What is missing is not started at once: it would be again and again where it cannot be.
            self._give_room()
        elif not self._starting:
            # The next call starts actors again.
            while self._waiting:
                _, turn = self._waiting.popleft()
                turn.set_exception(PoolError(f"no actor of the pool could be started: {self._told}"))

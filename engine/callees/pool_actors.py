"""The actors of a pool on Ray: those that hold an instance of the user's class, and the one that knows what they do.

That one is detached: it belongs to no process that uses the pool, because any of these may die. It ends itself when
none has renewed its lease for a while; the others belong to it, and end with it.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import isawaitable, iscoroutinefunction
from itertools import count
from typing import Any

from msgspec import Struct

from backedge.engine.callees.pool_calls import LostError, Outcome, PoolCalls, PoolError
from backedge.engine.on_ray import cluster
from backedge.engine.operators.async_calls import in_event_loop
from backedge.graphs.task_errors import USER_RAISED, describe, raise_unless_users, user_frames

MadeOf = tuple[type[Any], tuple[Any, ...], Mapping[str, Any]]
"""A class, and its arguments."""

LOOKS = 20
CLOSE_S = 5.0


class PoolSpec(Struct, frozen=True):
    """A pool. `made_of` is pickled: only actors that hold an instance import what it needs."""

    name: str
    made_of: bytes
    actors: int
    at_once: int
    needs: cluster.Needs


class Instance:
    """An instance of the user's class, which the first call makes. If that fails, the next one tries again.

    It is called from threads; what it returns to be awaited runs in the event loop of the process.
    """

    def __init__(self, load: Callable[[], MadeOf]) -> None:
        self._load = load
        self._making = threading.Lock()
        self._instance: Any = None

    def __call__(self, record: Any) -> Any:
        with self._making:
            if self._instance is None:
                self._instance = self._made()
        return _waited(self._instance(record))

    def _made(self) -> Any:
        kind, arguments, named = self._load()

        async def make() -> Any:
            return kind(*arguments, **named)

        # What awaits belongs to the event loop. What blocks may belong to the thread that made it, as a browser does.
        made = _waited(make()) if iscoroutinefunction(kind.__call__) else kind(*arguments, **named)
        if hasattr(made, "on_start"):
            _waited(made.on_start())
        return made

    def close(self) -> None:
        """Let the instance release what it has opened."""
        made, self._instance = self._instance, None
        if hasattr(made, "close"):
            _waited(made.close())


def _waited(result: Any) -> Any:
    async def wait() -> Any:
        return await result

    return in_event_loop(wait()).result() if isawaitable(result) else result


class PoolActor:
    """Holds an instance."""

    def __init__(self, label: str, pool: str, made_of: bytes) -> None:
        def load() -> MadeOf:
            loaded = pickle.loads(made_of)
            cluster.adopt_script_classes()
            return loaded

        self._label = label
        self._pool = pool
        self._instance = Instance(load)

    def __repr__(self) -> str:
        return self._label

    def ready(self) -> None:
        """Ray answers when the process is there."""

    def call(self, record: Any) -> tuple[bytes | None, bytes]:
        """The error, or else the result, pickled."""
        try:
            return None, cluster.pickled(self._instance(pickle.loads(record)))
        except USER_RAISED as error:
            raise_unless_users(error)
            return self._pickled(error), b""

    def _pickled(self, error: BaseException) -> bytes:
        """The error, with the user's frames as a note: a traceback does not travel."""
        note = f"raised in an actor of pool {self._pool!r}:\n{''.join(user_frames(error))}"
        error.add_note(note)
        try:
            data = cluster.pickled(error)
            pickle.loads(data)
        except Exception as fault:  # noqa: BLE001 - pickling calls code of the user's
            stand_in = PoolError(f"the class raised {describe(error)}, which does not travel ({describe(fault)})")
            stand_in.add_note(note)
            return cluster.pickled(stand_in)
        return data

    def close(self) -> None:
        try:
            self._instance.close()
        except USER_RAISED:
            traceback.print_exc()  # the actor ends all the same


class RayMember:
    """One of these actors, as the dispatcher sees it."""

    def __init__(self, spec: PoolSpec, space: str, number: int) -> None:
        label = f"{spec.name}/{number}"
        given = label, spec.name, spec.made_of
        try:
            self._actor = cluster.start_actor(
                PoolActor, *given, name=label, space=space, needs=spec.needs, threads=spec.at_once
            )
        except ValueError as error:
            raise LostError(cluster.first_line(error)) from error

    async def ready(self) -> None:
        await _answer(self._actor.ready.remote())

    async def call(self, record: Any) -> Outcome:
        # Only the error comes here, and if there is none, a reference to the result.
        ended, result = self._actor.call.options(num_returns=2).remote(record)
        error = await _answer(ended)
        return Outcome([result] if error is None else [], error)

    async def close(self) -> None:
        await _answer(self._actor.close.remote())

    def end(self) -> None:
        cluster.kill(self._actor)


async def _answer(pending: cluster.Pending) -> Any:
    try:
        return await pending
    except cluster.RayError as error:
        raise LostError(cluster.first_line(error)) from error


class PoolDispatcher:
    """Passes records to the actors of a pool, and references to results back.

    References to records would do as well, if the process that asks did not die: Ray loses what belonged to it, and the
    call would fail for those who join it.

    - renewed_s: when each process has renewed its lease.
    - looks_left: how often it still looks whether any has, before it ends. It counts looks, not time: where all
      processes of a host stood still, none could renew anything.
    """

    def __init__(self, spec: PoolSpec, space: str, lease_s: float) -> None:
        self._label = spec.name
        self._lease_s = lease_s
        self._renewed_s: dict[str, float] = {}
        self._looks_left = LOOKS
        numbers = count()
        self._calls = PoolCalls(
            lambda: RayMember(spec, space, next(numbers)), spec.actors, spec.at_once, lives=self._lives
        )
        threading.Thread(target=self._end_when_left, name="lease", daemon=True).start()

    def __repr__(self) -> str:
        return self._label

    async def renew(self, process: str) -> None:
        """A process uses the pool."""
        self._renewed_s[process] = time.monotonic()
        self._looks_left = LOOKS

    async def ask(self, process: str, key: str | None, record: Any) -> Outcome:
        await self.renew(process)
        return await self._calls.ask(process, key, record)

    async def drop(self, key: str, kept_s: float) -> None:
        self._calls.drop(key, kept_s)

    async def close(self) -> None:
        """End the actors, after the calls that they make or after a few seconds."""
        members: list[Any] = [place.member for place in self._calls.places]
        with suppress(TimeoutError):
            closing = (member.close() for member in members)
            await asyncio.wait_for(asyncio.gather(*closing, return_exceptions=True), CLOSE_S)
        for member in members:
            member.end()

    def _lives(self, process: str) -> bool:
        return time.monotonic() - self._renewed_s.get(process, 0) < self._lease_s

    def _end_when_left(self) -> None:
        while self._looks_left:
            time.sleep(self._lease_s / LOOKS)
            self._looks_left -= 1
        cluster.end_own_actor()

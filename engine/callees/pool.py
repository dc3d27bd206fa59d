"""A pool of actors that each hold an instance of a class: a model, a browser, an environment."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple, cast

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]
import numpy as np

from backedge.engine.callees.pool_actors import Instance, MadeOf, PoolDispatcher, PoolSpec
from backedge.engine.callees.pool_calls import KEPT_S, Outcome, PoolError
from backedge.engine.callees.retry import retry
from backedge.engine.on_ray import cluster
from backedge.engine.operators.async_calls import idempotency_key, in_event_loop, request_key
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.naming import check_name
from backedge.graphs.options import check_count, resources_of
from backedge.graphs.public import public
from backedge.graphs.questions import digest_of
from backedge.graphs.task_errors import MisuseError, describe

LEASE_S = 20.0
"""How long a pool stays when no process uses it any more."""

RENEWALS = 4
TRIES = 5
BACKOFF_S = 0.2
"""The name of a process that has just died is not free yet."""

ASKS_MAX = 100_000


@public
class Pool:
    """Actors of their own for a class that is slow to make or needs a GPU: `await pool(record)` calls an instance.

    `actors` instances of `kind(*arguments, **named)` serve all processes of a Ray program that use the pool. The one
    with the fewest calls is next; it is called with `at_once` records at a time, from as many threads unless its
    `__call__` is async. An actor that dies is replaced, and its calls are made again. Without Ray, as in `simulate`,
    there is one instance in this process.

    A call of the pool is made once, even if the process that asks dies, where `map_async` keeps answers. The pool ends
    with `close`, or 20 seconds after the last process that uses it. Pools with the same class, arguments and options
    are one pool, unless they have different names.

    >>> import asyncio
    >>> class Upper:
    ...     def __call__(self, text):
    ...         return text.upper()
    >>> async def main():
    ...     async with Pool(Upper, actors=2) as pool:
    ...         return await pool("why?")
    >>> asyncio.run(main())
    'WHY?'
    """

    def __init__(
        self,
        kind: type[Any],
        /,
        *arguments: Any,
        actors: int = 4,
        at_once: int = 1,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        resources: Mapping[str, float] | None = None,
        name: str | None = None,
        **named: Any,
    ) -> None:
        if not isinstance(cast(Any, kind), type) or not any("__call__" in vars(base) for base in kind.__mro__):
            raise BadOptionError(f"Pool got {kind!r}: give a class with __call__(self, record)")
        what = f"Pool of {kind.__name__}"
        check_count(actors, "actors", what)
        check_count(at_once, "at_once", what)
        given = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": resources}
        wanted = resources_of({option: value for option, value in given.items() if value is not None}, what)
        self._needs = cluster.Needs(
            wanted.num_cpus or 0, wanted.num_gpus or 0, tuple(sorted((wanted.custom or {}).items()))
        )
        self._made_of: MadeOf = kind, arguments, named
        self._actors = actors
        self._at_once = at_once
        try:
            whole: bytes = cast(Any, cloudpickle).dumps((self._made_of, actors, at_once, self._needs))
        except Exception as error:
            raise BadOptionError(f"{what} cannot travel to its actors, because {describe(error)}") from error
        digest = blake2b(whole, digest_size=6).hexdigest()
        self._name = f"{check_name(kind.__name__ if name is None else name, 'pool')}-{digest}"

    def __repr__(self) -> str:
        return f"Pool({self._name!r})"

    async def __call__(self, record: Any) -> Any:
        """What an instance returns for the record. Raises what it raises, with its frames as a note."""
        if not cluster.is_connected():
            return await self._locally(record)
        data = cluster.pickled(record)
        key = None if idempotency_key() is None else request_key(self._identity(record, data))
        ask = retry(self._ask, tries=TRIES, backoff=BACKOFF_S, on=_GoneError, jitter=float)
        try:
            outcome, result = await ask(key, data)
        except _GoneError as error:
            raise PoolError(f"pool {self._name!r} does not answer: {error}") from error
        if outcome.error is not None:
            raise pickle.loads(outcome.error)
        return pickle.loads(result)

    async def close(self) -> None:
        """End the pool, for all processes. A later call starts another one."""
        if not cluster.is_connected():
            with _locking:
                local = _local.pop(self._name, None)
            if local is not None:
                threads, instance = local
                closing = asyncio.get_running_loop().run_in_executor(threads, instance.close)
                threads.shutdown(wait=False)
                await closing
            return
        _used.pop(self._address(), None)
        dispatcher = await asyncio.to_thread(cluster.find_actor, self._name, self._address().space)
        if dispatcher is not None:
            try:
                await _answer(dispatcher.close.remote())
            except cluster.ActorDiedError:
                return  # another process has closed it
            cluster.kill(dispatcher)

    async def __aenter__(self) -> Pool:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _locally(self, record: Any) -> Any:
        with _locking:
            if self._name not in _local:
                threads = ThreadPoolExecutor(self._at_once, self._name)
                _local[self._name] = threads, Instance(lambda: self._made_of)
            threads, instance = _local[self._name]
            # Within the lock: what is closed takes no more calls.
            answering = asyncio.get_running_loop().run_in_executor(threads, instance, record)
        return await answering

    def _identity(self, record: Any, data: bytes) -> bytes:
        try:
            return digest_of((record, self._name)).encode()
        except MisuseError:
            return self._name.encode() + data  # equal records may pickle otherwise: then the call is made again

    async def _ask(self, key: str | None, data: bytes) -> tuple[Outcome, bytes]:
        """The outcome of a call, and its result. Raises `_GoneError` if they are lost with an actor."""
        address = self._address()
        dispatcher = _used.get(address) or await asyncio.to_thread(self._find, address)
        asked = dispatcher.ask.remote(_process(address.pid), key, np.frombuffer(data, np.uint8))
        try:
            outcome: Outcome = await _answer(asked)
        except asyncio.CancelledError:
            cluster.cancel(asked)
            raise
        except cluster.RayError as error:
            _used.pop(address, None)
            raise _GoneError(cluster.first_line(error)) from error
        result, kept_s = b"", 0.0
        try:
            if outcome.error is None:
                result = await _answer(outcome.result[0])
                kept_s = KEPT_S
        except asyncio.CancelledError:
            key = None  # nobody has the result yet, so it is kept for the next who asks
            raise
        except cluster.RayError as error:
            raise _GoneError(cluster.first_line(error)) from error
        finally:
            # An error that was told, or a result that is lost, is worth another call.
            if key is not None:
                dispatcher.drop.remote(key, kept_s)
        return outcome, result

    def _address(self) -> _Address:
        return _Address(os.getpid(), cluster.address(), f"backedge-pools-{cluster.ray_job()}", self._name)

    def _find(self, address: _Address) -> cluster.Actor:
        """The dispatcher of this pool, which is started if there is none."""
        with _locking:
            if (known := _used.get(address)) is not None:
                return known
            found = cluster.find_actor(self._name, address.space)
            if found is None:
                made_of = cluster.pickled(self._made_of)
                spec = PoolSpec(self._name, made_of, self._actors, self._at_once, self._needs)
                try:
                    found = cluster.start_actor(
                        PoolDispatcher,
                        spec,
                        address.space,
                        LEASE_S,
                        name=self._name,
                        space=address.space,
                        needs=cluster.Needs(),
                        threads=ASKS_MAX,
                        is_detached=True,
                    )
                except ValueError as error:  # another process has started it, or the last one is not quite gone
                    raise _GoneError(cluster.first_line(error)) from error
            _used[address] = found
            in_event_loop(_renew(address, found))
            return found


class _GoneError(Exception):
    """The dispatcher of a pool is gone, or a result is."""


class _Address(NamedTuple):
    """A pool as a process reaches it: a fork or a new connection has another one."""

    pid: int
    cluster: str
    space: str
    name: str


_used: dict[_Address, cluster.Actor] = {}
_local: dict[str, tuple[ThreadPoolExecutor, Instance]] = {}
_locking = threading.Lock()


@cache
def _process(pid: int) -> str:
    return f"{pid}-{uuid.uuid4().hex}"


async def _renew(address: _Address, dispatcher: cluster.Actor) -> None:
    """Renew the lease of a pool as long as this process is connected."""
    # Ray would start a cluster for a call without a connection.
    while _used.get(address) == dispatcher and cluster.address() == address.cluster:
        try:
            await _answer(dispatcher.renew.remote(_process(address.pid)))
        except cluster.RayError:
            _used.pop(address, None)
            return
        await asyncio.sleep(LEASE_S / RENEWALS)


async def _answer(pending: cluster.Pending) -> Any:
    return await asyncio.wrap_future(cluster.future(pending))

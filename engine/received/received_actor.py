"""The process of a log: an actor of its own, which Ray starts again when it dies, and which no run owns."""

from __future__ import annotations

import asyncio
import os
import traceback
from concurrent.futures import Future

from msgspec import Struct

from backedge.engine.operators.async_calls import in_event_loop
from backedge.engine.received.doors import Door, DoorSpec, GeneratorDoor, HttpDoor, LinesDoor
from backedge.engine.received.received_log import ReceivedLog
from backedge.recovery.stores.store_errors import StoreError
from backedge.recovery.stores.store_schemes import store_at

OPEN_AGAIN_S = 0.5
DOORS = {"http": HttpDoor, "lines": LinesDoor, "generator": GeneratorDoor}


class EndpointSpec(Struct, frozen=True):
    """A log, how much it keeps, and where records arrive for it."""

    log: str
    bytes_max: int
    door: DoorSpec


class Endpoint:
    """A log and its door. The door is open while the log is written.

    - fault: why it could not be opened the last time. tried: it was tried. opened: it is open.
    """

    def __init__(self, spec: EndpointSpec) -> None:
        self.spec = spec
        self.log = ReceivedLog(store_at(spec.log), spec.bytes_max)
        self.door: Door = DOORS[spec.door.kind](spec.door, self.log)
        self.fault = ""
        self.tried = asyncio.Event()
        self.opened = asyncio.Event()

    async def run(self) -> None:
        """Open the log and the door, again and again until that succeeds; then write."""
        while True:
            try:
                await self.log.open()
                await self.door.open()
            except (OSError, StoreError) as error:
                # A process that has died may still hold the port.
                self.fault = str(error)
                self.tried.set()
                await asyncio.sleep(OPEN_AGAIN_S)
            else:
                break
        self.fault = ""
        self.tried.set()
        self.opened.set()
        await self.log.write()

    async def ready(self) -> tuple[str, str]:
        """Where the door is, and why it is not open."""
        await self.tried.wait()
        return self.door.address, self.fault

    async def join(self, reader: str) -> int:
        """The first segment that a reader needs, who has joined the log when this returns."""
        await self.opened.wait()
        return await self.log.join(reader)

    async def settle(self, reader: str, segment: int) -> None:
        await self.opened.wait()
        self.log.settle(reader, segment)

    async def forget(self, reader: str) -> None:
        await self.opened.wait()
        self.log.forget(reader)


class ReceivedActor:
    """An endpoint, as an actor. Its methods are called in threads."""

    def __init__(self, spec: EndpointSpec) -> None:
        self._endpoint = Endpoint(spec)
        in_event_loop(self._endpoint.run()).add_done_callback(_end_if_broken)

    def __repr__(self) -> str:
        return f"Received({self._endpoint.spec.log!r})"

    def spec(self) -> EndpointSpec:
        return self._endpoint.spec

    def ready(self) -> tuple[str, str]:
        return in_event_loop(self._endpoint.ready()).result()

    def join(self, reader: str) -> int:
        return in_event_loop(self._endpoint.join(reader)).result()

    def settle(self, reader: str, segment: int) -> None:
        in_event_loop(self._endpoint.settle(reader, segment)).result()

    def forget(self, reader: str) -> None:
        in_event_loop(self._endpoint.forget(reader)).result()


def _end_if_broken(running: Future[None]) -> None:
    """End the process if its endpoint has failed in an unforeseen way: Ray starts it again."""
    if (error := running.exception()) is not None:
        traceback.print_exception(error)
        os._exit(1)

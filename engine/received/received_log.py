"""Carries out the rules of a log (`log_state.py`): one writer, in an event loop.

Requests that arrive while a segment is written go into the next one. A segment is begun at most every 20 ms, so a busy
sender makes fifty files a second; a request that comes alone does not wait.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from asyncio import Future
from typing import NamedTuple

from backedge.engine.received.log_state import Durable, Group, Header, LogState
from backedge.engine.received.segments import (
    create_segment,
    last_header,
    listed,
    note_log,
    remove_segments,
    segment_file,
)
from backedge.recovery.stores.store_errors import OutcomeUnknownError, StoreError
from backedge.recovery.stores.store_protocol import Store

GROUP_S = 0.02
AGAIN_S = 0.2


class FullError(Exception):
    """The log has no room for a request: send it again later."""


class NotKeptError(Exception):
    """A request was not kept: send it again later, or find out why the store does not keep it."""


class Request(NamedTuple):
    """What a segment makes durable: lines, or that a reader has joined. The future is done when it is."""

    lines: bytes
    kept: Future[None]


class ReceivedLog:
    """A log in a store, and its only writer."""

    def __init__(self, store: Store, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.state: LogState[Request] = LogState(bytes_max)
        self._store = store
        self._wake = asyncio.Event()
        self._freed = asyncio.Event()

    async def open(self) -> None:
        """Find the end of the log. Raises an `OSError` or a `StoreError`; call it again then."""
        last = await asyncio.to_thread(self._last)
        self.state = LogState[Request](self.bytes_max, last or Header(0, 1, 0, {}, secrets.token_hex(8)))

    def _last(self) -> Header | None:
        self._store.prepare(is_signed=False)
        last = last_header(self._store)
        if last is not None:
            # Of its segments only the last may not be durable: its writer may have died before it was.
            self._store.make_durable([segment_file(last.segment)])
            note_log(self._store)
            remove_segments(self._store, [segment for segment in listed(self._store) if segment < last.first])
        return last

    async def keep(self, lines: bytes) -> None:
        """Return when these lines are durable. Raises `FullError`, or `NotKeptError`."""
        request = self._request(lines)
        if not self.state.offer(request, len(lines)):
            raise self._refusal()
        self._wake.set()
        await request.kept

    async def keep_in_time(self, lines: bytes) -> None:
        """The same; wait as long as the log is full."""
        while True:
            self._freed.clear()
            try:
                return await self.keep(lines)
            except FullError:
                await self._freed.wait()

    async def join(self, reader: str) -> int:
        """The first segment that a reader needs, who has joined the log when this returns."""
        request = self._request(b"")
        if self.state.is_lost:
            raise self._refusal()
        if not self.state.join(reader, request):
            self._wake.set()
            await request.kept
        return self.state.header.readers[reader]

    def settle(self, reader: str, segment: int) -> None:
        """A reader needs nothing before a segment."""
        self.state.settle(reader, segment)
        self._wake.set()

    def forget(self, reader: str) -> None:
        """A reader reads no more."""
        self.state.forget(reader)
        self._wake.set()

    async def write(self) -> None:
        """Write segments, one after the other, until another process writes to the log."""
        while not self.state.is_lost:
            await self._wake.wait()
            self._wake.clear()
            while (group := self.state.next_group()) is not None:
                began_s = time.monotonic()
                await self._write(group)
                await asyncio.sleep(max(0.0, began_s + GROUP_S - time.monotonic()))

    async def _write(self, group: Group[Request]) -> None:
        lines = b"".join(request.lines for request in group.requests)
        is_unknown = False
        while True:
            try:
                is_ours = await asyncio.to_thread(create_segment, self._store, group.header, lines)
                break
            except (OSError, StoreError) as error:
                # Once unknown, an error of a repetition says nothing about the first try.
                is_unknown |= isinstance(error, OutcomeUnknownError)
                if not is_unknown:
                    _refuse(self.state.on_refused(), f"the segment could not be written: {error}")
                    return
                await asyncio.sleep(AGAIN_S)
        if is_ours:
            await self._on_durable(self.state.on_durable())
        else:
            _refuse(self.state.on_taken(), str(self._refusal()))

    async def _on_durable(self, durable: Durable[Request]) -> None:
        for request in durable.acknowledged:
            if not request.kept.done():
                request.kept.set_result(None)
        if durable.removed:
            self._freed.set()
            try:
                await asyncio.to_thread(remove_segments, self._store, durable.removed)
            except OSError:
                return  # a restart removes them

    def _request(self, lines: bytes) -> Request:
        return Request(lines, asyncio.get_running_loop().create_future())

    def _refusal(self) -> Exception:
        state = self.state
        if state.is_lost:
            return NotKeptError(f"another process writes to the log in {self._store.location}: end one of them")
        slowest = min(state.needs, key=state.needs.__getitem__, default=None)
        who = "no flow reads it" if slowest is None else f"{slowest} has read least of it"
        return FullError(f"the log in {self._store.location} is full, and {who}: send it again later")


def _refuse(requests: list[Request], reason: str) -> None:
    for request in requests:
        if not request.kept.done():
            request.kept.set_exception(NotKeptError(reason))

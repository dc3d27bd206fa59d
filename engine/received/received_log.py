"""Carries out the rules of a log (`log_state.py`): one writer, in an event loop.

Requests that arrive while a segment is written go into the next one. A segment is begun at most every 20 ms, so a busy
sender makes fifty files a second; a request that comes alone does not wait.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from asyncio import Future
from collections.abc import Iterator
from typing import NamedTuple

from backedge.engine.received.log_state import SEGMENT_BYTES, Durable, Group, Header, LogState
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


class TooLargeError(Exception):
    """A request for which even an empty log has no room."""


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
        """Return when these lines are durable. Raises `FullError`, `TooLargeError` or `NotKeptError`."""
        # A segment that frees the others may be there as well.
        room = self.bytes_max - 2 * SEGMENT_BYTES
        if len(lines) > room:
            raise TooLargeError(
                f"{len(lines):,} bytes are to be kept at once, and the log in {self._store.location} has room for "
                f"{room:,}: send less at a time, or give it a larger bytes_max"
            )
        request = self._request(lines)
        if not self.state.offer(request, len(lines)):
            self._wake.set()  # something may be free by now
            raise self._refusal()
        self._wake.set()
        await request.kept

    async def keep_in_time(self, lines: bytes) -> None:
        """The same; wait as long as the log is full. Many lines are kept some at a time."""
        for some in divided(lines, self.bytes_max // 2):
            await self._keep_in_time(some)

    async def _keep_in_time(self, lines: bytes) -> None:
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
        if self.state.join(reader, request):
            return self.state.needs[reader]
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
                    self._refuse(self.state.on_refused(), f"the segment could not be written: {error}")
                    return
                await asyncio.sleep(AGAIN_S)
        if is_ours:
            await self._on_durable(self.state.on_durable())
        else:
            refused = self.state.on_taken()
            self._refuse(refused, str(self._refusal()))

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

    def _refuse(self, requests: list[Request], reason: str) -> None:
        for request in requests:
            if not request.kept.done():
                request.kept.set_exception(NotKeptError(reason))
        # What they would have taken up is free; or the log is lost, and nothing will ever be.
        self._freed.set()

    def _request(self, lines: bytes) -> Request:
        return Request(lines, asyncio.get_running_loop().create_future())

    def _refusal(self) -> Exception:
        state = self.state
        if state.is_lost:
            return NotKeptError(f"another process writes to the log in {self._store.location}: end one of them")
        slowest = min(state.needs, key=state.needs.__getitem__, default=None)
        who = "no flow reads it" if slowest is None else f"{slowest} has read least of it"
        return FullError(f"the log in {self._store.location} is full, and {who}: send it again later")


def divided(lines: bytes, bytes_max: int) -> Iterator[bytes]:
    """Lines in parts of at most so many bytes; a longer line is a part by itself.

    >>> list(divided(b"1\\n2\\n345\\n6\\n", 4))
    [b'1\\n2\\n', b'345\\n', b'6\\n']
    """
    start = 0
    while len(lines) - start > bytes_max:
        end = lines.rfind(b"\n", start, start + bytes_max) + 1 or lines.find(b"\n", start) + 1
        yield lines[start:end]
        start = end
    if start < len(lines):
        yield lines[start:]

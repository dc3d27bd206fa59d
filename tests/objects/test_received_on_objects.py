"""A log of what was received, in an object store whose replies get lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backedge.engine.received.received import SegmentsReader
from backedge.engine.received.received_log import ReceivedLog
from backedge.engine.received.segments import listed
from backedge.recovery.stores.store_protocol import Store
from tests.objects.conftest import Place

# It starts servers.
pytestmark = pytest.mark.slow

BYTES_MAX = 1 << 20


def kept(store: Store, *lines: bytes) -> ReceivedLog:
    """A writer of the log that has kept these lines, each in a segment of its own, and has ended."""

    async def keep() -> ReceivedLog:
        log = ReceivedLog(store, BYTES_MAX)
        await log.open()
        writing = asyncio.ensure_future(log.write())
        await log.join("flow")
        for line in lines:
            await log.keep(line)
        writing.cancel()
        return log

    return asyncio.run(keep())


def read(store: Store, count: int) -> list[Any]:
    reader = SegmentsReader(store, 1, min(listed(store)), 0)
    return [record for _ in range(count) for record in reader.read(10)]


def test_a_segment_whose_reply_is_lost_is_kept_once_and_read_on_another_host(place: Place):
    store = place.open()
    fault = place.proxy.plan("PUT", "segments", "lost reply", times=2)
    kept(store, b"1\n", b"2\n")
    assert fault.happened == 2
    kept(place.open(), b"3\n")
    assert read(place.open(), 5) == [1, 2, 3]

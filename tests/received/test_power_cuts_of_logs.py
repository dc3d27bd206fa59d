"""Records that were acknowledged, or that a flow has read, are in the log after a power cut at any sync."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backedge.engine.received import received_log
from backedge.engine.received.received import SegmentsReader
from backedge.engine.received.received_log import ReceivedLog
from backedge.recovery.stores.folder_store import FolderStore
from tests.power import PowerCut, cut_after_each_death, cut_at_each_sync

BYTES_MAX = 1 << 20
RECORDS = 4


class Log:
    """A log that keeps records, and a flow that reads each as soon as it can be seen and needs the last two."""

    def __init__(self, folder: Path) -> None:
        self.place = str(folder / "log")
        self.acknowledged: list[int] = []
        self.position = 1, 0
        self.read: list[int] = []

    def go_on(self) -> None:
        try:
            asyncio.run(self._keep())
        except PowerCut:
            self._read()  # the flow, a process of its own, sees what is not acknowledged
            raise

    async def _keep(self) -> None:
        log = ReceivedLog(FolderStore(self.place), BYTES_MAX)
        await log.open()
        writing = asyncio.ensure_future(log.write())
        await first(writing, log.join("flow"))
        for record in range(len(self.acknowledged), RECORDS):
            await first(writing, log.keep(b"%d\n" % record))
            self.acknowledged.append(record)
            self._read()
            log.settle("flow", self.position[0] - 2)
        writing.cancel()

    def _read(self) -> None:
        reader = SegmentsReader(FolderStore(self.place), 1, *self.position)
        while records := reader.read(1):
            self.read += records
        self.position = reader.position

    def check(self, folder: Path) -> None:
        after = Log(folder)
        after.acknowledged, after.read, after.position = self.acknowledged[:], self.read[:], self.position
        after.go_on()
        after._read()
        assert set(after.read) == set(range(RECORDS))
        assert len(after.read) <= RECORDS + 2, "a request that got no answer is sent again, after each of two deaths"


async def first(writing: asyncio.Future[None], wanted: Any) -> None:
    """Wait for this, or for the death of the writer."""
    wanted = asyncio.ensure_future(wanted)
    await asyncio.wait({writing, wanted}, return_when=asyncio.FIRST_COMPLETED)
    if writing.done():
        wanted.cancel()
        writing.result()
    await wanted


@pytest.fixture(autouse=True)
def groups_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received_log, "GROUP_S", 0)


@pytest.mark.slow
def test_a_log_survives_a_power_cut_at_each_sync(tmp_path: Path):
    assert cut_at_each_sync(tmp_path, Log) > 20


@pytest.mark.long
def test_a_log_survives_a_power_cut_after_each_death(tmp_path: Path):
    assert cut_after_each_death(tmp_path, Log) > 100

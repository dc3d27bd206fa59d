"""What a sink has prepared and committed is there, once, after a power cut at any sync."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backedge import Collect
from backedge.engine.io.files.file_formats import JsonLines
from backedge.engine.io.later_output import LaterOutput
from backedge.graphs.ids import Attempt, Epoch
from tests.files.opened import (
    AT_ONCE,
    BIG,
    batch,
    collected,
    files,
    numbers,
    publish,
    services,
    sink,
    swept_by,
    transaction,
    writer,
)
from tests.files.rolled import InFolder
from tests.power import cut_after_each_death, cut_at_each_sync

CUTS = 4


class Output:
    """A task of a sink. Its cuts are elsewhere: `listed` is what the latest complete one lists."""

    def __init__(self, folder: Path, limits: dict[str, Any]) -> None:
        self.limits = limits
        self.place = InFolder(folder / "out")
        self.attempt = 0
        self.complete = 0
        self.listed: list[str] = []

    def go_on(self) -> None:
        for last in (2, CUTS, CUTS):  # each attempt publishes what waits, and the last one all
            self._run(last)

    def _run(self, last: int) -> None:
        self.attempt += 1
        self.place.roll_back(self.attempt, swept_by(self.attempt, self.listed))
        writer = self.place.writer(attempt=self.attempt, **self.limits)
        self._commit(writer)
        for epoch in range(self.complete + 1, last + 1):
            writer.write([{"n": epoch}])
            name = transaction(epoch, self.attempt)
            assert writer.prepare(name)
            self.listed, self.complete = [*self.listed, name], epoch
            self._commit(writer)

    def _commit(self, writer: Any) -> None:
        waiting = writer.commit_together(self.listed)
        self.listed = [name for name in self.listed if name in waiting]

    def check(self, folder: Path) -> None:
        after = Output(folder, self.limits)
        after.attempt, after.complete, after.listed = self.attempt, self.complete, self.listed
        after.go_on()
        assert after.place.numbers(folder) == list(range(1, CUTS + 1))


class Kept:
    """A task of a sink whose output the run keeps itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "kept"
        self.attempt = 0
        self.complete = 0
        self.listed: list[str] = []

    def go_on(self) -> None:
        self.attempt += 1
        opened = writer(Collect(), opened=services(self.folder, attempt=Attempt(self.attempt)))
        for name in self.listed:
            opened.commit(name)
        for epoch in range(self.complete + 1, CUTS + 1):
            opened.write([epoch])
            name = transaction(epoch, self.attempt)
            assert opened.prepare(name)
            self.listed, self.complete = [name], epoch
            opened.commit(name)

    def check(self, folder: Path) -> None:
        after = Kept(folder)
        after.attempt, after.complete, after.listed = self.attempt, self.complete, self.listed
        after.go_on()
        assert sorted(collected(services(after.folder))) == list(range(1, CUTS + 1))


class Replaced:
    """A run that goes back behind the second of three cuts, and removes what a joined file has of the third."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        self.attempt = 1
        opened = files(self.out)
        for epoch in (1, 2, 3):
            publish(opened, batch(epoch), transaction(epoch))
        opened.close()

    def go_on(self) -> None:
        self.attempt += 1
        services().withdraw(sink(JsonLines(str(self.out), **BIG)), later_than_2(self.attempt))

    def check(self, folder: Path) -> None:
        self.out = folder / "out"
        self.go_on()
        assert sorted(numbers(self.out, JsonLines)) == [1, 2]


def later_than_2(attempt: int) -> LaterOutput:
    return LaterOutput(Attempt(attempt), Epoch(2), Attempt(1), frozenset(), listed=frozenset())


def joined(folder: Path) -> Output:
    return Output(folder, BIG)


def at_once(folder: Path) -> Output:
    return Output(folder, AT_ONCE)


@pytest.mark.slow
@pytest.mark.parametrize("begin", [at_once, joined, Kept, Replaced])
def test_output_survives_a_power_cut_at_each_sync(tmp_path: Path, begin: Any):
    assert cut_at_each_sync(tmp_path, begin) > 8


@pytest.mark.long
@pytest.mark.parametrize("begin", [at_once, joined, Kept, Replaced])
def test_output_survives_a_power_cut_after_each_death(tmp_path: Path, begin: Any):
    assert cut_after_each_death(tmp_path, begin) > 30

"""What was acknowledged is there after a power cut at any sync, also where a process has died before."""

from __future__ import annotations

from pathlib import Path

import pytest

from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.answers import Known, Question
from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.stores.cut_store import CutStore
from tests.power import cut_after_each_death, cut_at_each_sync
from tests.stores.snapshots import DEPLOYMENT, LARGE, begin, manifest_for, meaning, sink, source, sweep, write

CUTS = 2


class Cuts:
    """A job that takes cuts and drops all but the latest. Its answers follow the cut before."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.attempt = 0
        self.complete: set[int] = set()
        self.kept: set[int] = set()

    def go_on(self) -> None:
        store = CutStore(str(self.root), "job")
        attempt = max((entry.attempt for entry in store.chain()), default=0) + 1
        begin(store, attempt)
        self.attempt = attempt
        sweep(store, attempt)
        for epoch in range(max(cuts_of(store), default=0) + 1, CUTS + 1):
            # In turns, the tasks make their files durable, or leave it to the coordinator.
            files = write(store, snapshots_of(epoch, attempt), LARGE if epoch % 2 else 0)
            assert store.create(store.numbered()[-1].number + 1, manifest_for(files, epoch, attempt), files, DEPLOYMENT)
            self.complete.add(epoch)
            if epoch > 1:
                store.drop(Epoch(epoch - 1))
            store.answers.write(Epoch(epoch), store.chain()[-1].attempt, "ask", [answer(epoch)])
            self.kept.add(epoch)

    def check(self, folder: Path) -> None:
        store = CutStore(str(folder / "root"), "job")
        cuts = cuts_of(store)
        assert max((entry.attempt for entry in store.chain()), default=0) >= self.attempt
        assert cuts.keys() >= self.complete
        if cuts:
            last = max(cuts)
            found, written = store.cut(Epoch(last)).snapshots, snapshots_of(last, cuts[last].attempt)
            assert {t: meaning(part) for t, part in found.items()} == {t: meaning(part) for t, part in written.items()}
            answers = {known.question.number for _, known in store.answers.read("ask", Epoch(last))}
            assert answers >= self.kept & {last}
        again = Cuts(folder)
        again.go_on()
        assert again.attempt > self.attempt


def snapshots_of(epoch: int, attempt: int):
    return {part.task: part for part in (source(epoch, attempt), sink(epoch, attempt))}


def cuts_of(store: CutStore) -> dict[int, Manifest]:
    return {entry.epoch: entry for entry in store.chain() if isinstance(entry, Manifest)}


def answer(epoch: int) -> Known:
    return Known(Question(1, "who", epoch), b"me", None)


@pytest.mark.slow
def test_cuts_and_answers_survive_a_power_cut_at_each_sync(tmp_path: Path):
    assert cut_at_each_sync(tmp_path, Cuts) > 30


@pytest.mark.long
def test_cuts_and_answers_survive_a_power_cut_after_each_death(tmp_path: Path):
    assert cut_after_each_death(tmp_path, Cuts) > 300

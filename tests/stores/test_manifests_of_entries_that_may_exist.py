"""While it is unknown whether the entry of a cut exists, nothing happens to the manifest that it may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from backedge.graphs.ids import Epoch
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.store_errors import OutcomeUnknownError
from tests.power import cut_at_each_sync
from tests.stores.lost_replies import LosesAReply
from tests.stores.snapshots import DEPLOYMENT, begin, manifest_for, snapshots_of, write

ENTRY = "chain/00000002.json"


class Cut:
    """A cut whose entry is created twice: the reply to the first time is lost, and the entry cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.store = CutStore(LosesAReply(str(folder / "root"), ENTRY), "job")
        begin(self.store)
        self.files = write(self.store, snapshots_of(1))

    def go_on(self) -> None:
        entry = manifest_for(self.files, 1)
        try:
            self.store.create(2, entry, self.files, DEPLOYMENT)
        except OutcomeUnknownError:
            self.store.create(2, entry, self.files, DEPLOYMENT)

    def check(self, folder: Path) -> None:
        store = CutStore(str(folder / "root"), "job")
        if len(store.numbered()) > 1:
            assert store.cut(Epoch(1)).epoch == 1


@pytest.mark.slow
def test_a_power_cut_while_an_entry_is_created_again_leaves_its_cut_whole(tmp_path: Path):
    assert cut_at_each_sync(tmp_path, Cut) > 10

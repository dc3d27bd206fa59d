"""While it is unknown whether the entry of a cut exists, nothing happens to the manifest that it may name."""

from __future__ import annotations

from pathlib import Path

from backedge.graphs.ids import Epoch
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.store_errors import OutcomeUnknownError
from tests.power import cut_at_each_sync
from tests.stores.snapshots import DEPLOYMENT, begin, manifest_for, snapshots_of, write

ENTRY = "chain/00000002.json"


class LosesReplies(FolderStore):
    """Goes away when it has made the entry of a cut: nobody hears that it has, and it cannot be read back."""

    is_away = has_been_away = False

    def create(self, name: str, data: bytes) -> bool:
        is_made = super().create(name, data)
        if name == ENTRY and not self.has_been_away:
            self.is_away = self.has_been_away = True
            raise OutcomeUnknownError(5, "the reply was lost")
        return is_made

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if self.is_away:
            self.is_away = False
            raise OSError(5, "the store is away")
        return super().read(name, start, length)


class Cut:
    """A cut whose entry is created again, because nobody has heard that it was."""

    def __init__(self, folder: Path) -> None:
        self.store = CutStore(LosesReplies(str(folder / "root")), "job")
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


def test_a_power_cut_while_an_entry_is_created_again_leaves_its_cut_whole(tmp_path: Path):
    assert cut_at_each_sync(tmp_path, Cut) > 10

"""An entry that was created is not given up because the store went away before the chain was looked at again."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from backedge.graphs.ids import Attempt
from backedge.recovery.protocol.orders import AttemptStart
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.store_errors import OutcomeUnknownError


class GoesAway(FolderStore):
    """A store that answers no look-up after it has created an entry of the chain."""

    is_away = False

    def create(self, name: str, data: bytes) -> bool:
        is_made = super().create(name, data)
        self.is_away = is_made and name.startswith("chain/")
        return is_made

    def facts(self, name: str) -> Any:
        if self.is_away:
            raise OSError(errno.EIO, "the store is away")
        return super().facts(name)


def test_the_outcome_of_an_entry_is_unknown_until_the_store_says_that_it_counts(tmp_path: Path):
    store: Any = CutStore(GoesAway(str(tmp_path)), "job")
    entry = AttemptStart(Attempt(1), None)
    with pytest.raises(OutcomeUnknownError):
        store.create(1, entry)
    store._store.is_away = False
    assert store.create(1, entry)
    assert store.chain() == [entry]

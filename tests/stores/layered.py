"""Cuts of one task whose keyed state is in a list of files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from backedge.engine.state.keyed_state import keyed_entries
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.cut.cut import OperatorState, TaskSnapshot
from backedge.recovery.cut.keyed_parts import KeyedPart
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import FileId, Manifest, StateFile, Sweep
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.task_files import TaskFiles
from tests.stores.snapshots import DEPLOYMENT, begin

TASK = TaskId("rank", 0)


class Cuts:
    def __init__(self, root: Path | str) -> None:
        self.root = str(root)
        self.store = CutStore(self.root, "job")
        self.lists: dict[int, tuple[StateFile, ...]] = {}
        begin(self.store)

    def write(self, filed: int, groups: Iterable[KeyedPart], base: int | None, epoch: int | None = None) -> TaskFiles:
        at = Epoch(filed if epoch is None else epoch)
        state = {"rank": OperatorState(groups)}
        since = None if base is None else Epoch(base)
        return self.store.write_task(
            Attempt(1), Epoch(filed), TaskSnapshot(TASK, at, Attempt(1), state, (), (), base=since)
        )

    def complete(
        self,
        epoch: int,
        groups: Iterable[KeyedPart],
        base: int | None = None,
        below: tuple[StateFile, ...] | None = None,
        kept: tuple[int, ...] | None = None,
    ) -> None:
        files = self.write(epoch, groups, base)
        found = (self.lists[base] if base is not None else ()) if below is None else below
        self.lists[epoch] = (*found, StateFile(Attempt(1), Epoch(epoch), 1))
        entry = Manifest(
            Epoch(epoch),
            Attempt(1),
            Mode.ALIGNED,
            {TASK: Epoch(epoch)},
            {},
            kept=None if kept is None else tuple(map(Epoch, kept)),
            states={TASK: self.lists[epoch]},
        )
        assert self.store.create(len(self.store.chain()) + 1, entry, {TASK: files}, DEPLOYMENT)

    def values(self, epoch: int) -> dict[Any, Any]:
        return keyed_entries(CutStore(self.root, "job").cut(Epoch(epoch)).snapshots[TASK].operators["rank"]).values

    def sweep(self, *named: int) -> None:
        """Remove what is not named up to the last of these epochs, as the supervisor of the attempt would."""
        files = frozenset(FileId(Attempt(1), Epoch(epoch), TASK) for epoch in named)
        nothing = frozenset[Any]()
        self.store.sweep(Sweep(Attempt(1), False, nothing, Epoch(max(named)), nothing, nothing, files))

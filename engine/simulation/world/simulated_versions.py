"""The versions that the tasks of a simulated attempt publish and read: one directory of the world knows them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from backedge.engine.batches.batch import copy_value
from backedge.engine.batches.constant_bytes import constant_in
from backedge.engine.operators.version_memory import OwnMemory, held_on, put_on_shelf
from backedge.engine.simulation.checker.record import Record
from backedge.graphs.ids import Attempt
from backedge.graphs.versions import AttemptOverError, Versions
from backedge.recovery.cut.cut import Version
from backedge.recovery.protocol.versions import Shelf, VersionDirectory

SimulatedShelf = Shelf[OwnMemory]
Shelves = dict[tuple[Attempt, str], SimulatedShelf]
"""What was published in each attempt, by name."""
SimulatedDirectory = VersionDirectory[bytes, SimulatedShelf]


class SimulatedVersions:
    """What the tasks of one attempt publish and read. `record` is told what was published."""

    def __init__(
        self,
        directory: SimulatedDirectory,
        shelves: Shelves,
        make_shelf: Callable[[int], SimulatedShelf],
        attempt: Attempt,
        record: Record,
    ) -> None:
        self._directory = directory
        self._shelves = shelves
        self._make_shelf = make_shelf
        self._attempt = attempt
        self._record = record

    def read(self, versions: Versions, number: int) -> Any:
        found = self._directory.find(self._attempt, (versions.name, number))
        if found is None:
            raise AttemptOverError
        shelf, kept = found.publisher, found.kept
        if shelf is not None:
            kept = shelf.kept or kept
            if (data := held_on(shelf, number)) is not None:
                return constant_in(data)
        if number not in kept or found.where is None:
            raise versions.not_kept(number, kept)
        return constant_in(memoryview(found.where))

    def publish(self, versions: Versions, number: int, value: Any, kept: Collection[int]) -> Version:
        which = self._attempt, versions.name
        shelf = self._shelves.get(which) or self._make_shelf(versions.keep)
        if not self._directory.publishes(self._attempt, (versions.name, number), shelf):
            raise AttemptOverError
        self._shelves[which] = shelf
        _, version = put_on_shelf(shelf, OwnMemory, versions, number, value, kept)
        self._record.versions[self._attempt][versions.name, number] = copy_value(value)
        return version

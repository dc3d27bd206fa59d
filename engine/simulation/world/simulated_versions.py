"""The versions that the tasks of a simulated attempt publish and read: one directory of the world has their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from backedge.engine.batches.batch import copy_value
from backedge.engine.batches.constant_bytes import constant_in
from backedge.engine.operators.published import made_version
from backedge.engine.simulation.checker.record import Record
from backedge.graphs.ids import Attempt
from backedge.graphs.versions import AttemptOverError, Versions
from backedge.recovery.cut.cut import Version
from backedge.recovery.protocol.versions import VersionDirectory


class SimulatedVersions:
    """What the tasks of one attempt publish and read. `record` is told what was published."""

    def __init__(self, directory: VersionDirectory[bytes], attempt: Attempt, record: Record) -> None:
        self._directory = directory
        self._attempt = attempt
        self._record = record

    def read(self, versions: Versions, number: int) -> Any:
        found = self._directory.find(self._attempt, (versions.name, number))
        if found is None:
            raise AttemptOverError
        if found.where is None:
            raise versions.not_kept(number, found.kept)
        return constant_in(memoryview(found.where))

    def publish(self, versions: Versions, number: int, value: Any, kept: Sequence[Version]) -> Version:
        version, pieces = made_version(self._attempt, versions, number, value, kept)
        data = b"".join(pieces)
        if not self._directory.publish(self._attempt, (versions.name, number), versions.keep, data):
            raise AttemptOverError
        self._record.versions[self._attempt][versions.name, number] = copy_value(value)
        return version if version.data is not pieces else replace(version, data=[data])

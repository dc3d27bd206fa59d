"""What was published under each number, for the plain interpreters: no attempts, and every version is kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from backedge.engine.simulation.checker.payloads import frozen
from backedge.graphs.versions import Versions
from proof.plain.plain_operator import copied


class PlainVersions:
    """The versions of a flow. `published`: those of the run that is interpreted again."""

    def __init__(self, published: Mapping[tuple[str, int], Any]) -> None:
        self._values = dict(published)

    def read(self, versions: Versions, number: int) -> Any:
        if (versions.name, number) not in self._values:
            raise versions.not_kept(number, ())
        return self._values[versions.name, number]

    def publish(self, versions: Versions, number: int, value: Any, kept: Collection[int]) -> None:
        known = self._values.setdefault((versions.name, number), copied(value))
        if frozen(known) != frozen(value):
            raise LookupError(f"version {number} of {versions.name!r} is {value!r}, and was {known!r}")

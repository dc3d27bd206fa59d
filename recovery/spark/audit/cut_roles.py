"""Pairs each cut under audit with the earlier cuts it is compared with.

A statement about two cuts then becomes one grouped aggregate. Each table is read once. Every row gets the epoch of
the audited cut and its role there; the rows of a cut that precedes several others are repeated for each. The pairing
is a literal expression, so no join is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Tables = Mapping[str, "DataFrame"]

NOW, BEFORE, BEFORE_IN_ATTEMPT, RESTORED = "now", "before", "before in attempt", "restored"


@dataclass(frozen=True)
class CutRoles:
    """The tables, and the roles of their cuts: maps from the epoch under audit to the epoch it is compared with.

    Only cuts that still exist are listed. `previous_in_attempt` is `previous` if both cuts belong to one attempt;
    `restored` is the cut that the attempt started from, if it was taken by the same tasks.
    """

    tables: Tables
    audited: tuple[int, ...]
    modes: Mapping[int, str]
    previous: Mapping[int, int]
    previous_in_attempt: Mapping[int, int]
    restored: Mapping[int, int]

    def now(self, table: str) -> DataFrame:
        """The rows of the cuts under audit."""
        return self.tables[table].where(F.col("epoch").isin(list(self.audited)))

    def rows(self, table: str, *roles: str) -> DataFrame:
        """The rows of the cuts in these roles; `role` names the role, `epoch` the cut under audit."""
        named = {BEFORE: self.previous, BEFORE_IN_ATTEMPT: self.previous_in_attempt, RESTORED: self.restored}
        cast: dict[int, list[tuple[int, str]]] = {}
        for role in roles:
            others = {epoch: epoch for epoch in self.audited} if role == NOW else named[role]
            for audited, other in others.items():
                cast.setdefault(other, []).append((audited, role))
        parts = {
            epoch: F.array(
                *(F.struct(F.lit(audited).alias("epoch"), F.lit(role).alias("role")) for audited, role in of)
            )
            for epoch, of in cast.items()
        }
        rows = self.tables[table].where(F.col("epoch").isin(list(parts)))
        return rows.withColumn("part", F.explode(_by_epoch(parts))).withColumns(
            {"epoch": F.col("part.epoch"), "role": F.col("part.role")}
        )

    def mode(self) -> Column:
        """The snapshot policy of a row's cut."""
        return _by_epoch({epoch: F.lit(mode) for epoch, mode in self.modes.items()})


def union_rows(frames: Iterable[DataFrame]) -> DataFrame:
    """All rows of all frames; a column missing from a frame is null in its rows."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _by_epoch(values: Mapping[int, Column]) -> Column:
    """The value for the row's epoch, or null."""
    found: Any = F
    for epoch, value in values.items():
        found = found.when(F.col("epoch") == epoch, value)
    return found

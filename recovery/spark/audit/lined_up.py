"""The cuts under audit beside those before them, so that a statement about two cuts is one grouped aggregate.

A table is read once. Each row gets the number of the cut that it is to be held against, and its role there; a cut that
stands before several others gives its rows to each. Which cut is whose stands in a literal: no join is needed.
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
class Lined:
    """The tables, and which of their cuts is what: numbers of cuts by the number of the cut under audit.

    `previous` and `restored` tell only cuts that are still there. `of_attempt` is `previous` within an attempt;
    `restored` are those that were restored by the same tasks.
    """

    tables: Tables
    audited: tuple[int, ...]
    modes: Mapping[int, str]
    previous: Mapping[int, int]
    of_attempt: Mapping[int, int]
    restored: Mapping[int, int]

    def now(self, table: str) -> DataFrame:
        """The rows of the cuts under audit."""
        return self.tables[table].where(F.col("epoch").isin(list(self.audited)))

    def rows(self, table: str, *roles: str) -> DataFrame:
        """The rows in these roles: `role` says in which one, `epoch` is the cut under audit."""
        named = {BEFORE: self.previous, BEFORE_IN_ATTEMPT: self.of_attempt, RESTORED: self.restored}
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
        return rows.withColumn("part", F.explode(_looked_up(parts))).withColumns(
            {"epoch": F.col("part.epoch"), "role": F.col("part.role")}
        )

    def mode(self) -> Column:
        """How the cut of a row was taken."""
        return _looked_up({epoch: F.lit(mode) for epoch, mode in self.modes.items()})


def together(frames: Iterable[DataFrame]) -> DataFrame:
    """All rows; a column that a frame has not is null there."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _looked_up(values: Mapping[int, Column]) -> Column:
    """What stands under the row's epoch; null if nothing does."""
    found: Any = F
    for epoch, value in values.items():
        found = found.when(F.col("epoch") == epoch, value)
    return found

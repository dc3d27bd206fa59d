"""The cuts under audit beside those before them, so that a statement about two cuts is one grouped aggregate.

Rows of the cut before, and of the cut that was restored, get the number of the cut that they are held against. No join
is needed for that: which cut is whose stands in a literal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Tables = Mapping[str, "DataFrame"]


@dataclass(frozen=True)
class Lined:
    """The tables, and which of their cuts is what: numbers of cuts by the number of the cut under audit.

    `previous` and `restored` tell only cuts that are still there. `of_attempt` is `previous` within an attempt;
    `restored` are those that were restored by the same tasks. `first` are cuts that began with nothing.
    """

    tables: Tables
    audited: tuple[int, ...]
    modes: Mapping[int, str]
    previous: Mapping[int, int]
    of_attempt: Mapping[int, int]
    restored: Mapping[int, int]
    first: frozenset[int]

    def now(self, table: str) -> DataFrame:
        """The rows of the cuts under audit."""
        return self.tables[table].where(F.col("epoch").isin(list(self.audited)))

    def before(self, table: str) -> DataFrame:
        """The rows of the cuts before, under the numbers of those under audit."""
        return _moved(self.tables[table], self.previous)

    def before_in_attempt(self, table: str) -> DataFrame:
        """The same, where one attempt took both."""
        return _moved(self.tables[table], self.of_attempt)

    def as_restored(self, table: str) -> DataFrame:
        """The rows of the cuts that were restored, under the numbers of those under audit."""
        return _moved(self.tables[table], self.restored)

    def mode(self) -> Column:
        """How the cut of a row was taken."""
        return _looked_up(self.modes)

    def has_before(self) -> Column:
        """Whether the row's cut has one before it that is still there, or began with nothing."""
        return F.col("epoch").isin([*self.previous, *self.first])


def together(frames: Iterable[DataFrame]) -> DataFrame:
    """All rows; a column that a frame has not is null there."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _moved(table: DataFrame, owners: Mapping[int, int]) -> DataFrame:
    audited_by: dict[int, list[int]] = {}
    for audited, other in owners.items():
        audited_by.setdefault(other, []).append(audited)
    if not audited_by:
        return table.where(F.lit(False))
    rows = table.where(F.col("epoch").isin(list(audited_by)))
    return rows.withColumn("epoch", F.explode(_looked_up(audited_by)))


def _looked_up(values: Mapping[int, object]) -> Column:
    """What stands under the row's epoch; null if nothing does."""
    found: Any = F
    for epoch, value in values.items():
        literal = F.array(*map(F.lit, cast("list[int]", value))) if isinstance(value, list) else F.lit(value)
        found = found.when(F.col("epoch") == epoch, literal)
    return found

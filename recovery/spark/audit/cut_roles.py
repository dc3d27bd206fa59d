"""Pairs each cut under audit with the earlier cuts it is compared with.

A statement about two cuts then becomes one grouped aggregate. Each table is read once. Every row gets the epoch of
the audited cut and its role there; the rows of a cut that precedes several others are repeated for each. The pairing
is a literal expression, so no join is needed.

Expressions are SQL text: each function of PySpark is a call to the Java process, and an audit of a small cut would
spend most of its time on them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

Tables = Mapping[str, DataFrame]

_FIGURE = re.compile(r"{([^:}]+):?(\w*)}")

NOW, BEFORE, BEFORE_IN_ATTEMPT, RESTORED = "now", "before", "before in attempt", "restored"


@dataclass(frozen=True)
class CutRoles:
    """The tables, and the roles of their cuts: maps from the epoch under audit to the epoch it is compared with.

    Only cuts that still exist are listed. `previous_in_attempt` is `previous` if both cuts belong to one attempt;
    `restored` is the cut that the attempt started from, if it was taken by the same tasks of the same graph. `begun`:
    the operators that do not go on from the previous cut.
    """

    tables: Tables
    audited: tuple[int, ...]
    modes: Mapping[int, str]
    previous: Mapping[int, int]
    previous_in_attempt: Mapping[int, int]
    restored: Mapping[int, int]
    begun: Mapping[int, Collection[str]]

    def now(self, table: str) -> DataFrame:
        return self.tables[table].where(one_of("epoch", self.audited))

    def rows(self, table: str, *roles: str) -> DataFrame:
        """The rows of the cuts in these roles; `role` names the role, `epoch` the cut under audit."""
        named = {BEFORE: self.previous, BEFORE_IN_ATTEMPT: self.previous_in_attempt, RESTORED: self.restored}
        cast: dict[int, list[tuple[int, str]]] = {}
        for role in roles:
            others = {epoch: epoch for epoch in self.audited} if role == NOW else named[role]
            for audited, other in others.items():
                cast.setdefault(other, []).append((audited, role))
        parts = {epoch: _array(f"struct({audited}L, '{role}')" for audited, role in of) for epoch, of in cast.items()}
        rows = self.tables[table].where(one_of("epoch", parts))
        return rows.selectExpr("* EXCEPT (epoch)", f"inline({_by_epoch(parts)}) AS (epoch, role)")

    @property
    def goes_on(self) -> str:
        """Whether a row of the previous cut is of an operator that goes on from it, in SQL."""
        begun = {epoch: f"operator IN ({', '.join(map(text, names))})" for epoch, names in self.begun.items() if names}
        return f"role != '{BEFORE}' OR NOT coalesce({_by_epoch(begun)}, false)" if begun else "true"

    def mode(self) -> str:
        """The snapshot policy of a row's cut, in SQL."""
        return _by_epoch({epoch: f"'{mode}'" for epoch, mode in self.modes.items()})


def text(value: str) -> str:
    r"""SQL for a text.

    >>> print(text("it's"), text("a\\b"))
    'it\'s' 'a\\b'
    """
    return "'{}'".format(value.replace("\\", "\\\\").replace("'", "\\'"))


def one_of(column: str, values: Iterable[int]) -> str:
    """SQL: whether the column has one of these values.

    >>> one_of("epoch", [3, 4]), one_of("epoch", [])
    ('epoch IN (3, 4)', 'false')
    """
    listed = ", ".join(map(str, values))
    return f"{column} IN ({listed})" if listed else "false"


def aggregated(rows: DataFrame, by: Sequence[str], *aggregates: str) -> DataFrame:
    """Group rows and aggregate each group. As one struct, because every column given to Spark costs milliseconds."""
    found = rows.groupBy(*by).agg(F.expr(f"struct({', '.join(aggregates)})").alias("_aggregated"))
    return found.select(*by, "_aggregated.*")


def telling(story: str) -> str:
    """SQL for a story with figures of the row in braces: numbers, unless a format of `format_string` follows them.

    >>> telling("batch {seq} has digest {digest:08x}")
    "format_string('batch %d has digest %08x', seq, digest)"
    """
    figures = _FIGURE.findall(story)
    form = _FIGURE.sub(lambda found: f"%{found[2] or 'd'}", story)
    values = "".join(f", {name}" for name, _ in figures)
    return f"format_string('{form}'{values})"


def union_rows(frames: Iterable[DataFrame]) -> DataFrame:
    """All rows of all frames; a column missing from a frame is null in its rows."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _array(items: Iterable[str]) -> str:
    return f"array({', '.join(items)})"


def _by_epoch(values: Mapping[int, str]) -> str:
    """SQL for the value of the row's epoch, or null."""
    cases = " ".join(f"WHEN {epoch} THEN {value}" for epoch, value in values.items())
    return f"CASE epoch {cases} END"

"""Checks the answers of calls against statement 9, and says what a run has paid for.

An answer has the name of its question: an identity, which equal questions share, and a number. The state has of each
identity which numbers are taken, which of these wait for an answer, and which answers are known and not yet used. So
the answers that a cut has used are those of numbers that are taken and do not wait. If one was not known in the
previous cut, it came after it: the journal has it in a segment that a restore of that cut reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pyspark.sql import DataFrame

from backedge.recovery.spark.audit.cut_roles import BEFORE, NOW, CutRoles, aggregated, one_of, text
from backedge.recovery.spark.audit.manifest_checks import CutDocuments
from backedge.recovery.spark.report.verdict import Facts, Finding

TABLES = frozenset({"state", "answers"})
"""The tables that are read where answers may be kept."""

_OF_OPERATOR = ("epoch", "operator")
_QUESTION = (*_OF_OPERATOR, "question")
_WHOLE = "first_number INT, paid STRUCT<answers: BIGINT, cost: DOUBLE, used: BIGINT, cost_used: DOUBLE>"
_NUMBERS = "transform(from_json(parts[{}], 'array<array<string>>'), pair -> int(pair[0]))"
_EQUALS = (
    "struct(int(parts[0]) AS next, from_json(parts[1], 'array<int>') AS beyond, "
    f"{_NUMBERS.format(2)} AS waiting, {_NUMBERS.format(3)} AS known)"
)
_IS_TAKEN = "(n < {0}.next OR array_contains({0}.beyond, n))"
_IS_USED = f"({_IS_TAKEN} AND NOT array_contains({{0}}.waiting, n))"
_IS_WRONG = (
    "identity != 'spent' AND (times > 1 OR size(array_distinct(has.waiting)) < size(has.waiting) "
    f"OR exists(has.waiting, n -> NOT {_IS_TAKEN.format('has')}) OR exists(has.known, n -> {_IS_USED.format('has')}))"
)
_SINCE = (
    "filter(array_union(if(has.next > first, sequence(first, has.next - 1), array()), has.beyond), "
    f"n -> {_IS_USED.format('has')} AND NOT coalesce({_IS_USED.format('had')} OR array_contains(had.known, n), false))"
)


def asking(cuts: Iterable[CutDocuments]) -> set[str]:
    """The operators of these cuts that may keep answers."""
    return {one["name"] for cut in cuts for one in cut.graph["operators"] if one["kind"] == "map_async"}


def answer_facts(roles: CutRoles, cuts: Mapping[int, CutDocuments], *, has_journal: bool) -> dict[str, DataFrame]:
    """By operator: what it has `paid` for, what is wrong with questions that are `asked`, and what the journal lacks.

    A question is compared with the journal if the previous cut was taken with the same graph.
    """
    names = ", ".join(map(text, asking(cuts.values())))
    state = roles.rows("state", NOW, BEFORE).where(f"operator IN ({names})")
    own = state.where(f"role = '{NOW}' AND kind = 'whole'").selectExpr(
        *_OF_OPERATOR, f"from_json(value, '{_WHOLE}') AS own"
    )
    figures = (f"sum(own.paid.{name}) AS {name}" for name in ("answers", "cost", "used", "cost_used"))
    paid = aggregated(own, _OF_OPERATOR, *figures, "max(own.first_number) AS first")
    parts = "if(identity = 'spent', NULL, from_json(kept, 'array<string>')) AS parts"
    kept = (
        state.where("kind = 'value'")
        .selectExpr(*_OF_OPERATOR, "role", "explode(from_json(value, 'map<string,string>')) AS (identity, kept)")
        .selectExpr(*_OF_OPERATOR, "role", "identity", parts)
        .selectExpr(*_OF_OPERATOR, "role", "identity", f"{_EQUALS} AS equals")
    )
    equal = aggregated(
        kept,
        (*_OF_OPERATOR, "identity"),
        f"sum(int(role = '{NOW}')) AS times",
        f"any_value(if(role = '{NOW}', equals, NULL), true) AS has",
        f"any_value(if(role = '{BEFORE}', equals, NULL), true) AS had",
    ).where("times > 0")
    asked = aggregated(
        equal,
        _OF_OPERATOR,
        "sum(int(identity = 'spent')) AS budgets",
        f"count(if({_IS_WRONG}, 1, NULL)) AS wrong",
        f"min(if({_IS_WRONG}, identity, NULL)) AS wrong_one",
    )
    facts = {"paid": paid, "asked": asked}
    if has_journal:
        equal = equal.join(paid.select(*_OF_OPERATOR, "first"), list(_OF_OPERATOR), "left")
        facts["journal"] = _in_journal(roles, equal, one_of("epoch", _with_the_same_graph(roles, cuts)))
    return facts


def _with_the_same_graph(roles: CutRoles, cuts: Mapping[int, CutDocuments]) -> Iterator[int]:
    for epoch, previous in roles.previous.items():
        if cuts[epoch].manifest["graph_hash"] == cuts[previous].manifest["graph_hash"]:
            yield epoch


def _in_journal(roles: CutRoles, equal: DataFrame, compared: str) -> DataFrame:
    """What was used since the previous cut, and whether the journal has it; what the journal has more than once."""
    entries = roles.rows("answers", NOW, BEFORE).where(f"role = '{BEFORE}'")
    written = aggregated(entries, _QUESTION, "count(cost) AS calls")
    used = (
        equal.where(f"identity != 'spent' AND {compared}")
        .selectExpr(*_OF_OPERATOR, "identity", "has", "had", "coalesce(first, 0) AS first")
        .selectExpr(*_OF_OPERATOR, "identity", f"explode({_SINCE}) AS number")
        .selectExpr(*_OF_OPERATOR, "concat(identity, '-', number) AS question", "true AS is_used")
    )
    return aggregated(
        used.join(written, list(_QUESTION), "full"),
        _OF_OPERATOR,
        "count(is_used) AS used_since",
        "count(if(is_used AND calls IS NULL, 1, NULL)) AS missing",
        "min(if(is_used AND calls IS NULL, question, NULL)) AS missing_one",
        "sum(if(calls > 1, calls - 1, 0)) AS second",
    )


def check_answers(cut: CutDocuments, facts: Mapping[str, Facts]) -> Iterator[tuple[Finding, int]]:
    """Findings, each with its number of occurrences. `facts`: those of `answer_facts` by operator."""
    for operator, row in facts.items():
        name = f"operator {operator!r}"
        if wrong := row.get("wrong"):
            yield cut.wrong(9, f"{name} lets two records use one answer to the question {row['wrong_one']}"), wrong
        used, paid = row.get("used") or 0, row.get("answers") or 0
        if used > paid:
            yield cut.wrong(9, f"{name} has used {used} answers and paid for {paid}: some were used twice"), used - paid
        # What exceeds a budget is set aside without an answer, and its number is taken as well.
        if not row.get("budgets") and (missing := row.get("missing")):
            story = f"{name} has used the answer to question {row['missing_one']}, which the journal does not have"
            yield cut.wrong(9, f"{story} (and {missing - 1} more)" if missing > 1 else story), missing

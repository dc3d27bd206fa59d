"""Writes a verdict as Parquet, so that the verdicts of many runs can be collected.

    FOLDER/statements/epoch=7/JOB.parquet       one row per statement and invariant, with its result
    FOLDER/findings/epoch=7/JOB.parquet         one row per finding; written even if there is none

Auditing a cut again replaces its files and leaves those of other cuts alone. Findings about the chain as a whole
belong to no epoch; they are filed under the partition name that stands for null.
"""

from __future__ import annotations

import os
from typing import Any

from backedge.recovery.spark.report.verdict import CutVerdict, Finding, Verdict
from backedge.recovery.stores.names import encoded
from backedge.recovery.stores.parquet_tables import from_rows, pa, parquet, schema

NO_EPOCH = "__HIVE_DEFAULT_PARTITION__"

FINDINGS: Any = schema(
    {"job": "string", "statement": "int32", "name": "string", "story": "string", "channel": "string", "task": "string"}
)
STATEMENTS: Any = schema(
    {
        "job": "string",
        "attempt": "int64",
        "statement": "int32",
        "name": "string",
        "holds": "bool_",
        "found": "int64",
        "compared": "string",
        "verdict": "string",
    }
)


def write_tables(verdict: Verdict, folder: str) -> None:
    """Write the tables of a verdict below a folder, creating it if necessary."""
    for cut in verdict.epochs:
        _write(folder, "statements", str(cut.epoch), verdict.job, from_rows(STATEMENTS, _results(verdict.job, cut)))
        _write(folder, "findings", str(cut.epoch), verdict.job, _findings(verdict.job, cut.findings))
    _write(folder, "findings", NO_EPOCH, verdict.job, _findings(verdict.job, verdict.of_chain))


def _results(job: str, cut: CutVerdict) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = [
        (job, cut.attempt, one.statement, one.name, one.holds, one.found, one.compared, _verdict_of(one.statement))
        for one in cut.statements
    ]
    return rows + [
        (job, cut.attempt, 7, one.name, one.holds, one.rows, f"an invariant; {one.unread} values not read", "user")
        for one in cut.invariants
    ]


def _verdict_of(statement: int) -> str:
    return "user" if statement == 7 else "engine"


def _findings(job: str, findings: Any) -> Any:
    found: list[Finding] = list(findings)
    return from_rows(FINDINGS, [(job, one.statement, one.name, one.story, one.channel, one.task) for one in found])


def _write(folder: str, table: str, epoch: str, job: str, rows: Any) -> None:
    path = os.path.join(folder, table, f"epoch={epoch}")
    os.makedirs(path, exist_ok=True)
    file = os.path.join(path, f"{encoded(job)}.parquet")
    # Parquet readers ignore names that begin with a dot.
    temporary = os.path.join(path, f".{os.getpid()}.part")
    with pa.OSFile(temporary, "wb") as sink:
        parquet.write_table(rows, sink)
    os.replace(temporary, file)

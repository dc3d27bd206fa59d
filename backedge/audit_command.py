"""`backedge audit`: Spark proves of a job's cuts that they are consistent, or says what is wrong.

0: consistent, and the invariants that are given hold. 1: not consistent, and what is printed says which statement is
violated, where, by which figures. 2: there is nothing to judge: no such job or epoch, a file missing or damaged, an
invalid invariant, no Java. 3: consistent, but an invariant does not hold.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from backedge.arguments import check_folder, check_page, digits, key_from
from backedge.flows import WrongCallError

PASSED, INCONSISTENT, WRONG_CALL, INVARIANT_BROKEN = range(4)


def audit_job(options: argparse.Namespace) -> int:
    """Audits what the command line names, and prints the verdict."""
    # Spark is imported only where it is used, so that other commands start fast.
    from backedge.recovery.spark.audit.audit_job import audit
    from backedge.recovery.spark.cut_tables.job_folder import JobFolder, MalformedDocumentError
    from backedge.recovery.spark.sessions.spark_session import session_for

    invariants = invariants_in(options.invariants)
    folder = JobFolder.open(options.job, key_from(options.key_file))
    number = digits(options.epoch)
    if options.page is not None:
        check_page(Path(options.page))
    if options.parquet is not None:
        check_folder(Path(options.parquet))
    # What is not there is said before Spark is started, which takes seconds. A malformed manifest is for the verdict.
    with suppress(MalformedDocumentError):
        folder.manifest(folder.latest() if number is None else number)
    _progress("starting Spark")
    with session_for("backedge audit", options.master) as spark:
        verdict = audit(spark, folder, options.epoch if number is None else [number], invariants, progress=_progress)
    print(json.dumps(verdict.to_json()) if options.json else "\n".join(verdict.lines()), flush=True)
    _write(verdict, options.page, options.parquet)
    if not verdict.consistent:
        return INCONSISTENT
    return PASSED if verdict.passed else INVARIANT_BROKEN


def _write(verdict: Any, page: str | None, tables: str | None) -> None:
    from backedge.recovery.spark.report.verdict_files import write_tables
    from backedge.recovery.spark.report.verdict_page import write_page

    if page is not None:
        write_page(verdict.to_json(), page)
    if tables is not None:
        write_tables(verdict, tables)


def _progress(what: str) -> None:
    print(f"backedge audit: {what}", file=sys.stderr)


def invariants_in(pairs: Sequence[str]) -> dict[str, str]:
    """The queries that --invariant gives, by name.

    >>> invariants_in(["no debt=SELECT * FROM state WHERE value < 0"])
    {'no debt': 'SELECT * FROM state WHERE value < 0'}
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, _, query = pair.partition("=")
        name = name.strip()
        if not name or not query.strip():
            raise WrongCallError(
                f"--invariant {pair!r} has no name and query: write name=SELECT ..., whose rows are what is wrong"
            )
        if name in found:
            raise WrongCallError(f"--invariant gives {name} twice: leave out one of them")
        found[name] = query
    return found

"""What Spark's audit of a cut takes, half of whose rows are state and half of them batches in loop logs.

`python -m bench.scale_of_audits ROWS` prints a line of JSON: rows, and the seconds by the clock that the audit takes in
a session that exists, with the memory in MB at the peak of Spark's heap.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

from bench.audit import peak_heap_mb
from bench.large_cut import write_large_cut

WARM_UP_ROWS = 10_000


def figures(rows: int, folder: str) -> dict[str, Any]:
    """Audit a cut of so many rows. Another one has warmed the session up."""
    from backedge.recovery.spark.sessions.spark_session import close_session, open_session

    small, large = (write_large_cut(folder, str(size), size, 0) for size in (WARM_UP_ROWS, rows))
    spark = open_session("bench audit")
    try:
        _audit(spark, small)
        began_s = time.monotonic()
        _audit(spark, large)
        return {"rows": rows, "steps": {"audit": (time.monotonic() - began_s, peak_heap_mb(spark))}}
    finally:
        close_session(spark)


def _audit(spark: Any, job: str) -> None:
    from backedge.recovery.spark.audit.audit_job import audit
    from backedge.recovery.spark.cut_tables.job_folder import JobFolder

    verdict = audit(spark, JobFolder.open(job))
    if not verdict.passed:
        raise RuntimeError("\n".join(verdict.lines()))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as place:
        print(json.dumps(figures(int(sys.argv[1]), place)))

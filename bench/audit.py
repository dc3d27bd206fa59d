"""The cost of auditing a cut: state and loop logs with 1 and with 10 million rows, half of each.

The Spark session already exists, as when a run is audited while it is running: the turn that is not counted starts it.
The benchmark measures rows per second, and how the time grows with the rows. The driver's memory is that of this
process
(Python) and the heap of its Java process, in which Spark's tasks also run on a single machine.

Peer: bare, one process that hashes and decodes the same files and follows the digests, but proves nothing else.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from typing import Any

from bench.large_cut import write_large_cut
from bench.measuring import Limit, Report, Samples, interleaved
from bench.options import Options
from bench.ours import BenchError
from bench.peers import audit_bare, peers
from bench.workloads import AuditWorkload

ROWS = 10_000_000
TIMES = 10
GROWTH_MAX = 10.0
PYTHON_MB_MAX = 500.0
HEAP_MB_MAX = 2_048.0


def run(options: Options) -> Report:
    """Audit a small cut and a large one in turns."""
    from backedge.recovery.spark.sessions.spark_session import close_session, open_session

    rows = options.records or ROWS
    known = peers({"bare": audit_bare.run}, options.peer)
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        small = _written(folder, "small", rows // TIMES, options.seed)
        large = _written(folder, "large", rows, options.seed)
        spark = open_session("bench audit")
        try:
            found = interleaved(
                {
                    "small": lambda: _rows_per_s(spark, small),
                    "large": lambda: _rows_per_s(spark, large),
                    "bare": lambda: known["bare"](large),
                },
                options.turns,
                cold={"large": lambda: _rows_per_s(spark, small), "bare": lambda: 0.0},
            )
            heap_mb = peak_heap_mb(spark)
        finally:
            close_session(spark)
    return compare(found, rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, heap_mb)


def compare(found: dict[str, Samples], rows: int, python_mb: float, heap_mb: float) -> Report:
    """How the time grows, and the memory that it needs."""
    growth = TIMES * found["small"].median / found["large"].median
    ratios = {"bare": found["large"].over(found["bare"])}
    return Report(
        bench="audit",
        unit="rows of state and logs a second",
        turns=len(found["large"].figures),
        figures={name: found[name] for name in ("large", "small")},
        peers={"bare": found["bare"]},
        ratios=ratios,
        limits=(
            Limit(
                f"{TIMES} times the rows take {growth:.1f} times as long, at most {GROWTH_MAX}", growth <= GROWTH_MAX
            ),
            Limit(f"{python_mb:.0f} MB of Python, at most {PYTHON_MB_MAX:.0f}", python_mb <= PYTHON_MB_MAX),
            Limit(f"{heap_mb:.0f} MB of Java heap, at most {HEAP_MB_MAX:.0f}", heap_mb <= HEAP_MB_MAX),
        ),
        ours="large",
        more={"rows": rows, "driver_python_mb": round(python_mb), "driverheap_mb": round(heap_mb)},
    )


def _written(folder: str, job: str, rows: int, seed: int) -> AuditWorkload:
    """Write the cut in a separate process, whose memory does not count for the audit."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return AuditWorkload(pool.apply(write_large_cut, (folder, job, rows, seed)), rows)


def _rows_per_s(spark: Any, workload: AuditWorkload) -> float:
    from backedge.recovery.spark.audit.audit_job import audit
    from backedge.recovery.spark.cut_tables.job_folder import JobFolder

    started_s = time.perf_counter()
    verdict = audit(spark, JobFolder.open(workload.job))
    seconds = time.perf_counter() - started_s
    if not verdict.passed:
        raise BenchError("\n".join(verdict.lines()))
    sizes = verdict.epochs[0].sizes
    if sizes["state_rows"] + sizes["log_batches"] != workload.rows:
        raise BenchError(f"{sizes} are not {workload.rows} rows")
    return workload.rows / seconds


def peak_heap_mb(spark: Any) -> float:
    """The peak size of the heap."""
    pools = spark._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    return sum(pool.getPeakUsage().getUsed() for pool in pools if pool.getType().toString() == "Heap memory") / 2**20

"""backedge.recovery.spark: independent checks of what a run left on disk.

- `sessions/`: starts Spark quietly, or reuses the current session.
- `cut_tables/`: reads a job's folder as tables: verified first, and without running code from a cut.
- `audit/`: checks cuts against nine statements.
- `report/`: the verdict as data, as JSON and as an HTML page.
- `prepare/`: cleans raw input and lays it out for a flow.
- `compare/`: compares the output of a run with the result that Spark computes.

Nothing here imports the engine, and PySpark is imported only here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register `spark.read.format("backedge")` with a session and its executors. See docs/tables.md."""
    # A local import: verdicts and pages must work without PySpark.
    from backedge.recovery.spark.cut_tables.spark_source import register as register_source

    register_source(spark)

"""recovery.spark: what a run left on disk, judged by an engine that had no part in it.

- `sessions/`: starts Spark quietly, or takes the session that is there.
- `cut_tables/`: the folder of a job, verified and read as tables, without running code from a cut.
- `audit/`: the statements that a cut is checked against.
- `report/`: the verdict, as data, as JSON and as a page.
- `prepare/`: raw input cleaned and laid out for a flow.
- `compare/`: what a run gave against what Spark computes.

Nothing here imports the engine, and PySpark is imported here alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Makes `spark.read.format("backedge")` known to a session, on its executors too. See docs/tables.md."""
    # Here, so that what needs no Spark (a verdict, its page) does not import it.
    from recovery.spark.cut_tables.spark_source import register as register_source

    register_source(spark)

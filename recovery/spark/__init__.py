"""recovery.spark: what a run left on disk, judged by an engine that had no part in it.

`session.py` starts Spark (`java.py` looks for Java first, `gateway.py` is its process) or takes the session that is
there. `job.py` reads the folder of a job and verifies what it reads, without Spark.

Cuts as tables: `schemas.py` says which there are, `tables.py` has Spark read them by itself, `source.py` is the format
"backedge", for those who have nothing but a session. `described.py` is what manifests tell, `file_rows.py` what one
file holds, and `decoding.py` makes JSON of pickles and batches without running anything that they name.

`errors.py` has one line for whatever goes wrong. Nothing here imports the engine, and PySpark is imported here alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Makes `spark.read.format("backedge")` known to a session, on its executors too. See docs/tables.md."""
    # Here, so that what needs no Spark (a verdict, its page) does not import it.
    from recovery.spark.source import register as register_source

    register_source(spark)

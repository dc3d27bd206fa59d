"""backedge.recovery.spark.compare: compares two tables as multisets of rows; reads a run's output as a table."""

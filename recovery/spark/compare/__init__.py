"""recovery.spark.compare: two tables as bags of rows, and what a run published as a table."""

"""recovery.spark.audit: the checks of a cut, statement by statement, and the process that audits a live run."""

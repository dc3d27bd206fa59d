"""backedge.recovery.spark.audit: the checks of a cut, and the process that audits a live run."""

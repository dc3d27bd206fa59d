"""backedge.recovery.spark.report: what an audit found, as data, as JSON and as a page."""

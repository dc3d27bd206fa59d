"""backedge.recovery.spark.sessions: Spark sessions that start quietly and leave no process behind."""

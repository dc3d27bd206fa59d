"""recovery.spark.sessions: a Spark session that starts quietly and leaves no process behind."""

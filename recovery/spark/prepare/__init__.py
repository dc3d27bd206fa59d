"""recovery.spark.prepare: raw input cleaned, screened and laid out for the engine."""

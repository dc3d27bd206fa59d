"""backedge.recovery.spark.prepare: cleans raw input, screens it and lays it out for the engine."""

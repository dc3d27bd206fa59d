"""backedge.recovery.spark.cut_tables: the folder of a job as tables for Spark; nothing here runs code from a cut."""

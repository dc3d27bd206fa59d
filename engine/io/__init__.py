"""Sources and sinks: in memory, in files, in databases."""

"""The table of a process class on columns: finding rows by key, and capturing them while they change."""

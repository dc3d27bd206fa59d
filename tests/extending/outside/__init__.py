"""A package that is not ours: a source and a sink over SQLite. It imports nothing but `backedge`."""

"""A package that is not ours: a source, a sink and a store over SQLite. It imports nothing but `backedge`."""

"""Records that travel together: lists and columns, their keys, and how they are divided among tasks."""

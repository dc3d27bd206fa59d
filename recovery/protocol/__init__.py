"""Everything the protocol says, pure: what a task does with barriers, END and markers, and what leads a run."""

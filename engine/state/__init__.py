"""Keyed state and timers of one operator in one task: kept, captured while they change, compacted, restored."""

"""Runs a task again on the inputs that were kept of it."""

"""Vertex programs: in rounds, free-running, and on graphs that change."""

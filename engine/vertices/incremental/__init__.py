"""Vertex programs whose values follow a graph as its edges come and go."""

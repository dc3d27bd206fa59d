"""Judges a simulated run by what it leaves behind, and shares no code with what it judges."""

"""Judges a simulated run by what it leaves behind. It shares data classes with what it judges, no decisions."""

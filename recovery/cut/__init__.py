"""The parts of a cut: pure data."""

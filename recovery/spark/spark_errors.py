"""What goes wrong between Spark and a cut. Each message is one line: the fact, its context and the fix."""

from __future__ import annotations


class SparkJobError(RuntimeError):
    """A Spark job of ours that cannot be done as asked. Catch this one to catch them all."""


class JavaError(SparkJobError):
    """Spark runs on Java, and there is none that it can use."""


class UnreadableError(SparkJobError):
    """There is nothing to be judged: no such job or epoch, a newer format, another key, a file missing or damaged."""


class InvariantError(SparkJobError):
    """An invariant of the user's that is no query over the tables of a cut."""


class ComparisonError(SparkJobError):
    """Two results that cannot be compared."""

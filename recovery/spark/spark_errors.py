"""Errors of the Spark jobs. Each message is one line: the fact, its context and the fix."""

from __future__ import annotations


class SparkJobError(RuntimeError):
    """Base class: a Spark job that cannot be carried out."""


class JavaError(SparkJobError):
    """Spark needs Java and no usable installation was found."""


class UnreadableError(SparkJobError):
    """Nothing can be audited: unknown job or epoch, newer format, wrong key, or a missing or damaged file."""


class InvariantError(SparkJobError):
    """An invariant that is not a valid query over the tables of a cut."""


class ComparisonError(SparkJobError):
    """Two results that cannot be compared."""

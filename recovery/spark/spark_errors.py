"""Errors of the Spark jobs. Each message is one line: the fact, its context and the fix."""

from __future__ import annotations

from backedge.graphs.public import public


@public
class SparkJobError(RuntimeError):
    """Base class: a Spark job that cannot be carried out."""


@public
class JavaError(SparkJobError):
    """Spark needs Java and no usable installation was found.

    Fix: install Java 17 or newer, and let JAVA_HOME or PATH lead to it.
    """


@public
class UnreadableError(SparkJobError):
    """Nothing can be audited: unknown job or epoch, newer format, wrong key, or a missing or damaged file.

    Fix: check the path, the epoch and the key that the message names.
    """


@public
class InvariantError(SparkJobError):
    """An invariant that is not a valid query over the tables of a cut.

    Fix: correct the SQL; docs/tables.md lists tables and columns.
    """


@public
class ComparisonError(SparkJobError):
    """Two results that cannot be compared.

    Fix: give both results the same columns, and name in `KEYS` those that identify a row.
    """


@public
class PreparationError(SparkJobError):
    """The input cannot be prepared with these parameters.

    Fix: correct the parameter or the file that the message names.
    """

"""The parameters of a preparation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backedge.graphs.public import public
from backedge.recovery.spark.spark_errors import SparkJobError


@public
class PreparationError(SparkJobError):
    """The input cannot be prepared with these parameters.

    Fix: correct the parameter or the file that the message names.
    """


@dataclass(frozen=True)
class Recipe:
    """The parameters of a preparation; see `prepare` for their meaning."""

    source: str
    key: str | None
    schema: str | None
    format: str | None
    unique: tuple[str, ...]
    where: str | None
    clean: Mapping[str, str]
    tasks: int

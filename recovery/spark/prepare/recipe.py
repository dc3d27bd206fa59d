"""What a preparation is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from recovery.spark.spark_errors import SparkJobError


class PreparationError(SparkJobError):
    """Input that cannot be prepared as asked."""


@dataclass(frozen=True)
class Recipe:
    """What is asked of a preparation; `prepare` says what each part means."""

    source: str
    key: str | None
    schema: str | None
    format: str | None
    unique: tuple[str, ...]
    where: str | None
    clean: Mapping[str, str]
    tasks: int

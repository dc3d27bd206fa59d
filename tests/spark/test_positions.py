"""What the audit says of how far files were read."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from backedge.recovery.spark.audit.cut_roles import BEFORE, NOW
from backedge.recovery.spark.audit.operator_checks import source_facts
from backedge.recovery.spark.cut_tables.decoding import position_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RANGE = "a.jsonl?size=300&time_ns=5&start=100&stop=200"
GROUP = "a.parquet?size=300&time_ns=5&footer=7&start=0&stop=20&group=1"


class Positions:
    """The positions of one cut and the one before it."""

    def __init__(self, spark: SparkSession, *rows: tuple[str, str, Any]) -> None:
        self._rows = [(role, 1, "in", split, position_in(pickle.dumps(at))) for role, split, at in rows]
        self._spark = spark

    def rows(self, table: str, *roles: str) -> DataFrame:
        columns = "role string, epoch int, operator string, split string, position_int bigint"
        return self._spark.createDataFrame(self._rows, columns)


def faults(spark: SparkSession, *rows: tuple[str, str, Any]) -> list[str]:
    found: Any = Positions(spark, *rows)
    (row,) = source_facts(found).select("faults").collect()
    return [str(fault) for fault in row.faults]


def test_a_position_lies_within_its_file_and_never_goes_back(spark: SparkSession):
    assert faults(spark, (BEFORE, RANGE, (150, 9)), (NOW, RANGE, (207, 3)), (NOW, GROUP, 20)) == []
    (behind,) = faults(spark, (NOW, RANGE, (301, 3)))
    assert "301, outside the split" in behind
    (beyond,) = faults(spark, (NOW, GROUP, 21))
    assert "21, outside the split" in beyond
    (back,) = faults(spark, (BEFORE, RANGE, (207, 3)), (NOW, RANGE, (150, 9)))
    assert "150, before the 207" in back


def test_a_position_whose_meaning_only_its_source_knows_may_go_back(spark: SparkSession):
    assert faults(spark, (BEFORE, "polled", 7), (NOW, "polled", 3)) == []

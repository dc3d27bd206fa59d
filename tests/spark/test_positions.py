"""What the audit says of how far files were read."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from backedge.recovery.spark.audit.cut_roles import BEFORE, NOW
from backedge.recovery.spark.audit.operator_checks import source_facts
from backedge.recovery.spark.cut_tables.decoding import position_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENDS = "size=300&time_ns=5&start=100&stop=200"
SOUND, BEHIND, BACK = (f"{name}.jsonl?{ENDS}" for name in ("sound", "behind", "back"))
GROUP, BEYOND = (f"{name}.parquet?size=300&time_ns=5&footer=7&start=0&stop=20&group=1" for name in ("group", "beyond"))


class Positions:
    """The positions of one cut and the one before it. Each file is of an operator that has its name."""

    def __init__(self, spark: SparkSession, *rows: tuple[str, str, Any]) -> None:
        self._rows = [
            (role, 1, split.partition(".")[0], split, position_in(pickle.dumps(at))) for role, split, at in rows
        ]
        self._spark = spark

    goes_on = "true"

    def rows(self, table: str, *roles: str) -> DataFrame:
        columns = "role string, epoch int, operator string, split string, position_int bigint"
        return self._spark.createDataFrame(self._rows, columns)


def test_a_position_lies_within_its_file_and_never_goes_back_unless_only_its_source_knows_what_it_means(
    spark: SparkSession,
):
    positions: Any = Positions(
        spark,
        *((BEFORE, SOUND, (150, 9)), (NOW, SOUND, (207, 3)), (NOW, GROUP, 20)),
        *((BEFORE, "polled", 7), (NOW, "polled", 3)),
        *((NOW, BEHIND, (301, 3)), (NOW, BEYOND, 21), (BEFORE, BACK, (207, 3)), (NOW, BACK, (150, 9))),
    )
    rows = source_facts(positions).select("operator", "faults").collect()
    found = {row.operator: [fault.story for fault in row.faults] for row in rows}
    assert found["sound"] == found["group"] == found["polled"] == []
    told = {"behind": "301, outside the split", "beyond": "21, outside the split", "back": "150, before the 207"}
    for operator, words in told.items():
        (story,) = found[operator]
        assert words in story

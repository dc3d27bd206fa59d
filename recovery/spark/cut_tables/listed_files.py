"""Reads the files of a table that manifests list: Spark's tasks fetch, verify and decode them.

If Spark read the files itself, they could be exchanged after they were verified. This is a data source and not
`mapInArrow`, which needs pandas.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from backedge.recovery.spark.cut_tables.file_rows import Listed, stored_batches
from backedge.recovery.spark.cut_tables.table_schemas import FILES
from backedge.recovery.spark.spark_errors import UnreadableError
from backedge.recovery.stores.parquet_tables import pa

_TASK_FILES = 16
"""Files per task: starting a task takes as long as reading some small files."""


def read_listed(spark: SparkSession, table: str, files: Sequence[Listed]) -> DataFrame:
    """The rows of files of one table as they were written, with the path of the file in the column `_place`."""
    spark.dataSource.register(ListedFiles)
    return spark.read.format(ListedFiles.name()).option("table", table).option("files", json.dumps(files)).load()


@contextmanager
def unreadable_files() -> Generator[None]:
    """Raise the `UnreadableError` of a task that has read such files, in place of Spark's error, which is long."""
    try:
        yield
    except PySparkException as error:
        if (told := re.search(rf"{UnreadableError.__name__}: (.*)", str(error))) is None:
            raise
        raise UnreadableError(told[1]) from error


class ListedFiles(DataSource):
    """The format of `read_listed`. Options: `table`, and `files` as JSON."""

    @classmethod
    def name(cls) -> str:
        return "backedge-files"

    def schema(self) -> str:
        return f"{FILES[self.options['table']]}, _place string"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options["table"], [tuple(file) for file in json.loads(self.options["files"])])


@dataclass
class _Share(InputPartition):
    """The files that one task reads."""

    files: Sequence[Listed]


class _Reader(DataSourceReader):
    def __init__(self, table: str, files: Sequence[Listed]) -> None:
        self._table = table
        self._files = files

    def partitions(self) -> list[InputPartition]:
        """The files in shares. Spark wants one at least."""
        starts = range(0, max(1, len(self._files)), _TASK_FILES)
        return [_Share(self._files[start : start + _TASK_FILES]) for start in starts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, _Share):
            raise TypeError(f"{partition!r} is not a partition of this reader")
        for file in partition.files:
            path = os.path.join(*file[:2])
            for batch in stored_batches(self._table, *file):
                yield batch.append_column("_place", pa.array([path] * batch.num_rows, pa.string()))

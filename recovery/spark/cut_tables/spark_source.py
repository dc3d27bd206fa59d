"""`spark.read.format("backedge")`: reads a table of a job's cuts by name.

    register(spark)
    spark.read.format("backedge").option("table", "state").option("epoch", "all").load("/data/snapshots/transfers")

Options: `path` (SNAPSHOTS/JOB, or SNAPSHOTS), `job`, `epoch` (a number, "latest" or "all"; default "latest"), `table`.
The key of signed cuts comes from the environment variable BACKEDGE_KEY. Each file is a partition; its digest is
verified before it is decoded. The tables are those of `cut_tables`, which is faster because Spark decodes the values
that it can itself.
"""

from __future__ import annotations

import atexit
import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas import types as arrow_types
from pyspark.sql.types import StructType

from backedge.recovery.spark.cut_tables.file_rows import Listed, batches_of, merged
from backedge.recovery.spark.cut_tables.job_folder import Epochs, JobFolder
from backedge.recovery.spark.cut_tables.manifest_tables import MANIFEST_TABLES, Row, rows_of
from backedge.recovery.spark.cut_tables.table_schemas import TABLES, columns_of
from backedge.recovery.spark.sessions.spark_session import is_local
from backedge.recovery.spark.spark_errors import SparkJobError
from backedge.recovery.stores.keys import signing_key
from backedge.recovery.stores.names import KEYED

_ON_DISK = {"log": ("log", "loop"), "in_flight": ("log", "loop"), "state_layers": ("state", "operator")}
"""Table -> the table whose files it reads, and the column that says what a file belongs to."""

_SHIPPED = ("__init__.py", "version.py", "graphs/**/*.py", "recovery/**/*.py")
"""What Spark's tasks need of Backedge."""


def register(spark: SparkSession) -> None:
    """Register the format with a session, and ship our packages to tasks on a cluster."""
    if not is_local(spark):
        ship(spark)
    spark.dataSource.register(BackedgeSource)


def ship(spark: SparkSession) -> None:
    """Ship our packages to remote tasks. NumPy, PyArrow, msgspec and blake3 must be installed there."""
    spark.addArtifacts(_packed_file(), pyfile=True)


@cache
def _packed_file() -> str:
    """The zip file. It stays until exit because executors may fetch it late; Spark refuses a second of its name."""
    folder = tempfile.mkdtemp(prefix="backedge-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "backedge-recovery.zip")
    Path(path).write_bytes(packed())
    return path


def packed() -> bytes:
    """Our packages as a zip file that Python can import from."""
    root = Path(__file__).absolute().parents[3]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for pattern in _SHIPPED:
            for file in sorted(root.glob(pattern)):
                archive.write(file, file.relative_to(root.parent))
    return packed.getvalue()


@dataclass
class _Rows(InputPartition):
    """Rows that come from manifests."""

    rows: list[Row]


@dataclass
class _Layers(InputPartition):
    """The files with the keyed state of an operator in a task: the last layer first, each with its number."""

    files: list[tuple[int, _File]]


@dataclass
class _File(InputPartition):
    """A file listed in the manifest of a cut."""

    listed: Listed
    cut: dict[str, Any]


class BackedgeSource(DataSource):
    """The format `backedge`."""

    @classmethod
    def name(cls) -> str:
        return "backedge"

    def schema(self) -> str:
        return TABLES[self._table()]

    def reader(self, schema: StructType) -> DataSourceReader:
        table = self._table()
        if schema.fieldNames() != columns_of(TABLES[table]):
            raise SparkJobError(f"table {table!r} has fixed columns: remove .schema(), and select the columns you want")
        return _Reader(table, self._path(), self.options.get("epoch", "latest"), schema)

    def _table(self) -> str:
        table = self.options.get("table", "")
        if table not in TABLES:
            fault = f"there is no table {table!r}" if table else "no table is named"
            raise SparkJobError(f"{fault}: set option('table', ...) to one of {', '.join(TABLES)}")
        return table

    def _path(self) -> str:
        path = self.options.get("path")
        if path is None:
            raise SparkJobError("no folder is named: give load(...) the folder with a run's snapshots")
        return os.path.join(path, self.options.get("job", ""))


class _Reader(DataSourceReader):
    """Sent to every task, so it only holds names; they are resolved when the partitions are created."""

    def __init__(self, table: str, path: str, epoch: str, schema: StructType) -> None:
        self._table = table
        self._path = path
        self._epoch = epoch
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """One partition per file, or a single one with rows from manifests."""
        # The key is looked up here, because it must not travel with the reader.
        folder = JobFolder.open(self._path, signing_key())
        manifests = {epoch: folder.manifest(epoch) for epoch in folder.chosen(_epochs(self._epoch))}
        if self._table in MANIFEST_TABLES:
            return [_Rows(rows_of(self._table, folder, manifests))]
        return [*_files(self._table, folder, manifests)] or [_Rows([])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, _Rows):
            return iter(partition.rows)
        wanted = cast(Any, arrow_types).to_arrow_schema(self._schema, timezone="UTC")
        if isinstance(partition, _Layers):
            files = ((layer, batches_of(self._table, file.listed, file.cut, wanted)) for layer, file in partition.files)
            return merged(files)
        if not isinstance(partition, _File):
            raise TypeError(f"{partition!r} is not a partition of this reader")
        return batches_of(self._table, partition.listed, partition.cut, wanted)


def _epochs(epoch: str) -> Epochs:
    if epoch == "all" or epoch == "latest":
        return epoch
    if not epoch.isdecimal():
        raise SparkJobError(f"{epoch!r} is not an epoch: set option('epoch', ...) to a number, 'latest' or 'all'")
    return [int(epoch)]


def _files(table: str, folder: JobFolder, manifests: dict[int, dict[str, Any]]) -> Iterator[_File | _Layers]:
    if table == "answers":
        for epoch, name, size, digest, operator, segment, by in folder.answers(manifests):
            cut = {"epoch": epoch, "attempt": manifests[epoch]["attempt"], "operator": operator}
            yield _File((folder.path, name, size, digest), {**cut, "segment": segment, "answered_attempt": by})
        return
    on_disk, owner = _ON_DISK.get(table, (table, "operator"))
    layers: dict[tuple[Any, ...], list[tuple[int, _File]]] = {}
    for epoch, attempt, task, index, kind, of, name, size, digest, layer in rows_of("files", folder, manifests):
        if kind == on_disk or (on_disk == "state" and kind in KEYED):
            cut = {"epoch": epoch, "attempt": attempt, "task": task, "task_index": index, owner: of, "layer": layer}
            file = _File((folder.path, name, size, digest), cut)
            if table != "state":
                yield file
            else:
                layers.setdefault((epoch, task, index, of), []).append((layer, file))
    for files in layers.values():
        if files[-1][0] == 0:
            yield from (file for _, file in files)
        else:
            yield _Layers(files[::-1])

"""Every file of the cuts, read and hashed where Spark's tasks run, before a single one is decoded; then its rows."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import functions as F

from graphs.wording import one_line
from recovery.spark.audit.file_checks import SCHEMAS, Fault, TooLargeError, faults_in
from recovery.spark.audit.presence import Described
from recovery.spark.cut_tables.job_folder import JobFolder
from recovery.spark.cut_tables.local_rows import local_frame
from recovery.spark.report.verdict import Facts, Finding, finding
from recovery.spark.spark_errors import UnreadableError
from recovery.stores.folder import Folder
from recovery.stores.names import parts_of, table_of
from recovery.stores.parquet_tables import pa
from recovery.stores.shapes import shown
from recovery.stores.store_errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# It has no types that a checker can read.
_arrow_udf: Any = cast(Any, F).arrow_udf


def verify_files(
    spark: SparkSession, folder: JobFolder, manifests: Iterable[Mapping[str, Any]]
) -> dict[str, list[Fault]]:
    """Hash all files that these manifests name, and look at the rows of each: by name, what is wrong with them.

    Raises if a file is not what was written, or cannot be read.
    """
    files = {file["name"]: file for manifest in manifests for task in manifest["tasks"] for file in task["files"]}
    rows = [(folder.path, name, file["size"], file["sha256"]) for name, file in files.items()]
    if not rows:
        return {}
    frame = local_frame(spark, rows, "folder string, name string, size bigint, sha256 string")
    fault = _arrow_udf(faults, "string")("folder", "name", "size", "sha256")
    wrong = frame.select("name", fault.alias("fault")).where(F.col("fault").isNotNull()).collect()
    told: dict[str, Any] = {row["name"]: json.loads(row["fault"]) for row in wrong}
    for fault in told.values():
        if isinstance(fault, str):
            raise UnreadableError(fault)
    return {name: [(statement, story) for statement, story in found] for name, found in told.items()}


def of_files(cut: Described, faults: Mapping[str, list[Fault]]) -> Iterator[Finding]:
    """What is wrong with the rows of the files of a cut."""
    for id, task in cut.tasks.items():
        for file in task["files"]:
            for statement, story in faults.get(file["name"], ()):
                yield finding(statement, f"{file['name']}: {story}", cut.epoch, task=str(id))


def sizes_of(manifest: Facts) -> Facts:
    """What the manifest says of sizes, over all tasks."""
    tasks = manifest["tasks"]
    files = [file for task in tasks for file in task["files"]]
    logs = [log for task in tasks for log in task["logs"]]
    records = [log["records"] for log in logs]
    return {
        "files": len(files),
        "bytes": sum(file["size"] for file in files),
        "state_rows": sum(task["state_rows"] for task in tasks),
        "log_batches": sum(log["batches"] for log in logs),
        "log_bytes": sum(log["size"] for log in logs),
        "log_records": None if None in records else sum(records),
    }


def fault_of(folder: str, name: str, size: int, sha256: str) -> str | list[Fault] | None:
    """Why a file cannot be read, or what is wrong with its rows; None if it is what was written and nothing is.

    It is opened as a store opens it, without links, and stays open from the first look to the last.

    >>> print(fault_of("/", "nowhere/1/table=rounds/rank.0.parquet", 4, ""))
    /nowhere/1/table=rounds/rank.0.parquet is missing, and a manifest names it: bring it back from a copy
    """
    parts, table = parts_of(name), "".join(table_of(name)[:1]).removeprefix("table=")
    if parts is None or table not in SCHEMAS:
        return f"{shown(name)} is no file of a table in {folder}, and a manifest names it: it is forged"
    path = os.path.join(folder, name)
    try:
        with Folder(folder).open(parts, size) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                return f"{path} was changed: its SHA-256 is not the one in the manifest; bring it back from a copy"
            file.seek(0)
            return faults_in(table, file) or None
    except FileNotFoundError:
        return f"{path} is missing, and a manifest names it: bring it back from a copy"
    except StoreError as error:
        return one_line(error)
    except TooLargeError as error:
        return f"{path} {error}: it is forged, or too large for an audit"
    except (pa.ArrowException, OSError) as error:
        return f"{path} cannot be read ({one_line(error)}): bring it back from a copy"


if TYPE_CHECKING:
    Array = Any
else:
    # Spark asks the types of a function for how it is to be called.
    Array = pa.Array


def faults(folders: Array, names: Array, sizes: Array, digests: Array) -> Array:
    """What is wrong with each file, as JSON, for Spark."""
    files = zip(*(column.to_pylist() for column in (folders, names, sizes, digests)), strict=True)
    found = [fault_of(*file) for file in files]
    return pa.array([None if fault is None else json.dumps(fault) for fault in found], pa.string())

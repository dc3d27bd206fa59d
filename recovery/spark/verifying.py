"""Every file of the cuts, read and hashed where Spark's tasks run, before a single one is decoded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import functions as F

from recovery.spark.errors import UnreadableError
from recovery.spark.job import JobFolder
from recovery.spark.local_rows import local_frame
from recovery.spark.verdict import Facts
from recovery.stores.tables import pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# It has no types that a checker can read.
_arrow_udf: Any = cast(Any, F).arrow_udf


def verify_files(spark: SparkSession, folder: JobFolder, manifests: Iterable[Mapping[str, Any]]) -> int:
    """Hash all files that these manifests name, and say how many there are. Raises if one is not what was written."""
    files = {file["name"]: file for manifest in manifests for task in manifest["tasks"] for file in task["files"]}
    rows = [(os.path.join(folder.path, file["name"]), file["size"], file["sha256"]) for file in files.values()]
    if not rows:
        return 0
    frame = local_frame(spark, rows, "path string, size bigint, sha256 string")
    fault = _arrow_udf(faults, "string")("path", "size", "sha256")
    wrong = frame.select("path", fault.alias("fault")).where(F.col("fault").isNotNull()).limit(1).collect()
    if wrong:
        raise UnreadableError(f"{wrong[0]['path']} {wrong[0]['fault']}: bring it back from a copy")
    return len(rows)


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


def fault_of(path: str, size: int, sha256: str) -> str | None:
    """What is wrong with a file; None if it is what was written.

    >>> fault_of("/nowhere/rank.0.parquet", 4, "")
    'is missing, and a manifest names it'
    """
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            found = file.tell()
    except FileNotFoundError:
        return "is missing, and a manifest names it"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if found != size:
        return f"has {found} bytes, and {size} were written: it is torn or was changed"
    return None if digest == sha256 else "was changed: its SHA-256 is not the one in the manifest"


if TYPE_CHECKING:
    Array = Any
else:
    # Spark asks the types of a function for how it is to be called.
    Array = pa.Array


def faults(paths: Array, sizes: Array, digests: Array) -> Array:
    """What is wrong with each file, for Spark."""
    files = zip(paths.to_pylist(), sizes.to_pylist(), digests.to_pylist(), strict=True)
    return pa.array([fault_of(*file) for file in files], pa.string())

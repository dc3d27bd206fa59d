"""Hashes every file of the cuts in Spark's tasks before decoding it, then checks its rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from backedge.graphs.ids import TaskId
from backedge.graphs.wording import one_line
from backedge.recovery.spark.audit.file_checks import Fault, Span, TooLargeError, faults_in
from backedge.recovery.spark.audit.manifest_checks import CutDocuments
from backedge.recovery.spark.cut_tables.cut_tables import arrow_udf, local_frame
from backedge.recovery.spark.cut_tables.decoding import Array
from backedge.recovery.spark.cut_tables.file_rows import verified_file
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.cut_tables.manifest_tables import files_in, layered_files, shared_files
from backedge.recovery.spark.cut_tables.page_checks import PageError
from backedge.recovery.spark.cut_tables.table_files import TABLES
from backedge.recovery.spark.report.verdict import Facts, Finding
from backedge.recovery.spark.spark_errors import UnreadableError
from backedge.recovery.stores.names import is_of_constant, parts_of, table_of
from backedge.recovery.stores.parquet_tables import pa
from backedge.recovery.stores.shapes import shown


class Listed(NamedTuple):
    """What a manifest says of a file: name, size and digest, the first and the last key group, and what its rows hold.

    `said` is JSON (`file_contents.py`); None if the manifest says nothing of the rows.
    """

    name: str
    size: int
    digest: str
    first_group: int | None = None
    last_group: int | None = None
    said: str | None = None

    @property
    def span(self) -> Span:
        return None if self.first_group is None or self.last_group is None else (self.first_group, self.last_group)


class Verified(NamedTuple):
    """Files with faults, as they are listed; and those that are missing or not what was written, with the reason."""

    faults: Mapping[Listed, list[Fault]]
    unreadable: Mapping[Listed, str]


def verify_files(spark: SparkSession, folder: JobFolder, cuts: Iterable[CutDocuments]) -> Verified:
    """Hash all files of these cuts, and check the rows of those that can be read."""
    rows = [(folder.path, *file) for file in listed_in(cuts)]
    if not rows:
        return Verified({}, {})
    columns = ("folder string", "name string", "size bigint", "digest string", "first_group int", "last_group int")
    frame = local_frame(spark, rows, ", ".join((*columns, "said string")))
    # A file that could not be read may be read the second time: Spark is to call this once for each.
    fault = arrow_udf(faults, "string").asNondeterministic()(*frame.columns)
    wrong: list[Any] = frame.withColumn("fault", fault).where(F.col("fault").isNotNull()).collect()
    found: dict[Listed, list[Fault]] = {}
    unreadable: dict[Listed, str] = {}
    for _, *listed, told in wrong:
        reported: Any = json.loads(told)
        if isinstance(reported, str):
            unreadable[Listed(*listed)] = reported
        else:
            found[Listed(*listed)] = [(statement, story) for statement, story in reported]
    return Verified(found, unreadable)


def listed_in(cuts: Iterable[CutDocuments]) -> list[Listed]:
    """The files that manifests list, once where several say the same of a file.

    A cut cannot be restored if its manifest does not say what is right, whatever that of another cut says.
    """
    found: dict[Listed, None] = {}
    for cut in cuts:
        shared = (Listed(f["name"], f["size"], f["digest"]) for _, f in shared_files(cut.manifest))
        found |= dict.fromkeys((*(file for _, file in _of_tasks(cut)), *shared))
    return list(found)


def _of_tasks(cut: CutDocuments) -> Iterator[tuple[TaskId, Listed]]:
    for id, task in cut.tasks.items():
        said = cut.said[id]
        for layer, file in layered_files(task):
            # Rows of a key group repeat nothing of the manifest.
            is_said = layer == len(task["below"]) and file["groups"] is None
            first, last = file["groups"] or (None, None)
            of_rows = json.dumps(said.get(table_of(file["name"]))) if is_said else None
            yield id, Listed(file["name"], file["size"], file["digest"], first, last, of_rows)


def file_findings(cut: CutDocuments, faults: Mapping[Listed, list[Fault]]) -> Iterator[Finding]:
    for id, listed in _of_tasks(cut):
        for statement, story in faults.get(listed, ()):
            yield cut.wrong(statement, f"{listed.name}: {story}", task=id)


def manifest_sizes(manifest: Facts) -> Facts:
    """Sizes according to the manifest, summed over all tasks."""
    tasks = manifest["tasks"]
    files = files_in(manifest)
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


def check_file(
    folder: str, name: str, size: int, digest: str, span: Span = None, said: str | None = None
) -> str | list[Fault] | None:
    """The reason why a file cannot be read, or the faults in its rows; None if the file is sound.

    `span`: the first and the last key group of a state file; None if its rows belong to none. `said`: what the manifest
    says of the rows.
    Links are not followed.

    >>> print(check_file("/", "nowhere/1/table=rounds/rank.0.parquet", 4, ""))
    /nowhere/1/table=rounds/rank.0.parquet is missing but listed in a manifest: restore it from a backup
    """
    table = "".join(table_of(name)[:1]).removeprefix("table=")
    if not is_of_constant(name) and (parts_of(name) is None or table not in TABLES):
        return f"a manifest lists {shown(name)}, which is not a table file in {folder}: the manifest is forged"
    path = os.path.join(folder, name)
    try:
        with verified_file(folder, name, size, digest) as file:
            return None if is_of_constant(name) else faults_in(table, file, span, said) or None
    except UnreadableError as error:
        return str(error)
    except (TooLargeError, PageError) as error:
        return f"{path} {error}: it is forged or too large to audit"
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        return f"{path} cannot be read ({one_line(error)}): restore it from a backup"


def faults(folders: Array, *listed: Array) -> Array:
    """`check_file` over Arrow arrays; each result as JSON."""
    files = (Listed(*file) for file in zip(*(column.to_pylist() for column in listed), strict=True))
    checked = zip(folders.to_pylist(), files, strict=True)
    found = [check_file(folder, f.name, f.size, f.digest, f.span, f.said) for folder, f in checked]
    return pa.array([None if fault is None else json.dumps(fault) for fault in found], pa.string())

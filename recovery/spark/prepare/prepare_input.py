"""Prepares raw input for a flow: Spark reads, cleans and screens it, and writes Parquet laid out by key group.

    TARGET/data/part-00000.parquet     accepted rows; a flow reads them as Parquet(TARGET/data)
    TARGET/rejected/part-00000.json    rejected rows: the reason, the columns, and the row as it was read
    TARGET/prepared.json               row counts, the schema, the files and their key groups

Only counts are collected. Rows are written twice: once screened, so that the input is read and screened only once, and
once in their final place. The target appears by a rename after everything has been written.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backedge.graphs.options import is_whole
from backedge.graphs.public import public
from backedge.graphs.routing import KEY_GROUPS
from backedge.recovery.spark.sessions.spark_session import reason_of
from backedge.recovery.spark.spark_errors import PreparationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "backedge prepared 1"
NOTE = "prepared.json"


@public
@dataclass(frozen=True)
class Prepared:
    """The result of a preparation. A flow reads the folder `data` as `Parquet(prepared.data)`.

    `tasks` is the parallelism at which each task of the source reads exactly the keys that it keeps. It is 1 if there
    are too few keys for the requested parallelism.
    """

    data: str
    key: str | None
    schema: str
    rows_in: int
    rows_out: int
    rejected: Mapping[str, int]
    tasks: int
    files: tuple[Mapping[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """The content of prepared.json."""
        return {"format": FORMAT, **asdict(self), "files": list(self.files)}


@public
def prepare(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    key: str | None = None,
    schema: str | None = None,
    format: str | None = None,
    unique: Sequence[str] = (),
    where: str | None = None,
    clean: Mapping[str, str] | None = None,
    tasks: int = 1,
) -> Prepared:
    """Read CSV, JSON lines or Parquet, and write the accepted rows as Parquet for a flow that keys them by `key`.

    `flow.read(Parquet(prepared.data))` reads them. Rejected rows are written next to them with the reason, and counted.

    - schema: columns and types as Spark DDL, such as "id BIGINT NOT NULL, amount DOUBLE"; by default Spark infers it.
    - format: csv, json or parquet; by default derived from the file names.
    - unique: columns that must be unique together; of several rows with equal values, one is kept.
    - where: an SQL condition that accepted rows must fulfil.
    - clean: column -> SQL expression for its value; may add columns. Text is trimmed first.
    - tasks: the parallelism of the source that will read the data; each task gets the keys that it keeps.

    An earlier preparation in `target` is replaced. Any other non-empty folder is refused.
    """
    # A local import, so that importing this module does not import Spark.
    from backedge.recovery.spark.prepare.prepared_files import Recipe, lay_out, screen

    recipe = Recipe(source, key, schema, format, tuple(unique), where, clean or {}, tasks)
    check_tasks(tasks)
    check_places(source, target, format)
    with _one_line(source), _replacing(Path(target)) as folder:
        screened = folder / "screened"
        screen(spark, recipe, screened)
        facts = lay_out(spark, recipe, screened, folder)
        shutil.rmtree(screened)
        prepared = Prepared(data=os.path.join(os.path.abspath(target), "data"), key=key, **facts)
        (folder / NOTE).write_text(json.dumps(prepared.to_json(), indent=1) + "\n")
    return prepared


@public
def read_output(spark: SparkSession, path: str, schema: str | None = None) -> DataFrame:
    """Read the published output of a JSON lines, CSV or Parquet sink; staged output is ignored.

    `schema` is Spark DDL; a line that does not match it raises when the rows are used. By default Spark infers types.
    """
    from backedge.recovery.spark.prepare.raw_input import read_published

    with _one_line(path):
        return read_published(spark, path, schema)


def check_tasks(tasks: object) -> None:
    """Raise unless `tasks` is a parallelism that key groups allow. Needs no Spark."""
    if not is_whole(tasks) or not 1 <= tasks <= KEY_GROUPS:
        raise PreparationError(f"tasks={tasks!r} is not a valid parallelism: give a number from 1 to {KEY_GROUPS}")


def check_places(source: str, target: str, format: str | None = None) -> None:
    """Raise if there is nothing to read or the target must not be replaced. Needs no Spark."""
    from backedge.recovery.spark.prepare.raw_input import check_format, format_of

    for place in (source, target):
        if "://" in place:
            raise PreparationError(f"{place} is not on this machine: copy it to a local folder and give its path")
    read, written = (Path(os.path.realpath(place)) for place in (source, target))
    if read == written or read in written.parents or written in read.parents:
        raise PreparationError(f"{target} and {source} overlap: give a target outside the source")
    if written.exists() and not (written.is_dir() and (_is_ours(written) or not any(written.iterdir()))):
        raise PreparationError(f"{target} exists and is not an earlier preparation: give another target, or remove it")
    if format is None:
        format_of(source)
    else:
        check_format(source, format)


def _is_ours(folder: Path) -> bool:
    try:
        return json.loads((folder / NOTE).read_text()).get("format") == FORMAT
    except (OSError, ValueError, AttributeError):
        return False


@contextmanager
def _replacing(target: Path) -> Generator[Path]:
    """A folder next to the target that replaces it if the block succeeds and is removed otherwise."""
    target = Path(os.path.realpath(target))
    mark = secrets.token_hex(8)
    folder = target.with_name(f".{target.name}.preparing-{mark}")
    try:
        folder.mkdir(parents=True)
        yield folder
        if target.exists():
            # A folder cannot be renamed over a non-empty one.
            former = target.with_name(f".{target.name}.former-{mark}")
            target.rename(former)
            folder.rename(target)
            shutil.rmtree(former)
        else:
            folder.rename(target)
    except OSError as error:
        raise PreparationError(
            f"{target} cannot be written ({error}): make it writable, or give another target"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _one_line(source: str) -> Generator[None]:
    """Turn Spark's errors into one-line errors of ours."""
    from pyspark.errors import PySparkException

    java: Any = import_module("py4j.protocol")

    try:
        yield
    except PySparkException as error:
        raise PreparationError(f"{source}: {reason_of(error)}") from error
    except java.Py4JJavaError as error:
        raise PreparationError(f"{source}: {_first_cause(error.java_exception)}") from error


def _first_cause(java_exception: Any) -> str:
    while java_exception.getCause() is not None:
        java_exception = java_exception.getCause()
    return " ".join(str(java_exception.getMessage() or java_exception).split())

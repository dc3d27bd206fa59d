"""Raw input made ready for a flow: read by Spark, cleaned, screened, and written as Parquet laid out by key group.

    TARGET/data/part-00000.parquet     what fits; a flow reads it as Parquet(TARGET/data)
    TARGET/rejected/part-00000.json    what does not: the reason, the columns, and the row as it was read
    TARGET/prepared.json               how many rows of each, the schema, the files and their key groups

Nothing is collected but counts. The rows are written twice: as they were screened, so that they are read and screened
only once, and in their place. The target is put in place by a rename, when all of it is written.
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

from graphs.options import is_whole
from graphs.routing import KEY_GROUPS
from recovery.spark.prepare.recipe import PreparationError, Recipe
from recovery.spark.sessions.spark_session import reason_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "backedge prepared 1"
NOTE = "prepared.json"


@dataclass(frozen=True)
class Prepared:
    """What was prepared. `data` is the folder that a flow reads, as `Parquet(prepared.data)`.

    `tasks` is the parallelism at which each task of a source reads just the keys that it keeps. It is 1 if that cannot
    be at the parallelism that was asked for, since there are too few keys.
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
        """As it stands in prepared.json."""
        return {"format": FORMAT, **asdict(self), "files": list(self.files)}


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
    """Read CSV, JSON lines or Parquet, and write what fits as Parquet, for a flow that keys it by `key`.

    `flow.read(Parquet(prepared.data))` reads it. What does not fit lies beside it, with its reason, and is counted.

    - schema: columns and types in Spark's DDL, as in "id BIGINT NOT NULL, amount DOUBLE"; found by Spark if not given.
    - format: csv, json or parquet; by the endings of the files if not given.
    - unique: columns whose values no two rows share; of rows that do, one is kept.
    - where: a condition in SQL that a good row fulfils.
    - clean: column -> expression in SQL that gives its value, also of a new one; text is trimmed before.
    - tasks: the parallelism of the source that is to read it: each task gets the keys that it keeps.

    An earlier preparation in `target` is replaced. Any other folder is refused, unless it is empty.
    """
    # With the module, Spark would be imported by whoever imports this one.
    from recovery.spark.prepare.prepared_files import lay_out, screen

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


def read_output(spark: SparkSession, path: str, schema: str | None = None) -> DataFrame:
    """What a sink of JSON lines, CSV or Parquet has published in a folder; what is not published yet is not seen.

    A line that does not fit the schema, in Spark's DDL, is an error when the rows are used. Without one, Spark finds
    the types.
    """
    from recovery.spark.prepare.raw_input import read_published

    with _one_line(path):
        return read_published(spark, path, schema)


def check_tasks(tasks: object) -> None:
    """Raise unless a source that keeps to its keys can have so many tasks. This needs no Spark."""
    if not is_whole(tasks) or not 1 <= tasks <= KEY_GROUPS:
        raise PreparationError(f"tasks={tasks!r} is no parallelism: give a number from 1 to {KEY_GROUPS}")


def check_places(source: str, target: str, format: str | None = None) -> None:
    """Raise if there is nothing to read, or what is at the target may not be replaced. This needs no Spark."""
    from recovery.spark.prepare.raw_input import check_format, format_of

    for place in (source, target):
        if "://" in place:
            raise PreparationError(
                f"{place} is not on this machine: give the path of a local folder, and copy it there"
            )
    read, written = Path(source).resolve(), Path(target).resolve()
    if read == written or read in written.parents or written in read.parents:
        raise PreparationError(f"{target} and {source} lie in one another: give a target outside of the source")
    if written.exists() and not (written.is_dir() and (_is_ours(written) or not any(written.iterdir()))):
        raise PreparationError(
            f"{target} is there, and is no earlier preparation that could be replaced: give another, or remove it"
        )
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
    """A folder beside the target, which takes its place if nothing goes wrong, and else is gone."""
    target = Path(os.path.abspath(target))
    mark = secrets.token_hex(8)
    folder = target.with_name(f".{target.name}.preparing-{mark}")
    try:
        folder.mkdir(parents=True)
        yield folder
        if target.exists():
            # A folder cannot be renamed over one that is not empty.
            former = target.with_name(f".{target.name}.former-{mark}")
            target.rename(former)
            folder.rename(target)
            shutil.rmtree(former)
        else:
            folder.rename(target)
    except OSError as error:
        raise PreparationError(f"{target} cannot be written ({error}): make it writable, or give another") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _one_line(source: str) -> Generator[None]:
    """What Spark complains of, in one line."""
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

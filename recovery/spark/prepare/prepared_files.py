"""The two passes of a preparation: screen all rows and write them unordered, then write each row to its file."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pyspark.sql import Column, DataFrame, SparkSession, types
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from backedge.graphs.routing import KEY_GROUPS, groups_of_task, key_groups
from backedge.recovery.spark.cut_tables.decoding import Array
from backedge.recovery.spark.prepare import screening
from backedge.recovery.spark.prepare.raw_input import LINE, OWN, as_is, check_format, format_of, read_raw
from backedge.recovery.spark.prepare.screening import DETAIL, READ, REASON, column_named
from backedge.recovery.spark.spark_errors import PreparationError
from backedge.recovery.stores.parquet_tables import pa, parquet

FILE_BYTES = 32 * 1024 * 1024
"""Approximate compressed size of a file."""

ROW_GROUP_BYTES = 8 * FILE_BYTES
"""Larger than an uncompressed file of that size, so that each file is one row group and one split of a source."""

GROUP, FILE = f"{OWN}group", f"{OWN}file"


@dataclass(frozen=True)
class Recipe:
    """The parameters of a preparation; see `prepare` for their meaning."""

    source: str
    key: str | None
    schema: str | None
    format: str | None
    unique: tuple[str, ...]
    where: str | None
    clean: Mapping[str, str]
    tasks: int


def screen(spark: SparkSession, recipe: Recipe, folder: Path) -> None:
    """Write all rows with the reason for their rejection, null if accepted, and the group of their key."""
    form = format_of(recipe.source) if recipe.format is None else check_format(recipe.source, recipe.format)
    raw = read_raw(spark, recipe.source, form, None if recipe.schema is None else _schema(recipe.schema))
    _check_names(recipe.source, "the schema names", raw.schema.fieldNames(), (*raw.columns, *recipe.clean))
    rows = screening.clean_rows(raw, form, recipe.clean, adds=recipe.schema is None)
    found = screening.schema_of(rows)
    needed = dict.fromkeys(field.name for field in raw.schema if not field.nullable)
    if recipe.key is not None:
        _check_names(recipe.source, "is to be the key", [recipe.key], found.fieldNames())
        _check_key(recipe.key, found)
        needed[recipe.key] = None
        rows = rows.withColumn(GROUP, key_group_of(recipe.key))
    _check_names(recipe.source, "is to be unique", recipe.unique, found.fieldNames())
    rows = screening.reject_nulls(rows, list(needed))
    if recipe.where is not None:
        rows = screening.reject_unless(rows, recipe.where)
    if recipe.unique:
        rows = screening.reject_duplicates(rows, recipe.unique)
    is_bad = F.col(REASON).isNotNull()
    rows = rows.withColumns({DETAIL: F.when(is_bad, F.col(DETAIL)), READ: F.when(is_bad, F.col(READ))})
    rows.write.parquet(as_is(str(folder)))


def lay_out(spark: SparkSession, recipe: Recipe, screened: Path, folder: Path) -> dict[str, Any]:
    """Write the screened rows to their final files; return the facts for prepared.json."""
    rows = spark.read.parquet(as_is(str(screened)))
    good, bad = rows.where(F.col(REASON).isNull()), rows.where(F.col(REASON).isNotNull())
    schema = screening.schema_of(rows)
    group = F.lit(None).cast("int") if recipe.key is None else F.when(F.col(REASON).isNull(), F.col(GROUP))
    counts: list[Any] = [tuple(row) for row in rows.groupBy(F.col(REASON), group.alias(GROUP)).count().collect()]
    wanted = -(-sum(file.stat().st_size for file in screened.iterdir()) // FILE_BYTES)
    dealt = deal_groups([number for _, number, _ in counts if number is not None], recipe.tasks, wanted)
    if recipe.key is None:
        good = good.repartition(max(wanted, recipe.tasks))
    else:
        placed = good.withColumn(FILE, file_of(F.col(GROUP), dealt))
        placed = placed.repartitionById(max(dealt.values(), default=0) + 1, FILE)
        good = placed.sortWithinPartitions(GROUP, column_named(recipe.key))
    _write_good(good.select(*map(column_named, schema.fieldNames())), folder / "data")
    _write_rejected(bad, folder / "rejected")
    return {
        "schema": ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema),
        "rows_in": sum(count for *_, count in counts),
        "rows_out": sum(count for reason, _, count in counts if reason is None),
        "rejected": {name: sum(n for reason, _, n in counts if reason == name) for name in screening.REASONS},
        "tasks": recipe.tasks if is_dealt_to(dealt, recipe.tasks) else 1,
        "files": tuple(_describe_files(folder / "data", dealt)),
    }


def is_dealt_to(dealt: Mapping[int, int], tasks: int) -> bool:
    """Whether each of `tasks` tasks, taking files in turn, reads exactly the keys that it keeps."""
    return all(file % tasks == group * tasks // KEY_GROUPS for group, file in dealt.items())


ONE_FILE = {"maxRecordsPerFile": 0}
"""Each Spark task writes one file, whatever the session says: its name has the number of the task alone."""


def _write_good(rows: DataFrame, folder: Path) -> None:
    rows.write.options(**ONE_FILE).option("parquet.block.size", ROW_GROUP_BYTES).parquet(as_is(str(folder)))
    _rename_parts(folder, ".parquet")


def _write_rejected(rows: DataFrame, folder: Path) -> None:
    read = F.when(F.col(LINE).isNull(), F.col(READ))
    rejected = rows.select(
        F.col(REASON).alias("reason"), F.col(DETAIL).alias("detail"), F.col(LINE).alias("line"), read.alias("record")
    )
    rejected.write.options(**ONE_FILE).json(as_is(str(folder)))
    _rename_parts(folder, ".json")


def _rename_parts(folder: Path, ending: str) -> None:
    """Give Spark's files names that are the same in every run, and remove its marker files."""
    for name in sorted(os.listdir(folder)):
        path = folder / name
        if name[0] in "._":
            path.unlink()
        else:
            path.rename(folder / f"{'-'.join(name.split('-')[:2])}{ending}")


def _describe_files(folder: Path, dealt: Mapping[int, int]) -> Iterator[dict[str, Any]]:
    for number, name in enumerate(sorted(os.listdir(folder))):
        groups = sorted(group for group, file in dealt.items() if file == number)
        yield {"name": name, "rows": parquet.read_metadata(folder / name).num_rows, "key_groups": groups}


def _schema(ddl: str) -> StructType:
    parsed: Any = StructType.fromDDL(ddl)
    if not isinstance(parsed, StructType) or not parsed.fields:
        raise PreparationError(f"schema {ddl!r} has no columns: write it like 'id BIGINT NOT NULL, amount DOUBLE'")
    return parsed


def _check_names(source: str, what: str, names: Any, known: Any) -> None:
    for name in cast("list[str]", names):
        if name not in known:
            raise PreparationError(f"{source} has no column {name!r}, which {what}: its columns are {', '.join(known)}")


def _check_key(key: str, schema: StructType) -> None:
    kind = schema[key].dataType
    if not isinstance(kind, KEY_TYPES):
        raise PreparationError(
            f"column {key!r} has type {kind.simpleString()}, but a key must be text, a number, a boolean or bytes: "
            f"convert it with the expression {key} = CAST({key} AS STRING)"
        )


# -- who reads which key groups ------------------------------------------------------------------------------------
#
# Task i of P reads the files i, i + P, i + 2 P, and so on. So file n holds key groups of task n modulo P, provided that
# the flow keys its records by the same column.


KEY_TYPES = (
    types.StringType,
    types.IntegralType,
    types.FloatType,
    types.DoubleType,
    types.BooleanType,
    types.BinaryType,
)
"""Column types that the engine accepts as keys."""


def deal_groups(groups: Collection[int], tasks: int, files: int) -> dict[int, int]:
    """Key group -> number of its file: about `files` files, none empty, the same number for each task.

    If some task would get no group, the files are laid out for a single task.

    >>> deal_groups([0, 1, 64, 65, 127], tasks=2, files=4)
    {0: 0, 1: 2, 64: 1, 65: 1, 127: 3}
    """
    kept = [sorted(set(groups) & set(groups_of_task(task, tasks))) for task in range(tasks)]
    if not all(kept):
        return deal_groups(groups, 1, files) if tasks > 1 else {}
    parts = max(1, min(files // tasks, *map(len, kept)))
    return {
        group: at * parts // len(of_task) * tasks + task
        for task, of_task in enumerate(kept)
        for at, group in enumerate(of_task)
    }


def key_group_of(column: str) -> Column:
    """The key group of a column, as the engine computes it; arbitrary for null."""
    functions: Any = F
    return functions.arrow_udf(_groups, "int")(column_named(column))


def file_of(group: Column, dealt: dict[int, int]) -> Column:
    return F.element_at(F.array(*(F.lit(dealt.get(number, 0)) for number in range(KEY_GROUPS))), group + 1)


def _groups(keys: Array) -> Array:
    kinds = pa.types
    if kinds.is_integer(keys.type) or kinds.is_floating(keys.type) or kinds.is_boolean(keys.type):
        filled = keys.fill_null(False if kinds.is_boolean(keys.type) else 0)
        return pa.array(key_groups(filled.to_numpy(zero_copy_only=False)), pa.int32())
    # Columns repeat keys, so each distinct key is hashed once.
    encoded = keys.fill_null(b"" if kinds.is_binary(keys.type) else "").dictionary_encode()
    groups = pa.array(key_groups(encoded.dictionary.to_pylist()), pa.int32())
    return groups.take(encoded.indices)

"""Exposes cuts as Spark tables, reading their files in place.

Manifests are small and read here; Spark's tasks read the files that they list, from any store, and verify what they
have read before they decode it. A file may belong
to several cuts: the last state of an ended task is written once, in the folder epoch=last. So rows are joined with
the manifests by file path; folder names have no meaning.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas import types as arrow_types
from pyspark.sql.types import StructType

from backedge.recovery.spark.cut_tables.decoding import PAIRS, RECORDS, identities, pairs, records
from backedge.recovery.spark.cut_tables.file_rows import Listed
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.cut_tables.listed_files import read_listed
from backedge.recovery.spark.cut_tables.manifest_tables import MANIFEST_TABLES, Row, rows_of
from backedge.recovery.spark.cut_tables.table_schemas import FILES, RENAMED, TABLES, VERSION, columns_of
from backedge.recovery.stores.parquet_tables import pa

__all__ = ["TABLES", "VERSION", "cut_tables"]

# PySpark has no type annotations for it.
arrow_udf: Any = cast(Any, F).arrow_udf
# Table on disk -> the tables that are made of it.
_MADE_OF = {"state": {"state", "state_layers"}, "log": {"log", "in_flight"}}
_KIND = columns_of(TABLES["files"]).index("table")
_OF_CUT = "_place string, epoch bigint, attempt bigint"
_PLACE = f"{_OF_CUT}, task string, task_index int, `of` string, layer int"


def cut_tables(
    spark: SparkSession, folder: JobFolder, epochs: Sequence[int], names: Collection[str] = TABLES
) -> dict[str, DataFrame]:
    """Table name -> frame for the given complete cuts, with the tables and columns of `TABLES`.

    `names`: the tables that are wanted. To describe one to Spark takes as long as to read a small one.
    """
    manifests = {epoch: folder.manifest(epoch) for epoch in epochs}
    found = {
        table: local_frame(spark, rows_of(table, folder, manifests), TABLES[table])
        for table in MANIFEST_TABLES
        if table in names
    }
    files = rows_of("files", folder, manifests)
    if "answers" in names:
        found["answers"] = _answers(spark, folder, manifests)
    for table in FILES:
        if table not in ("rows", "answers") and not _MADE_OF.get(table, {table}).isdisjoint(names):
            found[table] = _from_files(spark, folder, table, files)
    if "state" in found:
        found["state_layers"] = _with_values(found["state"])
        if any(file[_KIND] == "rows" for file in files):
            of_tables = _from_files(spark, folder, "rows", files)
            found["state_layers"] = found["state_layers"].unionByName(of_tables, allowMissingColumns=True)
    if "state" in names:
        is_layered = any(task["below"] for manifest in manifests.values() for task in manifest["tasks"])
        found["state"] = _merged(found["state_layers"]) if is_layered else found["state_layers"]
    if "in_flight" in names:
        found["in_flight"] = _in_flight(found["log"])
    return {table: found[table].select(columns_of(ddl)) for table, ddl in TABLES.items() if table in names}


def local_frame(spark: SparkSession, rows: Sequence[Row], columns: str) -> DataFrame:
    """A frame of a small local table, whose `columns` are a DDL string."""
    of: Any = StructType.fromDDL(columns)
    schema = cast(Any, arrow_types).to_arrow_schema(of)
    # A frame from an Arrow table is part of the query plan; a frame from rows is an RDD with its own tasks.
    arrays = [pa.array([_as_pairs(row[place]) for row in rows], field.type) for place, field in enumerate(schema)]
    return cast(Any, spark).createDataFrame(pa.Table.from_arrays(arrays, schema=schema), of)


def _as_pairs(value: Any) -> Any:
    return list(cast("dict[Any, Any]", value).items()) if isinstance(value, dict) else value


def _from_files(spark: SparkSession, folder: JobFolder, table: str, files: Sequence[Row]) -> DataFrame:
    """The rows of a table's files, repeated for each cut that a file belongs to."""
    places: list[Row] = []
    listed: set[Listed] = set()
    for epoch, attempt, task, index, kind, of, name, size, digest, layer in files:
        if kind == table:
            places.append((os.path.join(folder.path, name), epoch, attempt, task, index, of, layer))
            listed.add((folder.path, name, size, digest))
    rows = read_listed(spark, table, sorted(listed))
    owned = F.broadcast(local_frame(spark, places, _PLACE))
    columns = [F.col(name).alias(RENAMED.get(table, {}).get(name, name)) for name in columns_of(FILES[table])]
    joined = rows.select("_place", *columns).join(owned, "_place").drop("_place")
    return joined.withColumnsRenamed({"of": "loop" if table == "log" else "operator"})


def _answers(spark: SparkSession, folder: JobFolder, manifests: Mapping[int, Mapping[str, Any]]) -> DataFrame:
    """The answers that a restore of each cut reads in the journal."""
    groups = folder.answers(manifests)
    places = [
        (os.path.join(folder.path, group.name), group.epoch, manifests[group.epoch]["attempt"], *group[4:])
        for group in groups
    ]
    rows = read_listed(spark, "answers", sorted({(folder.path, *group[1:4]) for group in groups}))
    owned = local_frame(spark, places, f"{_OF_CUT}, operator string, segment bigint, answered_attempt bigint")
    answer = arrow_udf(pairs, PAIRS)(F.lit("pending"), F.when(~F.col("set_aside"), F.col("data")))
    return rows.join(F.broadcast(owned), "_place").withColumn("answer", answer["value"])


# -- values inside pickles and batches ---------------------------------------------------------------------------


def _with_values(state: DataFrame) -> DataFrame:
    """State with `key` and `value` as JSON: typed columns are converted by Spark, the rest decoded from pickles."""
    number = F.col("value_float")
    is_json = ~(F.isnan(number) | F.abs(number).eqNullSafe(float("inf")))
    value = F.coalesce(
        F.col("value_int").cast("string"),
        F.when(is_json, number.cast("string")).when(number.isNotNull(), _json_text(number.cast("string"))),
        _json_text(F.col("value_str")),
        _json_bytes(F.col("value_bytes")),
        F.col("_pair.value"),
    )
    key = F.coalesce(F.col("key_int").cast("string"), _json_text(F.col("key_str")), F.col("_pair.key"))
    return state.withColumn("_pair", arrow_udf(pairs, PAIRS)("kind", "data")).withColumns({"key": key, "value": value})


def _merged(layers: DataFrame) -> DataFrame:
    """Each key as the last layer has it that holds it. What belongs to no key is in one layer only."""
    of_key = Window.partitionBy("epoch", "operator", "task_index", "key_group", "_identity")
    is_last = F.col("layer") == F.max("layer").over(of_key)
    keyed = identified(layers.where(F.col("key_group").isNotNull())).withColumn("_is_last", is_last)
    last = keyed.where(F.col("_is_last") & (F.col("kind") != "gone")).drop("_is_last", "_identity", "_pickled")
    return last.unionByName(layers.where(F.col("key_group").isNull()))


def identified(layers: DataFrame) -> DataFrame:
    """Rows of state by key, with a text as `_identity` that rows of a key group share if their keys are equal."""
    typed = F.coalesce(F.col("key_int").cast("string"), F.concat(F.lit('"'), F.col("key_str"), F.lit('"')))
    pickled = arrow_udf(identities, "string")("kind", "key_group", "data")
    found = layers.withColumn("_pickled", F.when(typed.isNull(), pickled))
    return found.withColumn("_identity", F.coalesce(typed, F.col("_pickled"), F.base64("data"), F.col("key")))


def _json_text(column: Column) -> Column:
    inside = F.to_json(F.array(column))
    return F.when(column.isNotNull(), F.substring(inside, F.lit(2), F.length(inside) - 2))


def _json_bytes(column: Column) -> Column:
    # Spark breaks the text into lines.
    text = F.replace(F.base64(column), F.lit("\r\n"), F.lit(""))
    return F.concat(F.lit('{"base64":"'), text, F.lit('"}'))


def _in_flight(log: DataFrame) -> DataFrame:
    return log.withColumn("_record", F.explode(arrow_udf(records, RECORDS)("payload", "skip"))).withColumns(
        {"record": F.col("_record.record"), "hops": F.col("_record.hops")}
    )

"""Reads raw input with Spark: CSV with a header, JSON lines or Parquet. Lines that cannot be parsed are kept."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from backedge.recovery.spark.spark_errors import UnreadableError

Format = Literal["csv", "json", "parquet"]

FORMATS: tuple[str, ...] = get_args(Format)

OWN = "__backedge_"
"""How the columns begin that a preparation adds to those of the input, until it lays out its files."""

LINE = f"{OWN}line"
"""The column that holds the text of a line that could not be parsed."""

_ENDINGS: dict[Format, tuple[str, ...]] = {
    "csv": (".csv", ".csv.gz"),
    "json": (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz"),
    "parquet": (".parquet",),
}

# The engine's CSV dialect: quotes are doubled, and quoted values may contain line ends.
_CSV = {"header": True, "escape": '"', "multiLine": True, "enforceSchema": False}


@dataclass(frozen=True)
class Raw:
    """Input as it was read (text where the format has no types), and the target types of its columns."""

    rows: DataFrame
    schema: StructType
    columns: tuple[str, ...]


def read_raw(spark: SparkSession, source: str, form: Format, schema: StructType | None) -> Raw:
    """The rows of a file or of the files in a folder. Without a schema, Spark infers the types."""
    path = as_is(source)
    if form == "parquet":
        rows = spark.read.options(recursiveFileLookup=True, pathGlobFilter=_glob(source, form)).parquet(path)
        found = rows.schema
        rows = rows.withColumn(LINE, F.lit(None).cast("string"))
    elif form == "json":
        found = schema or _reader(spark, source, form).json(path).schema
        found = StructType([field for field in found if field.name != LINE])
        rows = _reader(spark, source, form).schema(_with_line(found)).json(path)
    else:
        reader = _reader(spark, source, form).options(**_CSV, ignoreLeadingWhiteSpace=True)
        reader = reader.options(ignoreTrailingWhiteSpace=True)
        found = _columns_of(reader, path, with_types=schema is None)
        text = StructType([StructField(field.name, StringType()) for field in found])
        rows = reader.schema(_with_line(text)).csv(path)
    return Raw(rows, schema or found, tuple(field.name for field in found))


def read_published(spark: SparkSession, path: str, schema: str | None = None) -> DataFrame:
    form = format_of(path)
    reader = spark.read.options(pathGlobFilter=_glob(path, form), recursiveFileLookup=True)
    reader = reader if schema is None else reader.schema(schema)
    if form == "parquet":
        return reader.parquet(as_is(path))
    # By default Spark silently turns lines that do not parse into nulls.
    reader = reader.option("mode", "FAILFAST")
    if form == "json":
        return reader.json(as_is(path))
    reader = reader.options(**_CSV)
    if schema is None:
        reader = reader.schema(_columns_of(reader, as_is(path), with_types=True))
    return reader.csv(as_is(path))


def format_of(source: str) -> Format:
    """The format of a file or of the files in a folder, by their suffixes. Hidden files are ignored.

    >>> format_of("no/such/file.csv")
    Traceback (most recent call last):
    backedge.UnreadableError: no/such/file.csv does not exist: give the path of a file or a folder
    """
    if not os.path.exists(source):
        raise UnreadableError(f"{source} does not exist: give the path of a file or a folder")
    names = list(_files_below(source))
    found = {form: [name for name in names if name.lower().endswith(ends)] for form, ends in _ENDINGS.items()}
    forms: list[Format] = [form for form in _ENDINGS if found[form]]
    if len(forms) > 1:
        raise UnreadableError(
            f"{source} holds files of several formats, such as {found[forms[0]][0]!r} and {found[forms[1]][0]!r}: "
            "choose one (format=, --format), or move the other files away"
        )
    if forms:
        return forms[0]
    others = f"only files such as {names[0]!r}" if names else "and no other visible file"
    raise UnreadableError(
        f"{source} holds no file ending in .csv, .json, .jsonl, .ndjson or .parquet, {others}: "
        "give another path, or the format (format=, --format)"
    )


def check_format(source: str, form: str) -> Format:
    """The given format, if it is supported and there is a file in it."""
    if form not in FORMATS:
        raise UnreadableError(f"format {form!r} is not supported: give one of {', '.join(FORMATS)}")
    known = cast(Format, form)
    if not os.path.exists(source):
        raise UnreadableError(f"{source} does not exist: give the path of a file or a folder")
    if os.path.isdir(source) and not any(name.lower().endswith(_ENDINGS[known]) for name in _files_below(source)):
        raise UnreadableError(f"{source} holds no file ending in {' or '.join(_ENDINGS[known])}: give another folder")
    return known


def as_is(path: str) -> str:
    """A local path as a URI in which Spark sees no glob pattern.

    >>> as_is("/data/a*b.csv")
    'file:///data/a\\\\*b.csv'
    """
    absolute = os.path.abspath(path)
    return "file://" + "".join(f"\\{char}" if char in "{}[]*?\\" else char for char in absolute)


def _reader(spark: SparkSession, source: str, form: Format) -> DataFrameReader:
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": LINE, "recursiveFileLookup": True}
    return spark.read.options(**options, pathGlobFilter=_glob(source, form))


def _columns_of(reader: DataFrameReader, path: str, with_types: bool) -> StructType:
    """The columns of CSV files, as text or with inferred types."""
    # When inferring types with multiLine, Spark treats the path as a pattern even if it is escaped. Readers keep their
    # options, so multiLine is set back afterwards.
    reader = reader.option("multiLine", not {"\\", ","} & set(path)).option("inferSchema", with_types)
    found = reader.csv(path).schema
    reader.option("multiLine", True)
    return found


def _glob(source: str, form: Format) -> str:
    """The pattern of the files to read in a folder; a file given by name may have any suffix."""
    return f"*{{{','.join(_ENDINGS[form])}}}" if os.path.isdir(source) else "*"


def _with_line(schema: StructType) -> StructType:
    """The schema for reading, with all columns nullable; NOT NULL is checked later."""
    fields = [StructField(field.name, field.dataType) for field in schema]
    return StructType([*fields, StructField(LINE, StringType())])


def _files_below(source: str) -> Iterator[str]:
    if not os.path.isdir(source):
        yield os.path.basename(source)
        return
    for folder, folders, files in os.walk(source):
        folders[:] = sorted(_visible(folders))
        yield from (os.path.relpath(os.path.join(folder, name), source) for name in sorted(_visible(files)))


def _visible(names: Sequence[str]) -> list[str]:
    return [name for name in names if name[0] not in "._"]

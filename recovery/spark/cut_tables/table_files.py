"""Opens the files of a cut for Arrow: each has the columns of its table, and pages that some store would write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from backedge.recovery.spark.cut_tables.page_checks import ColumnPages, Leaf, pages_of
from backedge.recovery.stores.parquet_tables import ROWS_KINDS, ROWS_NAMES, pa, parquet
from backedge.recovery.stores.record_tables import LOG, REPEATING_IN_LOG, ROUNDS, TRANSACTIONS
from backedge.recovery.stores.state_table import REPEATING, STATE

_SCHEMAS: Mapping[str, Any] = {"log": LOG, "transactions": TRANSACTIONS, "state": STATE, "rounds": ROUNDS}
_REPEATING: Mapping[str, tuple[str, ...]] = {"state": REPEATING, "log": REPEATING_IN_LOG}
TABLES = (*_SCHEMAS, "rows")

_BATCH_ROWS = 10_000
_AT_ONCE_BYTES = 256 << 20


class TableFile(NamedTuple):
    """An open file of a table, and the pages of each of its columns."""

    parquet: Any
    pages: Sequence[ColumnPages]

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Its rows. Those that are large on average, or repeat large values, are decoded a few at a time."""
        each = max((of_column.dictionary for of_column in self.pages), default=0)
        each += sum(of_column.size for of_column in self.pages) // max(self.parquet.metadata.num_rows, 1)
        rows = min(_BATCH_ROWS, max(1, _AT_ONCE_BYTES // max(each, 1)))
        return self.parquet.iter_batches(batch_size=rows, columns=columns)


def opened_table(table: str, file: Any) -> TableFile:
    """Open a file whose bytes have been verified.

    Raises `PageError` if no store writes such a file, or an error of pyarrow if it is not Parquet with these columns.
    """
    opened = parquet.ParquetFile(file)
    _check_types(table, opened.schema_arrow)
    return TableFile(opened, pages_of(file, _leaves(table, opened.schema_arrow)))


def _check_types(table: str, found: Any) -> None:
    """Raise unless a file has the columns of a table, of the types with which a store reads them."""
    if table == "rows":
        kinds = [str(kind).partition("<")[0] for kind in found.types]
        parts = [field.type for kind in found.types[1:] for field in kind] if kinds == ROWS_KINDS else []
        are_right = found.names == ROWS_NAMES and bool(parts)
        are_right &= all(pa.types.is_primitive(kind) or pa.types.is_string(kind) for kind in parts)
    else:
        wanted = _SCHEMAS[table]
        are_right = (found.names, found.types) == (wanted.names, wanted.types)
    if not are_right:
        raise pa.ArrowInvalid(f"its columns are not those of a {table} table")


def _leaves(table: str, schema: Any) -> list[Leaf]:
    """The columns that have pages. Those of a struct have no place in the checks, so their names do not matter."""
    repeating = _REPEATING.get(table, ())
    kinds = [(f.name, part.type) for f in schema for part in (f.type if pa.types.is_struct(f.type) else (f,))]
    return [Leaf(name, pa.types.is_string(kind) or pa.types.is_binary(kind), name in repeating) for name, kind in kinds]

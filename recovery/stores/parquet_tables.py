"""Parquet files of plain columns, which Spark reads without our code.

Tables are written and read with their schema, so a file with other columns is refused. In this package only this module
reads and writes Parquet. pyarrow ships no types, so its objects are `Any`.

`pa.array`, `pa.scalar` and `to_numpy` import pandas if it is installed, which takes 0.3 s in each process of a run that
writes its first cut. `arrow_array` and `numbers_in` do the same for the columns of our tables without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from backedge.recovery.stores.store_errors import SnapshotCorruptError

pa: Any = import_module("pyarrow")
parquet: Any = import_module("pyarrow.parquet")

CODEC = "snappy"
_SAMPLES, SAMPLE_BYTES = 16, 4_096
_SMALLER = 0.9
_LARGE_BYTES = 1 << 20
ROWS_NAMES = ["key_group", "key", "value"]
ROWS_KINDS = ["int32", "struct", "struct"]

_BYTES_MAX = (1 << 31) - 1
"""The size of an Arrow column of texts or bytes, whose offsets have 32 bits."""


def schema(columns: Mapping[str, str]) -> Any:
    """Build the schema of a table. `columns` maps each name to the name of a pyarrow type.

    >>> schema({"split": "string", "data": "binary"}).names
    ['split', 'data']
    """
    return pa.schema([pa.field(name, getattr(pa, kind)()) for name, kind in columns.items()])


def from_rows(of: Any, rows: Sequence[Sequence[Any]]) -> Any:
    columns: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [() for _ in of]
    arrays = [arrow_array(column, field.type) for field, column in zip(of, columns, strict=True)]
    return pa.table(arrays, schema=of)


def arrow_array(values: Sequence[Any] | npt.NDArray[Any], kind: Any) -> Any:
    """Build an Arrow array of numbers, booleans, texts or bytes; None is null.

    >>> arrow_array(["a", None, "bc"], pa.string()).to_pylist(), arrow_array([True, False], pa.bool_()).to_pylist()
    (['a', None, 'bc'], [True, False])
    >>> arrow_array([], pa.int64()).to_pylist(), arrow_array([None, 7], pa.int32()).to_pylist()
    ([], [None, 7])
    """
    if pa.types.is_dictionary(kind):
        return arrow_array(values, kind.value_type).dictionary_encode().cast(kind)
    nulls = None
    if not isinstance(values, np.ndarray) and None in values:
        nulls = _bits([value is not None for value in values])
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        texts = [b"" if value is None else value.encode() if isinstance(value, str) else value for value in values]
        ends = np.cumsum([0, *map(len, texts)])
        if ends[-1] > _BYTES_MAX:
            return pa.array(values, kind)
        data = [pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(texts))]
    else:
        numbers = values if nulls is None else [0 if value is None else value for value in values]
        is_bits = pa.types.is_boolean(kind)
        data = [_bits(numbers) if is_bits else pa.py_buffer(np.ascontiguousarray(numbers, kind.to_pandas_dtype()))]
    return pa.Array.from_buffers(kind, len(values), [nulls, *data])


def _bits(values: Sequence[Any] | npt.NDArray[Any]) -> Any:
    return pa.py_buffer(np.packbits(np.asarray(values, np.bool_), bitorder="little"))


def numbers_in(column: Any) -> npt.NDArray[Any]:
    """Return the numbers of a column, without a copy if it is in one piece. Where it is null, any number may stand.

    >>> numbers_in(pa.chunked_array([arrow_array([1, 2], pa.int32()), arrow_array([3], pa.int32())])).tolist()
    [1, 2, 3]
    """
    kind = column.type.to_pandas_dtype()
    parts = [
        np.frombuffer(part.buffers()[1], kind, len(part), part.offset * np.dtype(kind).itemsize)
        for part in column.chunks
        if len(part)
    ]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, kind)


def to_rows(table: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def encode(table: Any, repeating: Sequence[str] = ()) -> bytes:
    """Encode a table as a Parquet file.

    The columns `repeating` repeat a few values and get a dictionary. The other integer columns are delta-encoded. A
    column without nulls is declared as such, so that the positions of nulls are not written. In a large table, bytes
    that compression makes no smaller are not compressed.
    """
    numbers = [field.name for field in table.schema if pa.types.is_integer(field.type) and field.name not in repeating]
    fields = zip(table.schema, table.columns, strict=True)
    exact = pa.schema([field.with_nullable(column.null_count > 0) for field, column in fields])
    exactly = pa.table(table.columns, schema=exact)

    def write(sink: Any, codecs: str | dict[str, str]) -> None:
        parquet.write_table(
            exactly,
            sink,
            compression=codecs,
            use_dictionary=list(repeating),
            column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
            write_statistics=False,
            store_schema=False,
            row_group_size=max(1, table.num_rows),
        )

    if table.nbytes < _LARGE_BYTES:
        sink = pa.BufferOutputStream()
        write(sink, CODEC)
        return sink.getvalue().to_pybytes()
    # A stream that grows would copy everything again and again.
    space = pa.allocate_buffer(2 * table.nbytes)
    sink = pa.FixedSizeBufferWriter(space)
    write(sink, _codecs(table))
    return bytes(memoryview(space)[: sink.tell()])


def _codecs(table: Any) -> str | dict[str, str]:
    """How to compress each column of a large table."""
    if any(map(pa.types.is_struct, table.schema.types)):
        return CODEC
    return {name: CODEC if _column_shrinks(table.column(name)) else "none" for name in table.schema.names}


def _column_shrinks(column: Any) -> bool:
    if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)) or not column.num_chunks:
        return True
    data = max(column.chunks, key=lambda chunk: chunk.nbytes).buffers()[2]
    return data is None or shrinks(data)


def shrinks(data: Any) -> bool:
    """Whether compression is worth it for bytes such as these. It is tried with samples, if there are many.

    >>> shrinks(bytes(100_000)), shrinks(np.random.default_rng(1).bytes(100_000)), shrinks(b"few")
    (True, False, True)
    """
    if len(data) < _SAMPLES * SAMPLE_BYTES:
        return True
    view = memoryview(data)
    sample = b"".join(view[start : start + SAMPLE_BYTES] for start in sample_starts(len(data)))
    return pa.compress(sample, CODEC).size < _SMALLER * len(sample)


def sample_starts(size: int) -> list[int]:
    """Start positions of the samples of a buffer with `size` bytes.

    They are unevenly spaced: values are often equally long, and evenly spaced samples would all show the same part of
    them, such as their headers.

    >>> sample_starts(200_000)[:4], sample_starts(65_536)[:4]
    ([0, 17693, 26983, 44677], [0, 4096, 8192, 12288])
    """
    step = size // _SAMPLES
    return [n * step + int(n * 0.618 % 1 * (step - SAMPLE_BYTES)) for n in range(_SAMPLES)]


def decode(data: bytes, of: Any, path: str) -> Any:
    """Decode a Parquet file whose bytes have been verified. Its columns must be those of the schema `of`."""
    table = _read(data, path)
    if (table.schema.names, table.schema.types) != (of.names, of.types):
        raise _not_ours(path, f"its columns are {table.schema.names}, not {of.names}, or of other types")
    return pa.table(table.columns, schema=of)


def decode_rows(data: bytes, path: str) -> Any:
    """Decode a file with rows of a table, whose columns are part of its key or its value."""
    table = _read(data, path)
    kinds = [str(kind).partition("<")[0] for kind in table.schema.types]
    if (table.schema.names, kinds) != (ROWS_NAMES, ROWS_KINDS):
        raise _not_ours(path, f"its columns are {table.schema.names}, not {ROWS_NAMES}, or of other types")
    return table


def _read(data: bytes, path: str) -> Any:
    try:
        return parquet.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise _not_ours(path, str(error)) from error


def _not_ours(path: str, reason: str) -> SnapshotCorruptError:
    return SnapshotCorruptError(
        f"{path} is what the manifest names, and no table of this version: {reason}; read it with the version that "
        "wrote it"
    )

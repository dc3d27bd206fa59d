"""Digest and record count of each payload in a log, computed in one pass."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import functions as F

from recovery.spark.cut_tables.plain_pickles import UnreadablePickleError, check_nesting, check_pickle
from recovery.stores.parquet_tables import pa
from recovery.stores.record_tables import records_in_batch

if TYPE_CHECKING:
    from pyspark.sql import Column

    Array = Any
else:
    # Spark derives the calling convention from the annotations.
    Array = pa.Array

_INSPECTED = "struct<after: bigint, records: bigint>"


def inspect_payloads(payload: str, before: str) -> Column:
    """A column with `after`, the channel's digest after this payload, and `records`, null if unknown."""
    return cast(Any, F).arrow_udf(digests, _INSPECTED)(payload, before)


def digests(payloads: Array, befores: Array) -> Array:
    """`inspect_payloads` over Arrow arrays."""
    after: list[int] = []
    records: list[int | None] = []
    for payload, before in zip(payloads.to_pylist(), befores.to_pylist(), strict=True):
        # The stored value may be forged, and a digest has 32 bits.
        after.append(zlib.crc32(payload, before & 0xFFFFFFFF))
        records.append(_records_in(payload))
    arrays = [pa.array(after, pa.int64()), pa.array(records, pa.int64())]
    return pa.StructArray.from_arrays(arrays, ["after", "records"])


def _records_in(payload: bytes) -> int | None:
    if payload[:1] not in (b"M", b"A"):
        try:
            check_pickle(payload)
            check_nesting(payload)
        except UnreadablePickleError:
            return None
    return records_in_batch(payload)

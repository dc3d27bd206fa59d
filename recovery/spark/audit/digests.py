"""Digest and record count of each payload in a log, computed in one pass."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import functions as F

from backedge.recovery.spark.audit.file_checks import records_in
from backedge.recovery.stores.parquet_tables import pa

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
        records.append(records_in(payload))
    arrays = [pa.array(after, pa.int64()), pa.array(records, pa.int64())]
    return pa.StructArray.from_arrays(arrays, ["after", "records"])

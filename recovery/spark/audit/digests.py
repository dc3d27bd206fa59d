"""The payloads of a log, looked at once: the digest that each gives, and how many records it holds."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import functions as F

from recovery.stores.parquet_tables import pa
from recovery.stores.record_tables import records_in_batch

if TYPE_CHECKING:
    from pyspark.sql import Column

    Array = Any
else:
    # Spark asks the types of a function for how it is to be called.
    Array = pa.Array

_LOOKED_AT = "struct<after: bigint, records: bigint>"


def looked_at(payload: str, before: str) -> Column:
    """A column with `after`, the digest of the channel behind this payload, and `records`, null if nobody can tell."""
    return cast(Any, F).arrow_udf(digests, _LOOKED_AT)(payload, before)


def digests(payloads: Array, befores: Array) -> Array:
    """The same, for Spark."""
    after: list[int] = []
    records: list[int | None] = []
    for payload, before in zip(payloads.to_pylist(), befores.to_pylist(), strict=True):
        # What stands there may be anything; a digest has 32 bits.
        after.append(zlib.crc32(payload, before & 0xFFFFFFFF))
        records.append(records_in_batch(payload))
    arrays = [pa.array(after, pa.int64()), pa.array(records, pa.int64())]
    return pa.StructArray.from_arrays(arrays, ["after", "records"])

"""Equality of Spark values, by type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    from pyspark.sql import Column


def comparable(value: Column, kind: DataType) -> Column:
    """The value in a form that can be grouped and sorted: maps become sorted lists of entries, at any depth."""
    if not _holds_map(kind):
        return value
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda element: comparable(element, kind.elementType))
    if isinstance(kind, StructType):
        fields = [comparable(value[part.name], part.dataType).alias(part.name) for part in kind.fields]
        return F.when(value.isNotNull(), F.struct(*fields))
    if not isinstance(kind, MapType):
        raise TypeError(f"a {kind.simpleString()} holds no map")

    def entry(pair: Column) -> Column:
        key, entered = comparable(pair["key"], kind.keyType), comparable(pair["value"], kind.valueType)
        return F.struct(key.alias("key"), entered.alias("value"))

    return F.array_sort(F.transform(F.map_entries(value), entry))


def nullable(kind: DataType) -> DataType:
    """The type with nulls allowed at every depth, so that nullability neither differs nor affects casts."""
    match kind:
        case ArrayType():
            return ArrayType(nullable(kind.elementType))
        case MapType():
            return MapType(nullable(kind.keyType), nullable(kind.valueType))
        case StructType():
            return StructType([StructField(part.name, nullable(part.dataType)) for part in kind.fields])
        case _:
            return kind


def differs_in_type(found: DataType, wanted: DataType) -> str | None:
    """The reason why values of these types cannot be compared; None if they can."""

    def are_compatible(here: Any, there: Any) -> bool:
        if here == there or isinstance(here, NullType) or isinstance(there, NullType):
            return True
        if isinstance(here, NumericType) and isinstance(there, NumericType):
            return True
        if isinstance(here, StringType) and isinstance(there, DateType | TimestampType):
            return True
        match here, there:
            case ArrayType(), ArrayType():
                return are_compatible(here.elementType, there.elementType)
            case MapType(), MapType():
                return are_compatible(here.keyType, there.keyType) and are_compatible(here.valueType, there.valueType)
            case StructType(), StructType():
                return here.names == there.names and all(
                    are_compatible(a.dataType, b.dataType) for a, b in zip(here, there, strict=True)
                )
            case _:
                return False

    if are_compatible(found, wanted):
        return None
    return f"{found.simpleString()} in the result and {wanted.simpleString()} in the reference"


def is_lossless(value: Column, found: DataType, wanted: DataType) -> Column:
    """Whether casting a value to the wanted type preserves it."""
    if isinstance(found, NullType):
        return F.lit(True)
    cast = value.try_cast(wanted)
    if isinstance(found, StringType):
        return value.isNull() | cast.isNotNull()
    return comparable(cast.try_cast(found), found).eqNullSafe(comparable(value, found))


def within(found: Column, wanted: Column, kind: DataType, tolerance: float) -> Column:
    """Whether a number, or each number in an array, is within the tolerance."""
    if isinstance(kind, ArrayType):
        pairs = F.zip_with(found, wanted, lambda one, other: within(one, other, kind.elementType, tolerance))
        near = (F.size(found) == F.size(wanted)) & F.forall(pairs, lambda pair: pair)
        return found.eqNullSafe(wanted) | F.coalesce(near, F.lit(False))
    infinite = F.lit(float("inf"))
    allowed = F.lit(float(tolerance)) * F.greatest(F.lit(1.0), F.abs(wanted))
    # Spark sorts NaN above infinity, so NaN never passes here; an expected NaN passes as an equal value.
    near = (F.abs(wanted) < infinite) & (F.abs(found - wanted) <= allowed)
    return found.eqNullSafe(wanted) | F.coalesce(near, F.lit(False))


def _holds_map(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _holds_map(kind.elementType)
    if isinstance(kind, StructType):
        return any(_holds_map(part.dataType) for part in kind.fields)
    return isinstance(kind, MapType)

"""Codes of keys that are neither numbers, text nor tuples: dates and times, decimals, UUIDs and members of enums.

As for all keys, equal keys have equal codes, in every process and run: `Decimal("1.5")` and 1.5 are one key. Loaded
when such a key is first seen.
"""

from __future__ import annotations

import math
import zlib
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any
from uuid import UUID

_BEGINNING = datetime(1970, 1, 1)  # subtracted from times without a zone
_MICROSECOND = timedelta(microseconds=1)
_DIGITS_MAX = 4_300
"""The largest exponent of a decimal: it is compared with integers and fractions, which have all of its digits."""


def code_of(key: Any) -> Any | None:
    """An integer, or another key that has the same code; None if such a key has no stable one.

    >>> code_of(date(2024, 1, 1)), code_of(Decimal("1.50")), code_of(object()) is None
    (738886, 1.5, True)
    """
    if isinstance(key, datetime):
        # As Python compares them: by the time in UTC if they have a zone, and `fold` makes no difference.
        offset = key.replace(fold=0).utcoffset() or timedelta(0)
        return (key.replace(tzinfo=None, fold=0) - _BEGINNING - offset) // _MICROSECOND
    if isinstance(key, date):
        return key.toordinal()
    if isinstance(key, timedelta):
        return key // _MICROSECOND
    if isinstance(key, UUID):
        return zlib.crc32(key.bytes)
    if isinstance(key, Decimal | Fraction):
        return _like_a_number(key)
    if isinstance(key, Enum):
        return zlib.crc32(f"{type(key).__name__}.{key.name}".encode())
    return None


def _like_a_number(key: Decimal | Fraction) -> Any | None:
    if isinstance(key, Decimal) and not key.is_finite():
        return None if key.is_nan() else math.copysign(math.inf, key)
    if isinstance(key, Decimal) and key and abs(key.adjusted()) > _DIGITS_MAX:
        return None
    numerator, denominator = key.as_integer_ratio()
    if denominator == 1:
        return numerator
    try:
        nearest = numerator / denominator
    except OverflowError:
        return numerator, denominator
    return nearest if nearest == key else (numerator, denominator)

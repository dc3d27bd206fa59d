"""How fast a source may be read: so many records, or so many bytes, a second over all its tasks."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.options import is_above_zero

OFF = "off"
_RATE = re.compile(r"((?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?) ?(|B|kB|MB|GB)(?:/s)?")
_UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}


class Rate(Struct, frozen=True):
    """A limit on what is read in a second: `per_s` records, or bytes.

    >>> str(Rate(500.0)), str(Rate(2e6, in_bytes=True)), str(Rate(0.25))
    ('500/s', '2MB/s', '0.25/s')
    """

    per_s: float
    in_bytes: bool = False

    def __str__(self) -> str:
        if not self.in_bytes:
            return f"{self.per_s:g}/s" if self.per_s < 1e6 else f"{self.per_s:.0f}/s"
        unit = max(
            (unit for unit in _UNITS if unit and self.per_s >= _UNITS[unit]), key=_UNITS.__getitem__, default="B"
        )
        return f"{self.per_s / _UNITS[unit]:g}{unit}/s"


def rate_in(given: object) -> Rate | None:
    """The rate that a user gives: a number of records, text such as "500/s" or "2MB/s", or for no limit None or "off".

    >>> rate_in(500), rate_in("2.5MB/s"), rate_in("off")
    (Rate(per_s=500, in_bytes=False), Rate(per_s=2500000.0, in_bytes=True), None)
    """
    if given is None or given == OFF:
        return None
    value: Any = given
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    per_s: Any = float(found[1]) * _UNITS[found[2]] if found else value
    if not is_above_zero(per_s):
        raise BadOptionError(
            f"rate={given!r} is no rate: give records per second above 0, as in 500 or '500/s', bytes, as in '2MB/s' "
            "(kB, MB, GB), or 'off'"
        )
    return Rate(per_s, in_bytes=bool(found and found[2]))

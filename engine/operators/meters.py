"""The counters and histograms of a process class: `ctx.counter("fetched").add(1)`, `ctx.histogram("s").observe(0.3)`.

They count what the hooks of a task have done in this attempt, so records that are processed again after a crash count
again. They are no state: no cut has them. Only the thread of the task touches them, also when it reports them, about
once a second.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections import Counter as Sums
from collections.abc import Sequence
from math import inf
from typing import Any

from backedge.graphs.task_errors import MisuseError, show
from backedge.recovery.stores.run_status import CountedStatus, HistogramStatus

NAMES_MAX = 50
"""How many counters and histograms an operator may have: each is a series in Prometheus, a histogram some twenty."""

BOUNDS = tuple(float(f"{digit}e{power}") for power in range(-3, 4) for digit in (1, 2, 5))
"""The upper ends of the buckets of a histogram: from a thousandth to 5,000. One more bucket has what is above."""

LARGEST = sys.float_info.max
"""Where sums stay: what is above it is no figure in a status."""

_LABELS = (*map(str, BOUNDS), "inf")
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,59}")


class Counter:
    __slots__ = ("_what", "total")

    def __init__(self, what: str) -> None:
        self._what = what
        self.total: float = 0

    def add(self, amount: float = 1) -> None:
        if not 0 <= amount < inf:
            raise MisuseError(f"{self._what}.add got {show(amount)}, but a counter only grows: give 0 or more")
        self.total = _sum(self.total, _plain(amount))


class Histogram:
    """How many observed values are in each bucket, and the sum of all."""

    __slots__ = ("_what", "buckets", "total")

    def __init__(self, what: str) -> None:
        self._what = what
        self.buckets = [0] * len(_LABELS)
        self.total: float = 0.0

    def observe(self, value: float) -> None:
        """Note a value, such as a duration in seconds or a length."""
        if not 0 <= value < inf:
            raise MisuseError(f"{self._what}.observe got {show(value)}: give an amount of 0 or more")
        self.buckets[bisect_left(BOUNDS, value)] += 1
        self.total = _sum(self.total, _plain(value))


class Meters:
    """Those of one operator in one task, by name.

    >>> meters = Meters("fetch")
    >>> meters.counter("fetched").add(2)
    >>> meters.histogram("seconds").observe(0.3)
    >>> meters.counted().counters, meters.counted().histograms["seconds"].buckets
    ({'fetched': 2}, {'0.5': 1})
    """

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    def counter(self, name: str) -> Counter:
        found = self._counters.get(name)
        if found is None:
            found = self._counters[name] = Counter(self._checked("counter", name))
        return found

    def histogram(self, name: str) -> Histogram:
        found = self._histograms.get(name)
        if found is None:
            found = self._histograms[name] = Histogram(self._checked("histogram", name))
        return found

    def _checked(self, kind: str, name: Any) -> str:
        what = f"operator {self._operator!r}: ctx.{kind}({show(name)})"
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise MisuseError(f"{what} has no usable name: give up to 60 letters, digits and '_'")
        if len(self._counters) + len(self._histograms) == NAMES_MAX:
            raise MisuseError(
                f"{what} is one more than the {NAMES_MAX} that an operator may have: name what happens, not the record "
                "to which it does"
            )
        return what

    def counted(self) -> CountedStatus:
        return CountedStatus(
            {name: counter.total for name, counter in self._counters.items()},
            {
                name: HistogramStatus(
                    sum(histogram.buckets),
                    histogram.total,
                    {label: count for label, count in zip(_LABELS, histogram.buckets, strict=True) if count},
                )
                for name, histogram in self._histograms.items()
            },
        )


def _plain(amount: Any) -> float:
    """The number without a type of NumPy: its small ones overflow when they are added."""
    return min(amount, LARGEST) if type(amount) is int else float(amount)


def _sum(one: float, other: float) -> float:
    return min(one + other, LARGEST)


def added(several: Sequence[CountedStatus]) -> CountedStatus:
    """What several tasks have counted together.

    >>> one = CountedStatus({"a": 1}, {"b": HistogramStatus(1, 0.3, {"0.5": 1})})
    >>> added([one, one])
    CountedStatus(counters={'a': 2}, histograms={'b': HistogramStatus(count=2, sum=0.6, buckets={'0.5': 2})})
    """
    counters: dict[str, float] = {}
    histograms: dict[str, HistogramStatus] = {}
    for each in several:
        for name, total in each.counters.items():
            counters[name] = _sum(counters.get(name, 0), total)
        for name, more in each.histograms.items():
            known = histograms.get(name, HistogramStatus())
            buckets = Sums(known.buckets) + Sums(more.buckets)
            histograms[name] = HistogramStatus(known.count + more.count, _sum(known.sum, more.sum), dict(buckets))
    return CountedStatus(counters, histograms)

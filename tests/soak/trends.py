"""Whether a figure of a soak grows: its slope, robustly, and the verdict.

The first quarter of the time is left out: caches fill and processes come up. What is left is cut into bins, whose
medians count, so a few outliers do nothing. The slope is that of Theil and Sen, the median of the slopes of all pairs.
The figure has a trend if

- by that slope it has grown by more than its tolerance, which is in its own unit, and
- it still grows: of the thirds of the time, the median of the last is above that of the middle by a quarter of the
  tolerance. What has risen to a new level and stays there, or swings, has no trend.

The tolerance is what a leak exceeds within an hour and noise does not. A short soak finds only what leaks fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import median

from msgspec import Struct

WARM_UP = 0.25
BINS = 60
POINTS_MIN = 6

Point = tuple[float, float]
"""Seconds since the beginning, and a value."""


class Trend(Struct):
    """Medians of the first and the last third, slope, growth in the time that was judged. Few points are not judged."""

    first: float
    last: float
    slope_per_h: float = 0.0
    growth: float = 0.0
    is_growing: bool = False
    is_judged: bool = True


def trend_of(points: Sequence[Point], tolerance: float) -> Trend:
    """The trend of a figure.

    >>> trend_of([(t, 100 + t / 10) for t in range(1_000)], tolerance=20).is_growing
    True
    >>> trend_of([(t, 100 + t % 17) for t in range(1_000)], tolerance=20).is_growing
    False
    """
    begin_s, end_s = (points[0][0], points[-1][0]) if points else (0.0, 0.0)
    binned = _binned([point for point in points if point[0] >= begin_s + WARM_UP * (end_s - begin_s)])
    if len(binned) < POINTS_MIN:
        level = median(value for _, value in points) if points else 0.0
        return Trend(level, level, is_judged=False)
    slope = median((late - early) / (t - s) for (s, early), (t, late) in combinations(binned, 2) if t > s)
    growth = slope * (binned[-1][0] - binned[0][0])
    third = len(binned) // 3
    parts = binned[:third], binned[third:-third], binned[-third:]
    first, middle, last = (median(value for _, value in part) for part in parts)
    return Trend(first, last, slope * 3600, growth, growth > tolerance and last - middle > tolerance / 4)


def _binned(points: Sequence[Point]) -> list[Point]:
    size = max(1, -(-len(points) // BINS))
    parts = (points[start : start + size] for start in range(0, len(points), size))
    return [(median(at for at, _ in part), median(value for _, value in part)) for part in parts]

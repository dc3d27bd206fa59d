"""Measures cases in turns, and reports the results."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from statistics import median
from typing import Any, TypeVar

TURNS_MIN = 5

Workload = TypeVar("Workload")

Case = Callable[[], float]
"""Measures once and gives a figure."""


def warm_page_cache(folder: str, mb: float) -> None:
    """Write a file of this size, and remove it: what is written next takes the same pages.

    The host of a virtual machine takes pages back that have been free for seconds. To get them again can take longer
    than anything else in writing a large file, and a process that writes right after another one is spared that.
    """
    megabyte = bytes(1_000_000)
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(ceil(mb)):
            file.write(megabyte)


@dataclass(frozen=True)
class Samples:
    """The figures of one case, a figure a turn."""

    figures: tuple[float, ...]

    @property
    def median(self) -> float:
        """The reported figure."""
        return median(self.figures)

    @property
    def spread(self) -> float:
        """The spread of the turns, as a share of the median."""
        return (max(self.figures) - min(self.figures)) / self.median

    def over(self, other: Samples) -> float:
        """The ratio to the other: the median over turns, so that a slow moment of the machine affects both."""
        return median(mine / others for mine, others in zip(self.figures, other.figures, strict=True))


def interleaved(cases: Mapping[str, Case], turns: int, cold: Mapping[str, Case] | None = None) -> dict[str, Samples]:
    """Measure every case once per turn. An additional first turn is not counted, because everything is cold.

    `cold` says what that turn does for some cases instead, if measuring them takes long. Where there is one turn alone,
    which is a trial, the others have none before it.
    """
    for name, case in cases.items():
        if cold and name in cold:
            cold[name]()
        elif turns > 1:
            case()
    figures: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(turns):
        for name, case in cases.items():
            figures[name].append(case())
    return {name: Samples(tuple(found)) for name, found in figures.items()}


@dataclass(frozen=True)
class Limit:
    """The limit of a figure, and whether it holds."""

    claim: str
    holds: bool


def at_least(ratios: Mapping[str, float], limits: Mapping[str, float]) -> tuple[Limit, ...]:
    """The limits of the ratios that were measured."""
    return tuple(
        Limit(f"ratios.{name}: {ratios[name]:.2f}, at least {least}", ratios[name] >= least)
        for name, least in limits.items()
        if name in ratios
    )


@dataclass(frozen=True)
class Report:
    """The results of a benchmark. `figures` and `peers` are in `unit`, unless their name ends in another unit.

    `ours` names the figure that the ratios are about, where there is one; `more` goes into the JSON as it is.
    """

    bench: str
    unit: str
    turns: int
    figures: Mapping[str, Samples]
    peers: Mapping[str, Samples]
    ratios: Mapping[str, float]
    limits: tuple[Limit, ...]
    ours: str = ""
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def ok(self) -> bool:
        """Whether every limit holds."""
        return all(limit.holds for limit in self.limits)

    def table(self) -> str:
        """The report for people."""
        rows = [
            (name, f"{found.median:10.3f}", f"{min(found.figures):10.3f}", f"{found.spread:7.0%}")
            for name, found in {**self.figures, **self.peers}.items()
        ]
        width = max(len(name) for name, *_ in rows)
        lines = [f"{self.bench}: {self.unit}; {self.turns} turns", f"{'':{width}}     median         min  spread"]
        lines += [f"{name:{width}} {' '.join(cells)}" for name, *cells in rows]
        lines += [f"ratios.{name}: {ratio:.2f}" for name, ratio in self.ratios.items()]
        lines += [f"{name}: {value}" for name, value in self.more.items()]
        lines += [f"{'holds' if limit.holds else 'MISSED':6} {limit.claim}" for limit in self.limits]
        return "\n".join(lines)

    def as_json(self, load_before: float = 0.0) -> str:
        """For a program, in one line. `load` is the machine's load average, ours included; `load_before` is without."""
        found: dict[str, Any] = {
            "bench": self.bench,
            "unit": self.unit,
            "turns": self.turns,
            "cores": os.cpu_count(),
            "load_before": round(load_before, 1),
            "load": round(os.getloadavg()[0], 1),
            "figures": {name: _told(samples.median) for name, samples in self.figures.items()},
            "peers": {name: _told(samples.median) for name, samples in self.peers.items()},
            "ratios": {name: _told(ratio) for name, ratio in self.ratios.items()},
            "spread": {name: _told(samples.spread) for name, samples in {**self.figures, **self.peers}.items()},
            "missed": [limit.claim for limit in self.limits if not limit.holds],
            "ok": self.ok,
            **self.more,
        }
        if self.ours:
            found["ours"] = found["figures"][self.ours]
        return json.dumps(found)


def ours_and_peers(
    ours: Case, workload: Workload, peers: Mapping[str, Callable[[Workload], float]], turns: int
) -> dict[str, Samples]:
    """Measure ours, and each peer on the same workload, in turns.

    >>> ours_and_peers(lambda: 2.0, 4.0, {"double": lambda workload: workload * 2}, turns=1)["double"].median
    8.0
    """
    return interleaved({"ours": ours, **{name: partial(run, workload) for name, run in peers.items()}}, turns)


def beside_peers(
    bench: str,
    unit: str,
    found: Mapping[str, Samples],
    limits: Mapping[str, float],
    *,
    is_rate: bool,
    more: Mapping[str, Any] | None = None,
) -> Report:
    """The report of one case, ours, beside its peers: how many times faster it is. A figure is a rate or a time.

    >>> found = {"ours": Samples((2.0,)), "bare": Samples((4.0,))}
    >>> [beside_peers("any", "s", found, {}, is_rate=is_rate).ratios for is_rate in (True, False)]
    [{'bare': 0.5}, {'bare': 2.0}]
    """
    ours = found["ours"]
    others = {name: samples for name, samples in found.items() if name != "ours"}
    ratios = {name: ours.over(peer) if is_rate else peer.over(ours) for name, peer in others.items()}
    return Report(
        bench=bench,
        unit=unit,
        turns=len(ours.figures),
        figures={"ours": ours},
        peers=others,
        ratios=ratios,
        limits=at_least(ratios, limits),
        ours="ours",
        more=more or {},
    )


def _told(figure: float) -> float:
    """The significant digits; small values stay above 0."""
    return float(f"{figure:.4g}")

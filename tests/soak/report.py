"""What came of a soak: what was counted and measured while it ran, how much figures may grow, and the verdict."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from threading import Event, Lock

from msgspec import Struct

from backedge.recovery.stores.store_errors import StoreError
from backedge.recovery.stores.store_schemes import store_at
from tests.soak.trends import Point, Trend, trend_of

TOLERANCES = {
    "memory MB": 40.0,
    "descriptors": 30.0,
    "sockets": 25.0,
    "threads": 12.0,
    "processes": 50.0,
    "connections to PostgreSQL": 10.0,
    "temporary folders": 30.0,
    "entries of the chain": 150.0,
    "other files of the job": 80.0,
    "files of a job at its end": 60.0,
    "start s": 2.0,
    "restore s": 2.0,
    "cut s": 0.5,
    "GCS: memory MB": 200.0,
    "GCS: descriptors": 100.0,
    "GCS: sockets": 100.0,
    "raylet: memory MB": 80.0,
    "raylet: descriptors": 100.0,
    "raylet: sockets": 100.0,
}
"""How much a figure may grow in the time that is judged, by its name or the end of that.

A chain has 64 to 128 entries. Processes, and what Ray's hold open for them, swing with the number of runs that are
alive. The GCS of Ray remembers every actor that has died, up to 100,000.
"""

STALL_S = 120.0
"""A fault begins every four seconds, and lasts for twelve at most unless it waits for a client."""

NOT_JUDGED = "Spark"
"""The memory of a Java grows to its limit before it is collected."""

MESSAGE_CHARACTERS_MAX = 2_000
MESSAGE_TOLD_MAX = 200


class Progress:
    """A soak while it runs.

    - folder: for jobs, removed at the end. kept: for the jobs that somebody has to look at.
    - over: no fault happens any more, and lives end. interrupted: it is to end now.
    - failures: what makes the verdict red, as it is noted.
    - events: what explains a figure: the second, and a fault or a run that was resumed.
    - happened, missed: fault -> how often, and how often it found nobody. happened_s: when any of them happened.
    - points: figure -> its values over time.
    """

    def __init__(self, seconds: float, folder: Path, kept: Path) -> None:
        self.seconds = seconds
        self.folder, self.kept = folder, kept
        self.over, self.interrupted = Event(), Event()
        self.failures: list[str] = []
        self.events: list[tuple[float, str]] = []
        self.happened_s: list[float] = []
        self.happened, self.missed, self.counted = Counter[str](), Counter[str](), Counter[str]()
        self.points: dict[str, list[Point]] = defaultdict(list)
        self.began_s = time.monotonic()
        self._lock = Lock()

    @property
    def now_s(self) -> float:
        """Seconds since the beginning."""
        return round(time.monotonic() - self.began_s, 1)

    def fail(self, where: str, what: object, folder: str = "") -> None:
        """Something is wrong that no fault excuses; its folder is kept. After an interruption, everything is."""
        if not self.interrupted.is_set():
            is_there = os.path.isdir(folder) or "://" in folder
            kept = tempfile.mkdtemp(prefix=f"{where.split()[0]}-", dir=self.kept) if is_there else ""
            # Others may be writing and removing, and a store may be away.
            with suppress(shutil.Error, OSError, StoreError):
                _copy(folder, kept)
            what = str(what)[-MESSAGE_CHARACTERS_MAX:].rstrip()
            self.failures.append(f"{self.now_s:.0f} s, {where}: {what}{kept and f'; kept in {kept}'}")

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.counted[what] += number

    def note_fault(self, fault: str, target: str, has_happened: bool, why: str = "") -> None:
        """A fault has happened, or has found nobody."""
        with self._lock:
            (self.happened if has_happened else self.missed)[fault] += 1
            self.happened_s += [self.now_s] * has_happened
        self.events.append((self.now_s, f"{fault}: {target}{'' if has_happened else f', found nobody {why}'}"))

    def fail_if_stalled(self) -> None:
        """No fault happens for a long time only if what makes them happen is stuck."""
        times = sorted([0.0, *self.happened_s, self.seconds])
        for begin_s, end_s in pairwise(times):
            if end_s - begin_s > STALL_S:
                self.fail("the soak itself", f"no fault happened between {begin_s:.0f} and {end_s:.0f} s")

    def measure(self, figure: str, value: float) -> None:
        self.points[figure].append((self.now_s, round(value, 3)))

    def line(self) -> str:
        """How far it is."""
        faults = f"{self.happened.total()} faults, {self.missed.total()} found nobody"
        wrong = (
            f"{len(self.failures)} WRONG: {self.failures[-1][:MESSAGE_TOLD_MAX]}" if self.failures else "nothing wrong"
        )
        return f"{self.now_s / 60:.1f} of {self.seconds / 60:g} min: {faults}; {_listed(self.counted)}; {wrong}"


def _copy(job: str, to: str) -> None:
    """Copy a job from a folder, or from another store."""
    if "://" not in job:
        shutil.copytree(job, to, dirs_exist_ok=True)
        return
    store = store_at(job)
    for name in store.list():
        path = Path(to, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.read(name))


class Figure(Struct):
    """One figure, its points and its trend."""

    name: str
    points: list[Point]
    tolerance: float
    trend: Trend
    is_bad: bool

    @staticmethod
    def of(name: str, points: Iterable[Point]) -> Figure:
        """Judge a figure. Threads note values in no strict order."""
        tolerance = TOLERANCES.get(name, TOLERANCES[name.rpartition(": ")[2]])
        trend = trend_of(ordered := sorted(points), tolerance)
        return Figure(name, ordered, tolerance, trend, trend.is_growing and not name.startswith(NOT_JUDGED))

    def words(self) -> str:
        """The trend in words."""
        trend = self.trend
        growth = f"{trend.slope_per_h:+.3g} an hour, {trend.growth:+.3g} in the time judged, {self.tolerance:g} allowed"
        return f"{trend.first:.4g} to {trend.last:.4g}, {growth if trend.is_judged else 'too few points'}"


class Report(Struct):
    """The result of a soak, ready for JSON. It is green if there are no failures."""

    seed: int
    minutes: float
    failures: list[str]
    happened: dict[str, int]
    missed: dict[str, int]
    counted: dict[str, int]
    events: list[tuple[float, str]]
    figures: list[Figure]

    @staticmethod
    def of(progress: Progress, seed: int) -> Report:
        """Judge what was found. A fault that was drawn several times and never happened is a failure, too."""
        figures = sorted((Figure.of(*each) for each in sorted(progress.points.items())), key=lambda one: not one.is_bad)
        failures = [
            *progress.failures,
            *(
                f"never happened: {what}"
                for what, n in progress.missed.items()
                if n > 1 and not progress.happened[what]
            ),
            *(f"it grows: {figure.name}: {figure.words()}" for figure in figures if figure.is_bad),
        ]
        counts = map(dict, (progress.happened, progress.missed, progress.counted))
        return Report(seed, progress.seconds / 60, failures, *counts, progress.events, figures)

    def lines(self) -> list[str]:
        """The report for a terminal."""
        happened, missed, counted = map(_listed, (self.happened, self.missed, self.counted))
        return [
            f"faults: {happened}",
            f"found nobody: {missed}",
            f"counted: {counted}",
            *(f"{figure.name}: {figure.words()}" for figure in self.figures),
            *(f"WRONG: {failure}" for failure in self.failures),
            f"{'RED' if self.failures else 'green'}: {self.minutes:g} minutes, seed {self.seed}",
        ]


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {what}" for what, number in sorted(counts.items()))

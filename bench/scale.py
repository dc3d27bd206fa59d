"""How time and memory grow with the graph, the state and the logs: the exponents matter, and not the times.

Graphs, of three shapes, without Ray (`scale_of_graphs.py`): operators of 100 tasks each, with a hundred channels for a
task; as many operators as tasks; ten operators with all tasks, of which one edge is all to all. Every step of a run
that is no task's own: from the declaration of the flow to its plan, checks and tasks; the claim of an attempt; an epoch
with an acknowledgement from each task; a probe; the end of all tasks; a restore, with the same and with other numbers
of tasks; its manifest, written and read.

Keyed state (`scale_of_keys.py`): numbers by key in one task, captured, written, verified, changed, written as a delta,
read with it, and read by one of two tasks; and the same of a table, up to 4 GB. Logs (`scale_of_logs.py`): the records
of a loop that a cut has to keep, and that go through its head again, or through one of two.

Runs on Ray (`scale_of_runs.py`): up to 200 tasks in 2 and in 10 processes; their start, cuts, a death and the end.
Spark's audit (`scale_of_audits.py`).

Each size has a process of its own. Figures are CPU seconds at the largest size; for runs and audits, seconds by the
clock. `exponents` has the slope of each step between its largest two sizes, over tasks and channels, keys, records or
rows, on logarithms: 1 is linear. A step below 20 ms at the smaller size has none. The limit applies to every exponent.
With --records, sizes are cut to so many tasks, keys, records and rows: for a short trial.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench.measuring import Limit, Report, Samples
from bench.options import Options

EXPONENT_MAX = 1.4
"""Memory that no cache holds makes equal work dearer, and the machine may be busy: linear steps have up to 1.3."""
SECONDS_MIN = 0.02
TASKS = (100, 1_000, 3_000, 10_000)
SIZES: Mapping[str, tuple[str, Sequence[int]]] = {
    "stages": ("graphs stages", TASKS),
    "operators": ("graphs operators", TASKS),
    "wide": ("graphs wide", TASKS),
    "values": ("keys values", (1_000_000, 10_000_000, 50_000_000)),
    "columns": ("keys columns", (1_250_000, 12_500_000, 50_000_000)),
    "log": ("logs", (1_000_000, 5_000_000, 10_000_000)),
    "2 processes": ("runs 2", (200,)),
    "10 processes": ("runs 10", (50, 100, 200)),
    "spark": ("audits", (1_000_000, 10_000_000)),
}
"""The sizes of each case, and what is run for each of them: a module and its first arguments."""


def run(options: Options) -> Report:
    """Measure each size in a process of its own, once."""
    found = {
        case: [measure(of, size) for size in sizes if options.records is None or size <= options.records]
        for case, (of, sizes) in SIZES.items()
        if options.records is None or sizes[0] <= options.records
    }
    return judged(found)


def measure(of: str, size: int) -> dict[str, Any]:
    """The figures of one size."""
    command = [sys.executable, "-m", *f"bench.scale_of_{of} {size}".split()]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return json.loads(next(line for line in reversed(lines) if line.startswith("{")))  # Ray may print others


def judged(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Report:
    """The report: times at the largest size, exponents and memory."""
    figures: dict[str, Samples] = {}
    exponents: dict[str, float] = {}
    peaks_mb: dict[str, int] = {}
    for case, sizes in found.items():
        for step in sizes[0]["steps"]:
            name = f"{case}: {step}"
            seconds, peak_mb = sizes[-1]["steps"][step]
            figures[f"{name}_s"] = Samples((max(seconds, 1e-6),))
            peaks_mb[name] = round(peak_mb)
            if len(sizes) > 1 and (before := sizes[-2]["steps"][step][0]) >= SECONDS_MIN:
                exponents[name] = round(exponent(before, seconds, *map(amount, sizes[-2:])), 2)
    limits = tuple(
        Limit(f"{name} grows with exponent {slope}, at most {EXPONENT_MAX}", slope <= EXPONENT_MAX)
        for name, slope in exponents.items()
    )
    largest = {case: {**sizes[-1]} for case, sizes in found.items()}
    for size in largest.values():
        del size["steps"]
    more = {"exponents": exponents, "peak_mb": peaks_mb, "sizes": largest}
    return Report("scale", "seconds", 1, figures, {}, {}, limits, more=more)


def amount(size: Mapping[str, Any]) -> int:
    """What the time is related to: keys, records, rows, or tasks and channels."""
    named = [size[name] for name in ("keys", "records", "rows") if name in size]
    return named[0] if named else size["tasks"] + size["channels"]


def exponent(before: float, after: float, smaller: int, larger: int) -> float:
    """The slope on logarithms.

    >>> exponent(1.0, 4.0, 10, 20)
    2.0
    """
    return math.log(after / before) / math.log(larger / smaller)

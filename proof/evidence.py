"""`python -m proof evidence`: runs seeds, walks graphs, breaks each rule, and writes the figures to docs/evidence.md.

They are written only if all is as it must be: nothing is violated, every walk has come to its end, every break is
found, and every fault that was made to happen is survived. So the page has figures of clean runs alone.

How much is run is given in counts, not in time: the same commit gives the same figures.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from typing import Any, cast

from backedge.engine.simulation.breaks import BREAKS
from proof.broken_rules import CRASHES as CRASHES_OF_BREAKS
from proof.broken_rules import how_found
from proof.explorer import Exploration
from proof.runner import Summary, processes, run_in_parallel
from proof.walks import bounds_of, names, walk

PAGE = Path(__file__).resolve().parents[1] / "docs" / "evidence.md"
BEGIN, END = "<!-- begin: figures that `make proof` writes -->\n", "<!-- end: figures -->\n"
SEEDS = 2_000
CRASHES = 5
LONG = (
    "two overlapping epochs, two inputs, an abort",
    "rounds",
    "splits that are found, unaligned",
)
"""Graphs whose walks take minutes each. `python -m proof explore` walks them, too."""
COLUMNS = 120
SHOWN_MAX = 9


@dataclass
class Evidence:
    """What was found.

    - explored: the walk of each graph. breaks: what finds each break; None if nothing does.
    - faults: what `python -m tests.faults --json` has reported of each fault that it was asked for.
    """

    seeds: range
    rule: str | None
    schedules: Summary
    explored: dict[str, Exploration] = field(default_factory=dict[str, Exploration])
    breaks: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    faults: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    seconds: float = 0.0

    def wrong(self) -> Iterator[str]:
        """What is not as it must be, a line each."""
        for failed in sorted(self.schedules.failed, key=lambda failed: failed.steps)[:SHOWN_MAX]:
            more = " --pipelines" * failed.of_pipelines + f" --break {self.rule}" * (self.rule is not None)
            call = f"python -m proof run --seed {failed.seed} --crashes {CRASHES}{more}"
            yield f"seed {failed.seed}: {failed.violations[0]}\n  its story: {call}"
        if self.rule is not None and not self.schedules.failed:
            yield f"break {self.rule} was planted, and no seed has shown it: figures of a broken rule are no evidence"
        for name, found in self.explored.items():
            yield from found.violations
            if not found.complete and not found.violations:
                yield f"{name}: not every schedule was walked"
        for rule, how in self.breaks.items():
            if how is None:
                yield f"break {rule}: nothing finds it, so nothing checks this rule: {BREAKS[rule].meaning}"
        for fault in self.faults:
            if not fault["survived"]:
                what, number = "was not survived" if fault["happened"] else "did not happen", fault["number"]
                yield f"fault {number} ({fault['fault']}) {what}: python -m tests.faults --only {number}"


def reported(faults: Path | None) -> list[dict[str, Any]]:
    """What a file says that `python -m tests.faults --json` has printed."""
    return [] if faults is None else list(map(json.loads, faults.read_text().splitlines()))


def gather(seeds: range, faults: Sequence[dict[str, Any]] = (), rule: str | None = None) -> Evidence:
    """Run everything. A violation in the seeds ends it: the rest would take minutes. `rule`: a planted break."""
    started = time.monotonic()
    _say(f"{len(seeds):,} seeds")
    found = Evidence(seeds, rule, run_in_parallel(seeds, CRASHES, rule), faults=list(faults))
    if not found.schedules.failed:
        graphs = [name for name in names() if name not in LONG]
        with processes(os.cpu_count()) as pool:
            for name, (walked, seconds) in zip(graphs, pool.map(walk, graphs), strict=True):
                _say(f"{name}: {walked.states:,} states, {seconds} s")
                found.explored[name] = walked
            _say(f"{len(BREAKS)} breaks")
            found.breaks = dict(zip(BREAKS, pool.map(how_found, BREAKS), strict=True))
    found.seconds = time.monotonic() - started
    return found


def publish(found: Evidence, page: Path) -> int:
    """Write the figures into the page, if nothing is wrong. Returns the exit code."""
    if wrong := list(found.wrong()):
        print(f"{page} is left as it is:", *wrong, sep="\n", file=sys.stderr)
        return 1
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        print(f"{page} has no place for figures: put the lines {BEGIN}{END} into it", file=sys.stderr)
        return 1
    page.write_text(before + begin + figures(found) + end + after)
    _say(f"{page} is written")
    return 0


def figures(found: Evidence) -> str:
    """The part of the page with figures."""
    said = fill(
        f"Written on {datetime.now(UTC):%Y-%m-%d} for commit {_commit()}, with Python {platform.python_version()} on "
        f"{os.cpu_count()} cores, in {found.seconds:,.0f} s without the faults. The same seeds and graphs have "
        "the same counts in another run of that commit.",
        COLUMNS,
    )
    parts = [said, _totals(found), _schedules(found.schedules), _explored(found.explored), _breaks(found.breaks)]
    return "\n\n".join(part for part in (*parts, _faults(found.faults)) if part) + "\n"


def _totals(found: Evidence) -> str:
    counts, explored = found.schedules.counts, found.explored.values()
    survived = [f"{len(found.faults)} of {len(found.faults)}"] if found.faults else []
    return _table(
        ("what", "how many"),
        [
            (f"seeds run, with at most {CRASHES} crashes at random steps each", _range(found.seeds)),
            ("schedules of a job with two pipelines among them", counts["schedules_of_pipelines"]),
            ("complete cuts judged; those with records in a loop's log", (counts["cuts"], counts["cuts_with_log"])),
            ("restores; those with such records", (counts["restores"], counts["restores_with_log"])),
            ("violations", len(found.schedules.failed) or "none"),
            ("small graphs of which every schedule was walked", len(found.explored)),
            (
                "states visited; steps between them",
                (sum(e.states for e in explored), sum(e.transitions for e in explored)),
            ),
            ("points at which everything may crash", sum(e.crash_points for e in explored)),
            (
                "complete cuts judged; those with records in a log",
                (sum(e.cuts for e in explored), sum(e.cuts_with_log for e in explored)),
            ),
            ("violations", sum(len(e.violations) for e in explored) or "none"),
            ("rules broken on purpose, and found", f"{sum(map(bool, found.breaks.values()))} of {len(found.breaks)}"),
            *(("faults made to happen on Ray, disks and servers, and survived", text) for text in survived),
        ],
    )


def _schedules(summary: Summary) -> str:
    return fill(
        f"Flows drawn: {_counted(summary.topologies)}. Policies: {_counted(summary.policies)}. Faults that happened: "
        f"{_counted(summary.faults)}. Situations: {_counted(summary.happened)}.",
        COLUMNS,
        break_on_hyphens=False,
    )


def _explored(explored: Mapping[str, Exploration]) -> str:
    rows = [
        (name, _counted(bounds_of(name)), e.states, e.transitions, e.crash_points, e.cuts, e.ends)
        for name, e in explored.items()
    ]
    left = ", ".join(f"*{name}*" for name in names() if name not in explored)
    columns = ("every schedule of", "with at most", "states", "steps", "crash points", "cuts", "ends")
    return _table(columns, rows) + "\n\n" + fill(f"Left to `python -m proof explore`: {left}.", COLUMNS)


def _breaks(breaks: Mapping[str, str | None]) -> str:
    text = "; ".join(f"`{rule}` by {how}" for rule, how in breaks.items())
    call = f"`python -m proof run --seed SEED --crashes {CRASHES_OF_BREAKS} --break RULE` tells the story of one."
    return fill(f"Breaks, and what finds each: {text}. {call}", COLUMNS, break_on_hyphens=False)


def _faults(faults: Sequence[dict[str, Any]]) -> str:
    rows = [
        (f"{fault['number']}: {fault['fault']}", *(_counted(fault["proof"][part]) for part in ("happened", "survived")))
        for fault in faults
    ]
    said = "Faults that `python -m tests.faults` made happen, what was counted of each, and what was checked after it:"
    return f"{said}\n\n{_table(('fault', 'happened', 'survived'), rows)}" if rows else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in (head, ("---",) * len(head), *rows))


def _cell(value: Any) -> str:
    if isinstance(value, tuple):
        return "; ".join(map(_cell, cast("tuple[Any, ...]", value)))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in sorted(counts.items()) if count)


def _range(seeds: range) -> str:
    return f"{len(seeds):,} ({seeds.start:,} to {seeds.stop - 1:,})"


def _commit() -> str:
    here = ["git", "-C", str(PAGE.parent)]
    try:
        said = subprocess.run(
            [*here, "describe", "--always", "--dirty=, with changes"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said.stdout.strip()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

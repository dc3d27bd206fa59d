"""Runs all examples one after the other: `python -m examples.cyclic`, or `make examples`.

Each example runs without faults and with three kills; both results are compared with Spark's, the last cuts of the
killed run are audited, and the comparison must detect a planted wrong row. The result is one line per example.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from typing import Any

from backedge import close_session, compare, open_session
from examples.cyclic.page import ENTRIES

KILLS = 3
SMALL = 3
"""Factor by which --size small reduces the input."""

GREEN, RED, WRONG_CALL = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named examples, or all; return 0 if all are green, 1 if not, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    unknown = [name for name in options.names if name not in ENTRIES]
    if unknown:
        print(f"examples.cyclic: no example {unknown[0]!r}: choose from {', '.join(ENTRIES)}", file=sys.stderr)
        return WRONG_CALL
    began_s = time.monotonic()
    spark = open_session("examples")
    try:
        found: list[dict[str, Any]] = []
        for name in options.names or ENTRIES:
            found.append(tried(name, options.size, options.seed, spark))
            print(json.dumps(found[-1], default=str) if options.json else line(found[-1]), flush=True)
    finally:
        close_session(spark)
    if not options.json:
        print(summary(found, time.monotonic() - began_s))
    return GREEN if all(facts["verdict"] == "green" for facts in found) else RED


def tried(name: str, size: str, seed: int, spark: Any) -> dict[str, Any]:
    """Run one example and return its result. The output of the runs is only shown on failure."""
    module = import_module(f"examples.cyclic.{name}")
    began_s, output = time.monotonic(), io.StringIO()
    amount = max(1, module.SIZE // SMALL) if size == "small" else module.SIZE
    try:
        with redirect_stderr(output), redirect_stdout(output):
            facts = compare(module, kills=KILLS, seed=seed, size=amount, spark=spark)
    except Exception as error:  # noqa: BLE001 - a failing example must not keep the others from running
        facts = {"failures": [f"{type(error).__name__}: {error}"]}
    failures = facts["failures"]
    if failures:
        print(output.getvalue(), file=sys.stderr, end="", flush=True)
    verdict = {"verdict": "red" if failures else "green", "seconds": round(time.monotonic() - began_s, 1)}
    return {"example": name, **facts, **verdict}


def line(facts: dict[str, Any]) -> str:
    """The result of one example as a line, followed by its failures.

    >>> print(line({"example": "transfers", "rows": 5_000, "kills_happened": 3, "kills_planned": 3, "restores": 3,
    ...     "in_loop_records": 71, "planted_error_found": True, "verdict": "green", "seconds": 31.4, "failures": []}))
    transfers               5,000 rows  3/3 kills  3 restores     71 from loops  planted error found   31.4 s  green
    """
    if "rows" not in facts:
        counts = "did not finish"
    else:
        planted = "planted error found" if facts["planted_error_found"] else "planted error MISSED"
        kills = f"{facts['kills_happened']}/{facts['kills_planned']} kills  {facts['restores']} restores"
        counts = f"{facts['rows']:>7,} rows  {kills}  {facts['in_loop_records']:>5,} from loops  {planted}"
    lines = [f"{facts['example']:<21}{counts}  {facts['seconds']:>5.1f} s  {facts['verdict']}"]
    return "\n".join(lines + [f"    {failure}" for failure in facts["failures"]])


def summary(found: list[dict[str, Any]], seconds: float) -> str:
    """The result of all examples as a line."""
    green = sum(facts["verdict"] == "green" for facts in found)
    in_loop = sum(facts.get("in_loop_records", 0) > 0 for facts in found)
    return f"{green} of {len(found)} are green, {in_loop} restored records from a loop; {seconds:.0f} s"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.cyclic", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("names", nargs="*", metavar="NAME", help="an example, such as transfers; default: all")
    parser.add_argument("--size", choices=("small", "full"), default="full", help="size of the inputs")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="for planning the kills; default: 1")
    parser.add_argument("--json", action="store_true", help="one line of JSON per example")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""`python -m bench NAME`: measures, prints a table, and one line of JSON at the end; 1 if a limit does not hold."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from bench.measuring import TURNS_MIN

BENCHES = {
    "core": "what the protocol core costs a batch, and the schedules a second of the simulator",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark; 2 for a call that is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure what it costs, beside a peer in the same run.",
        epilog="\n".join(f"{name:12} {meaning}" for name, meaning in BENCHES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=BENCHES, metavar="NAME", help=f"one of: {', '.join(BENCHES)}")
    parser.add_argument("--seed", type=int, default=0, help="what is drawn is drawn by it (default 0)")
    parser.add_argument("--repeats", type=_turns, default=TURNS_MIN, help=f"turns (default {TURNS_MIN}, the least)")
    options = parser.parse_args(arguments)
    report = importlib.import_module(f"bench.{options.name}").run(options.seed, options.repeats)
    print(report.table())
    print(report.as_json())
    return 0 if report.ok else 1


def _turns(text: str) -> int:
    turns = int(text)
    if turns < TURNS_MIN:
        raise argparse.ArgumentTypeError(f"a median of {turns} says little, take at least {TURNS_MIN}")
    return turns


if __name__ == "__main__":
    sys.exit(main())

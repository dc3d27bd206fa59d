"""`python -m bench NAME`: measures, prints a table, and one line of JSON at the end; 1 if a limit does not hold."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from bench.measuring import TURNS_MIN
from bench.options import Options
from bench.peers import PeerError

BENCHES = {
    "core": "what the protocol core costs a batch, and a step of the simulator",
    "loop": "a loop under load on Ray, beside two processes by hand",
    "watch": "the loop with its live page open and metrics, beside the same without",
    "hop": "one record alone in a loop on Ray, beside ping-pongs",
    "columns": "a keyed sum of columns on Ray, beside pyarrow in one process and Ray Data",
    "count": "a keyed count on Ray, beside two processes by hand and bytewax",
    "snapshot": "a run on Ray with cuts, beside the same without, and its stall beside dict.copy()",
    "increments": "a cut that writes what changed in one process, beside one that writes everything",
    "start": "from `start` to the first record on a running Ray, beside the start of two actors",
    "recover": "from a SIGKILL to new output on Ray, beside the start of an actor",
    "rescale": "a second task for a loop under load on Ray, beside the start of an actor",
    "restore": "2 GB of state taken back on Ray, beside two processes that read the same files",
    "calls": "calls outside with a journal of answers and without, and what is asked again after twenty deaths",
    "versions": "20 MB of weights in each round of a loop on Ray, beside shared memory by hand",
    "received": "2,000 requests a second into a log in front of a loop, while each process dies three times",
    "losses": "conversations that are killed twenty times, beside LangGraph, DBOS, Ray Data and a loop by hand",
    "crawl": "a crawl of 5,000 pages, beside Scrapy, and what is lost and fetched again when processes die",
    "audit": "the audit of cuts of 1 and 10 million rows by Spark, beside one process that decodes them",
    "pagerank": "PageRank in rounds on Ray, beside two actors by hand and scipy in one process",
    "components": "connected components on Ray, beside two actors by hand and scipy in one process",
    "paths": "shortest ways in a grid on Ray, thousands of rounds, beside two actors by hand",
    "kmeans": "k-means in rounds on Ray, beside two actors by hand and scikit-learn in one process",
    "sgd": "a regression by mini-batches on Ray, beside two actors by hand and NumPy in one process",
    "scale": "10,000 tasks, a million channels, 50 million keys, 4 GB of columns: how time and memory grow",
    "longlife": "a job after 200,000 cuts and 1,000 restarts, beside the same in its first minute",
    "superstep": "an empty round of iterate on Ray, beside two actors by hand",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark. Returns 2 for wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure what it costs, beside a peer in the same run.",
        epilog="\n".join(f"{name:12} {meaning}" for name, meaning in BENCHES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=BENCHES, metavar="NAME", help=f"one of: {', '.join(BENCHES)}")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random (default 0)")
    parser.add_argument(
        "--repeats", type=_turns, default=TURNS_MIN, dest="turns", help=f"turns (default {TURNS_MIN}, the least)"
    )
    parser.add_argument("--peer", metavar="FILE", help="a module whose run(workload) stands in for a peer")
    parser.add_argument("--seconds", type=float, help="seconds per case and turn: for a short trial")
    parser.add_argument("--records", type=int, help="number of records: for a short trial")
    parser.add_argument("--large", action="store_true", help="loop: ten times as many records, to the end")
    parser.add_argument("--scale", type=int, help="pagerank, components: 2**scale vertices (default 18 and 20)")
    parser.add_argument("--graph", choices=("rmat", "debian"), default="rmat", help="components: which graph")
    parser.add_argument("--side", type=int, help="paths: the side of the grid (default 1000)")
    parser.add_argument("--json", action="store_true", help="print the line of JSON alone")
    given = vars(parser.parse_args(arguments))
    name, is_json = given.pop("name"), given.pop("json")
    load_before = os.getloadavg()[0]
    try:
        report = importlib.import_module(f"bench.{name}").run(Options(**given))
    except PeerError as error:
        print(f"python -m bench {name}: {error}", file=sys.stderr)
        return 2
    if not is_json:
        print(report.table())
    print(report.as_json(load_before))
    return 0 if report.ok else 1


def _turns(text: str) -> int:
    turns = int(text)
    if turns < TURNS_MIN:
        raise argparse.ArgumentTypeError(f"a median of {turns} says little, take at least {TURNS_MIN}")
    return turns


if __name__ == "__main__":
    sys.exit(main())

"""`python -m proof run|explore`: see `--help`. Each ends with one line of JSON on standard output."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from engine.simulation.breaks import BREAKS
from proof.explorer import Exploration, Explorer
from proof.runner import RESCALES, Summary, run_in_parallel, run_seed
from proof.schedule_story import tell
from proof.tiny_graphs import graphs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns 0 only if nothing was violated, 2 for wrong arguments."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proof", description="Simulate the protocol.")
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="seeded schedules with faults over generated graphs")
    run.add_argument("--seeds", type=_count, default=300, help="how many schedules (default 300)")
    run.add_argument("--first-seed", type=int, default=0, help="the first seed, to split a long run (default 0)")
    run.add_argument("--crashes", type=int, default=3, help="the most crashes of a schedule (default 3)")
    run.add_argument("--seed", type=int, help="run only this one, and print its story")
    run.add_argument("--break", dest="rule", choices=sorted(BREAKS), metavar="RULE", help="break a rule")
    run.add_argument("--list-breaks", action="store_true", help="the rules that can be broken")
    run.set_defaults(command=_run)
    explore = commands.add_parser("explore", help="every schedule of small graphs, with every single crash point")
    explore.add_argument("--graph", choices=[graph.name for graph in graphs()], help="explore only this one")
    explore.set_defaults(command=_explore)
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def _run(options: argparse.Namespace) -> int:
    if options.list_breaks:
        for name, rule in BREAKS.items():
            print(f"{name:36} {rule.meaning}")
        return 0
    if options.seed is not None:
        return _run_one(options)
    started = time.monotonic()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    summary = run_in_parallel(seeds, options.crashes, options.rule, _progress(options.seeds))
    result: dict[str, Any] = {**summary.as_json(), "seconds": round(time.monotonic() - started, 1)}
    if summary.failed:
        seed, steps, violations = min(summary.failed, key=lambda failure: failure[1])
        result |= {"shortest": {"seed": seed, "steps": steps, "violations": violations[:3]}}
        broken = f" --break {options.rule}" if options.rule else ""
        call = f"python -m proof run --seed {seed} --crashes {options.crashes}{broken}"
        print(f"seed {seed}, {steps} steps: {violations[0]}\nits story: {call}", file=sys.stderr)
    print(json.dumps(result))
    return 1 if summary.failed else 0


def _run_one(options: argparse.Namespace) -> int:
    outcome, world, case = run_seed(options.seed, options.crashes, options.rule, RESCALES)
    print(tell(outcome.story), file=sys.stderr)
    result = {
        "seed": options.seed,
        "topology": case.name,
        "policy": case.policy,
        "parallelism": case.parallelism,
        "actors": case.actors,
        "steps": outcome.steps,
        "cuts": len(world.record.cuts),
        "violations": [str(violation) for violation in outcome.violations],
    }
    print(json.dumps(result))
    return 1 if outcome.violations else 0


def _progress(seeds: int) -> Any:
    def show(summary: Summary) -> None:
        done = summary.counts["schedules"]
        if sys.stderr.isatty() or done % 500 == 0:
            end = "\r" if sys.stderr.isatty() and done < seeds else "\n"
            print(f"{done}/{seeds} schedules, {len(summary.failed)} violated", end=end, file=sys.stderr, flush=True)

    return show


def _explore(options: argparse.Namespace) -> int:
    started = time.monotonic()
    names = [options.graph] if options.graph else [graph.name for graph in graphs()]
    found: list[Exploration] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for exploration in pool.map(_explore_one, names):
            found.append(exploration)
            print(
                f"{exploration.graph}: {exploration.states} states, {exploration.transitions} transitions, "
                f"{exploration.cuts} cuts, {exploration.cuts_with_log} with a log, {exploration.ends} ends",
                file=sys.stderr,
                flush=True,
            )
    violations = [violation for exploration in found for violation in exploration.violations]
    for violation in violations:
        print(violation, file=sys.stderr)
    result = {
        "graphs": len(found),
        "states": sum(e.states for e in found),
        "transitions": sum(e.transitions for e in found),
        "crash_points": sum(e.crash_points for e in found),
        "cuts": sum(e.cuts for e in found),
        "cuts_with_log": sum(e.cuts_with_log for e in found),
        "ends": sum(e.ends for e in found),
        "bounds": {graph.name: dict(graph.bounds) for graph in graphs() if graph.name in names},
        "violations": len(violations),
        "complete": all(e.complete for e in found),
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(result))
    return 0 if result["complete"] and not violations else 1


def _explore_one(name: str) -> Exploration:
    return Explorer(next(graph for graph in graphs() if graph.name == name)).run()


if __name__ == "__main__":
    sys.exit(main())

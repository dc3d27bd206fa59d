"""`python -m proof run|explore|evidence|transcript`: see `--help`. The first two end with one line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from backedge.engine.simulation.breaks import BREAKS
from backedge.engine.simulation.world.fault_plan import Outcome
from backedge.engine.simulation.world.world import Happening, World
from proof import evidence
from proof.generated_flows import Case
from proof.runner import RESCALES, Summary, drawn_topology, processes, run_in_parallel, run_seed
from proof.transcripts import SCRIPTS, transcript
from proof.two_pipelines import Ran, run_pipelines
from proof.walks import bounds_of, names, walk

LINES_MAX = 200


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
    run.add_argument("--pipelines", action="store_true", help="only jobs with two pipelines")
    run.add_argument("--list-breaks", action="store_true", help="the rules that can be broken")
    run.set_defaults(command=_run)
    explore = commands.add_parser("explore", help="every schedule of small graphs, with every single crash point")
    explore.add_argument("--graph", choices=names(), help="explore only this one")
    explore.set_defaults(command=_explore)
    written = commands.add_parser("evidence", help="seeds, graphs and breaks: writes the figures of docs/evidence.md")
    written.add_argument("--faults", type=Path, metavar="FILE", help="what `python -m tests.faults --json` has printed")
    written.add_argument("--break", dest="rule", choices=sorted(BREAKS), metavar="RULE", help="plant a break: it fails")
    written.set_defaults(command=_write_evidence)
    told = commands.add_parser("transcript", help="a short run in which one thing happens, event by event")
    told.add_argument("name", choices=sorted(SCRIPTS))
    told.set_defaults(command=_print_transcript)
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def _print_transcript(options: argparse.Namespace) -> int:
    print(transcript(options.name), end="")
    return 0


def _run(options: argparse.Namespace) -> int:
    if options.list_breaks:
        for name, rule in BREAKS.items():
            print(f"{name:36} {rule.meaning}")
        return 0
    if options.seed is not None:
        return _run_one(options)
    started = time.monotonic()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    summary = run_in_parallel(
        seeds, options.crashes, options.rule, _progress(options.seeds), only_pipelines=options.pipelines
    )
    result: dict[str, Any] = {**summary.as_json(), "seconds": round(time.monotonic() - started, 1)}
    if summary.failed:
        seed, steps, violations, of_pipelines = min(summary.failed, key=lambda failure: failure.steps)
        result |= {"shortest": {"seed": seed, "steps": steps, "violations": violations[:3]}}
        broken = f" --break {options.rule}" if options.rule else ""
        broken += " --pipelines" if of_pipelines else ""
        call = f"python -m proof run --seed {seed} --crashes {options.crashes}{broken}"
        print(f"seed {seed}, {steps} steps: {violations[0]}\nits story: {call}", file=sys.stderr)
    print(json.dumps(result))
    return 1 if summary.failed else 0


def _run_one(options: argparse.Namespace) -> int:
    if options.pipelines or (options.rule is not None and BREAKS[options.rule].of_pipelines):
        ran = run_pipelines(options.seed, options.crashes, options.rule)
    else:
        ran = [Ran(*run_seed(options.seed, options.crashes, options.rule, RESCALES, drawn_topology(options.seed)))]
    for one in ran:
        print("\n".join(_story(one.outcome.story)), file=sys.stderr)
    facts = [_facts(*one) for one in ran]
    print(json.dumps({"seed": options.seed, **(facts[0] if len(facts) == 1 else {"pipelines": facts})}))
    return 1 if any(one.outcome.violations for one in ran) else 0


def _story(steps: Sequence[Happening]) -> list[str]:
    """The last steps, numbered, those that repeat themselves in one line."""
    lines: list[str] = []
    number = 1
    for text, same in groupby(" ".join(map(_word, step)) for step in steps):
        times = len(list(same))
        lines.append(f"{number:5} {text}" + f" ({times} times)" * (times > 1))
        number += times
    return lines[-LINES_MAX:]


def _word(part: Any) -> str:
    return " ".join(map(str, cast("tuple[Any, ...]", part))) if type(part) is tuple else str(part)


def _facts(outcome: Outcome, world: World, case: Case) -> dict[str, Any]:
    return {
        "topology": case.name,
        "policy": case.policy,
        "parallelism": case.parallelism,
        "actors": case.actors,
        "steps": outcome.steps,
        "cuts": len(world.record.cuts),
        "violations": [str(violation) for violation in outcome.violations],
    }


def _write_evidence(options: argparse.Namespace) -> int:
    faults = evidence.reported(options.faults)
    return evidence.publish(evidence.gather(range(evidence.SEEDS), faults, options.rule), evidence.PAGE)


def _progress(seeds: int) -> Any:
    def show(summary: Summary) -> None:
        done = summary.counts["schedules"]
        if sys.stderr.isatty() or done % 500 == 0:
            end = "\r" if sys.stderr.isatty() and done < seeds else "\n"
            print(f"{done}/{seeds} schedules, {len(summary.failed)} violated", end=end, file=sys.stderr, flush=True)

    return show


def _explore(options: argparse.Namespace) -> int:
    started = time.monotonic()
    graphs = [options.graph] if options.graph else names()
    explored: dict[str, dict[str, Any]] = {}
    with processes(os.cpu_count()) as pool:
        for name, (found, seconds) in zip(graphs, pool.map(walk, graphs), strict=True):
            explored[name] = {**asdict(found), "bounds": bounds_of(name), "seconds": seconds}
            del explored[name]["graph"]
            print(_told(name, explored[name]), file=sys.stderr, flush=True)
    for violation in [violation for of_graph in explored.values() for violation in of_graph["violations"]]:
        print(violation, file=sys.stderr)
    for of_graph in explored.values():
        of_graph["violations"] = len(of_graph["violations"])
    summed = ("states", "transitions", "crash_points", "cuts", "cuts_with_log", "ends", "violations")
    result = {
        "graphs": len(explored),
        **{key: sum(of_graph[key] for of_graph in explored.values()) for key in summed},
        "complete": all(of_graph["complete"] for of_graph in explored.values()),
        "seconds": round(time.monotonic() - started, 1),
        "explored": explored,
    }
    print(json.dumps(result))
    return 0 if result["complete"] and not result["violations"] else 1


def _told(name: str, explored: dict[str, Any]) -> str:
    """What was explored of a graph, in a line."""
    counts = ", ".join(
        f"{explored[key]:,} {key.replace('_', ' ')}" for key in ("states", "transitions", "cuts", "ends")
    )
    bounds = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in explored["bounds"].items() if count)
    exercised = "".join(f", {count:,} {what.replace('_', ' ')}" for what, count in explored["exercised"].items())
    whole = "every schedule" if explored["complete"] else "NOT every schedule"
    return f"{name}: {whole} with at most {bounds}: {counts}{exercised}; {explored['seconds']} s"


if __name__ == "__main__":
    sys.exit(main())

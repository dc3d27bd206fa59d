"""A loop under load: 100,000 records x 20 rounds, parallelism 2, a cut every second.

The graph: source -> merge with the loop -> head (a map) -> by key -> body (a stateful_map) -> split -> back edge. The
key of a record changes every round. So with a process per slice half of the hops cross processes, and with a process
per task all of them do. A hop is one return of a record to the head.

The cold turn runs the plain workload to its end and counts: every record comes out once, after exactly its rounds. Then
the same records, which start again after their last round, are measured for 10 seconds after a warm-up.

Peer: bare, two hand-written processes (`peers/loop_bare.py`); `bare_task` compares its figure with ours at
`actors="task"`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Literal

from backedge import Collect, Flow, Items
from backedge.engine.on_ray.api.job_handle import RunResult
from bench.measuring import Limit, Report, Samples, at_least, interleaved
from bench.options import Options
from bench.ours import BenchError, Window, run_to_end, watch
from bench.peers import loop_bare, peers
from bench.session import session
from bench.workloads import LoopWorkload, climb, is_done, loop_key, tally

Actors = Literal["slice", "task"]
ACTORS: tuple[Actors, ...] = ("slice", "task")
LIMITS = {"bare": 1.0, "bare_task": 0.6}
EPOCHS_MIN = 5
SECONDS_MIN = 10.0
REPETITIONS = 3_000
LARGE_RECORDS = 1_000_000
UNIT = "hops a second"


def run(options: Options) -> Report:
    """Measure ours in slices, the peer, and ours with an actor per task, in turns."""
    seconds = options.seconds or SECONDS_MIN
    workload = LoopWorkload(
        records=options.records or 100_000, seed=options.seed, seconds=seconds, warm_up_s=min(2.0, seconds)
    )
    if options.large:
        return run_large(replace(workload, records=options.records or LARGE_RECORDS))
    known = peers({"bare": loop_bare.run}, options.peer)
    windows: dict[Actors, list[Window]] = {actors: [] for actors in ACTORS}
    repeated = replace(workload, repetitions=REPETITIONS)

    def measure(actors: Actors) -> float:
        window = watch(
            make_flow(repeated), repeated.warm_up_s, repeated.seconds, every=1.0, parallelism=2, actors=actors
        )
        windows[actors].append(window)
        return window.hops_per_s

    with session():
        found = interleaved(
            {
                "slice": lambda: measure("slice"),
                "bare": lambda: known["bare"](repeated),
                "task": lambda: measure("task"),
            },
            options.turns,
            cold={
                "slice": lambda: run_exact(workload, "slice"),
                "task": lambda: run_exact(workload, "task"),
                "bare": lambda: known["bare"](replace(repeated, seconds=min(1.0, repeated.seconds))),
            },
        )
    return compare(found, [*windows["slice"], *windows["task"]])


def compare(found: dict[str, Samples], windows: list[Window]) -> Report:
    """The ratios, and whether the measurement is valid: long enough, with cuts that contain records in the loop."""
    ratios = {"bare": found["slice"].over(found["bare"]), "bare_task": found["task"].over(found["bare"])}
    epochs = min(window.epochs for window in windows)
    with_log = min(window.epochs_with_log for window in windows)
    seconds = min(window.seconds for window in windows)
    return Report(
        bench="loop",
        unit=UNIT,
        turns=len(found["slice"].figures),
        figures={"slice": found["slice"], "task": found["task"]},
        peers={"bare": found["bare"], "bare_task": found["bare"]},
        ratios=ratios,
        limits=(
            *at_least(ratios, LIMITS),
            Limit(f"{seconds:.1f} s measured in the shortest turn, at least {SECONDS_MIN}", seconds >= SECONDS_MIN),
            Limit(f"{with_log} epochs with a log in the poorest turn, at least {EPOCHS_MIN}", with_log >= EPOCHS_MIN),
        ),
        ours="slice",
        more={"ours_task": round(found["task"].median), "epochs": epochs, "epochs_with_log": with_log},
    )


def run_large(workload: LoopWorkload) -> Report:
    """Ten times as many records, to the end: the loop must not block itself. No peer."""
    with session():
        found = {actors: Samples((run_exact(workload, actors),)) for actors in ACTORS}
    claim = f"{workload.records} records x {workload.rounds} rounds end, every record once"
    limits = (Limit(claim, True),)
    return Report("loop", f"{UNIT}, start and end included", 1, found, {}, {}, limits, "slice", {"large": True})


def make_flow(workload: LoopWorkload) -> Flow:
    """The loop as a user would write it."""
    flow = Flow("loop")
    again = flow.loop("again")
    climbed = flow.read(Items(workload.start()), name="start").merge(again).map(climb, name="head")
    done, rest = climbed.key_by(loop_key).stateful_map(tally, initial=0, name="body").split(is_done, name="split")
    again.feed(rest)
    done.write(Collect(), name="done")
    return flow


def run_exact(workload: LoopWorkload, actors: Actors) -> float:
    """Run to the end; return hops per second, including start and end. Raises unless every record counted once."""
    result = run_to_end(make_flow(workload), every=1.0, parallelism=2, actors=actors)
    check_exact(result, workload)
    return result.hops / result.seconds


def check_exact(result: RunResult, workload: LoopWorkload) -> None:
    """Raise unless all records came out once, after all of their hops."""
    if Counter(result.outputs["done"]) != Counter((id, -1) for id, _ in workload.start()):
        raise BenchError(f"{workload.records} records went in, and what came out is not the same")
    if result.hops != workload.hops:
        raise BenchError(f"{workload.records} records x {workload.rounds} rounds made {result.hops} hops")

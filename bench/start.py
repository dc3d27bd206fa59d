"""From the call of `start` to the first record at the sink, on a Ray that is running: twelve tasks in two actors.

The flow has six steps behind exchanges, parallelism 2, and a process per slice; it takes a cut every second. Its last
step notes the time of each record. The run then goes to its end: `ending` is the time from the last record until `wait`
has returned, with the last cut and the end of all processes.

Peer: actor_start, two actors with nothing in them, started at once, until both have answered a call. Ours needs three
processes, because the supervisor has one of its own.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from backedge import Collect, Flow, Range
from backedge.engine.on_ray.api.starting import start
from bench.measuring import Report, Samples, beside_peers, interleaved
from bench.notes import note, read_notes
from bench.options import Options
from bench.ours import BenchError
from bench.peers import actor_start, peers
from bench.session import session
from bench.workloads import StartWorkload, pass_on

LIMITS = {"actor_start": 0.5}
STEPS = 6
RECORDS = 100
ACTORS = 2


def run(options: Options) -> Report:
    """Measure ours and the peer in turns."""
    workload, records = StartWorkload(actors=ACTORS, seed=options.seed), options.records or RECORDS
    known = peers({"actor_start": actor_start.run}, options.peer)
    endings_ms: list[float] = []

    def measure() -> float:
        first_ms, ending_ms = starting_and_ending_ms(records)
        endings_ms.append(ending_ms)
        return first_ms

    with session():
        found = interleaved(
            {"ours": measure, "actor_start": lambda: known["actor_start"](workload)},
            options.turns,
        )
    return compare(found, Samples(tuple(endings_ms[-options.turns :])))


def compare(found: dict[str, Samples], ending: Samples) -> Report:
    """How many times as long as ours the peer takes."""
    report = beside_peers("start", "ms", found, LIMITS, is_rate=False)
    return replace(report, figures={**report.figures, "ending": ending})


def starting_and_ending_ms(records: int) -> tuple[float, float]:
    """Milliseconds from the start to the first record, and from the last one until the run has returned."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        path = str(Path(folder) / "records")
        flow = make_flow(path, records)
        began_s = time.monotonic()
        job = start(flow, progress=False, snapshots=f"{folder}/cuts", every=1.0, parallelism=ACTORS, actors="slice")
        result = job.wait()
        ended_s = time.monotonic()
        times_s = [at_s for at_s, _ in read_notes(path)]
    if len(times_s) != records or len(result.by_task) != STEPS * ACTORS:
        raise BenchError(f"{len(times_s)} records of {records} passed {len(result.by_task)} tasks")
    return (times_s[0] - began_s) * 1e3, (ended_s - times_s[-1]) * 1e3


def make_flow(path: str, records: int) -> Flow:
    """Steps that pass every record on, to the other task half of the time; the last one notes it."""

    def arrive(record: int) -> int:
        note(path, float(record))
        return record

    flow = Flow("start")
    stream = flow.read(Range(records), name="numbers")
    for step in range(1, STEPS - 1):
        stream = stream.rebalance().map(pass_on, name=f"step-{step}")
    stream.rebalance().map(arrive, name="last").write(Collect(), name="done")
    return flow

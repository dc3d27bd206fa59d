"""A rescale under load: the gap in which no task runs, and the pace of the run before and after.

A loop whose records are counted by 100,000 keys runs at full speed in one process, with a cut every second. The body of
the loop is then given a second task, in a process that Ray has to start, while the run goes on. The pace is that of
records through all tasks, over a few seconds before the request and after the answer. Each run is stopped with a cut.
Spark audits all cuts of the last one, from before and after.

The function of the body computes for some 20 us a record, because a second task is for a function that is too slow for
one process. Another run in each turn, light, has a function that only counts: there the second process costs more than
it gains, because half of the records have to be pickled and sent. What it keeps of its pace has no limit.

Peers: actor_start, the time that Ray takes to start one actor; before and light_before, the pace with one task.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from backedge import Collect, Flow, Generate
from backedge.engine.on_ray.api.job_handle import Job
from bench.measuring import Limit, Report, Samples, at_least, interleaved
from bench.options import Options
from bench.ours import LOOK_S, BenchError, begin, look, slope
from bench.peers import actor_start, peers
from bench.recover import HOPS, Record, count, is_done
from bench.session import session
from bench.workloads import StartWorkload

LIMITS = {"actor_start": 0.33, "before": 0.9}
KEYS = 100_000
STEPS = 1_000
"""How far the function counts for a record: some 20 us."""
SECONDS = 4.0
WARM_UP_S = 3.0
EVERY_S = 1.0
CUTS_KEPT = 50


def run(options: Options) -> Report:
    """Rescale a run in every turn, and audit the last one."""
    keys, seconds = options.records or KEYS, options.seconds or SECONDS
    known = peers({"actor_start": actor_start.run}, options.peer)
    paces: dict[str, list[float]] = {"before": [], "after": [], "light_before": [], "light_after": []}
    with session(), tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:

        def rescaled() -> float:
            gap_ms, before, after = rescale(f"{folder}/{len(paces['before'])}", keys, seconds, STEPS)
            paces["before"].append(before)
            paces["after"].append(after)
            return gap_ms

        def light() -> float:
            _, before, after = rescale(f"{folder}/light-{len(paces['light_before'])}", keys, seconds, 0)
            paces["light_before"].append(before)
            paces["light_after"].append(after)
            return after

        found = interleaved(
            {
                "gap": rescaled,
                "actor_start": lambda: known["actor_start"](StartWorkload(seed=options.seed)),
                "light_after": light,
            },
            options.turns,
            cold={"gap": lambda: 0.0, "light_after": lambda: 0.0},
        )
        cuts = audited(f"{folder}/{len(paces['before']) - 1}")
    return compare({**found, **{name: Samples(tuple(pace)) for name, pace in paces.items()}}, keys, cuts)


def compare(found: dict[str, Samples], keys: int, cuts: int) -> Report:
    """The gap beside the start of an actor, and the pace after it beside that before."""
    start, gap = found["actor_start"], found["gap"]
    ratios = {
        "actor_start": start.over(gap),
        "before": found["after"].over(found["before"]),
        "light_before": found["light_after"].over(found["light_before"]),
    }
    return Report(
        bench="rescale",
        unit="ms; records/s",
        turns=len(gap.figures),
        figures={name: found[name] for name in ("gap", "after", "light_after")},
        peers={name: found[name] for name in ("actor_start", "before", "light_before")},
        ratios=ratios,
        limits=(*at_least(ratios, LIMITS), Limit(f"{cuts} cuts were audited, at least 4", cuts >= 4)),
        ours="gap",
        more={"keys": keys, "cuts_audited": cuts},
    )


def rescale(folder: str, keys: int, seconds: float, steps: int) -> tuple[float, float, float]:
    """Give a running loop a second task; return the gap in milliseconds, and the pace before and after."""
    job = begin(make_flow(keys, steps), folder, EVERY_S, {"actors": "slice", "parallelism": 1, "keep": CUTS_KEPT})
    try:
        before = pace(job, seconds)
        gap_ms = job.rescale({"body": 2, "split": 2})
        after = pace(job, seconds)
        (told,) = job.stop().rescales
    finally:
        job.cancel()
    if told["tasks"] != {"body": [1, 2], "split": [1, 2]} or told["gap_ms"] != gap_ms:
        raise BenchError(f"the rescale to two tasks is reported as {told}")
    return gap_ms, before, after


def pace(job: Job, seconds: float) -> float:
    """How many records all tasks process in a second, after a moment."""
    time.sleep(WARM_UP_S)
    looks = [look(job)]
    while looks[-1].at_s - looks[0].at_s < seconds:
        time.sleep(LOOK_S)
        looks.append(look(job))
    return slope(looks, lambda seen: seen.records)


def audited(folder: str) -> int:
    """Have Spark audit every cut of a run; return how many there are."""
    from backedge.recovery.spark.audit.audit_job import audit
    from backedge.recovery.spark.cut_tables.job_folder import JobFolder
    from backedge.recovery.spark.sessions.spark_session import close_session, open_session

    spark = open_session("bench rescale")
    try:
        verdict = audit(spark, JobFolder.open(str(Path(folder) / "rescaled")), "all")
    finally:
        close_session(spark)
    if not verdict.passed:
        raise BenchError("\n".join(verdict.lines()))
    return len(verdict.epochs)


def make_flow(keys: int, steps: int) -> Flow:
    """A loop that every record passes `HOPS` times, with a new key each time, and computes for this number of steps."""

    def computed(seen: int, record: Record) -> tuple[int, Record]:
        for _ in range(steps):
            continue
        return count(seen, record)

    flow = Flow("rescaled")
    again = flow.loop("again")
    numbers = flow.read(Generate(lambda position: (position, HOPS)), name="numbers", parallelism=1)
    seen = numbers.merge(again).map(lambda record: (record[0], record[1] - 1), name="head", parallelism=1)
    keyed = seen.key_by(lambda record: (record[0] * HOPS + record[1]) % keys)
    done, rest = keyed.stateful_map(computed if steps else count, initial=0, name="body").split(is_done, name="split")
    again.feed(rest)
    done.filter(lambda record: record[0] < 0, name="chosen").write(Collect(), name="done")
    return flow

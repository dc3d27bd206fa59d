"""The time from the death of a head to the first record past its previous position, with state of 100,000 keys.

A loop runs with an actor per task and a cut every 100 ms; its source emits a steady 50,000 records per second. Once all
keys have state, the head's process is killed with SIGKILL. Until then, its user function has noted the positions that
pass it, every 50th. The measurement ends when it notes a position higher than any before the death: by then the death
was noticed, the actor replaced, all state restored, the loop log replayed, and the input after the last cut read again.

Measured once with a waiting spare actor, once without. Peer: actor_start, the time that Ray takes to start one actor.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bench.measuring import Report, Samples, at_least, interleaved
from bench.notes import note, read_notes
from bench.options import Options
from bench.ours import BenchError, begin
from bench.peers import actor_start, peers
from bench.session import session
from bench.workloads import StartWorkload
from engine.on_ray.api.job_handle import Job
from graphs import Collect, Flow, Generate

LIMITS = {"actor_start": 1.0, "actor_start_without_spare": 0.33}
KEYS = 100_000
RATE = 50_000.0
HOPS = 2
NOTED_EVERY = 50
EVERY_S = 0.1
SETTLE_S = 2.0
TIMEOUT_S = 120.0

Found = TypeVar("Found")
Record = tuple[int, int]
"""A position, and the number of hops left."""


def run(options: Options) -> Report:
    """Measure both recoveries and the start of an actor in turns."""
    workload, keys = StartWorkload(seed=options.seed), options.records or KEYS
    known = peers({"actor_start": actor_start.run}, options.peer)
    with session():
        found = interleaved(
            {
                "with_spare": lambda: recovery_ms(keys, spares=1),
                "actor_start": lambda: known["actor_start"](workload),
                "without_spare": lambda: recovery_ms(keys, spares=0),
            },
            options.turns,
            cold={"with_spare": lambda: 0.0, "without_spare": lambda: 0.0},
        )
    return compare(found, keys)


def compare(found: dict[str, Samples], keys: int) -> Report:
    """How many times faster the run goes on than an actor would have started."""
    start = found["actor_start"]
    ratios = {
        "actor_start": start.over(found["with_spare"]),
        "actor_start_without_spare": start.over(found["without_spare"]),
    }
    return Report(
        bench="recover",
        unit="ms",
        turns=len(start.figures),
        figures={"with_spare": found["with_spare"], "without_spare": found["without_spare"]},
        peers={"actor_start": start, "actor_start_without_spare": start},
        ratios=ratios,
        limits=at_least(ratios, LIMITS),
        ours="with_spare",
        more={"keys": keys, "every_ms": EVERY_S * 1e3},
    )


def recovery_ms(keys: int, spares: int) -> float:
    """Kill the head of a run, and measure when it gets past its previous position."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        path = str(Path(folder) / "positions")
        job = begin(make_flow(keys, path), f"{folder}/cuts", EVERY_S, {"actors": "task", "spares": spares})
        try:
            wait_for(lambda: highest(read_notes(path)) >= keys, "all keys have state")
            # Cuts of the whole state are being taken, and a spare actor has started.
            time.sleep(SETTLE_S)
            killed_s = kill_head(job)
            return (wait_for(lambda: time_past(path, killed_s), "the head is past its position") - killed_s) * 1e3
        finally:
            job.cancel()


def kill_head(job: Job) -> float:
    """End the head's process; return the time."""
    story = job.status()
    (pid,) = [pid for actor, pid in story.pids.items() if actor.startswith("head/")]
    if story.snapshots < 1 or story.restarts:
        raise BenchError(f"{story.snapshots} cuts and {story.restarts} restarts before the kill: nothing to recover")
    killed_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return killed_s


def highest(notes: list[tuple[float, float]]) -> float:
    """The highest position of these notes."""
    return max((position for _, position in notes), default=-1.0)


def time_past(path: str, killed_s: float) -> float:
    """When a position higher than all before was noted after the kill; 0.0: not yet."""
    notes = read_notes(path)
    reached = highest([noted for noted in notes if noted[0] <= killed_s])
    return next((at_s for at_s, position in notes if at_s > killed_s and position > reached), 0.0)


def wait_for(found: Callable[[], Found], what: str) -> Found:
    """Repeat until there is a result."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not (seen := found()):
        if time.monotonic() > deadline_s:
            raise BenchError(f"{TIMEOUT_S:.0f} s have passed, and not yet: {what}")
        time.sleep(0.02)
    return seen


def make_flow(keys: int, path: str) -> Flow:
    """A loop that every record passes `HOPS` times, with a new key each time."""

    def see(record: Record) -> Record:
        position, left = record
        if left == HOPS and position % NOTED_EVERY == 0:
            note(path, float(position))
        return position, left - 1

    def key_of(record: Record) -> int:
        return (record[0] * HOPS + record[1]) % keys

    flow = Flow("recover")
    again = flow.loop("again")
    numbers = flow.read(Generate(lambda position: (position, HOPS), rate=RATE), name="numbers")
    seen = numbers.merge(again).map(see, name="head")
    done, rest = seen.key_by(key_of).stateful_map(count, initial=0, name="body").split(is_done, name="split")
    again.feed(rest)
    done.filter(_is_never, name="chosen").write(Collect(), name="done")
    return flow


def count(seen: int, record: Record) -> tuple[int, Record]:
    """One more."""
    return seen + 1, record


def is_done(record: Record) -> bool:
    """Whether the record has made its hops."""
    return record[1] < 0


def _is_never(record: Record) -> bool:
    return record[0] < 0

"""The time from the death of a head or the supervisor to the first record past the head's previous position.

The state has 100,000 keys.

A loop runs with an actor per task and a cut every 100 ms; its source emits a steady 50,000 records per second. Once all
keys have state, the head's process is killed with SIGKILL. Until then, its user function has noted the positions that
pass it, every 50th. The measurement ends when it notes a position higher than any before it went back to a cut: by then
the death was noticed, the actor replaced, all state restored, the loop log replayed, and the input after the cut read
again.

Measured with a waiting spare actor, without one, and with the supervisor killed instead of the head: then Ray ends all
tasks and starts the supervisor again, which starts all tasks. Peer: actor_start, the time that Ray takes to start one
actor. Of the supervisor, the ratio is to `task_death`, the recovery without a spare.

Another case has a second pipeline, which exchanges nothing with the loop: a steady 20,000 records per second,
counted by key. Its throughput in the three seconds from the death of the head on, while the loop is restored without a
spare, is compared with that in the three seconds before.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from backedge import Collect, Flow, Generate
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.job_handle import Job
from bench.measuring import Report, Samples, at_least, interleaved
from bench.notes import note, read_notes
from bench.options import Options
from bench.ours import BenchError, begin
from bench.peers import actor_start, peers
from bench.session import session
from bench.workloads import StartWorkload

LIMITS = {"actor_start": 1.0, "actor_start_without_spare": 0.33, "undisturbed_per_s": 0.95, "task_death": 0.5}
KEYS = 100_000
RATE = 50_000.0
SPARED_RATE = 20_000.0
SPARED_S = 3.0
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
    spared = Spared(keys)
    with session():
        found = interleaved(
            {
                "with_spare": lambda: recovery_ms(keys, kill_head, spares=1),
                "actor_start": lambda: known["actor_start"](workload),
                "without_spare": lambda: recovery_ms(keys, kill_head),
                "supervisor": lambda: recovery_ms(keys, kill_supervisor),
                "spared_per_s": spared.measure,
                "undisturbed_per_s": lambda: spared.before_per_s,
            },
            options.turns,
            cold=dict.fromkeys(("with_spare", "without_spare", "supervisor", "spared_per_s"), lambda: 0.0),
        )
    return compare(found, keys)


def compare(found: dict[str, Samples], keys: int) -> Report:
    """How many times faster the run goes on than an actor would have started, and what another pipeline keeps."""
    start, undisturbed = found["actor_start"], found["undisturbed_per_s"]
    ratios = {
        "actor_start": start.over(found["with_spare"]),
        "actor_start_without_spare": start.over(found["without_spare"]),
        "undisturbed_per_s": found["spared_per_s"].over(undisturbed),
        "task_death": found["without_spare"].over(found["supervisor"]),
    }
    return Report(
        bench="recover",
        unit="ms",
        turns=len(start.figures),
        figures={name: found[name] for name in ("with_spare", "without_spare", "supervisor", "spared_per_s")},
        peers={
            "actor_start": start,
            "actor_start_without_spare": start,
            "undisturbed_per_s": undisturbed,
            "task_death": found["without_spare"],
        },
        ratios=ratios,
        limits=at_least(ratios, LIMITS),
        ours="with_spare",
        more={"keys": keys, "every_ms": EVERY_S * 1e3},
    )


def recovery_ms(keys: int, kill: Callable[[Job], float], spares: int = 0) -> float:
    """Kill a process of a run, and measure when the head gets past its previous position."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        path = str(Path(folder) / "positions")
        job = begin(make_flow(keys, path), f"{folder}/cuts", EVERY_S, {"actors": "task", "spares": spares})
        try:
            wait_for(lambda: highest(read_notes(path)) >= keys, "all keys have state")
            # Cuts of the whole state are being taken, and a spare actor has started.
            time.sleep(SETTLE_S)
            killed_s = kill(job)
            return (wait_for(lambda: time_past(path, killed_s), "the head is past its position") - killed_s) * 1e3
        finally:
            job.cancel()


class Spared:
    """Kills the head of a loop, and measures the throughput of another pipeline from then on, and before."""

    def __init__(self, keys: int) -> None:
        self.before_per_s = 0.0
        self._keys = keys

    def measure(self) -> float:
        """The throughput from the death on; that before it stays in `before_per_s`."""
        with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
            path, spared = str(Path(folder) / "positions"), str(Path(folder) / "spared")
            flow = make_flow(self._keys, path)
            add_pipeline(flow, self._keys, spared)
            job = begin(flow, f"{folder}/cuts", EVERY_S, {"actors": "task"})
            try:
                wait_for(lambda: highest(read_notes(path)) >= self._keys, "all keys have state")
                time.sleep(SETTLE_S + SPARED_S)
                killed_s = kill_head(job)
                wait_for(lambda: time_past(path, killed_s), "the head is past its position")
                wait_for(lambda: time.monotonic() > killed_s + SPARED_S, "the time to look at has passed")
            finally:
                job.cancel()
            noted_s = [at_s for at_s, _ in read_notes(spared)]
        self.before_per_s = _per_s(noted_s, killed_s - SPARED_S)
        return _per_s(noted_s, killed_s)


def _per_s(noted_s: list[float], from_s: float) -> float:
    """The records per second that were noted from that time on."""
    return NOTED_EVERY * sum(from_s <= at_s < from_s + SPARED_S for at_s in noted_s) / SPARED_S


def kill_head(job: Job) -> float:
    """End the head's process; return the time."""
    (pid,) = [pid for actor, pid in job.status().pids.items() if actor.startswith("head/")]
    return _kill(job, pid)


def kill_supervisor(job: Job) -> float:
    """End the process of the supervisor; return the time."""

    def pid_of(actor: object) -> int:
        return os.getpid()

    supervisor = job._supervisor  # pyright: ignore[reportPrivateUsage]
    return _kill(job, cluster.get(supervisor.__ray_call__.remote(pid_of)))


def _kill(job: Job, pid: int) -> float:
    story = job.status()
    if story.snapshots < 1 or story.restarts:
        raise BenchError(f"{story.snapshots} cuts and {story.restarts} restarts before the kill: nothing to recover")
    killed_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return killed_s


def highest(notes: list[tuple[float, float]]) -> float:
    """The highest position of these notes."""
    return max((position for _, position in notes), default=-1.0)


def time_past(path: str, killed_s: float) -> float:
    """When the run got past all positions before, having gone back to a cut after the kill; 0.0: not yet.

    Tasks whose supervisor was killed go on until they are ended, and that is no recovery.
    """
    reached, is_back = -1.0, False
    for at_s, position in read_notes(path):
        if is_back and position > reached:
            return at_s
        is_back = is_back or (at_s > killed_s and position < reached)
        reached = max(reached, position)
    return 0.0


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
    numbers = flow.read(Generate(lambda position: (position, HOPS)), rate=RATE, name="numbers")
    seen = numbers.merge(again).map(see, name="head")
    done, rest = seen.key_by(key_of).stateful_map(count, initial=0, name="body").split(is_done, name="split")
    again.feed(rest)
    done.filter(_is_never, name="chosen").write(Collect(), name="done")
    return flow


def add_pipeline(flow: Flow, keys: int, path: str) -> None:
    """Add a pipeline that counts a steady stream by key, and notes the positions that pass."""

    def see(position: int) -> int:
        if position % NOTED_EVERY == 0:
            note(path, float(position))
        return position

    steady = flow.read(Generate(lambda position: position), rate=SPARED_RATE, name="steady").map(see, name="seen")
    counted = steady.key_by(lambda position: position % keys).stateful_map(tally, initial=0, name="tally")
    counted.filter(lambda tallied: tallied < 0, name="none").write(Collect(), name="steady done")


def tally(seen: int, position: int) -> tuple[int, int]:
    """One more."""
    return seen + 1, seen


def count(seen: int, record: Record) -> tuple[int, Record]:
    """One more."""
    return seen + 1, record


def is_done(record: Record) -> bool:
    """Whether the record has made its hops."""
    return record[1] < 0


def _is_never(record: Record) -> bool:
    return record[0] < 0

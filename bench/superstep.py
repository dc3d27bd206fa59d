"""A round of `iterate` that computes nothing: the cost of exchanging, detecting the end of the round, and deciding.

Parallelism 2, a process per slice. In each round both tasks send one tiny record to the other, and both heads decide
whether there is another round, based on what all tasks have measured. Ours takes a cut every second. The record carries
the time, so only rounds are measured.

Peers: ray, two Ray actors that a driver calls with each other's arrays; ray_led, the same where one actor calls the
other, included for users who would write it that way.
"""

from __future__ import annotations

import time
from statistics import fmean

from backedge import Collect, Flow, Items, Stream
from bench.measuring import Report, Samples, beside_peers, interleaved
from bench.options import Options
from bench.ours import run_to_end
from bench.peers import peers, superstep_ray, superstep_ray_led
from bench.session import session
from bench.workloads import RoundWorkload

LIMITS = {"ray": 4.0}

Record = tuple[int, int, float, float]
"""Whose turn it is, rounds since the warm-up (negative before), when that ended, and now."""


def run(options: Options) -> Report:
    """Measure ours and the peers in turns."""
    workload = RoundWorkload(seed=options.seed, seconds=options.seconds or 3.0)
    known = peers({"ray": superstep_ray.run, "ray_led": superstep_ray_led.run}, options.peer)
    with session():
        found = interleaved(
            {
                "ours": lambda: measure(workload),
                "ray": lambda: known["ray"](workload),
                "ray_led": lambda: known["ray_led"](workload),
            },
            options.turns,
        )
    return compare(found)


def compare(found: dict[str, Samples]) -> Report:
    """How many times faster ours is than the peers."""
    return beside_peers("superstep", "us a round", found, LIMITS, is_rate=False)


def measure(workload: RoundWorkload) -> float:
    """Microseconds per round, measured by the records that went through all of them."""
    result = run_to_end(make_flow(workload), every=1.0, parallelism=2, actors="slice")
    return fmean((now_s - began_s) / rounds * 1e6 for _, rounds, began_s, now_s in result.outputs["done"])


def make_flow(workload: RoundWorkload) -> Flow:
    """Two records that change places in every round, until time is up."""
    seconds = workload.seconds

    def is_over(record: Record) -> int:
        return int(record[1] >= 1 and record[3] - record[2] >= seconds)

    def body(records: Stream[Record]) -> Stream[Record]:
        return records.route(side_of).map(turn, name="turn")

    flow = Flow("superstep")
    start: list[Record] = [(side, -workload.warm_up_rounds, 0.0, 0.0) for side in range(2)]
    records = flow.read(Items(start), name="start")
    ended = flow.iterate(records, body, measure=is_over, until=bool, name="rounds")
    ended.write(Collect(), name="done")
    return flow


def side_of(record: Record) -> int:
    """The task of this round: the other one than in the last round."""
    return (record[0] + record[1]) % 2


def turn(record: Record) -> Record:
    """Count the round, and look at the clock."""
    side, rounds, began_s, _ = record
    now_s = time.perf_counter()
    return side, rounds + 1, began_s if rounds >= 0 else now_s, now_s

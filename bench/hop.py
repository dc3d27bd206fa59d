"""A single record in a loop through two actors: the cost of a hop when there is nothing to batch.

A hop is one trip round the loop, so two messages between processes, for ours and for the peers. Ours takes a cut every
second, like a run that must survive failures. The record counts its hops and carries the time, so only hops are
measured.

A message costs four times as much between two otherwise idle cores as on one that is kept awake, and the scheduler
decides which: the same ping-pong takes 20 us in one turn and 85 in the next. So ours and bare are also measured with
each of the two processes pinned to its own core (`apart`), where the figures are stable.

Peers: bare, a ping-pong over pyzmq between two Ray actors; ray, a ping-pong of actor calls; bare_apart.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace

from backedge import Collect, Flow, Items
from bench.measuring import Report, Samples, at_least, interleaved
from bench.options import Options
from bench.ours import begin, keep_apart, run_to_end
from bench.peers import hop_bare, hop_ray, peers
from bench.session import session
from bench.workloads import HopRecord, HopWorkload, hop, us_a_hop

LIMITS = {"bare": 0.62, "ray": 6.0}


def run(options: Options) -> Report:
    """Measure ours and both peers in turns."""
    workload = HopWorkload(seed=options.seed, seconds=options.seconds or 3.0)
    known = peers({"bare": hop_bare.run, "ray": hop_ray.run}, options.peer)
    with session():
        found = interleaved(
            {
                "ours": lambda: measure(workload),
                "bare": lambda: known["bare"](workload),
                "ray": lambda: known["ray"](workload),
                "ours_apart": lambda: measure_apart(workload),
                "bare_apart": lambda: known["bare"](replace(workload, apart=True)),
            },
            options.turns,
        )
    return compare(found)


def compare(found: dict[str, Samples]) -> Report:
    """How many times faster ours is than the peers."""
    others = {name: samples for name, samples in found.items() if not name.startswith("ours")}
    ratios = {name: samples.over(found["ours"]) for name, samples in others.items()}
    ratios["bare_apart"] = found["bare_apart"].over(found["ours_apart"])
    return Report(
        bench="hop",
        unit="us a hop (there and back)",
        turns=len(found["ours"].figures),
        figures={name: found[name] for name in ("ours", "ours_apart")},
        peers=others,
        ratios=ratios,
        limits=at_least(ratios, LIMITS),
        ours="ours",
    )


def measure(workload: HopWorkload) -> float:
    """Microseconds per hop, measured by the circulating record."""
    result = run_to_end(make_flow(workload), every=1.0, actors="task")
    (record,) = result.outputs["done"]
    return us_a_hop(record)


def measure_apart(workload: HopWorkload) -> float:
    """The same with head and body pinned to a core each."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        job = begin(make_flow(workload), folder, 1.0, {"actors": "task"})
        pids = job.status().pids
        for core, actor in enumerate(("head/0", "body/0")):
            keep_apart(pids[actor], core)
        (record,) = job.wait().outputs["done"]
    return us_a_hop(record)


def make_flow(workload: HopWorkload) -> Flow:
    """One record, a head, and a body behind an exchange."""
    seconds = workload.seconds

    def is_over(record: HopRecord) -> bool:
        return record[0] >= 1 and record[2] - record[1] >= seconds

    flow = Flow("hop")
    again = flow.loop("again")
    head = flow.read(Items([workload.start()]), name="start").merge(again).map(pass_on, name="head")
    done, rest = head.key_by(lambda record: 0).stateful_map(body, initial=0, name="body").split(is_over, name="over")
    again.feed(rest)
    done.write(Collect(), name="done")
    return flow


def pass_on(record: HopRecord) -> HopRecord:
    """The head has nothing to do."""
    return record


def body(hops: int, record: HopRecord) -> tuple[int, HopRecord]:
    """Counts in the state of the only key as well."""
    return hops + 1, hop(record)

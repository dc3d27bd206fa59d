"""A keyed count with plain Python functions and a shuffle: source -> by key -> count -> keep one in a thousand.

Ours runs in two processes (parallelism 2, slices) and takes a cut every second; the peers take none. The cold turn
counts a bounded input to its end and compares every count.

Peers: bare, two hand-written processes over pyzmq and pickle; bytewax, if it is installed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from backedge import Collect, Flow, Generate
from bench.measuring import Limit, Report, Samples, beside_peers, interleaved
from bench.options import Options
from bench.ours import BenchError, run_to_end, watch
from bench.peers import Run, count_bare, count_bytewax, peers
from bench.session import session
from bench.workloads import CountWorkload, count_word, is_told, word_key

LIMITS = {"bytewax": 2.0, "bare": 0.5}
SECONDS_MIN = 10.0
EXACT_RECORDS = 1_000_000
TASKS_PASSED = 2
"""A record is counted where it is read and where it is counted."""


def run(options: Options) -> Report:
    """Measure ours and the peers in turns."""
    seconds = options.seconds or SECONDS_MIN
    workload = CountWorkload(seed=options.seed, seconds=seconds, warm_up_s=min(2.0, seconds))
    known = peers({"bare": count_bare.run, "bytewax": count_bytewax.run}, options.peer)
    if known["bytewax"] is count_bytewax.run and not count_bytewax.is_installed():
        del known["bytewax"]
    with session():
        found = interleaved(
            {"ours": lambda: measure(workload)} | {name: _case(peer, workload) for name, peer in known.items()},
            options.turns,
            cold={"ours": lambda: run_exact(workload, options.records or EXACT_RECORDS)},
        )
    return compare(found, workload.seconds)


def _case(peer: Run, workload: CountWorkload) -> Any:
    return lambda: peer(workload)


def compare(found: dict[str, Samples], seconds: float) -> Report:
    """How many times faster ours is than the peers."""
    absent = {} if "bytewax" in found else {"absent": {"bytewax": "not installed; make bench installs it"}}
    report = beside_peers("count", "records a second", found, LIMITS, is_rate=True, more=absent)
    lasts = Limit(f"{seconds:.1f} s measured a turn, at least {SECONDS_MIN}", seconds >= SECONDS_MIN)
    return replace(report, limits=(*report.limits, lasts))


def measure(workload: CountWorkload) -> float:
    """Records counted per second."""
    flow = make_flow(workload, None)
    window = watch(flow, workload.warm_up_s, workload.seconds, every=1.0, parallelism=2, actors="slice")
    return window.records_per_s / TASKS_PASSED


def make_flow(workload: CountWorkload, records: int | None) -> Flow:
    """The count as a user would write it; None: of unlimited records."""
    flow = Flow("count")
    words = flow.read(Generate(workload.make(), count=records), name="words")
    counted = words.key_by(word_key).stateful_map(count_word, initial=0, name="count")
    counted.filter(is_told, name="chosen").write(Collect(), name="told")
    return flow


def run_exact(workload: CountWorkload, records: int) -> float:
    """Count this many records; return records per second, including start and end. Raises if a count is wrong."""
    result = run_to_end(make_flow(workload, records), every=1.0, parallelism=2, actors="slice")
    make, total = workload.make(), Counter[str]()
    expected: list[Any] = []
    for word in map(make, range(records)):
        total[word] += 1
        if is_told((word, total[word])):
            expected.append((word, total[word]))
    if sorted(result.outputs.get("told", [])) != sorted(expected):
        raise BenchError(f"{records} words are counted wrong")
    if result.records != TASKS_PASSED * records:
        raise BenchError(f"{records} words are counted as {result.records} records in two tasks")
    return records / result.seconds

"""Flows that tell at their end whether every record counted once, and what they must give."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from backedge import Collect, Flow, Job, Range, RunOptions, RunResult, Sink
from backedge.faults import Faults, start_with_faults
from engine.on_ray.supervisor.run_story import Story
from tests.faults.evidence import NotHappenedError

DEADLINE_S = 120.0
LOOK_S = 0.05
PAUSE_S = 0.005
Record = tuple[int, int]


def grow(rounds: int, record: Record) -> tuple[int, Record]:
    """One more round; the state counts them, so what counts twice shows."""
    number, _ = record
    return rounds + 1, (number, rounds + 1)


def slowed(gate: Path) -> Callable[[int, Record], tuple[int, Record]]:
    """`grow`, slowly for as long as the file does not exist."""

    def slow(rounds: int, record: Record) -> tuple[int, Record]:
        if not gate.exists():
            time.sleep(PAUSE_S)
        return grow(rounds, record)

    return slow


def held_back(gate: Path) -> Callable[[int, Record], tuple[int, Record]]:
    """The same, and until then number 0 goes round without a count: the run lasts until the test opens the gate."""
    slow = slowed(gate)

    def held(rounds: int, record: Record) -> tuple[int, Record]:
        grown = slow(rounds, record)
        return (rounds, record) if record[0] == 0 and not gate.exists() else grown

    return held


def trips(
    count: int,
    trips: int = 5,
    rate: float | None = 150,
    name: str = "trips",
    sink: Sink[Any] | None = None,
    carried_bytes: int = 0,
    gate: str | None = None,
    has_constant: bool = False,
    **placing: Any,
) -> Flow:
    """Every number makes `trips` trips, under state by number; source, head, body and sink are tasks of their own.

    `carried_bytes`: the size of what a function carries along. `gate`: a file without which trips are slow and do not
    end. `has_constant`: how many trips there are is a constant of the flow. `placing` says what head and body need of a
    machine.
    """
    carried = bytes(carried_bytes)
    step = grow if gate is None else held_back(Path(gate))
    flow = Flow(name)
    again = flow.loop("again")
    numbers = flow.read(Range(count, rate=rate), name="numbers").map(
        lambda number: (number, 0 * len(carried)), name="begin"
    )
    keyed = numbers.merge(again).key_by(lambda record: record[0])
    grown = keyed.stateful_map(step, initial=0, name="grow", **placing)
    enough: Callable[[Record], bool] = lambda record: record[1] >= trips  # noqa: E731
    if has_constant:
        limit = flow.constant("trips", load=lambda: trips)
        enough = lambda record: record[1] >= limit.value  # noqa: E731
    done, rest = grown.rebalance().split(enough, name="enough", **placing)
    again.feed(rest.rebalance())
    done.rebalance().write(sink or Collect(), name="done")
    return flow


def trips_made(count: int, trips: int = 5) -> list[Record]:
    """What `trips` must give."""
    return [(number, trips) for number in range(count)]


def watch(job: Job, look: Callable[[Story], object]) -> RunResult:
    """Look at a run again and again until it is over."""
    while not job._is_over(LOOK_S):
        look(job.status())
    return job.wait()


def until(job: Job, holds: Callable[[Story], Any], what: str) -> Story:
    """Wait until a run has come so far."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds(story := job.status()):
        if job._is_over(LOOK_S):
            raise AssertionError(f"the run is over before this: {what}; {job.wait()}")
        assert time.monotonic() < deadline_s, f"not in time: {what}; {story}"
    return story


def begin(flow: Flow, *, kills: Sequence[str] = (), broken_rule: str | None = None, **options: Any) -> Job:
    """Start a flow with planned faults."""
    return start_with_faults(flow, Faults(kills, broken_rule), RunOptions(**{"progress": False, **options}))


def finish(flow: Flow, **options: Any) -> tuple[Job, RunResult]:
    """Run a flow to its end; its planned faults must all have happened."""
    job = begin(flow, **options)
    result = job.wait()
    assert result.state == "finished"
    if result.missed_faults:
        raise NotHappenedError(f"not happened: {', '.join(result.missed_faults)}")
    return job, result


def expect(result: RunResult, expected: Iterable[Any], sink: str = "done") -> None:
    """Raise unless a sink holds exactly these records, each as often as here."""
    found, wanted = Counter(result.outputs[sink]), Counter(expected)
    assert found == wanted, (
        f"lacking {list((wanted - found).items())[:9]}, surplus {list((found - wanted).items())[:9]}"
    )


def killed(result: RunResult) -> list[str]:
    """The planned faults that happened, in order."""
    return [kill["fault"] for kill in result.kills]


def kills_of(roles: Sequence[str]) -> list[str]:
    """One death of each role, an epoch after the other."""
    return [f"{role}@epoch={epoch}" for epoch, role in enumerate(roles, 1)]

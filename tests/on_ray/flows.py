"""Flows that tell at their end whether every record counted once, and what they must give."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import structs

from backedge import Collect, Flow, Job, Range, RunOptions, RunResult, Sink
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.supervisor.run_story import Story
from backedge.faults import Faults, start_with_faults
from backedge.recovery.stores.run_status import RunStatus
from tests.gates import HANG_S, LOOK_S, Gate, Gated, wait_for

PAUSE_S = 0.02
"""What goes round until a gate is open leaves the processors to others for this long in each round."""

Record = tuple[int, int]


def grow(rounds: int, record: Record) -> tuple[int, Record]:
    """One more round; the state counts them, so what counts twice shows."""
    number, _ = record
    return rounds + 1, (number, rounds + 1)


def held_back(gate: Gate) -> Callable[[int, Record], tuple[int, Record]]:
    """`grow`, but number 0 goes round without a count until the gate is open: a record is in the loop until then."""

    def held(rounds: int, record: Record) -> tuple[int, Record]:
        if record[0] == 0 and not gate.is_open:
            time.sleep(PAUSE_S)
            return rounds, record
        return grow(rounds, record)

    return held


def trips(
    count: int,
    trips: int = 5,
    name: str = "trips",
    sink: Sink[Any] | None = None,
    carried_bytes: int = 0,
    gate: str | None = None,
    has_constant: bool = False,
    **placing: Any,
) -> Flow:
    """Every number makes `trips` trips, under state by number; source, head, body and sink are tasks of their own.

    `carried_bytes`: the size of what a function carries along. `gate`: the path of one; until it is open, number 0
    stays in the loop, and the source has read a quarter of the numbers. `has_constant`: how many trips there are is a
    constant of the flow. `placing` says what head and body need of a machine.
    """
    carried = bytes(carried_bytes)
    step = grow if gate is None else held_back(Gate(gate))
    source = Range(count) if gate is None else Gated(Range(count), Gate(gate), count // 4)
    flow = Flow(name)
    again = flow.loop("again")
    numbers = flow.read(source, name="numbers").map(lambda number: (number, 0 * len(carried)), name="begin")
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


def with_function(flow: Flow, operator: str, function: Callable[..., Any]) -> Flow:
    """The same flow, one of whose operators has another function."""
    found = flow.draft.operators[operator]
    flow.draft.operators[operator] = structs.replace(found, kind=dataclasses.replace(found.kind, function=function))
    return flow


def watch(job: Job, look: Callable[[Story], object]) -> RunResult:
    """Look at a run again and again until it is over."""
    while not job._is_over(LOOK_S):
        look(job.status())
    return job.wait()


def until(job: Job, holds: Callable[[Story], Any], what: object) -> Story:
    """Wait until a run has come so far."""
    deadline_s = time.monotonic() + HANG_S
    while not holds(story := job.status()):
        if job._is_over(LOOK_S):
            raise AssertionError(f"the run is over before this: {what}; {job.wait()}")
        assert time.monotonic() < deadline_s, f"it hangs: {what}; {story}"
    return story


def told(job: Job, holds: Callable[[RunStatus], Any], what: str) -> RunStatus:
    """The first status for which this holds, once there are tasks."""
    found: list[RunStatus] = []

    def is_told() -> Any:
        found[:] = [cluster.get(job._supervisor.status.remote())]
        return found[0].operators and holds(found[0])

    wait_for(is_told, what)
    return found[0]


def begin(flow: Flow, *, kills: Sequence[str] = (), broken_rule: str | None = None, **options: Any) -> Job:
    """Start a flow with planned faults."""
    return start_with_faults(flow, Faults(kills, broken_rule), RunOptions(**{"progress": False, **options}))


def finish(flow: Flow, *, gate: Gate | None = None, **options: Any) -> tuple[Job, RunResult]:
    """Run a flow to its end; its planned faults must all happen, and before the gate opens if there is one."""
    job = begin(flow, **options)
    if gate is not None:
        kills = len(options.get("kills", ()))
        until(job, lambda story: len(story.kills) >= kills, "all planned faults have happened")
        gate.open()
    result = job.wait()
    assert (result.state, result.missed_faults) == ("finished", ())
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

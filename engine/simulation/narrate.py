"""`narrate`: one schedule of a user's flow, told turn by turn, optionally with a protocol rule broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backedge.engine.batches.differences import differences
from backedge.engine.simulation.breaks import BREAKS
from backedge.engine.simulation.simulation import Policy, Simulation, SimulationError
from backedge.engine.simulation.telling import tell_turns
from backedge.graphs.flow import Flow
from backedge.graphs.public import public


@public
@dataclass(frozen=True)
class Narration:
    """What happened under one seed.

    - turns: the events, one line each: deaths, attempts, cuts with their records in each loop, the end.
    - problem: what is wrong with the run, in the checker's words; None if nothing is.
    - expected: sink -> records of the run without crashes. lacking, surplus: how the output of this run differs.
    - restores: attempts that began from a cut. restores_with_log: from a cut that contains records in flight.
    """

    seed: int
    turns: tuple[str, ...]
    problem: str | None
    expected: Mapping[str, list[Any]]
    lacking: Mapping[str, list[Any]]
    surplus: Mapping[str, list[Any]]
    restores: int
    restores_with_log: int


@public
def narrate(
    flow: Flow,
    inputs: Mapping[str, Sequence[Any]] | None = None,
    *,
    seed: int,
    crashes: int = 3,
    parallelism: int | Sequence[int] = (1, 2),
    policy: Policy = "aligned",
    broken_rule: str | None = None,
) -> Narration:
    """Run a flow under the schedule of one seed, like `simulate`, and tell what happened instead of judging it.

    `broken_rule` breaks one rule of the protocol, to show what the rule is for. The error for an unknown name lists
    the rules, and so does `python -m proof run --list-breaks` in a checkout.

    >>> from backedge import Collect, Flow, Items
    >>> flow = Flow("squares")
    >>> flow.read(Items([1, 2, 3]), name="numbers").map(lambda n: n * n).write(Collect(), name="squares")
    >>> narration = narrate(flow, seed=1)
    >>> narration.turns[0], narration.turns[-1], narration.lacking
    ('attempt 1 begins from nothing', 'the run is finished', {})
    """
    if broken_rule is not None and broken_rule not in BREAKS:
        raise SimulationError(f"broken_rule={broken_rule!r} is not a rule; there are {', '.join(map(repr, BREAKS))}")
    simulation = Simulation(flow, inputs, crashes, parallelism, policy)
    problem = simulation.faithful.drive()
    if problem is not None:
        raise SimulationError(f"flow {flow.name!r} fails even without a crash, so there is nothing to tell: {problem}")
    expected = simulation.faithful.outputs()
    run = simulation.run_seed(seed, None if broken_rule is None else BREAKS[broken_rule].parts())
    problem = run.drive()
    found = run.outputs()
    differing = {sink: differences(records, found[sink]) for sink, records in expected.items()}
    counts = run.counts()
    return Narration(
        seed=seed,
        turns=tuple(tell_turns(run.schedule.outcome.story, run.world.plan, run.world.record.cuts)),
        problem=problem,
        expected=expected,
        lacking={sink: lacking for sink, (lacking, _) in differing.items() if lacking},
        surplus={sink: surplus for sink, (_, surplus) in differing.items() if surplus},
        restores=counts["restores"],
        restores_with_log=counts["restores_with_log"],
    )

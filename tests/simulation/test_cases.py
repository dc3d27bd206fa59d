"""The generated cases: real flows, of every topology, whose plain result depends on nothing but their inputs."""

from __future__ import annotations

import random

import pytest

from backedge.engine.simulation.plain import reference
from backedge.engine.simulation.plain_operator import frozen
from backedge.graphs.expansion import expand
from backedge.graphs.kinds import FlatMap, Iterate, MapAsync, OfClass, StatefulMap
from backedge.graphs.plan import Routing
from proof.column_flows import ON_COLUMNS
from proof.generated_flows import IN_ROUNDS, MIXED, NAMES, Case, generate


def some(name: str, count: int = 40) -> list[Case]:
    return [generate(random.Random(seed), name) for seed in range(count)]


def test_every_topology_that_was_promised_is_there() -> None:
    promised = "chain diamond self_loop two_back_edges nested shared_head overlapping irreducible rounds rounds_nested"
    assert set(NAMES) == {
        *promised.split(),
        "far_loop",
        "rounds_behind_loop",
        "rounds_in_lanes",
        "pipelines",
        "broadcast",
    }


@pytest.mark.parametrize("name", [*NAMES, *MIXED, *ON_COLUMNS])
def test_a_case_says_what_it_is_and_expands(name: str) -> None:
    for case in some(name):
        assert case.name == name
        assert case.is_cyclic == any(edge.is_back for edge in case.plan.edges)
        assert case.in_rounds == (name in IN_ROUNDS)
        assert {n for n, o in case.plan.operators.items() if o.kind.is_source} == case.inputs.keys()
        deployment = expand(case.plan, case.parallelism, case.actors)
        assert {component.in_rounds for component in deployment.components} <= {True, False}
        assert len(deployment.tasks) <= 60


@pytest.mark.parametrize("name", NAMES)
def test_the_plain_result_conserves_what_the_case_says_and_changes_no_input(name: str) -> None:
    for case in some(name):
        before = frozen(case.inputs)
        result = reference(case.plan, case.inputs)
        assert frozen(case.inputs) == before
        if case.conserved is None:
            continue
        injected = sum(record["weight"] for records in case.inputs.values() for record in records)
        written = sum(dict(r)["weight"] * count for sink in result.sinks.values() for r, count in sink.items())
        kept = sum(case.conserved.of_state(o, k, v) for o, values in result.states.items() for k, v in values.items())
        assert written + kept == injected


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_inputs_does_not_show_in_the_result(name: str) -> None:
    for case in some(name, 20):
        turned = {source: records[::-1] for source, records in case.inputs.items()}
        assert reference(case.plan, turned) == reference(case.plan, case.inputs)


def test_the_same_seed_gives_the_same_case() -> None:
    for name in (None, "rounds"):
        one, other = (generate(random.Random(5), name) for _ in range(2))
        assert (one.name, one.inputs, one.plan.hash, one.policy) == (
            other.name,
            other.inputs,
            other.plan.hash,
            other.policy,
        )


def test_the_cases_cover_what_the_simulator_promises() -> None:
    cases = [generate(random.Random(seed)) for seed in range(400)]
    assert {case.name for case in cases} == set(NAMES)
    assert {case.policy for case in cases} == {"aligned", "unaligned"}
    assert {case.parallelism for case in cases} == {1, 2, 3, 4}
    assert {case.actors for case in cases} == {"task", "slice"}
    assert any(not records for case in cases for records in case.inputs.values())
    assert any(case.rescale_to for case in cases)
    routings = {edge.routing for case in cases for edge in case.plan.edges}
    assert routings == set(Routing)
    kinds = {type(operator.kind) for case in cases for operator in case.plan.operators.values()}
    assert {MapAsync, Iterate, OfClass, FlatMap, StatefulMap} <= kinds

"""What pipelines a run has: what its cuts were taken of decides, and operators find their former pipelines."""

from __future__ import annotations

from typing import Any

import pytest

from backedge import Collect, Flow, Items
from backedge.engine.on_ray.api.launch_checks import divided, with_former_names
from backedge.engine.on_ray.planned_faults import Kill, planned_for
from backedge.engine.on_ray.run_options import RunOptions
from backedge.graphs.expansion import expand
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.pipelines import pipelines_of
from backedge.graphs.plan import Plan
from backedge.recovery.restore.graph_change import GraphMismatchError


def flow(*names: str, connected: bool = False, stop_when: Any = None) -> Plan:
    made = Flow("shop", stop_when=stop_when)
    streams = [made.read(Items([1]), name=name).map(abs, name=f"{name} map") for name in names]
    if connected:
        streams = [streams[0].merge(*streams[1:])]
    for number, stream in enumerate(streams):
        stream.write(Collect(), name=f"done {number}" if connected else f"{names[number]} done")
    return made.plan()


def names_of(parts: tuple[Plan, ...]) -> list[str | None]:
    return [part.pipeline for part in parts]


ALONE = frozenset[str | None]({None})
BOTH = frozenset[str | None]({"orders", "prices"})
FORMER = {name: frozenset({name, f"{name} map", f"{name} done"}) for name in ("orders", "prices")}
AUTO, JOB, APART = RunOptions(), RunOptions(scope="job"), RunOptions(scope="pipeline", snapshots="cuts")


def test_a_connected_flow_is_one_and_has_the_plan_that_it_always_had():
    plan = flow("orders")
    assert divided(plan, AUTO, frozenset()) == (plan,) and plan.pipeline is None
    assert divided(plan, APART, frozenset()) == (plan,)


def test_each_component_is_a_pipeline_whose_name_does_not_depend_on_the_order_of_declaration():
    for plan in (flow("orders", "prices"), flow("prices", "orders")):
        parts = divided(plan, AUTO, frozenset())
        assert set(names_of(parts)) == {"orders", "prices"}
        assert {name for part in parts for name in part.operators} == set(plan.operators)
    hashes = {part.pipeline: part.hash for part in pipelines_of(flow("orders", "prices"))}
    assert hashes["orders"] == flow("orders").hash, "nor does its hash depend on the others"


def test_a_job_goes_on_as_its_cuts_were_taken():
    plan = flow("orders", "prices")
    assert names_of(divided(plan, AUTO, ALONE)) == [None]
    assert names_of(divided(plan, AUTO, BOTH)) == ["orders", "prices"]
    assert names_of(divided(flow("orders"), AUTO, BOTH)) == ["orders"], "one that is left keeps its name"


def test_stop_when_is_about_the_whole_flow():
    plan = flow("orders", "prices", stop_when=lambda cut: True)
    assert divided(plan, AUTO, frozenset()) == (plan,)
    with pytest.raises(BadOptionError, match=r"stop_when.*scope='job'"):
        divided(plan, APART, frozenset())
    with pytest.raises(BadOptionError, match=r"stop_when, and its cuts were taken of pipelines \(orders, prices\)"):
        divided(plan, AUTO, BOTH)


def test_a_scope_that_the_cuts_do_not_have_is_refused():
    plan = flow("orders", "prices")
    with pytest.raises(BadOptionError, match="scope='job', and its cuts were taken of pipelines"):
        divided(plan, JOB, BOTH)
    with pytest.raises(BadOptionError, match="scope='pipeline', and its cuts were taken of the whole flow"):
        divided(plan, APART, ALONE)


def test_pipelines_that_need_cuts_are_refused_without_a_place_for_them():
    with pytest.raises(BadOptionError, match=r"scope='pipeline'.*snapshots="):
        RunOptions(scope="pipeline").check_snapshots("flow 'shop'")


def test_a_pipeline_keeps_its_name_when_its_first_source_is_renamed_or_another_comes_first():
    parts = pipelines_of(flow("bids", "prices"))
    renamed = RunOptions(snapshots="cuts", rename={name: name.replace("orders", "bids") for name in FORMER["orders"]})
    assert names_of(with_former_names(parts, FORMER, renamed)) == ["orders", "prices"]


def test_a_new_pipeline_takes_no_name_of_a_former_one():
    parts = pipelines_of(flow("a", "orders", "prices"))
    former = {"a": FORMER["orders"], "prices": FORMER["prices"]}
    assert names_of(with_former_names(parts, former, AUTO)) == ["a+", "a", "prices"]


def test_pipelines_that_are_connected_now_or_came_apart_are_refused_by_name():
    with pytest.raises(GraphMismatchError, match="'orders', 'prices' had cuts of their own, and are connected"):
        with_former_names(pipelines_of(flow("orders", "prices", connected=True), is_divided=True), FORMER, AUTO)
    together = {"orders": FORMER["orders"] | FORMER["prices"]}
    with pytest.raises(GraphMismatchError, match="'orders' had cuts that hold operators of two pipelines"):
        with_former_names(pipelines_of(flow("orders", "prices")), together, AUTO)


def test_a_pipeline_that_is_gone_is_given_up_only_by_name():
    left = pipelines_of(flow("orders"), is_divided=True)
    with pytest.raises(GraphMismatchError, match=r"pipeline 'prices' had cuts.*drop="):
        with_former_names(left, FORMER, AUTO)
    dropping = RunOptions(snapshots="cuts", drop=sorted(FORMER["prices"]))
    assert names_of(with_former_names(left, FORMER, dropping)) == ["orders"]


def test_tasks_of_two_pipelines_share_no_actor():
    deployments = [expand(part, 2, "slice") for part in pipelines_of(flow("orders", "prices"))]
    actors = [{task.actor for task in deployment.tasks.values()} for deployment in deployments]
    assert actors == [{"orders/slice-0", "orders/slice-1"}, {"prices/slice-0", "prices/slice-1"}]
    assert {task.actor for task in expand(flow("orders", "prices"), 1, "slice").tasks.values()} == {"slice-0"}


def test_a_planned_fault_is_for_the_pipeline_that_has_its_task_and_a_random_one_for_each():
    deployments = [expand(part) for part in pipelines_of(flow("orders", "prices"))]
    kills = [Kill.parse(text) for text in ("prices@records=3", "source@epoch=2", "random@every=1s")]
    assert planned_for(kills, deployments) == [(kills[1], kills[2]), (kills[0], kills[2])]

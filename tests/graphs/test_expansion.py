"""What runs where: chains, channels, actors and components of expanded plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from backedge import BadOptionError, Collect, Flow, JsonLines, Range, Stream
from backedge.graphs.deployment import Deployment
from backedge.graphs.expansion import expand, resized
from backedge.graphs.ids import TaskId
from backedge.graphs.plan import Routing


def deployed(build: Callable[[Flow], Stream[Any]], parallelism: int = 1, **options: Any) -> Deployment:
    """The deployment of a flow whose stream is written to "sink"."""
    flow = Flow()
    build(flow).write(Collect(), name="sink")
    return expand(flow.plan(), parallelism, **options)


def numbers(flow: Flow) -> Stream[int]:
    return flow.read(Range(9), name="source")


def chains(deployment: Deployment) -> set[tuple[str, ...]]:
    return {task.operators for task in deployment.tasks.values()}


def channels(deployment: Deployment, edge: str) -> set[tuple[int, int]]:
    return {(id.sender.index, id.receiver.index) for id in deployment.channels if id.edge == edge}


def looped(flow: Flow, key: Any = None, **options: Any) -> Stream[Any]:
    """A loop of two maps; with a key, its back edge is shuffled."""
    again = flow.loop("again", max_rounds=3, on_limit="fail")
    merged = numbers(flow).merge(again)
    circle = (merged.key_by(key) if key else merged).map(abs, name="head", **options).map(abs, name="next")
    again.feed(circle)
    return circle


def iterated(flow: Flow) -> Stream[int]:
    return flow.iterate(numbers(flow), lambda s: s.map(abs, name="a").map(abs, name="b"), rounds=2, name="rounds")


def test_operators_that_need_no_exchange_share_a_task():
    deployment = deployed(lambda flow: numbers(flow).map(abs, name="m").filter(bool, name="f"), 3)
    assert chains(deployment) == {("source", "m", "f", "sink")}
    assert len(deployment.tasks) == 3
    assert not deployment.channels
    assert all(task.is_source for task in deployment.tasks.values())


def test_one_task_can_hold_several_branches_upstream_first():
    flow = Flow()
    source = flow.read(Range(9), name="source")
    left, right = source.split(bool, name="split")
    right.map(abs, name="r").write(Collect(), name="right")
    left.map(abs, name="l").write(Collect(), name="left")
    (task,) = expand(flow.plan()).tasks.values()
    place = {name: index for index, name in enumerate(task.operators)}
    assert sorted(place) == sorted(flow.plan().operators)
    assert all(place[edge.sender] < place[edge.receiver] for edge in flow.plan().edges)


@pytest.mark.parametrize("name", ["key_by", "rebalance", "broadcast", "route"])
def test_exchange_ends_a_chain_and_connects_every_task_with_every_task(name: str):
    given = [abs] if name in ("key_by", "route") else []
    deployment = deployed(lambda flow: getattr(numbers(flow), name)(*given).map(abs, name="m"), 2)
    assert chains(deployment) == {("source",), ("m", "sink")}
    assert channels(deployment, "source.out->m.in") == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_operator_with_two_inputs_starts_a_task_of_its_own():
    deployment = deployed(lambda flow: (source := numbers(flow)).merge(source.map(abs, name="m")), 2)
    assert chains(deployment) == {("source", "m"), ("sink",)}
    assert channels(deployment, "source.out->sink.in") == {(0, 0), (1, 1)}
    assert channels(deployment, "m.out->sink.in") == {(0, 0), (1, 1)}


def test_operators_with_other_resources_do_not_share_a_task():
    deployment = deployed(lambda flow: numbers(flow).map(abs, name="g", num_gpus=1).map(abs, name="h", num_gpus=1))
    assert chains(deployment) == {("source",), ("g", "h"), ("sink",)}


def test_forward_edge_between_other_parallelisms_goes_round_in_turn():
    flow = Flow()
    flow.read(Range(9), name="source").map(abs, name="m", parallelism=3).write(Collect(), name="sink", parallelism=3)
    plan = flow.plan()
    deployment = expand(plan, parallelism=2)
    assert chains(deployment) == {("source",), ("m", "sink")}
    assert len(channels(deployment, "source.out->m.in")) == 6
    assert {channel.edge.routing for channel in deployment.channels.values()} == {Routing.REBALANCE}
    assert {edge.name: edge.routing for edge in deployment.plan.edges} == {
        "source.out->m.in": Routing.REBALANCE,
        "m.out->sink.in": Routing.FORWARD,
    }
    assert deployment.plan.hash == plan.hash
    assert deployment.parallelism == {"source": 2, "m": 3, "sink": 3}


def test_loop_without_an_exchange_runs_inside_one_task():
    deployment = deployed(looped, 2)
    assert chains(deployment) == {("source",), ("head", "next", "sink")}
    assert channels(deployment, "next.out->head.in") == {(0, 0), (1, 1)}
    head = deployment.tasks[TaskId("head", 0)]
    assert head.is_head
    assert [(str(channel.id), channel.is_back) for channel in head.inputs] == [
        ("source.out->head.in source/0->head/0", False),
        ("next.out->head.in head/0->head/0", True),
    ]
    assert [str(channel.id) for channel in head.outputs] == ["next.out->head.in head/0->head/0"]
    assert [component.name for component in deployment.components] == ["again", "again#2"]
    assert [component.heads for component in deployment.components] == [(TaskId("head", 0),), (TaskId("head", 1),)]


def test_loop_with_a_shuffled_back_edge_is_one_component():
    (component,) = deployed(lambda flow: looped(flow, key=abs), 3).components
    assert component.heads == tuple(TaskId("head", index) for index in range(3))
    assert component.tasks == frozenset(component.heads)
    assert (component.in_rounds, component.endless) == (False, False)


def test_endless_loop_is_an_endless_component():
    flow = Flow()
    again = flow.loop("again", endless=True)
    circle = flow.read(Range(9)).merge(again).map(abs, name="m")
    again.feed(circle)
    circle.write(Collect())
    assert [component.endless for component in expand(flow.plan()).components] == [True]


def test_head_of_an_iteration_is_a_task_alone_and_hears_from_every_sender():
    deployment = deployed(iterated, 2)
    assert chains(deployment) == {("source",), ("rounds",), ("a", "b"), ("sink",)}
    assert channels(deployment, "b.out->rounds.returned") == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert channels(deployment, "source.out->rounds.start") == {(0, 0), (1, 1)}
    assert {edge.name: edge.routing for edge in deployment.plan.edges}["b.out->rounds.returned"] is Routing.FORWARD
    head, body = deployment.tasks[TaskId("rounds", 1)], deployment.tasks[TaskId("a", 1)]
    assert (head.iteration, head.is_head, head.depth) == ("rounds", True, 1)
    assert (body.iteration, body.is_head, body.depth) == (None, False, 1)
    assert {channel.edge.name: channel.depth for channel in deployment.channels.values()} == {
        "source.out->rounds.start": 0,
        "rounds.body->a.in": 1,
        "b.out->rounds.returned": 1,
        "rounds.result->sink.in": 0,
    }
    (component,) = deployment.components
    assert component.in_rounds
    assert len(component.tasks) == 4


def test_what_leaves_a_body_is_no_part_of_its_tasks():
    def body(stream: Stream[int]) -> Stream[int]:
        step = stream.map(abs, name="step")
        step.write(Collect(), name="watched")
        return step

    deployment = deployed(lambda flow: flow.iterate(numbers(flow), body, rounds=2, name="rounds"))
    assert ("step",) in chains(deployment)
    assert deployment.tasks[TaskId("watched", 0)].depth == 0


def test_components_stand_upstream_first():
    flow = Flow()
    second = flow.loop("second", max_rounds=2, on_limit="fail")
    circle = looped(flow, key=abs).merge(second).key_by(abs).map(abs, name="other")
    second.feed(circle)
    flow.iterate(circle, lambda s: s.map(abs, name="step"), rounds=2, name="third").write(Collect())
    components = expand(flow.plan(), parallelism=2).components
    assert [component.name for component in components] == ["again", "second", "third"]


def test_task_has_an_actor_each_by_default():
    deployment = deployed(lambda flow: looped(flow, key=abs), 2)
    assert {task.actor for task in deployment.tasks.values()} == {"source/0", "source/1", "head/0", "head/1"}
    inside = {str(c.id) for c in deployment.channels.values() if c.within_actor}
    assert inside == {"next.out->head.in head/0->head/0", "next.out->head.in head/1->head/1"}


def test_slice_holds_one_task_of_every_operator():
    deployment = deployed(lambda flow: looped(flow, key=abs), 2, actors="slice")
    assert {str(task.id): task.actor for task in deployment.tasks.values()} == {
        "source/0": "slice-0",
        "source/1": "slice-1",
        "head/0": "slice-0",
        "head/1": "slice-1",
    }
    for channel in deployment.channels.values():
        assert channel.within_actor == (channel.id.sender.index == channel.id.receiver.index)


def test_operator_with_resources_has_actors_of_its_own_in_slices_too():
    deployment = deployed(lambda flow: numbers(flow).map(abs, name="g", num_gpus=1), 2, actors="slice")
    assert {task.actor for task in deployment.tasks.values() if task.id.name == "g"} == {"g/0", "g/1"}
    assert {task.actor for task in deployment.tasks.values() if task.id.name != "g"} == {"slice-0", "slice-1"}


@pytest.mark.parametrize(("cpus", "actor"), [(4, "head/1"), (3, "slice-1")])
def test_auto_gives_each_task_an_actor_where_there_are_enough_cpus(cpus: int, actor: str):
    deployment = deployed(lambda flow: looped(flow, key=abs), 2, actors="auto", cpus=cpus)
    assert deployment.tasks[TaskId("head", 1)].actor == actor


def test_more_tasks_than_key_groups_are_refused_for_keyed_operators_alone():
    with pytest.raises(BadOptionError, match=r"'head'.*parallelism=129.* 128 .*parallelism=128"):
        deployed(lambda flow: looped(flow, key=abs, parallelism=129))
    assert len(deployed(lambda flow: numbers(flow).map(abs), 129).tasks) == 129


def test_more_channels_than_a_cut_has_room_for_are_refused_before_they_are_made():
    def wide(flow: Flow) -> Stream[int]:
        return numbers(flow).rebalance().map(abs, name="wide").map(abs, name="next", parallelism=1)

    with pytest.raises(
        BadOptionError, match=r"2,253,000 channels .* 2,000,000: .*2,250,000, are from 'source' to 'wide'"
    ):
        deployed(wide, 1_500)
    with pytest.raises(BadOptionError, match="channels between its tasks"):
        resized(small := deployed(wide, 2), {**small.parallelism, "source": 30_000, "wide": 100})


def test_unknown_kind_of_actors_is_refused():
    flow = Flow("f")
    flow.read(Range(9)).write(Collect())
    wrong: Any = "process"
    with pytest.raises(BadOptionError, match=r"'f'.*actors='process'.*'slice'"):
        expand(flow.plan(), actors=wrong)


def test_every_channel_is_an_output_of_its_sender_and_an_input_of_its_receiver_once():
    def build(flow: Flow) -> Stream[Any]:
        return flow.iterate(looped(flow, key=abs), lambda s: s.key_by(abs).map(abs, name="step"), rounds=2, name="i")

    deployment = deployed(build, 3)
    sent = [channel.id for task in deployment.tasks.values() for channel in task.outputs]
    received = [channel.id for task in deployment.tasks.values() for channel in task.inputs]
    assert sorted(sent) == sorted(received) == sorted(deployment.channels)
    for task in deployment.tasks.values():
        assert all(channel.id.sender == task.id for channel in task.outputs)
        assert all(channel.id.receiver == task.id for channel in task.inputs)


def test_what_finds_splits_is_one_task():
    deployment = deployed(lambda flow: flow.read(JsonLines("in", watch=1), name="in"), 2)
    assert (deployment.parallelism["in.splits"], deployment.parallelism["in"]) == (1, 2)
    assert resized(deployment, deployment.parallelism | {"in": 3}).parallelism["in"] == 3
    with pytest.raises(BadOptionError, match="finds all splits of 'in': give 'in' the parallelism=2"):
        resized(deployment, deployment.parallelism | {"in.splits": 2})

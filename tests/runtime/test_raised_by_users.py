"""Whatever a user's function raises is told as the user's error: exits, cancellations and StopIteration as well."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from backedge import Collect, Flow, Generate, Items
from backedge.engine.files.services import FileServices
from backedge.engine.runtime import TaskRuntime
from backedge.engine.task_errors import UserFunctionError
from backedge.graphs.expansion import expand
from tests.runtime.tasks import Tasks


def leave(record: Any) -> Any:
    if record == 2:
        sys.exit("enough")
    return record


def cancel(record: Any) -> Any:
    if record == 2:
        raise asyncio.CancelledError
    return record


def stop(record: Any) -> Any:
    if record == 2:
        raise StopIteration
    return record


RAISED = {"SystemExit: enough": leave, "CancelledError": cancel, "StopIteration": stop}


def hooked(function: Callable[[Any], Any]) -> type[Any]:
    class Hooked:
        def on_record(self, ctx: Any, record: Any) -> None:
            ctx.emit(function(record))

    return Hooked


def batched(function: Callable[[Any], Any]) -> type[Any]:
    class Batched:
        def on_batch(self, ctx: Any, records: list[Any]) -> None:
            for record in records:
                ctx.emit(function(record))

    return Batched


STEPS: dict[str, Any] = {
    "map": lambda s, f, **o: s.map(f, name="op", **o),
    "flat_map": lambda s, f, **o: s.flat_map(lambda r: [f(r)], name="op", **o),
    "filter": lambda s, f, **o: s.filter(lambda r: f(r) is not None, name="op", **o),
    "split": lambda s, f, **o: s.split(lambda r: f(r) is not None, name="op", **o)[0],
    "split into": lambda s, f, **o: s.split(lambda r: f"{f(r) // 9}", into=("0", "1"), name="op", **o)[0],
    "map_batches": lambda s, f, **o: s.map_batches(lambda b: [f(r) for r in b], batch_size=1, name="op", **o),
    "stateful_map": lambda s, f, **o: s.key_by(abs).stateful_map(lambda n, r: (n, f(r)), initial=0, name="op", **o),
    "process": lambda s, f, **o: s.process(hooked(f), name="op", **o),
    "process keyed": lambda s, f, **o: s.key_by(abs).process(hooked(f), name="op", **o),
    "process batches": lambda s, f, **o: s.key_by(abs).process(batched(f), name="op", **o),
}


def flow_of(step: Any, function: Any, **options: Any) -> Flow:
    flow = Flow("raised")
    stream = step(flow.read(Items([]), name="source").rebalance(), function, **options)
    stream.rebalance().write(Collect(), name="sink")
    if options:
        stream.dead_letters.rebalance().write(Collect(), name="dead")
    return flow


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("kind", STEPS)
def test_it_is_told_with_operator_and_record(kind: str, raised: str):
    with pytest.raises(UserFunctionError) as caught:
        Tasks(flow_of(STEPS[kind], RAISED[raised])).feed("op", [1, 2, 3])
    error = caught.value
    assert f"operator 'op' raised {raised}" in str(error)
    assert any(line in ("  record: 2", "  record: [2]") for line in str(error).splitlines())


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("kind", STEPS)
def test_its_record_is_set_aside_where_that_is_asked_for(kind: str, raised: str):
    tasks = Tasks(flow_of(STEPS[kind], RAISED[raised], on_error="dead_letter"))
    emitted = tasks.feed("op", [1, 2, 3])
    found = {sink: [r for c, b in emitted if c.receiver.name == sink for r in b.records] for sink in ("sink", "dead")}
    assert found == {"sink": [1, 3], "dead": [2]}


@pytest.mark.parametrize("route", ["key_by", "route"])
@pytest.mark.parametrize("raised", RAISED)
def test_a_function_of_an_edge_that_raises_it_is_told_with_its_record(raised: str, route: str):
    flow = Flow("raised")
    items = flow.read(Items([]), name="source").rebalance().map(lambda r: r, name="op")
    getattr(items, route)(RAISED[raised]).map(abs, name="next").write(Collect(), name="sink")
    with pytest.raises(UserFunctionError, match=f"^{route} between 'op' and 'next' raised {raised}(.|\n)*record: 2"):
        Tasks(flow, 2).feed("op", [1, 2, 3])


def iterating(**rule: Any) -> Tasks:
    flow = Flow("rounds")
    start = flow.read(Items([]), name="source").rebalance()
    body = flow.iterate(start, lambda s: s.rebalance().map(lambda n: n, name="body"), name="head", **rule)
    body.rebalance().write(Collect(), name="sink")
    return Tasks(flow)


@pytest.mark.parametrize("raised", RAISED)
def test_a_measure_that_raises_it_does_not_cut_its_round_short(raised: str):
    tasks = iterating(until=lambda total: total > 100, measure=RAISED[raised])
    with pytest.raises(UserFunctionError, match=f"operator 'head' raised {raised} in measure or reduce"):
        tasks.feed("body", [1, 2, 3])


@pytest.mark.parametrize("raised", RAISED)
def test_a_reduce_that_raises_it_is_told(raised: str):
    tasks = iterating(until=lambda total: total > 100, reduce=lambda a, b: RAISED[raised](2))
    with pytest.raises(UserFunctionError, match=f"operator 'head' raised {raised} in measure or reduce"):
        tasks.feed("body", [1, 2, 3])


@pytest.mark.parametrize("raised", RAISED)
def test_an_until_that_raises_it_is_told(raised: str):
    head = iterating(until=lambda total: RAISED[raised](2)).home("head")
    with pytest.raises(UserFunctionError, match=f"operator 'head' raised {raised} in until or reduce of round 0"):
        head.decide((0,), {head.task.id: 1})


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("hook", ["__init__", "on_start", "on_end", "capture"])
def test_a_hook_that_raises_it_is_told(hook: str, raised: str):
    members = {"on_record": lambda self, ctx, record: None, hook: lambda self, *arguments: RAISED[raised](2)}
    operator = type("Hooked", (), members)
    flow = flow_of(lambda s, f: s.process(f, name="op"), operator)

    def run() -> None:
        tasks = Tasks(flow)
        tasks.capture()
        tasks.home("op").end(now_ms=0)

    with pytest.raises(UserFunctionError, match=f"operator 'op' raised {raised} in {hook}"):
        run()


@pytest.mark.parametrize("raised", RAISED)
def test_a_generating_function_that_raises_it_is_told(raised: str):
    flow = Flow("raised")
    flow.read(Generate(RAISED[raised], 5), name="numbers").rebalance().write(Collect(), name="sink")
    deployment = expand(flow.plan())
    services = FileServices("raised", None, lambda sink, name, records: None, run="5f3a")
    source = next(task for task in deployment.tasks.values() if task.is_source)
    runtime = TaskRuntime(source, deployment, services)
    runtime.open(None)
    with pytest.raises(UserFunctionError, match=rf"operator 'numbers' raised {raised} in make\(2\)"):
        runtime.produce(5, now_ms=0)


def test_a_process_that_is_told_to_end_ends():
    def told(record: Any) -> Any:
        # What Ray's handler of SIGTERM raises, wherever the process is.
        error = SystemExit(1)
        error.ray_terminate_msg = "the process receives a SIGTERM"  # type: ignore[attr-defined]
        raise error

    for options in ({}, {"on_error": "dead_letter"}):
        for kind in ("map", "process", "stateful_map"):
            with pytest.raises(SystemExit):
                Tasks(flow_of(STEPS[kind], told, **options)).feed("op", [1])

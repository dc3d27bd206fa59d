"""The pages about what a flow is made of name all of it, and their examples give what they say."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import backedge
from backedge import Collect, Flow, Items, simulate
from backedge.engine.answering import in_event_loop
from backedge.engine.operators import process
from backedge.engine.operators.context import HookContext
from backedge.graphs.io import Sink, Source
from backedge.graphs.loop import Loop
from backedge.graphs.stream import KeyedStream, Stream

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {
    name: (DOCS / f"{name}.md").read_text() for name in ("operators", "loops", "columns", "calls", "sources_and_sinks")
}
WORDS = set(re.findall(r"\w+", " ".join(PAGES.values())))


def made_by_example(page: str, number: int = 0) -> dict[str, Any]:
    """The names that a Python example of a page defines."""
    made: dict[str, Any] = {"__name__": "__main__"}
    example = re.findall(r"```python\n(.*?)```", PAGES[page], flags=re.DOTALL)[number]
    exec(compile(example, f"{page}.md", "exec"), made)
    return made


def public(kind: type[Any]) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


@pytest.mark.parametrize("kind", [Stream, KeyedStream, Loop])
def test_every_operator_is_named(kind: type[Any]):
    assert public(kind) - {"draft", "tails"} - WORDS == set()


def test_all_that_a_hook_may_use_is_named():
    assert set(re.findall(r"`([a-z_]+)\b", inspect.getdoc(HookContext) or "")) - {"late"} - WORDS == set()


def test_every_way_to_begin_is_named():
    assert {"read", "loop", "iterate", "process", "vertex_program", "constant"} <= public(Flow) & WORDS


def test_every_source_and_sink_is_named():
    classes = inspect.getmembers(backedge, inspect.isclass)
    known = {name for name, kind in classes if issubclass(kind, Source | Sink)}
    assert {"Items", "Parquet", "Collect"} <= known
    assert known - {"Source", "Sink", "DeliverySink"} - WORDS == set()


def test_every_hook_is_named():
    hooks = set(re.findall(r"\b([a-z_]+)\((?:ctx|state|\)|states)", process.__doc__ or ""))
    assert {"on_start", "on_timer", "close"} <= hooks
    assert hooks - WORDS == set()


@pytest.mark.slow
def test_the_free_loop_gives_what_the_page_says():
    outputs = simulate(made_by_example("loops")["flow"], seeds=range(40), crashes=1).outputs
    assert {sink: sorted(order["id"] for order in outputs[sink]) for sink in ("done", "given_up")} == {
        "done": [1, 2],
        "given_up": [3],
    }


def test_the_rounds_give_what_the_page_says():
    outputs = simulate(made_by_example("loops", 1)["flow"], seeds=range(10), crashes=1).outputs
    assert sorted(outputs["halved"]) == [1.0, 1.5]


def test_the_calls_give_what_the_page_says():
    outputs = simulate(made_by_example("calls")["flow"], seeds=range(5), crashes=1).outputs
    assert {question["text"] for question in outputs["answers"]} == {"why", "how long"}
    assert [question["tries"] for question in outputs["given_up"]] == [4]
    assert outputs["failed"] == []


def test_the_client_of_the_page_fetches_pages():
    """From a server on loopback, in runs that crash."""

    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(text=f"page {request.path}", status=404 if request.path == "/b" else 200)

    async def serve() -> tuple[web.ServerRunner, str]:
        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"

    runner, address = in_event_loop(serve()).result()
    try:
        flow = made_by_example("calls", 1)["pages"]([f"{address}/a", f"{address}/b", "http://127.0.0.1:1/"])
        outputs = simulate(flow, seeds=range(5), crashes=1).outputs
    finally:
        in_event_loop(runner.cleanup()).result()
    assert sorted((page["status"], page["text"]) for page in outputs["pages"]) == [(200, "page /a"), (404, "page /b")]
    assert outputs["failed"] == ["http://127.0.0.1:1/"]


def test_the_class_of_the_page_takes_its_argument():
    flow = Flow("polite")
    words = flow.read(Items(["a"] * 4)).key_by(len)
    words.process(made_by_example("operators")["Polite"], every=2).write(Collect(), name="asked")
    assert simulate(flow, seeds=range(5)).outputs["asked"] == ["please, a"] * 2


def test_the_constants_give_what_the_page_says():
    outputs = simulate(made_by_example("operators", 1)["flow"], seeds=range(5), crashes=1).outputs
    assert sorted(outputs["by class"]) == sorted(outputs["by function"]) == [3, 8]


@pytest.mark.slow
def test_the_class_on_columns_gives_the_totals_that_the_page_says():
    result = simulate(made_by_example("columns")["flow"], seeds=range(20), parallelism=(1, 2))
    assert [row["total"] for row in sorted(result.outputs["sums"], key=lambda row: row["id"])] == [18, 12, 15]
    assert result.crashes
    assert result.rescaled


@pytest.mark.slow
def test_the_vertex_program_gives_the_lengths_that_the_page_says():
    result = simulate(made_by_example("columns", 1)["flow"], seeds=range(10), parallelism=(1, 2))
    assert {row["vertex"]: row["length"] for row in result.outputs["lengths"]} == {1: 0, 2: 3, 3: 1, 4: 4}


@pytest.mark.slow
def test_the_changing_graph_gives_the_differences_that_the_page_says():
    result = simulate(made_by_example("columns", 2)["flow"], seeds=range(10), parallelism=(1, 2))
    found = {(row["version"], row["vertex"]): row["lowest"] for row in result.outputs["differences"]}
    assert found == {(0, 1): 1, (0, 2): 1, (0, 3): 1, (0, 4): 1, (1, 2): 2, (1, 3): 2, (1, 4): 2}

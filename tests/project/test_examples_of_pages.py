"""The examples of the pages about what a flow is made of give what the pages say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from backedge import Collect, Flow, Items, simulate
from backedge.engine.on_ray import cluster
from backedge.engine.operators.async_calls import in_event_loop
from tests.callees.chat_server import Answer, ChatServer, says

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {
    name: (DOCS / f"{name}.md").read_text()
    for name in ("operators", "loops", "parts", "columns", "calls", "sources_and_sinks", "training")
}


def made_by_example(page: str, number: int = 0) -> dict[str, Any]:
    """The names that a Python example of a page defines."""
    made: dict[str, Any] = {"__name__": "__main__"}
    example = re.findall(r"```python\n(.*?)```", PAGES[page], flags=re.DOTALL)[number]
    exec(compile(example, f"{page}.md", "exec"), made)
    return made


@pytest.mark.slow
def test_the_free_loop_gives_what_the_page_says():
    outputs = simulate(made_by_example("loops")["flow"], seeds=range(6), crashes=1).outputs
    assert {sink: sorted(order["id"] for order in outputs[sink]) for sink in ("done", "given_up")} == {
        "done": [1, 2],
        "given_up": [3],
    }


def test_the_rounds_give_what_the_page_says():
    outputs = simulate(made_by_example("loops", 1)["flow"], seeds=range(2), crashes=1).outputs
    assert sorted(outputs["halved"]) == [1.0, 1.5]


@pytest.mark.slow
def test_the_parts_give_what_the_page_says():
    outputs = simulate(made_by_example("parts")["flow"], seeds=range(2), crashes=1).outputs
    assert sorted(outputs["pages"]) == ["/", "/a", "/b", "/c"]
    outputs = simulate(made_by_example("parts", 1)["flow"], seeds=range(2), crashes=1).outputs
    assert sorted(page["path"] for page in outputs["pages"]) == ["/0", "/0", "/2", "/2"]
    outputs = simulate(made_by_example("parts", 2)["flow"], seeds=range(2), crashes=1).outputs
    assert outputs["answers"] == [3]
    counting = simulate(made_by_example("parts", 3)["flow"], seeds=range(2), crashes=1).outputs
    assert counting["sizes_of_pages"] == [6, 11]
    assert outputs["given_up"] == [{"record": {"text": "never"}, "tries": 3, "error": "ConnectionError: refused"}]


@pytest.mark.slow
def test_the_training_gives_what_the_page_says():
    async def sample(weights: float, prompt: str) -> float:
        return weights + len(prompt)

    def learned(weights: float, group: list[dict[str, Any]]) -> float:
        assert len(group) == 4
        return weights + sum(one["reward"] for one in group) / len(group)

    training = made_by_example("training")["training"]
    flow = training(["a", "bc"], sample, reward=float, learn=learned, start=0.0)
    used = simulate(
        flow, seeds=range(6), crashes=2, check_outputs=False, check=lambda outputs: len(outputs["used"]) == 2
    )
    assert sorted(one["version"] for one in used.outputs["used"]) == [1, 2]


SITE = {"http://a/": ["x", "http://b/", "gone"], "http://a/x": ["/"], "http://b/": ["y"], "http://b/y": ["z"]}


@pytest.mark.slow
def test_the_crawler_of_the_page_crawls():
    """A page that is not there is tried four times, and counts as done for its host."""

    async def fetch(page: dict[str, str]) -> dict[str, Any]:
        if page["url"] == "http://a/gone":
            raise ConnectionError("refused")
        return {**page, "links": SITE.get(page["url"], ["deeper"])}

    flow = made_by_example("parts", 4)["crawler"](["http://a/"], fetch, delay=0.05)
    outputs = simulate(flow, seeds=range(3)).outputs
    assert {page["url"] for page in outputs["pages"]} == {*SITE, "http://b/z"} and len(outputs["pages"]) == 5
    assert outputs["not_fetched"] == [{"url": "http://a/gone"}]
    assert {page["url"] for page in outputs["too_deep"]} == {"http://b/deeper"}


def test_the_calls_give_what_the_page_says():
    outputs = simulate(made_by_example("calls")["flow"], seeds=range(2), crashes=1).outputs
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
        outputs = simulate(flow, seeds=range(2), crashes=1).outputs
    finally:
        in_event_loop(runner.cleanup()).result()
    assert sorted((page["status"], page["text"]) for page in outputs["pages"]) == [(200, "page /a"), (404, "page /b")]
    assert outputs["failed"] == ["http://127.0.0.1:1/"]


def test_the_function_of_the_page_is_tried_again():
    made = made_by_example("calls", 3)
    assert sorted(simulate(made["flow"], seeds=[]).outputs["answers"]) == [3, 5]
    assert set(made["TRIES"].values()) == {2}


def test_the_chat_of_the_page_asks_a_model():
    with ChatServer(says("because", usage={"completion_tokens": 3}), Answer("no more", 400)).serving() as server:
        outputs = simulate(made_by_example("calls", 4)["answered"](server.url, ["why", "how"]), seeds=[]).outputs
    ((answer,), (refused,)) = outputs["answers"], outputs["refused"]
    assert (answer["answer"], answer["tokens"]) == ("because", 3)
    assert {answer["question"], refused} == {"why", "how"}


def test_the_pool_of_the_page_generates(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster, "is_connected", lambda: False)
    outputs = simulate(made_by_example("calls", 5)["flow"], seeds=range(2), crashes=1).outputs
    assert sorted(outputs["texts"]) == ["HOW!!", "WHY!!"]


def test_the_class_of_the_page_takes_its_argument():
    flow = Flow("polite")
    words = flow.read(Items(["a"] * 4)).key_by(len)
    words.process(made_by_example("operators")["Polite"], every=2).write(Collect(), name="asked")
    assert simulate(flow, seeds=range(5)).outputs["asked"] == ["please, a"] * 2


def test_the_constants_give_what_the_page_says():
    outputs = simulate(made_by_example("operators", 1)["flow"], seeds=range(5), crashes=1).outputs
    assert sorted(outputs["by class"]) == sorted(outputs["by function"]) == [3, 8]


def test_the_resource_gives_what_the_page_says():
    assert simulate(made_by_example("operators", 2)["flow"], seeds=range(5)).outputs == {"named": ["APPLE"]}


def test_the_versions_give_what_the_page_says():
    outputs = simulate(made_by_example("operators", 3)["flow"], seeds=range(5), crashes=1).outputs
    assert sorted(outputs["played"]) == sorted([(1, 3.0), (2, 12.0), (3, 48.0)] * 2)


@pytest.mark.slow
def test_the_class_on_columns_gives_the_totals_that_the_page_says():
    result = simulate(made_by_example("columns")["flow"], seeds=range(6), parallelism=(1, 2))
    assert [row["total"] for row in sorted(result.outputs["sums"], key=lambda row: row["id"])] == [18, 12, 15]
    assert result.crashes
    assert result.rescaled


@pytest.mark.slow
def test_the_vertex_program_gives_the_lengths_that_the_page_says():
    result = simulate(made_by_example("columns", 1)["flow"], seeds=range(4), parallelism=(1, 2))
    assert {row["vertex"]: row["length"] for row in result.outputs["lengths"]} == {1: 0, 2: 3, 3: 1, 4: 4}


@pytest.mark.slow
def test_the_changing_graph_gives_the_differences_that_the_page_says():
    result = simulate(made_by_example("columns", 2)["flow"], seeds=range(4), parallelism=(1, 2))
    found = {(row["version"], row["vertex"]): row["lowest"] for row in result.outputs["differences"]}
    assert found == {(0, 1): 1, (0, 2): 1, (0, 3): 1, (0, 4): 1, (1, 2): 2, (1, 3): 2, (1, 4): 2}

"""What a notebook does with flows and runs, without one: it shows HTML, and its cells run inside an event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from xml.etree import ElementTree

import pytest

from backedge import Collect, Flow, Items, Job, RunResult, start

SVG = "{http://www.w3.org/2000/svg}"


def retries() -> Flow:
    flow = Flow("retries")
    again = flow.loop("again", max_rounds=5)
    tried = flow.read(Items([1, 2]), name="orders").merge(again).map(lambda n: n + 1, name="attempts & more")
    done, failed = tried.split(lambda n: n > 3, name="ok")
    again.feed(failed)
    done.write(Collect(), name="done")
    return flow


def test_a_flow_draws_itself_with_its_loop_below():
    picture = ElementTree.fromstring(retries()._repr_html_())
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert {"orders", "attempts & more", "ok", "done", "again", "true"} <= set(texts)
    (back,) = (path for path in picture.iter(f"{SVG}path") if path.get("stroke") == "#d9480f")
    lane = float((back.get("d") or "").partition("V")[2].partition("H")[0])
    boxes = [float(box.get("y") or 0) + float(box.get("height") or 0) for box in picture.iter(f"{SVG}rect")]
    assert lane > max(boxes)


def test_operators_do_not_lie_on_each_other_and_edges_pass_none():
    flow = Flow("wide")
    first = flow.read(Items([1]), name="a")
    second = first.map(abs, name="b").map(abs, name="c")
    first.merge(second).write(Collect(), name="d")
    picture = ElementTree.fromstring(flow._repr_html_())
    corners = [(box.get("x"), box.get("y")) for box in picture.iter(f"{SVG}rect")]
    assert len(set(corners)) == len(corners) == 4
    assert len({y for _, y in corners}) == 1, "the edge from a to d takes a row of its own"
    passing = [path.get("d") or "" for path in picture.iter(f"{SVG}path") if (path.get("d") or "").count("C") == 3]
    assert len(passing) == 1


def test_an_unfinished_flow_says_what_is_missing():
    flow = Flow("open")
    flow.read(Items([1])).merge(flow.loop("forgotten")).write(Collect())
    assert "&#x27;forgotten&#x27; is never fed" in flow._repr_html_()


def result(**changed: object) -> RunResult:
    facts = dict.fromkeys(("records", "hops", "snapshots", "snapshots_with_log"), 1_200) | {"last_epoch": 3}
    ended = {"kills": (), "restores": (), "missed_faults": (), "seconds": 1.25, "outputs": {"done": ["<b>", 2]}}
    return RunResult(job="retries", state="finished", **{**facts, **ended, **changed})


def test_a_result_is_a_table_of_its_output():
    shown = result(outputs={"done": ["<b>", "x" * 999, *range(100)]})._repr_html_()
    assert "1,200 records" in shown and "&lt;b&gt;" in shown and "<td>102</td>" in shown
    assert len(shown) < 600, "long records are shortened, and few are shown"


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_a_cell_runs_a_flow_inside_its_event_loop(tmp_path: Path):
    async def ask(n: int) -> int:
        await asyncio.sleep(0)
        return n + 1

    flow = Flow("cell")
    flow.read(Items([1, 2])).map_async(ask, name="ask").write(Collect(), name="done")

    async def cell() -> tuple[RunResult, Job, str]:
        job = start(flow, snapshots=tmp_path, progress=False)
        running = job._repr_html_()
        return job.wait(), job, running

    found, job, running = asyncio.run(cell())
    assert sorted(found.outputs["done"]) == [2, 3]
    assert "cell: " in running and "<th>task</th>" in running
    assert "cell: finished" in job._repr_html_()

